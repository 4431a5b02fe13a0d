"""Static vectors: each word has one, whatever its context.

Word2vec, GloVe and fastText are trained outside the shared loop, without bits per byte.

Shapes: B items, T positions, D units, W words of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lineage.config.records import check_positive
from lineage.networks.base import Encoder, empty_embedding
from lineage.networks.batch import Batch, masked_mean
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

# Special tokens come first in the vocabulary, and the words after them.
NUM_SPECIAL_TOKENS = len(SPECIAL_TOKENS["word"])
UNK_ID = SPECIAL_TOKENS["word"].index("<unk>")
MAX_SENTENCE_WORDS = 10_000  # gensim silently drops words beyond it
# The vector of an unknown word is the mean of this many of the rarest words, as in GloVe's files.
NUM_RARE_WORDS_FOR_UNKNOWN = 100


@dataclass(frozen=True)
class StaticConfig:
    """The block `architecture`.

    There is no body whose width follows from the parameter budget; choose `hidden_size` about as
    large as the other families' outputs.
    """

    hidden_size: int

    def __post_init__(self) -> None:
        check_positive(self, "hidden_size")


class StaticVectors(Encoder):
    """A table of words."""

    def __init__(self, config: StaticConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.words = empty_embedding(vocab_size, config.hidden_size)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        return (self.words(batch.ids_BT),)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        mask_BT = batch.mask_BT if batch.text_mask_BT is None else batch.text_mask_BT
        return masked_mean(layers[-1], mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        return {"embedding": self.words, "body": nn.ModuleList()}

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize uniformly within 1 / (2 D), as the code of word2vec does."""
        bound = 0.5 / self.config.hidden_size
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        return (self.config.hidden_size,)

    @torch.no_grad()
    def load_vectors(self, vectors_WD: np.ndarray) -> None:
        """Set the words' vectors, in the vocabulary's order."""
        weight = self.words.weight
        weight[NUM_SPECIAL_TOKENS:] = torch.from_numpy(np.ascontiguousarray(vectors_WD, np.float32))
        first_rare = max(NUM_SPECIAL_TOKENS, len(weight) - NUM_RARE_WORDS_FOR_UNKNOWN)
        weight[UNK_ID] = weight[first_rare:].mean(0)


@dataclass(frozen=True)
class StaticTrainingText:
    """The words that a static family reads within its budget: documents of sentences of ids."""

    documents: list[list[np.ndarray]]
    text_bytes: int
    tokens: int
    epochs: float


def sample_training_text(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, *, seed: int, text_bytes: int
) -> StaticTrainingText:
    """Read documents, in a new order in each epoch, until `text_bytes` are read."""
    documents: list[list[np.ndarray]] = []
    bytes_read = 0
    num_words = 0
    epoch = 0
    while bytes_read < text_bytes:
        order = generator("static", seed, epoch).permutation(len(tokens.document_starts) - 1)
        for number in order:
            document = []
            for start, end in _sentence_bounds(tokens, number):
                if bytes_read >= text_bytes:
                    break
                ids = tokens.ids[start:end]
                bytes_read += int(tokens.byte_counts[start:end].sum(dtype=np.int64))
                is_word = ids >= NUM_SPECIAL_TOKENS
                num_words += int(is_word.sum())
                known = np.asarray(ids[is_word & (ids < tokenizer.vocab_size)])
                # A sentence without known words stays, as an empty one.
                starts = range(0, max(1, len(known)), MAX_SENTENCE_WORDS)
                document += [known[i : i + MAX_SENTENCE_WORDS] for i in starts]
            documents.append(document)
            if bytes_read >= text_bytes:
                break
        epoch += 1
    epochs = bytes_read / tokens.text_bytes
    return StaticTrainingText(documents, text_bytes=bytes_read, tokens=num_words, epochs=epochs)


def _sentence_bounds(tokens: TokenizedCorpus, document: int) -> Iterator[tuple[int, int]]:
    document_start = tokens.document_starts[document]
    document_end = tokens.document_starts[document + 1]
    first = np.searchsorted(tokens.sentence_starts, document_start)
    last = np.searchsorted(tokens.sentence_starts, document_end)
    starts = tokens.sentence_starts[first:last]
    return zip(starts, [*starts[1:], document_end], strict=True)


def vocab_words(tokenizer: Tokenizer) -> list[str]:
    """Return the words of the vocabulary in the order of their ids, without special tokens."""
    vocab: dict[str, int] = tokenizer.backend_tokenizer.get_vocab()
    return sorted(vocab, key=lambda word: vocab[word])[NUM_SPECIAL_TOKENS:]


def count_word_frequencies(text: StaticTrainingText, words: list[str]) -> dict[str, int]:
    """Count each word of the vocabulary in the text; at least 1, so that all get a vector."""
    sentences = [sentence for document in text.documents for sentence in document]
    ids = np.concatenate(sentences or [np.zeros(0, np.int64)])
    counts = np.bincount(ids, minlength=NUM_SPECIAL_TOKENS + len(words))[NUM_SPECIAL_TOKENS:]
    return {word: max(1, int(count)) for word, count in zip(words, counts, strict=True)}
