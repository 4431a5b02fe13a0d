"""Contributions of test items to F1 or Matthews correlation, as the intervals need them.

Such a score is no mean over items. Its derivative splits it into contributions of items.
The predictions hold contributions too (`lineage.answers.metrics`). But where a rare class has no
mistakes, or no hits, those hardly vary, and intervals are too short. So the derivative is taken
here where each class has half an item more that is right, and half an item that is wrong (Agresti
and Coull 1998), and the range that the contribution of one more item could have is known.
The mean of the contributions is the score.
Shapes: N items, L labels; a row of a matrix is a label, and a column a prediction.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from lineage.answers.spans import count_spans

Scores = npt.NDArray[np.float64]
PSEUDO_ITEMS = 0.5  # that are right, of each class, and as many that are wrong
ItemRange = tuple[float, float]  # the lowest and the highest contribution of one more item


def split_score(metric: str, items: pd.DataFrame) -> tuple[Scores, ItemRange] | None:
    """Return the (N,) contributions to a score and their range; None if the stored ones will do.

    `items` has labels, predictions, and stored contributions, whose mean is the score. With folds
    these are of several scores, whose mean is kept.
    """
    split = SPLITS.get(metric)
    if split is None or len(items) < 2:
        return None
    slopes_N, extremes = split(items["label"].to_numpy(), items["prediction"].to_numpy())
    shift = float(items["correct"].mean()) - len(items) * slopes_N.mean()
    lowest, highest = len(items) * extremes + shift
    return len(items) * slopes_N + shift, (float(lowest), float(highest))


def _split_confusions(
    slopes_of: Callable[[Scores], Scores], labels_N: npt.ArrayLike, predictions_N: npt.ArrayLike
) -> tuple[Scores, Scores]:
    """Return the derivative at each item, and at the worst and the best item."""
    both = np.concatenate([np.asarray(labels_N, object), np.asarray(predictions_N, object)])
    codes, names = pd.factorize(both)
    rows_N, columns_N = codes.reshape(2, -1)
    num_labels = max(len(names), 2)
    counts_LL = np.full((num_labels, num_labels), PSEUDO_ITEMS / (num_labels - 1))
    np.fill_diagonal(counts_LL, PSEUDO_ITEMS)
    np.add.at(counts_LL, (rows_N, columns_N), 1.0)
    slopes_LL = slopes_of(counts_LL)
    return slopes_LL[rows_N, columns_N], np.array([slopes_LL.min(), slopes_LL.max()])


def macro_f1_slopes(counts_LL: Scores) -> Scores:
    """Return the derivative of the mean F1 by each count; every class has some."""
    both_L = counts_LL.sum(axis=0) + counts_LL.sum(axis=1)
    f1_L = 2 * counts_LL.diagonal() / both_L
    lost_L = f1_L / both_L
    slopes_LL: Scores = np.diag(2 / both_L) - lost_L[:, None] - lost_L[None, :]
    return slopes_LL / len(both_L)


def matthews_slopes(counts_LL: Scores) -> Scores:
    """Return the derivative of Matthews correlation (Gorodkin 2004) by each count."""
    labels_L = counts_LL.sum(axis=1)
    predictions_L = counts_LL.sum(axis=0)
    total = counts_LL.sum()
    right = counts_LL.trace()
    label_spread = total**2 - labels_L @ labels_L
    prediction_spread = total**2 - predictions_L @ predictions_L
    covariance = right * total - labels_L @ predictions_L
    covariance_slopes_LL = total * np.eye(len(labels_L)) + right
    covariance_slopes_LL -= predictions_L[:, None] + labels_L[None, :]
    relative_slopes_LL = (total - labels_L)[:, None] / label_spread
    relative_slopes_LL = relative_slopes_LL + (total - predictions_L)[None, :] / prediction_spread
    slopes_LL: Scores = covariance_slopes_LL - covariance * relative_slopes_LL
    return slopes_LL / np.sqrt(label_spread * prediction_spread)


def _split_span_f1(
    labels_N: npt.NDArray[np.object_], predictions_N: npt.NDArray[np.object_]
) -> tuple[Scores, Scores]:
    """Return the derivative at each item; the best one is a span that is found, the worst is not.

    The worst one is found with a wrong type or end, so that it is missed and false at once.
    """
    counts_N3 = np.array(count_spans(labels_N, predictions_N), np.float64)
    both_N = counts_N3[:, 1] + counts_N3[:, 2]
    both = both_N.sum() + 4 * PSEUDO_ITEMS
    f1 = 2 * (counts_N3[:, 0].sum() + PSEUDO_ITEMS) / both
    slopes_N: Scores = (2 * counts_N3[:, 0] - f1 * both_N) / both
    return slopes_N, np.array([-2 * f1, 2 - 2 * f1]) / both


Split = Callable[[npt.NDArray[np.object_], npt.NDArray[np.object_]], tuple[Scores, Scores]]
SPLITS: dict[str, Split] = {
    "macro_f1": partial(_split_confusions, macro_f1_slopes),
    "matthews": partial(_split_confusions, matthews_slopes),
    "span_f1": _split_span_f1,
}
