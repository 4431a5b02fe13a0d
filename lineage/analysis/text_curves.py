"""Scores over the text read: would more text help?

The points before the last are intermediate checkpoints of the same training, evaluated as the
model is: frozen, with the most labels, or without labels.
Shapes: K points, N items or groups of items.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lineage.analysis import statistics
from lineage.analysis.cells import (
    CellKey,
    ResultCell,
    SeedPair,
    add_predictions,
    read_predictions,
    system_key,
)
from lineage.analysis.comparisons import best_system
from lineage.analysis.contributions import ItemRange
from lineage.analysis.ranking import mean_scores
from lineage.analysis.records import PretrainingBudget, TextCurve, TextGain, group_by
from lineage.answers.metrics import max_difference
from lineage.config.params import Grid
from lineage.results import INTERMEDIATE_COLUMNS, INTERMEDIATE_TRIAL, PREDICTION_COLUMNS

HALF = 0.5
Points = dict[float, ResultCell]  # by share of the budget, ascending


@dataclass(frozen=True)
class TextPoints:
    """The cells of models at intermediate checkpoints of their training."""

    finals: tuple[ResultCell, ...]  # of those that have intermediate ones, at the end
    points: dict[CellKey, Points]  # by the key of the final cell
    read_bytes: dict[tuple[str, float], float]  # the text read, by model and share

    def list_first_and_last(self) -> list[tuple[ResultCell, ResultCell]]:
        """Return each final cell with that of its smallest share."""
        return [(final, min(self.points[_key_of(final)].items())[1]) for final in self.finals]


def read_text_points(
    cells: Sequence[ResultCell], results_dir: Path, grid: Grid, *, split: str
) -> TextPoints:
    """Read what intermediate checkpoints answered.

    `cells` are those of the models at the end of their training. Ablations are left out. Raises
    InputError if a file is missing.
    """
    predictions = _read_intermediate(results_dir, grid, split=split)
    pretrained = [
        cell
        for cell in cells
        if cell.system.init == "pretrained" and cell.system.model not in grid.ablation_of
    ]
    points = _find_points(pretrained, predictions, split=split)
    read_bytes = {
        (str(model), float(str(share))): float(rows.mean())
        for (model, share), rows in predictions.groupby(["model", "text_share"])["text_bytes"]
    }
    return TextPoints(
        finals=tuple(cell for cell in pretrained if _key_of(cell) in points),
        points=points,
        read_bytes=read_bytes,
    )


def build_text_curves(points: TextPoints, budgets: Sequence[PretrainingBudget]) -> list[TextCurve]:
    """Return a curve for each model and task with intermediate checkpoints, in the grid's order.

    Of several heads the one is shown that validation prefers at the end.
    """
    full_bytes = {budget.model: budget.text_bytes for budget in budgets}
    by_model = group_by(points.finals, lambda cell: (cell.task, cell.system.model))
    curves = []
    for final in map(best_system, by_model.values()):
        model = final.system.model
        own = points.points[_key_of(final)]
        text_bytes = [points.read_bytes[model, share] for share in own]
        final_bytes = full_bytes.get(model)
        assert final_bytes is not None, "a model with checkpoints has a budget"
        curves.append(measure_text_curve(own, final, text_bytes=[*text_bytes, final_bytes]))
    return curves


def _read_intermediate(results_dir: Path, grid: Grid, *, split: str) -> pd.DataFrame:
    """Return the predictions of all intermediate checkpoints for the scored split."""
    tables = []
    if grid.text_shares:
        for table in read_predictions(results_dir, grid):
            chosen = table[(table["trial"] == INTERMEDIATE_TRIAL) & (table["split"] == split)]
            if len(chosen):
                tables.append(chosen)
    if not tables:
        return pd.DataFrame(columns=[*PREDICTION_COLUMNS, *INTERMEDIATE_COLUMNS])
    return pd.concat(tables, ignore_index=True)


def _key_of(cell: ResultCell) -> CellKey:
    return *system_key(cell.system), cell.task, cell.label_count


def _find_points(
    final_cells: Sequence[ResultCell], predictions: pd.DataFrame, *, split: str
) -> dict[CellKey, Points]:
    """Return the cells of the shares at which every repetition has answered all items."""
    found: dict[CellKey, Points] = {}
    for share in sorted({*predictions["text_share"]}):
        cells = {
            _key_of(cell): replace(cell, item_scores={}, item_ranges={}, prediction_hashes={})
            for cell in final_cells
        }
        answers = predictions[predictions["text_share"] == share]
        add_predictions(cells, answers.assign(trial="chosen"), split=split)
        for final in final_cells:
            cell = cells[_key_of(final)]
            if final.item_scores and _count_scores(cell) == _count_scores(final):
                found.setdefault(_key_of(final), {})[float(share)] = cell
    return found


def _count_scores(cell: ResultCell) -> dict[SeedPair, int]:
    return {seeds: len(scores) for seeds, scores in cell.item_scores.items()}


def measure_text_curve(
    points: Points, final: ResultCell, *, text_bytes: Sequence[float]
) -> TextCurve:
    """Return the mean scores at the points and at the end, and what the last text gained.

    `text_bytes` is the text read there. The gain is that from half of the text if it was measured,
    or else from the largest share.
    """
    shares = list(points)
    validation = final.validation_values
    scores_KN = mean_scores([*points.values(), final])
    start = shares.index(HALF) if HALF in shares else len(shares) - 1
    return TextCurve(
        task=final.task,
        label_count=final.label_count,
        metric=final.metric,
        system=final.system,
        shares=(*shares, 1.0),
        text_bytes=tuple(text_bytes),
        scores=tuple(float(score) for score in scores_KN.mean(axis=1)),
        validation_score=float(np.mean(validation)) if validation else None,
        last_gain=_measure_gain(final, scores_KN[[start]], scores_KN[[-1]], shares[start]),
    )


def _measure_gain(
    final: ResultCell, before_1N: np.ndarray, after_1N: np.ndarray, share: float
) -> TextGain:
    """Return a gain with its interval over items, as if these were the only models and seeds."""
    difference = float((after_1N - before_1N).mean())
    if after_1N.shape[1] < 2:
        return TextGain(share, difference, None, None)
    estimate = statistics.estimate_difference(
        after_1N,
        before_1N,
        max_difference=max_difference(final.metric),
        group_sizes_N=final.group_sizes_of(final.item_scores.values()),
        item_range=_difference_range(final),
    )
    return TextGain(share, difference, estimate.low, estimate.high)


def _difference_range(cell: ResultCell) -> ItemRange | None:
    """Return the range of a difference of contributions, as if the other cell's were the same."""
    if cell.item_range is None:
        return None
    lowest, highest = cell.item_range
    return lowest - highest, highest - lowest
