"""GloVe: vectors whose products fit the logarithms of co-occurrence counts.

Pennington et al. 2014. As in the released program, pairs are counted in the text read once, or in
the part of it that the budget covers; training then goes over the counts alone.

Shapes: V words, D units, R records (pairs of words that co-occur); a leading 2 is word and context.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from lineage.config.records import check_positive
from lineage.networks.base import Encoder, Static, finetune_defaults
from lineage.networks.static import (
    NUM_SPECIAL_TOKENS,
    StaticConfig,
    StaticTrainingText,
    StaticVectors,
)
from lineage.randomness import generator
from lineage.tokenizers.tokenizer import Tokenizer

GRADIENT_CLIP = 100.0  # of a single value, as in the released program
MAX_CHUNK_TOKENS = 1_000_000  # documents are counted together up to about this size


@dataclass(frozen=True)
class GlovePretrainSettings:
    """The block `pretrain`."""

    window: int  # words on each side, within a document; a pair at distance k counts 1/k
    x_max: float  # counts above it do not increase a pair's weight
    alpha: float  # exponent of count / x_max in a pair's weight
    epochs: int  # over the counts, not over the text
    learning_rate: float
    # Multiply the biases' gradients by the learning rate too: as in the release of 2014, but not
    # in the program since 2019.
    scale_bias_gradient: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "window", "x_max", "alpha", "epochs", "learning_rate")


@dataclass
class AdagradState:
    """Vectors and biases of words and contexts, and AdaGrad's sums of squared gradients."""

    vectors_2VD: np.ndarray
    biases_2V: np.ndarray
    squared_gradients_2VD: np.ndarray
    squared_bias_gradients_2V: np.ndarray

    @classmethod
    def initial(cls, vectors_2VD: np.ndarray, biases_2V: np.ndarray) -> "AdagradState":
        """Copy the initial values; the sums of squares start at 1."""
        return cls(
            vectors_2VD.copy(), biases_2V.copy(), np.ones_like(vectors_2VD), np.ones_like(biases_2V)
        )

    def word_vectors(self) -> np.ndarray:
        """Return (V, D): each word's vectors as word and as context, added (section 4.2)."""
        return self.vectors_2VD.sum(0)


def count_cooccurrences(
    documents: Iterable[np.ndarray], *, vocab_size: int, window: int
) -> sparse.csr_array:
    """Return (V, V) sums of 1/distance over the pairs within a window.

    The counts are symmetric; a word paired with itself counts twice.
    """
    total = sparse.csr_array((vocab_size, vocab_size))
    chunk: list[np.ndarray] = []
    chunk_tokens = 0
    for document in documents:
        chunk.append(document)
        chunk_tokens += len(document)
        if chunk_tokens > MAX_CHUNK_TOKENS:
            total = total + _count_chunk(chunk, vocab_size, window)
            chunk = []
            chunk_tokens = 0
    if chunk:
        total = total + _count_chunk(chunk, vocab_size, window)
    return total + total.T


def _count_chunk(documents: list[np.ndarray], vocab_size: int, window: int) -> sparse.csr_array:
    """Count each pair once; the row is the left word."""
    ids = np.concatenate(documents).astype(np.int64)
    document_of_token = np.repeat(np.arange(len(documents)), [len(d) for d in documents])
    rows = []
    columns = []
    values = []
    for distance in range(1, min(window, len(ids) - 1) + 1):
        same_document = document_of_token[:-distance] == document_of_token[distance:]
        rows.append(ids[:-distance][same_document])
        columns.append(ids[distance:][same_document])
        values.append(np.full(int(same_document.sum()), 1.0 / distance))
    if not rows:
        return sparse.csr_array((vocab_size, vocab_size))
    pairs = (np.concatenate(rows), np.concatenate(columns))
    return sparse.csr_array((np.concatenate(values), pairs), shape=(vocab_size, vocab_size))


