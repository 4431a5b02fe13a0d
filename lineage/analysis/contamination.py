"""Scores without the contaminated items, which occur in text that models have read.

A model may have memorized them, which would raise its score. `lineage.data.contamination` finds
the items.
"""

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import results
from lineage.analysis.cells import (
    SYSTEM_COLUMNS,
    ResultCell,
    disambiguate,
    is_whole_task,
    normalize_seeds,
    read_predictions,
    read_table,
    system_key,
)
from lineage.analysis.records import CleanScore, CleanScores, ContaminationCounts, group_by
from lineage.answers.metrics import METRICS, RANKING_METRICS
from lineage.config.params import Grid
from lineage.tasks.base import load_kind

CONTAMINATION_COLUMNS = ("long_enough", "corpus", "unlabelled")
Row = dict[Hashable, Any]


def read_contamination(results_dir: Path, grid: Grid) -> pd.DataFrame:
    """Read one row per item of each task and extra test set. Raises InputError.

    The columns are task, id, long_enough, corpus, and unlabelled (NA if nothing is adapted to the
    task).
    """
    tables = []
    for name in grid.tasks:
        table = read_table(results_dir / "contamination" / f"contamination-{name}.parquet")
        if name not in grid.adapt_tasks:
            table = table.drop(columns="unlabelled", errors="ignore")
        tables.append(disambiguate(table).reindex(columns=["task", "id", *CONTAMINATION_COLUMNS]))
    return pd.concat(tables).astype(dict.fromkeys(CONTAMINATION_COLUMNS, "boolean"))


def count_contaminated_items(contamination: pd.DataFrame) -> list[ContaminationCounts]:
    """Count the contaminated items of each task."""
    counts = []
    for task, items in contamination.groupby("task", sort=False):
        has_unlabelled = bool(items["unlabelled"].notna().any())
        counts.append(
            ContaminationCounts(
                task=str(task),
                items=len(items),
                too_short=int((~items["long_enough"]).sum()),
                in_corpus=int(items["corpus"].sum()),
                in_unlabelled=int(items["unlabelled"].sum()) if has_unlabelled else None,
            )
        )
    return counts


def score_clean_items(
    results_dir: Path,
    grid: Grid,
    table: pd.DataFrame,
    contamination: pd.DataFrame,
    ensemble_predictions: Iterable[pd.DataFrame],
    *,
    split: str,
) -> pd.DataFrame:
    """Score the items that are not contaminated, for each scored row of a task that has any.

    The rows are like those of `table`, with `item_filter: clean`.
    """
    is_contaminated = contamination["corpus"] | contamination["unlabelled"].fillna(False)
    contaminated_ids = {
        str(task): {*items["id"]} for task, items in contamination[is_contaminated].groupby("task")
    }
    if not contaminated_ids:
        return table.iloc[:0]
    rows_by_key = group_by(
        _scored_rows(table, [*contaminated_ids], split=split).to_dict("records"),
        lambda row: _hashable_key(row[name] for name in results.RESULT_KEY_COLUMNS),
    )
    clean_rows: list[Row] = []
    for predictions in (*read_predictions(results_dir, grid), *ensemble_predictions):
        selected = predictions.assign(setting_task=disambiguate(predictions)["task"])
        selected = selected[
            (selected["split"] == split)
            & (selected["trial"] == "chosen")
            & selected["setting_task"].isin(contaminated_ids)
        ]
        columns = [*results.RESULT_KEY_COLUMNS, "setting_task"]
        for (*key, task), items in selected.groupby(columns, dropna=False):
            clean_items = items[~items["id"].isin(contaminated_ids[str(task)])]
            rows = rows_by_key.get(_hashable_key(key), ())
            clean_rows += [row | _score_row(clean_items, row) for row in rows]
    return results.sort_results(pd.DataFrame(clean_rows, columns=list(results.RESULT_COLUMNS)))


def _scored_rows(table: pd.DataFrame, tasks: list[str], *, split: str) -> pd.DataFrame:
    return table[
        is_whole_task(table)
        & (table["split"] == split)
        & (table["status"] == "ok")
        & table["metric"].isin(list(METRICS))
        & disambiguate(table)["task"].isin(tasks)
    ]


def _hashable_key(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(value) else str(value) for value in values)


def _score_row(clean_items: pd.DataFrame, row: Row) -> Row:
    """Return the columns of a row that change when only clean items are scored."""
    value = float("nan")
    if len(clean_items):
        value = _score_items(clean_items, row)
    if np.isfinite(value):
        return {"item_filter": "clean", "value": value, "num_examples": len(clean_items)}
    note = results.Note("no_clean_items")
    if len(clean_items):
        note = results.Note("undefined_on_clean_items", row["metric"])
    return {
        "item_filter": "clean",
        "value": None,
        "num_examples": 0,
        "status": "not_applicable",
        "reason": results.notes_to_json([note]),
    }


def _score_items(items: pd.DataFrame, row: Row) -> float:
    metric = row["metric"]
    if row["model"] == "chance":
        # The item's one prediction represents all answers; `score` is the share that is right.
        return float(items["score"].mean()) if metric == "accuracy" else float("nan")
    if load_kind(row["kind"]).answer.has_ties:  # a tie counts half
        return float(items["correct"].mean())
    return METRICS[metric](items["label"].to_numpy(object), items["prediction"].to_numpy(object))


def build_clean_scores(
    clean_rows: pd.DataFrame, best_systems: Sequence[Sequence[ResultCell]]
) -> list[CleanScores]:
    """Return the scores of each setting's best systems, with and without contaminated items."""
    key_columns = [*SYSTEM_COLUMNS, "task", "label_count", "metric"]
    rows_by_cell = dict(iter(disambiguate(clean_rows).groupby(key_columns)))
    clean_scores = []
    for cells in best_systems:
        scores = []
        for cell in cells:
            key = (*system_key(cell.system), cell.task, cell.label_count, cell.metric)
            rows = rows_by_cell.get(key)
            if rows is not None:
                scores.append(_clean_score(cell, rows))
        if scores:
            clean_scores.append(
                CleanScores(
                    task=cells[0].task,
                    label_count=cells[0].label_count,
                    train_examples=max(cell.train_examples for cell in cells),
                    metric=cells[0].metric,
                    systems=tuple(scores),
                )
            )
    return clean_scores


def _clean_score(cell: ResultCell, rows: pd.DataFrame) -> CleanScore:
    """Score one cell over the repetitions that count, which are those without a failed fold."""
    seeds = zip(rows["pretrain_seed"], rows["finetune_seed"], strict=True)
    rows = rows[[normalize_seeds(cell.system, *pair) in cell.seed_values for pair in seeds]]
    return CleanScore(
        system=cell.system,
        all_items=cell.mean,
        clean_items=_mean_over_seeds(rows, cell.metric),
        num_clean_items=int(rows["num_examples"].max()),
    )


def _mean_over_seeds(rows: pd.DataFrame, metric: str) -> float | None:
    """Return the mean over repetitions; within one, over folds weighted by their items.

    None if a fold has no clean items.
    """
    if (rows["status"] != "ok").any():
        return None
    means = [
        np.average(folds["value"], weights=folds["num_examples"].astype(float))
        for _, folds in rows.groupby(["pretrain_seed", "finetune_seed"], dropna=False)
    ]
    return float(np.mean(means)) / RANKING_METRICS[metric]
