"""GloVe: vectors whose products give the logarithms of how often words stand together (Pennington et al. 2014).

As in the released program pairs are counted in the corpus read once, or in the part of it that the budget reads, however many passes the budget has;
training goes over the counts alone.
Shapes: V words, D width, R records (pairs of words that occur together); a leading 2 is word and context.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from lineage.config.records import check_positive
from lineage.models.base import Encoder, Family
from lineage.models.static import StaticConfig, StaticTrainingText, StaticVectors
from lineage.randomness import generator
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

GRADIENT_CLIP = 100.0  # of one gradient, as in the released program


@dataclass(frozen=True)
class GlovePretrainSettings:
    """The block `pretrain`."""

    window: int  # words on each side, within a document; a pair at distance k counts 1/k
    x_max: (
        float  # x_max, of counts in the text read once: pairs that are more frequent weigh no more
    )
    alpha: float  # alpha, of a count over the limit
    epochs: int  # over the counts, not over text
    learning_rate: float
    scale_bias_gradient: bool = False  # whether the rate is on the biases too: in the release of 2014 yes, in the program since 2019 no

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
        """Sums of squares begin at 1."""
        return cls(
            vectors_2VD.copy(), biases_2V.copy(), np.ones_like(vectors_2VD), np.ones_like(biases_2V)
        )

    def word_vectors(self) -> np.ndarray:
        """(V, D): a word's vectors as word and as context, added (section 4.2)."""
        return self.vectors_2VD.sum(0)


def count_cooccurrences(
    documents: Iterable[np.ndarray],
    *,
    vocab_size: int,
    window: int,
    symmetric: bool = True,
    by_distance: bool = True,
) -> sparse.csr_array:
    """(V, V) sums of 1/distance (or of 1) over the pairs within a window; row the left word. Symmetric: both ways, a word with itself twice."""
    total = sparse.csr_array((vocab_size, vocab_size))
    chunk: list[np.ndarray] = []

    def counted(some: list[np.ndarray]) -> sparse.csr_array:
        ids = np.concatenate(some).astype(np.int64)
        owner = np.repeat(np.arange(len(some)), [len(s) for s in some])
        rows, columns, values = [], [], []
        for k in range(1, min(window, len(ids) - 1) + 1):
            same = owner[:-k] == owner[k:]
            rows.append(ids[:-k][same])
            columns.append(ids[k:][same])
            values.append(np.full(int(same.sum()), 1.0 / k if by_distance else 1.0))
        if not rows:
            return sparse.csr_array((vocab_size, vocab_size))
        return sparse.csr_array(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
            shape=(vocab_size, vocab_size),
        )

    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size > 1_000_000:
            total, chunk, size = total + counted(chunk), [], 0
    total = total + counted(chunk) if chunk else total
    return total + total.T if symmetric else total


def adagrad_step(
    state: AdagradState,
    i: np.ndarray,
    j: np.ndarray,
    x: np.ndarray,
    settings: GlovePretrainSettings,
) -> float:
    """AdaGrad on records that have no word and no context in common, which is the same as on one after another. Gives the summed cost.

    As the released program does it: a gradient is divided by the root of the squares *before* it, and the rate is within the squares.
    """
    word, context = state.vectors_2VD[0, i], state.vectors_2VD[1, j]
    difference = (word * context).sum(1) + state.biases_2V[0, i] + state.biases_2V[1, j] - np.log(x)
    weighted = np.minimum(1.0, (x / settings.x_max) ** settings.alpha) * difference
    cost = float(0.5 * (weighted * difference).sum())
    bias = weighted * settings.learning_rate if settings.scale_bias_gradient else weighted
    for side, where, other in ((0, i, context), (1, j, word)):
        gradient = (
            np.clip(weighted[:, None] * other, -GRADIENT_CLIP, GRADIENT_CLIP)
            * settings.learning_rate
        )
        state.vectors_2VD[side, where] -= gradient / np.sqrt(
            state.squared_gradients_2VD[side, where]
        )
        state.squared_gradients_2VD[side, where] += gradient**2
        state.biases_2V[side, where] -= bias / np.sqrt(state.squared_bias_gradients_2V[side, where])
        state.squared_bias_gradients_2V[side, where] += bias**2
    return cost


def conflict_free_batches(
    counts: sparse.coo_array, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Every record once, in batches in which no word and no context comes twice: those whose shuffled row and column have one sum modulo V."""
    V = counts.shape[0]
    rows, columns = rng.permutation(V), rng.permutation(V)
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
    """Train the model's table, from its starting values; the contexts' vectors start at others."""
    assert isinstance(model, StaticVectors)
    marks, D = len(SPECIAL_TOKENS["word"]), model.config.hidden_size
    start = model.words.weight[marks:].detach().double().numpy()
    rng = generator("glove", seed)
    state = AdagradState.initial(
        np.stack([start, (rng.random(start.shape) - 0.5) / D]),
        (rng.random((2, len(start))) - 0.5) / D,
    )
    documents = (np.concatenate(document) - marks for document in text.documents if document)
    counts = count_cooccurrences(documents, vocab_size=len(start), window=settings.window).tocoo()
    for epoch in range(settings.epochs):
        cost = sum(
            adagrad_step(state, counts.row[some], counts.col[some], counts.data[some], settings)
            for some in conflict_free_batches(counts, rng)
        )
        report((epoch + 1) / settings.epochs, f"cost {cost / max(1, counts.nnz):.4f}")
    model.load_vectors(state.word_vectors())


FAMILY = Family(
    name="glove",
    input_unit="words",
    contextualizer="a table",
    direction="a window within the document, without order",
    objective_description="how often words stand together",
    transfer_description="one vector a word",
    tokenizer_type="word",
    architecture_class=StaticConfig,
    pretrain_class=GlovePretrainSettings,
    build=StaticVectors,
    fit_static=fit_static,
    uses_cooccurrence_counts=True,
)