def adagrad_step(
    state: AdagradState,
    i: np.ndarray,
    j: np.ndarray,
    x: np.ndarray,
    settings: GlovePretrainSettings,
) -> float:
    """Update on records (word i, context j, count x) and return the summed cost.

    No word and no context occurs twice, so that the result is that of one record after another.
    As in the released program, a gradient is divided by the root of the squares before it, and the
    learning rate is part of the squares.
    """
    word = state.vectors_2VD[0, i]
    context = state.vectors_2VD[1, j]
    difference = (word * context).sum(1) + state.biases_2V[0, i] + state.biases_2V[1, j] - np.log(x)
    weighted = np.minimum(1.0, (x / settings.x_max) ** settings.alpha) * difference
    cost = float(0.5 * (weighted * difference).sum())
    bias_gradient = weighted
    if settings.scale_bias_gradient:
        bias_gradient = weighted * settings.learning_rate
    for side, rows, other in ((0, i, context), (1, j, word)):
        clipped = np.clip(weighted[:, None] * other, -GRADIENT_CLIP, GRADIENT_CLIP)
        gradient = clipped * settings.learning_rate
        squares = state.squared_gradients_2VD[side, rows]
        state.vectors_2VD[side, rows] -= gradient / np.sqrt(squares)
        state.squared_gradients_2VD[side, rows] += gradient**2
        bias_squares = state.squared_bias_gradients_2V[side, rows]
        state.biases_2V[side, rows] -= bias_gradient / np.sqrt(bias_squares)
        state.squared_bias_gradients_2V[side, rows] += bias_gradient**2
    return cost


def conflict_free_batches(
    counts: sparse.coo_array, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield every record once, in batches in which no word and no context occurs twice.

    A batch holds the records whose shuffled row and column have the same sum modulo V.
    """
    V = counts.shape[0]
    rows = rng.permutation(V)
    columns = rng.permutation(V)
    color_R = (rows[counts.row] + columns[counts.col]) % V
    order = np.argsort(color_R, kind="stable")
    batches = np.split(order, np.flatnonzero(np.diff(color_R[order])) + 1)
    for number in rng.permutation(len(batches)):
        yield batches[number]


def fit_static(
    model: Encoder,
    text: StaticTrainingText,
    tokenizer: Tokenizer,
    settings: GlovePretrainSettings,
    *,
    seed: int,
    report: Callable[[float, str], None],
) -> None:
    assert isinstance(model, StaticVectors)
    D = model.config.hidden_size
    words_VD = model.words.weight[NUM_SPECIAL_TOKENS:].detach().double().numpy()
    rng = generator("glove", seed)
    contexts_VD = (rng.random(words_VD.shape) - 0.5) / D
    biases_2V = (rng.random((2, len(words_VD))) - 0.5) / D
    state = AdagradState.initial(np.stack([words_VD, contexts_VD]), biases_2V)
    documents = (
        np.concatenate(sentences) - NUM_SPECIAL_TOKENS for sentences in text.documents if sentences
    )
    counts = count_cooccurrences(
        documents, vocab_size=len(words_VD), window=settings.window
    ).tocoo()
    for epoch in range(settings.epochs):
        cost = 0.0
        for batch in conflict_free_batches(counts, rng):
            cost += adagrad_step(
                state, counts.row[batch], counts.col[batch], counts.data[batch], settings
            )
        report((epoch + 1) / settings.epochs, f"cost {cost / max(1, counts.nnz):.4f}")
    model.load_vectors(state.word_vectors())


FAMILY = Static(
    name="glove",
    tokenizer_type="word",
    architecture_class=StaticConfig,
    pretrain_class=GlovePretrainSettings,
    build=StaticVectors,
    fit_static=fit_static,
    uses_cooccurrence_counts=True,
    defaults={
        "architecture": {"hidden_size": 128},
        "pretrain": {
            "window": 10,
            "x_max": 100.0,
            "alpha": 0.75,
            "epochs": 15,
            "learning_rate": 0.05,
        },
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016)},
    },
)
