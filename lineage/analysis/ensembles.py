"""Ensembles: the mean of two variants' class probabilities, such as of a forward and a backward model (Howard and Ruder 2018, section 3.3).

An ensemble has used two budgets. It stands in the tables and says so, and never among those that serve best within one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import results
from lineage.analysis.cells import choose_comparison_metric, read_table
from lineage.config.data import Task
from lineage.config.params import Grid
from lineage.evaluation.metrics import CONTRIBUTIONS, METRICS
from lineage.results import ENSEMBLE_FAMILY, PREDICTION_COLUMNS, PROBABILITY_PREFIX
from lineage.tasks.base import load_kind

# What the cells of two members share on one task and pretraining seed: all but what belongs to their models.
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
NO_FOLD = -1  # of tasks without folds here: a missing value is no key
SECOND_SUFFIX = " of the other"  # a column of the second member beside the first one's


def build_ensembles(
    results_dir: Path, grid: Grid, tasks: Mapping[str, Task]
) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """Rows and predictions of every ensemble, stage by stage, on tasks whose predictions hold class probabilities. Raises InputError."""
    tables, predictions = [], []
    for name, members in grid.ensembles.items():
        for verb in ("evaluate", "evaluate_adapted"):
            for stage_id in grid.stage_instances[verb]:
                model, rest = stage_id.split("-", 1)
                if model == members[0]:
                    files = [f"{verb}-{member}-{rest}.parquet" for member in members]
                    member_rows, member_predictions = (
                        [_read_chosen(results_dir / place / file) for file in files]
                        for place in ("rows", "predictions")
                    )
                    averaged = _average_predictions(
                        name,
                        *member_predictions,
                        metric=choose_comparison_metric(
                            tasks.get(member_rows[0]["task"].iloc[0]), member_rows[0]["metric"]
                        ),
                    )
                    tables.append(
                        _restore_missing_folds(
                            _ensemble_rows(name, *member_rows, predictions=averaged)
                        )
                    )
                    predictions.append(_restore_missing_folds(averaged))
    return tables, predictions


def _read_chosen(path: Path) -> pd.DataFrame:
    """A stage's table without the trials of its arms: an ensemble is of what was chosen."""
    table = read_table(path)
    return table[table["trial"] == "chosen"].assign(fold=table["fold"].fillna(NO_FOLD))


def _restore_missing_folds(table: pd.DataFrame) -> pd.DataFrame:
    folds = table["fold"].astype("Int64")
    return table.assign(fold=folds.mask(folds == NO_FOLD))


def _average_predictions(
    name: str, first: pd.DataFrame, second: pd.DataFrame, *, metric: str
) -> pd.DataFrame:
    """One prediction an example in each cell that both members have: the label of the highest mean probability; `correct` by the metric."""
    columns = [str(c) for c in first if str(c).startswith(PROBABILITY_PREFIX) and c in second]
    if not columns:
        return pd.DataFrame(columns=list(PREDICTION_COLUMNS))
    merged = first.merge(
        second, on=[*MERGE_KEY, "id"], suffixes=("", SECOND_SUFFIX), validate="one_to_one"
    )
    assert (merged["label"] == merged[f"label{SECOND_SUFFIX}"]).all(), (
        "both members read the same items"
    )
    means = pd.DataFrame(
        {
            c.removeprefix(PROBABILITY_PREFIX): (merged[c] + merged[f"{c}{SECOND_SUFFIX}"]) / 2
            for c in columns
        }
    )
    predicted, gold = means.idxmax(axis=1), merged["label"]
    score = means.to_numpy()[np.arange(len(means)), means.columns.get_indexer(pd.Index(gold))]
    gold_N, said_N, correct_N = gold.to_numpy(), predicted.to_numpy(), np.full(len(merged), np.nan)
    for row_indices in merged.groupby(MERGE_KEY).indices.values():
        correct_N[row_indices] = CONTRIBUTIONS[metric](gold_N[row_indices], said_N[row_indices])
    found = merged.assign(
        variant=name,
        family=ENSEMBLE_FAMILY,
        recipe=_merge_recipes(merged),
        prediction=predicted,
        score=score,
        correct=correct_N,
    )
    return found[list(PREDICTION_COLUMNS)]


def _ensemble_rows(
    name: str, first: pd.DataFrame, second: pd.DataFrame, *, predictions: pd.DataFrame
) -> pd.DataFrame:
    """The rows of one stage: as those of its members, with the text of both; what one member could not compute has no value here either."""
    if not all(load_kind(kind).is_classification for kind in first["kind"].unique()):
        return first.iloc[:0][list(results.RESULT_COLUMNS)]
    prediction_metrics = list(
        METRICS
    )  # what predictions alone give: not whether swapped texts get the same answer
    one, other = (
        table[
            table["transfer"].isin(["frozen", "finetuned"])
            & table["metric"].isin(prediction_metrics)
        ]
        for table in (first, second)
    )
    merged = one.merge(other, on=ROW_MERGE_KEY, suffixes=("", SECOND_SUFFIX), validate="one_to_one")
    merged["text_bytes"] += merged[f"text_bytes{SECOND_SUFFIX}"]
    predictions_by_cell = dict(iter(predictions.groupby(MERGE_KEY)))
    values = pd.DataFrame(
        [
            _score_row(row, predictions_by_cell.get(tuple(row[column] for column in MERGE_KEY)))
            for row in merged.to_dict("records")
        ],
        merged.index,
    )
    if values.empty:
        return merged[list(results.RESULT_COLUMNS)]
    table = merged.assign(
        variant=name,
        family=ENSEMBLE_FAMILY,
        recipe=_merge_recipes(merged),
        **{str(column): values[column] for column in values},
    )
    return table.loc[table["status"] != "", list(results.RESULT_COLUMNS)]


def _score_row(row: Any, predictions: pd.DataFrame | None) -> dict[str, Any]:
    """A row's value from the predictions of its cell, or why it has none; an empty status where the task has no classes to choose from."""
    failed_members = [end for end in ("", SECOND_SUFFIX) if row[f"status{end}"] != "ok"]
    if failed_members:
        reason = "; ".join(
            f"{row[f'variant{end}']}: {row[f'reason{end}']}" for end in failed_members
        )
        return {
            "value": None,
            "num_examples": 0,
            "status": row[f"status{failed_members[0]}"],
            "reason": reason,
        }
    if predictions is None:
        return {"value": None, "num_examples": 0, "status": "", "reason": ""}
    scored = (
        predictions if row["group"] == "all" else predictions[predictions["group"] == row["group"]]
    )
    value = METRICS[row["metric"]](scored["label"].to_numpy(), scored["prediction"].to_numpy())
    return {"value": value, "num_examples": len(scored), "status": "ok", "reason": ""}


def _merge_recipes(merged: pd.DataFrame) -> pd.Series:
    """The members' tuning techniques; both, where they differ."""
    one, other = merged["recipe"], merged[f"recipe{SECOND_SUFFIX}"]
    return one.where(one == other, one + " and " + other)
