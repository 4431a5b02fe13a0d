"""Single words as points: what the cosines of a task's words say of its items, whoever made the vectors.

A model's vectors are centred first: those of a contextual model point nearly all in one direction, and their cosines would all be near 1
(Mu and Viswanath 2018; Ethayarajh 2019). Shapes: V distinct words of the task, N items, K words of an item, L layers, D width.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from lineage.errors import EvaluationError
from lineage.evaluation.metrics import accuracy, mean_spearman_by_group, spearman_contributions
from lineage.evaluation.predictions import can_report_groups

WORD_VECTOR_KINDS = ("word_similarity", "word_analogy")
KNOWN_COLUMN, LAYER_PREFIX = (
    "known",
    "layer ",
)  # columns beside those of the predictions: are all the item's words known; what each layer alone says
ANALOGY_BATCH_SIZE = 1024
UNKNOWN_WORDS_HINT = (
    "raise its tokenizer.vocab_size, or take a family that spells words, such as fasttext or elmo"
)
CENTERING_TOLERANCE = 1e-5  # a vector as near as this to the mean, in lengths of the mean, is the mean: a layer that has not read the word gives all of them alike
PredictionColumns = dict[str, np.ndarray]
AnswersAndScores = tuple[np.ndarray, np.ndarray]


def list_distinct_words(items: pd.DataFrame) -> list[str]:
    """The V words of the items, each once, in an order that does not depend on that of the items."""
    return sorted({str(word) for own in items["words"] for word in own})


def cosines_by_layer(
    vectors_VLD: np.ndarray, known_V: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Cosines (V, V) of the mean over layers, named none, and of each layer alone, named 0, 1, ..., each centred by the mean of the known words.

    The mean of centred layers is the centred mean of layers. Raises CellError where no word is known.
    """
    if not known_V.any():
        raise EvaluationError(f"the model knows none of the task's words; {UNKNOWN_WORDS_HINT}")
    for layer in (None, *range(vectors_VLD.shape[1])):
        x_VD = (
            vectors_VLD.mean(1, dtype=np.float64)
            if layer is None
            else vectors_VLD[:, layer].astype(np.float64)
        )
        mean_D = x_VD[known_V].mean(0)
        x_VD -= mean_D
        x_VD[np.linalg.norm(x_VD, axis=1) <= CENTERING_TOLERANCE * np.linalg.norm(mean_D)] = 0
        yield "none" if layer is None else str(layer), cosine_matrix(x_VD @ x_VD.T)


def cosine_matrix(products_VV: np.ndarray) -> np.ndarray:
    """(V, V) cosines of vectors from their products with one another; 0 where a vector has no length."""
    length_V = np.sqrt(np.diag(products_VV).clip(0))
    scale_V = np.divide(1.0, length_V, out=np.zeros_like(length_V), where=length_V > 0)
    return products_VV * (scale_V[:, None] * scale_V)


def answer_items(
    kind: str,
    items: pd.DataFrame,
    cosines_by_layer: Iterable[tuple[str, np.ndarray]],
    known_V: np.ndarray,
) -> PredictionColumns:
    """The columns of the predictions, from the cosines (V, V) named none, and for every other name what its cosines alone say.

    V in the order of `distinct_words`. Raises CellError where both words of no pair are known.
    """
    words = list_distinct_words(items)
    index_of_word = {word: number for number, word in enumerate(words)}
    word_index_NK = np.array([[index_of_word[str(word)] for word in own] for own in items["words"]])
    answer = _answer_similarities if kind == "word_similarity" else _answer_analogies
    columns: PredictionColumns = {}
    for name, cosines_VV in cosines_by_layer:
        answer_N, score_N = answer(np.array(words, object), word_index_NK, cosines_VV, known_V)
        columns |= (
            {"prediction": answer_N, "score": score_N}
            if name == "none"
            else {f"{LAYER_PREFIX}{name}": answer_N}
        )
    if kind == "word_analogy":
        label_N = np.array(words, object)[word_index_NK[:, 3]]
        correct_N = (label_N == columns["prediction"]).astype(float)
    else:
        label_N = np.array([repr(float(score)) for score in items["label"]], object)
        correct_N = _correlation_shares(items, columns["score"])
    return {
        "label": label_N,
        **columns,
        "correct": correct_N,
        KNOWN_COLUMN: known_V[word_index_NK].all(1),
    }


