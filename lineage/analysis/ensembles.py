"""Ensembles: the mean of the class probabilities of two models.

They may be a forward and a backward model (Howard and Ruder 2018, section 3.3). An ensemble has
used two budgets. It appears in the tables, marked as such, and is never the leader.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import results
from lineage.analysis.cells import choose_comparison_metric, read_table
from lineage.answers.metrics import CONTRIBUTIONS, METRICS
from lineage.config.data import Task
from lineage.config.params import Grid
from lineage.results import ENSEMBLE_FAMILY, PREDICTION_COLUMNS, PROBABILITY_PREFIX
from lineage.tasks.base import load_kind

# Cells of two members agree in these columns: everything but the model.
MERGE_KEY = [
    "init",
    "adapt_text",
    "transfer",
    "features",
    "head",
    "label_count",
    "finetune_seed",
    "fold",
    "split",
    "test_set",
]
ROW_MERGE_KEY = [*MERGE_KEY, "metric", "group", "item_filter", "layer", "trial"]
NO_FOLD = -1  # replaces a missing fold, since a missing value cannot be a key
SECOND_SUFFIX = "_second"  # of a column of the second member


def build_ensembles(
    results_dir: Path, grid: Grid, tasks: Mapping[str, Task]
) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """Build the rows and the predictions of every ensemble, stage by stage.

    Only tasks whose predictions hold class probabilities have ensembles. Raises InputError.
    """
    tables = []
    predictions = []
    for name, members in grid.ensembles.items():
        for files in _member_files(grid, members):
            first, second = (_read_chosen(results_dir / "rows" / file) for file in files)
            task = tasks.get(first["task"].iloc[0])
            averaged = _average_predictions(
                name,
                *(_read_chosen(results_dir / "predictions" / file) for file in files),
                metric=choose_comparison_metric(task, first["metric"]),
            )
            rows = _ensemble_rows(name, first, second, predictions=averaged)
            tables.append(_restore_missing_folds(rows))
            predictions.append(_restore_missing_folds(averaged))
    return tables, predictions


def _member_files(grid: Grid, members: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the file names of both members, for every stage of the first one."""
    for verb in ("evaluate", "evaluate_adapted"):
        for stage_id in grid.stage_instances[verb]:
            model, rest = stage_id.split("-", 1)
            if model == members[0]:
                yield [f"{verb}-{member}-{rest}.parquet" for member in members]


def _read_chosen(path: Path) -> pd.DataFrame:
    """Read a stage's table without its trials: an ensemble averages the chosen systems."""
    table = read_table(path)
    return table[table["trial"] == "chosen"].assign(fold=table["fold"].fillna(NO_FOLD))


def _restore_missing_folds(table: pd.DataFrame) -> pd.DataFrame:
    folds = table["fold"].astype("Int64")
    return table.assign(fold=folds.mask(folds == NO_FOLD))


def _average_predictions(
    name: str, first: pd.DataFrame, second: pd.DataFrame, *, metric: str
) -> pd.DataFrame:
    """Predict, for each item of the cells that both members have, the most probable label.

    `correct` is the contribution to the metric.
    """
    shared = [str(name) for name in first if name in second]
    columns = [name for name in shared if name.startswith(PROBABILITY_PREFIX)]
    if not columns:
        return pd.DataFrame(columns=list(PREDICTION_COLUMNS))
    merged = first.merge(
        second, on=[*MERGE_KEY, "id"], suffixes=("", SECOND_SUFFIX), validate="one_to_one"
    )
    labels = merged["label"]
    assert (labels == merged[f"label{SECOND_SUFFIX}"]).all(), "both members have the same items"
    means = {
        column.removeprefix(PROBABILITY_PREFIX): (
            (merged[column] + merged[f"{column}{SECOND_SUFFIX}"]) / 2
        )
        for column in columns
    }
    probabilities = pd.DataFrame(means)
    label_indices_N = probabilities.columns.get_indexer(pd.Index(labels))
    predicted = probabilities.idxmax(axis=1)
    labels_N = labels.to_numpy()
    predicted_N = predicted.to_numpy()
    correct_N = np.full(len(merged), np.nan)
    for rows in merged.groupby(MERGE_KEY).indices.values():
        correct_N[rows] = CONTRIBUTIONS[metric](labels_N[rows], predicted_N[rows])
    averaged = merged.assign(
        model=name,
        family=ENSEMBLE_FAMILY,
        recipe=_merge_recipes(merged),
        prediction=predicted,
        score=probabilities.to_numpy()[np.arange(len(merged)), label_indices_N],
        correct=correct_N,
    )
    return averaged[list(PREDICTION_COLUMNS)]


