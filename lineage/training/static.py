"""Static vectors: a word has one, whatever stands around it. What word2vec, GloVe and fastText share: the model, its text and its training's end.

They are not trained by the loop of the others, and have neither loss nor bits per byte to compare.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lineage.batch import Batch, mean_over
from lineage.family import Encoder, embedding
from lineage.randomness import generator
from lineage.records import positive
from lineage.text.tokenization import MARKS, Reader
from lineage.text.tokens import Tokens

LONGEST = 10_000  # words of a sentence: gensim leaves out what is beyond, in silence
RARE = 100  # the mean of this many of the rarest words stands for an unknown one, as in GloVe's own files


@dataclass(frozen=True)
class StaticConfig:
    """The block `model`. There is no body whose width could be solved for: take about that of the other families' outputs."""

    width: int

    def __post_init__(self) -> None:
        positive(self, "width")


class StaticVectors(Encoder):
    """One table."""

    def __init__(self, config: StaticConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.words = embedding(vocabulary, config.width)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The one layer, (B, T, D)."""
        return (self.words(batch.ids_BT),)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The mean of the text's words."""
        return mean_over(layers[-1], batch.mask_BT if batch.text_BT is None else batch.text_BT)

    def parts(self) -> dict[str, nn.Module]:
        """A table, and no body."""
        return {"embedding": self.words, "body": nn.ModuleList()}

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables."""
        return [[*self.parameters()]]

    def initialise(self, generator: torch.Generator) -> None:
        """Uniform, as in word2vec's own code."""
        bound = 0.5 / self.config.width
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def widths(self) -> tuple[int, ...]:
        """D, of the one layer."""
        return (self.config.width,)

    @torch.no_grad()
    def place(self, vectors_WD: np.ndarray) -> None:
        """Take over the vectors of the vocabulary's words, in its order after the marks; an unknown word gets the mean of the rarest."""
        marks = len(MARKS["word"])
        self.words.weight[marks:] = torch.from_numpy(np.ascontiguousarray(vectors_WD, np.float32))
        self.words.weight[MARKS["word"].index("<unk>")] = self.words.weight[max(marks, len(self.words.weight) - RARE) :].mean(0)


@dataclass(frozen=True)
class Text:
    """The words that a static family reads within its budget: documents of sentences of ids, without marks and without words out of vocabulary."""

    documents: list[list[np.ndarray]]
    text_bytes: int
    tokens: int
    passes: float

    def sentences(self, report: Callable[[float, str], None]) -> Iterator[np.ndarray]:
        """Every sentence once, in order."""
        for number, document in enumerate(self.documents):
            report(number / len(self.documents), "")
            yield from document


def read_text(tokens: Tokens, reader: Reader, *, seed: int, text_bytes: int) -> Text:
    """Documents in a new order each pass, until `text_bytes` are read; the last sentence may pass it."""
    marks = len(MARKS["word"])
    documents: list[list[np.ndarray]] = []
    size = words = passed = 0
    while size < text_bytes:
        for number in generator("static", seed, passed).permutation(len(tokens.documents) - 1):
            first, last = tokens.documents[number], tokens.documents[number + 1]
            starts = tokens.sentences[np.searchsorted(tokens.sentences, first) : np.searchsorted(tokens.sentences, last)]
            document = []
            for a, b in zip(starts, [*starts[1:], last], strict=True):
                if size >= text_bytes:
                    break
                ids = tokens.ids[a:b]
                size += int(tokens.bytes[a:b].sum(dtype=np.int64))
                words += int((ids >= marks).sum())
                known = np.asarray(ids[(ids >= marks) & (ids < reader.vocabulary)])
                document += [known[i : i + LONGEST] for i in range(0, max(1, len(known)), LONGEST)]
            documents.append(document)
            if size >= text_bytes:
                break
        passed += 1
    return Text(documents, size, words, size / tokens.text_bytes)


def vocabulary_words(reader: Reader) -> list[str]:
    """The words of the vocabulary in order of their ids, marks left out."""
    found: dict[str, int] = reader.tokenizer.get_vocab()
    return sorted(found, key=lambda word: found[word])[len(MARKS["word"]) :]


def frequencies(text: Text, words: list[str]) -> dict[str, int]:
    """How often each word of the vocabulary stands in the text; at least once, so that all have a vector."""
    ids = np.concatenate([sentence for document in text.documents for sentence in document] or [np.zeros(0, np.int64)])
    counts = np.bincount(ids, minlength=len(words) + len(MARKS["word"]))[len(MARKS["word"]) :]
    return {word: max(1, int(count)) for word, count in zip(words, counts, strict=True)}
