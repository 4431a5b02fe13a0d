"""Forecast the gain from more labels: a power law through the scores at several numbers.

Shapes: K numbers of labels, N items, B bootstrap samples.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lineage.analysis import statistics
from lineage.analysis.cells import ResultCell
from lineage.analysis.ranking import draw_means, mean_scores
from lineage.analysis.records import LabelForecast, Ranking
from lineage.randomness import generator

MIN_LABEL_COUNTS = 3
NUM_DRAWS = 2000
LineKey = tuple[str, str, str, str, str]
SMALLEST_ERROR = 1e-4  # a system without errors has no logarithm


def predict_doubled(
    label_counts_K: Sequence[int], scores_KB: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return (B,): how many points the score should rise from the largest number to its double.

    The error is a power of the number of labels (Hestness et al. 2017, section 2), fitted by least
    squares of the logarithms. An error that does not fall stays as it is.
    """
    log_counts_K = np.log(label_counts_K)
    log_errors_KB = np.log(np.maximum(1 - scores_KB, SMALLEST_ERROR))
    centred_K = log_counts_K - log_counts_K.mean()
    slopes_B = centred_K @ log_errors_KB / (centred_K @ centred_K)
    slopes_B = np.minimum(slopes_B, 0.0)
    log_last_B = log_errors_KB.mean(axis=0) + slopes_B * centred_K[-1]
    gains_B: npt.NDArray[np.float64] = np.exp(log_last_B) * (1 - 2.0**slopes_B)
    return gains_B


def forecast_labels(
    cells: Sequence[ResultCell], rankings: Sequence[Ranking]
) -> list[LabelForecast]:
    """Forecast what twice as many labels bring the models that are candidates.

    A forecast is for one system: a jump from one method to another says nothing about labels.
    Systems with fewer than three numbers of labels, and random-init baselines, have no forecast.
    The interval over items covers two fits, through all numbers of labels and through the last two,
    since the error may follow no power law.
    """
    candidates = {
        (ranking.task, standing.system.model)
        for ranking in rankings
        for standing in ranking.standings
    }
    largest: dict[str, int] = {}
    lines: dict[tuple[str, LineKey], dict[int, ResultCell]] = {}
    for cell in cells:
        if (cell.task, cell.system.model) not in candidates or not cell.item_scores:
            continue
        largest[cell.task] = max(largest.get(cell.task, 0), cell.train_examples)
        if cell.train_examples and cell.system.init != "random":
            line = lines.setdefault((cell.task, cell.system.line_key), {})
            line[cell.train_examples] = cell
    return [
        _forecast([line[count] for count in sorted(line)])
        for (task, _), line in lines.items()
        if len(line) >= MIN_LABEL_COUNTS and max(line) == largest[task]
    ]


def _forecast(line: Sequence[ResultCell]) -> LabelForecast:
    """Forecast for one model, whose cells are in the order of their numbers of labels."""
    last = line[-1]
    scores_KN = mean_scores(line)
    counts = [cell.train_examples for cell in line]
    (gain,) = predict_doubled(counts, scores_KN.mean(axis=1, keepdims=True))
    low, high = _forecast_interval(counts, scores_KN, last)
    return LabelForecast(
        task=last.task,
        system=last.system,
        label_counts=tuple(counts),
        scores=tuple(float(score) for score in scores_KN.mean(axis=1)),
        doubled=2 * counts[-1],
        gain=float(gain),
        gain_low=low,
        gain_high=high,
    )


def _forecast_interval(
    counts: Sequence[int], scores_KN: npt.NDArray[np.float64], cell: ResultCell
) -> tuple[float, float]:
    """Return the lowest and the highest edge of the intervals of both fits."""
    scores_KB = scores_KN.mean(axis=1, keepdims=True)
    if scores_KN.shape[1] > 1:
        rng = generator("label forecast", cell.task, cell.system.model)
        scores_KB = draw_means(scores_KN, rng, NUM_DRAWS).T
    tail = (1 - statistics.CONFIDENCE_LEVEL) / 2
    edges = []
    for first in (0, len(counts) - 2):
        gains_B = predict_doubled(counts[first:], scores_KB[first:])
        edges.append(np.quantile(gains_B, [tail, 1 - tail]))
    lows, highs = zip(*edges, strict=True)
    return float(min(lows)), float(max(highs))