def compute_metric(kind: str, predictions: pd.DataFrame, *, column: str = "prediction") -> float:
    """The value of such columns, and group; of a layer's by the column `said`. Similarities: the mean over groups; no number where one has none."""
    labels, predicted = predictions["label"].to_numpy(object), predictions[column].to_numpy(object)
    return (
        mean_spearman_by_group(labels, predicted, predictions["group"].to_numpy(object))
        if kind == "word_similarity"
        else accuracy(labels, predicted)
    )


def unknown_words_note(kind: str, predictions: pd.DataFrame) -> str:
    """How many items have a word that the model does not know, and what became of them; nothing where there is none."""
    unknown = int((~predictions[KNOWN_COLUMN].astype(bool)).sum())
    done = (
        "each was given the mean cosine of the others"
        if kind == "word_similarity"
        else "none of them is right"
    )
    what = "pairs" if kind == "word_similarity" else "analogies"
    return (
        f"{unknown} of {len(predictions)} {what} have a word that the model does not know; {done}"
        if unknown
        else ""
    )


def _answer_similarities(
    words_V: np.ndarray, word_index_N2: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
) -> AnswersAndScores:
    """The cosine of every pair, as texts and as numbers; of a pair with an unknown word the mean of the others', which moves no rank among them."""
    known_N = known_V[word_index_N2].all(1)
    if not known_N.any():
        raise EvaluationError(f"the model knows both words of no pair; {UNKNOWN_WORDS_HINT}")
    cosine_N = cosines_VV[word_index_N2[:, 0], word_index_N2[:, 1]]
    cosine_N = np.where(known_N, cosine_N, cosine_N[known_N].mean())
    return np.array([repr(float(number)) for number in cosine_N], object), cosine_N


def _answer_analogies(
    words_V: np.ndarray, word_index_N4: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
) -> AnswersAndScores:
    """3CosAdd (Mikolov et al. 2013; Levy and Goldberg 2014, equation 2): of all known words but a, b and c the nearest to b - a + c.

    Vectors have length 1, so that this is the word of the highest cos(x, b) - cos(x, a) + cos(x, c); the score is that of the right one. Of equals
    the first in alphabetical order is taken. An item with an unknown word is answered with nothing.
    """
    answer_N, score_N = np.full(len(word_index_N4), "", object), np.full(len(word_index_N4), np.nan)
    known_items = np.flatnonzero(known_V[word_index_N4].all(1))
    for first in range(0, len(known_items), ANALOGY_BATCH_SIZE):
        some = known_items[first : first + ANALOGY_BATCH_SIZE]
        a, b, c, d = word_index_N4[some].T
        near_nV = cosines_VV[b] - cosines_VV[a] + cosines_VV[c]
        rows = np.arange(len(some))
        score_N[some] = near_nV[rows, d]
        near_nV[:, ~known_V] = -np.inf
        near_nV[rows[:, None], word_index_N4[some, :3]] = -np.inf
        answer_N[some] = words_V[near_nV.argmax(1)]
    return answer_N, score_N


def _correlation_shares(items: pd.DataFrame, cosine_N: np.ndarray) -> np.ndarray:
    """(N,) of which the mean is the mean over groups of the correlation; not numbers in a group that has none."""
    return spearman_contributions(
        items["label"].to_numpy(np.float64), cosine_N, items["group"].to_numpy(object)
    )


def missing_value_note(items: pd.DataFrame, column: str = "prediction") -> str:
    """Why there is no correlation: which groups have none, as where the model knows hardly any of their words."""
    constant_groups = [
        str(name)
        for name, own in items.groupby("group", sort=True)
        if len({float(one) for one in own[column]}) < 2
    ]
    groups = (
        f"group {', '.join(map(repr, constant_groups))}"
        if can_report_groups(items)
        else f"{len(constant_groups)} of its {items['group'].nunique()} groups"
    )
    return f"every pair of {groups} has the same cosine, as where hardly any of its words is known: no correlation exists"
