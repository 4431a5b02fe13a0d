"""Answer items of single words by the cosines of their vectors, from a model or from TF-IDF.

The vectors of a model are centered first. Those of a contextual model nearly all point in one
direction, so their cosines would all be near 1 (Mu and Viswanath 2018; Ethayarajh 2019).
Shapes: V distinct words of the task, N items, K words of an item, L layers, D width.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from lineage.errors import EvaluationError
from lineage.evaluation.predictions import PredictionColumns, can_report_groups
from lineage.results import Note
from lineage.tasks.base import UNKNOWN_WORDS_HINT, Kind

KNOWN_COLUMN = "known"  # of the predictions: the model knows all words of the item
LAYER_PREFIX = "layer "  # with a number: the column of the answers of that layer alone
# A vector within this distance of the mean, relative to the mean's length, counts as the mean: a
# layer that does not read the word itself gives all words the same vector.
CENTERING_TOLERANCE = 1e-5


def list_distinct_words(items: pd.DataFrame) -> list[str]:
    """Return the V words of the items, sorted, so that the order of the items does not matter."""
    return sorted({str(word) for words in items["words"] for word in words})


def cosines_by_layer(
    vectors_VLD: np.ndarray, known_V: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (V, V) cosines: of the mean over layers as `none`, then of each layer as 0, 1, ...

    Vectors are centered by the mean of the known words. The mean of centered layers is the centered
    mean of layers. Raises EvaluationError if no word is known.
    """
    if not known_V.any():
        raise EvaluationError(f"the model knows none of the task's words; {UNKNOWN_WORDS_HINT}")
    yield "none", _centered_cosines(vectors_VLD.mean(1, dtype=np.float64), known_V)
    for layer in range(vectors_VLD.shape[1]):
        yield str(layer), _centered_cosines(vectors_VLD[:, layer].astype(np.float64), known_V)


def _centered_cosines(x_VD: np.ndarray, known_V: np.ndarray) -> np.ndarray:
    """Return the (V, V) cosines of float64 vectors, which are centered in place."""
    mean_D = x_VD[known_V].mean(0)
    x_VD -= mean_D
    x_VD[np.linalg.norm(x_VD, axis=1) <= CENTERING_TOLERANCE * np.linalg.norm(mean_D)] = 0
    return cosine_matrix(x_VD @ x_VD.T)


def cosine_matrix(products_VV: np.ndarray) -> np.ndarray:
    """Return (V, V) cosines from the products of vectors; 0 where a vector has no length."""
    length_V = np.sqrt(np.diag(products_VV).clip(0))
    scale_V = np.divide(1.0, length_V, out=np.zeros_like(length_V), where=length_V > 0)
    return products_VV * (scale_V[:, None] * scale_V)


def answer_items(
    kind: Kind,
    items: pd.DataFrame,
    layer_cosines: Iterable[tuple[str, np.ndarray]],
    known_V: np.ndarray,
) -> PredictionColumns:
    """Return the columns of the predictions; `layer 0`, ... hold the answers of single layers.

    V is in the order of `list_distinct_words`. The cosines called `none` give the prediction.
    Raises EvaluationError if no item can be answered.
    """
    method = kind.word_vector_answer
    assert method is not None
    words = list_distinct_words(items)
    words_V = np.array(words, object)
    index_of_word = {word: index for index, word in enumerate(words)}
    word_index_NK = np.array(
        [[index_of_word[str(word)] for word in item_words] for item_words in items["words"]]
    )
    columns: PredictionColumns = {"label": method.labels(items)}
    for layer, cosines_VV in layer_cosines:
        answers_N, scores_N = method.answer(words_V, word_index_NK, cosines_VV, known_V)
        if layer == "none":
            columns["prediction"] = answers_N
            columns["score"] = scores_N
        else:
            columns[f"{LAYER_PREFIX}{layer}"] = answers_N
    columns["correct"] = method.contributions(items, columns["prediction"], columns["score"])
    columns[KNOWN_COLUMN] = known_V[word_index_NK].all(1)
    return columns


def unknown_words_note(kind: Kind, predictions: pd.DataFrame) -> Note | None:
    """Tell how many items have a word that the model does not know; None if none has one."""
    method = kind.word_vector_answer
    assert method is not None
    num_unknown = int((~predictions[KNOWN_COLUMN].astype(bool)).sum())
    if not num_unknown:
        return None
    return Note(
        "unknown_words",
        {
            "count": num_unknown,
            "of": len(predictions),
            "items": method.item_name,
            "effect": method.unknown_items,
        },
    )


def missing_value_note(items: pd.DataFrame, answer_column: str = "prediction") -> Note:
    """Name the groups without a correlation, such as those with hardly any word the model knows."""
    constant_groups = [
        str(name)
        for name, group_items in items.groupby("group", sort=True)
        if len({float(cosine) for cosine in group_items[answer_column]}) < 2
    ]
    if can_report_groups(items):
        return Note("constant_cosines", constant_groups)
    num_groups = items["group"].nunique()
    return Note("constant_cosines", {"count": len(constant_groups), "of": num_groups})