def _ensemble_rows(
    name: str, first: pd.DataFrame, second: pd.DataFrame, *, predictions: pd.DataFrame
) -> pd.DataFrame:
    """Build the rows of one stage from those of its members; `text_bytes` is their sum.

    The ensemble has no value for a metric if a member has none. Metrics that need more than
    predictions, such as swap consistency, are left out.
    """
    if not all(load_kind(kind).answer.are_classes for kind in first["kind"].unique()):
        return first.iloc[:0][list(results.RESULT_COLUMNS)]
    one = _metric_rows(first)
    other = _metric_rows(second)
    merged = one.merge(other, on=ROW_MERGE_KEY, suffixes=("", SECOND_SUFFIX), validate="one_to_one")
    merged["text_bytes"] += merged[f"text_bytes{SECOND_SUFFIX}"]
    predictions_by_cell = dict(iter(predictions.groupby(MERGE_KEY)))
    columns = []
    for row in merged.to_dict("records"):
        key = tuple(row[column] for column in MERGE_KEY)
        columns.append(_score_row(row, predictions_by_cell.get(key)))
    if not columns:
        return merged[list(results.RESULT_COLUMNS)]
    values = pd.DataFrame(columns, merged.index)
    table = merged.assign(
        model=name,
        family=ENSEMBLE_FAMILY,
        recipe=_merge_recipes(merged),
        **{str(column): values[column] for column in values},
    )
    return table.loc[table["status"] != "", list(results.RESULT_COLUMNS)]


def _metric_rows(table: pd.DataFrame) -> pd.DataFrame:
    trained = table["transfer"].isin(["frozen", "finetuned", "setfit"])
    return table[trained & table["metric"].isin(list(METRICS))]


def _score_row(row: Any, predictions: pd.DataFrame | None) -> dict[str, Any]:
    """Return a row's value from the predictions of its cell, or the reason why it has none.

    The status is empty if there are no predictions to average.
    """
    failed = [suffix for suffix in ("", SECOND_SUFFIX) if row[f"status{suffix}"] != "ok"]
    if failed:
        notes = []
        for suffix in failed:
            reasons = [asdict(note) for note in results.notes_from_json(row[f"reason{suffix}"])]
            member = {"model": row[f"model{suffix}"], "notes": reasons}
            notes.append(results.Note("member", member))
        status = row[f"status{failed[0]}"]
        reason = results.notes_to_json(notes)
        return {"value": None, "num_examples": 0, "status": status, "reason": reason}
    if predictions is None:
        return {"value": None, "num_examples": 0, "status": "", "reason": ""}
    if row["group"] != "all":
        predictions = predictions[predictions["group"] == row["group"]]
    value = METRICS[row["metric"]](
        predictions["label"].to_numpy(), predictions["prediction"].to_numpy()
    )
    return {"value": value, "num_examples": len(predictions), "status": "ok", "reason": ""}


def _merge_recipes(merged: pd.DataFrame) -> pd.Series:
    """Return the members' recipe, or both recipes if they differ."""
    one = merged["recipe"]
    other = merged[f"recipe{SECOND_SUFFIX}"]
    return one.where(one == other, one + " and " + other)
