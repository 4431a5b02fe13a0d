"""Static vectors: a word has one, whatever stands around it. What word2vec, GloVe and fastText share: the model, its text and its training's end.

They are not trained by the loop of the others, and have neither loss nor bits per byte to compare.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lineage.config.records import check_positive
from lineage.models.base import Encoder, empty_embedding
from lineage.models.batch import Batch, masked_mean
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

MAX_SENTENCE_WORDS = 10_000  # words of a sentence: gensim leaves out what is beyond, in silence
NUM_RARE_WORDS_FOR_UNKNOWN = 100  # the mean of this many of the rarest words stands for an unknown one, as in GloVe's own files


@dataclass(frozen=True)
class StaticConfig:
    """The block `model`. There is no body whose width could be solved for: take about that of the other families' outputs."""

    hidden_size: int

    def __post_init__(self) -> None:
        check_positive(self, "hidden_size")


class StaticVectors(Encoder):
    """One table."""

    def __init__(self, config: StaticConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.words = empty_embedding(vocab_size, config.hidden_size)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The one layer, (B, T, D)."""
        return (self.words(batch.ids_BT),)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The mean of the text's words."""
        return masked_mean(
            layers[-1], batch.mask_BT if batch.text_mask_BT is None else batch.text_mask_BT
        )

    def modules_by_role(self) -> dict[str, nn.Module]:
        """A table, and no body."""
        return {"embedding": self.words, "body": nn.ModuleList()}

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables."""
        return [[*self.parameters()]]

    def init_weights(self, generator: torch.Generator) -> None:
        """Uniform, as in word2vec's own code."""
        bound = 0.5 / self.config.hidden_size
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        """D, of the one layer."""
        return (self.config.hidden_size,)

    @torch.no_grad()
    def load_vectors(self, vectors_WD: np.ndarray) -> None:
        """Take over the vectors of the vocabulary's words, in its order after the marks; an unknown word gets the mean of the rarest."""
        num_special_tokens = len(SPECIAL_TOKENS["word"])
        self.words.weight[num_special_tokens:] = torch.from_numpy(
            np.ascontiguousarray(vectors_WD, np.float32)
        )
        self.words.weight[SPECIAL_TOKENS["word"].index("<unk>")] = self.words.weight[
            max(num_special_tokens, len(self.words.weight) - NUM_RARE_WORDS_FOR_UNKNOWN) :
        ].mean(0)


@dataclass(frozen=True)
class StaticTrainingText:
    """The words that a static family reads within its budget: documents of sentences of ids, without marks and without words out of vocabulary."""

    documents: list[list[np.ndarray]]
    text_bytes: int
    tokens: int
    epochs: float

    def iterate_sentences(
        self, report_progress: Callable[[float, str], None]
    ) -> Iterator[np.ndarray]:
        """Every sentence once, in order."""
        for number, document in enumerate(self.documents):
            report_progress(number / len(self.documents), "")
            yield from document


def sample_training_text(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, *, seed: int, text_bytes: int
) -> StaticTrainingText:
    """Documents in a new order each pass, until `text_bytes` are read; the last sentence may pass it."""
    num_special_tokens = len(SPECIAL_TOKENS["word"])
    documents: list[list[np.ndarray]] = []
    bytes_read = words = epoch = 0
    while bytes_read < text_bytes:
        for number in generator("static", seed, epoch).permutation(len(tokens.document_starts) - 1):
            first, last = tokens.document_starts[number], tokens.document_starts[number + 1]
            starts = tokens.sentence_starts[
                np.searchsorted(tokens.sentence_starts, first) : np.searchsorted(
                    tokens.sentence_starts, last
                )
            ]
            document = []
            for a, b in zip(starts, [*starts[1:], last], strict=True):
                if bytes_read >= text_bytes:
                    break
                ids = tokens.ids[a:b]
                bytes_read += int(tokens.byte_counts[a:b].sum(dtype=np.int64))
                words += int((ids >= num_special_tokens).sum())
                known = np.asarray(ids[(ids >= num_special_tokens) & (ids < tokenizer.vocab_size)])
                document += [
                    known[i : i + MAX_SENTENCE_WORDS]
                    for i in range(0, max(1, len(known)), MAX_SENTENCE_WORDS)
                ]
            documents.append(document)
            if bytes_read >= text_bytes:
                break
        epoch += 1
    return StaticTrainingText(documents, bytes_read, words, bytes_read / tokens.text_bytes)


def vocab_words(tokenizer: Tokenizer) -> list[str]:
    """The words of the vocabulary in order of their ids, marks left out."""
    vocab: dict[str, int] = tokenizer.backend_tokenizer.get_vocab()
    return sorted(vocab, key=lambda word: vocab[word])[len(SPECIAL_TOKENS["word"]) :]


def count_word_frequencies(text: StaticTrainingText, words: list[str]) -> dict[str, int]:
    """How often each word of the vocabulary stands in the text; at least once, so that all have a vector."""
    ids = np.concatenate(
        [sentence for document in text.documents for sentence in document]
        or [np.zeros(0, np.int64)]
    )
    counts = np.bincount(ids, minlength=len(words) + len(SPECIAL_TOKENS["word"]))[
        len(SPECIAL_TOKENS["word"]) :
    ]
    return {word: max(1, int(count)) for word, count in zip(words, counts, strict=True)}
