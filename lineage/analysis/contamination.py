"""Scores without the items that stand in text that models have read (`lineage.data.contamination`): what is known by heart may flatter them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import results
from lineage.analysis.cells import (
    SYSTEM_COLUMNS,
    ResultCell,
    disambiguate,
    grid_stage_names,
    normalize_seeds,
    read_table,
)
from lineage.config.params import Grid
from lineage.evaluation.metrics import METRICS, RANKING_METRICS
from lineage.report import sentences
from lineage.tasks.base import load_kind

JsonDict = dict[str, Any]
CONTAMINATION_COLUMNS = ("long_enough", "corpus", "unlabelled")
NO_CLEAN_ITEMS = "all of its items stand in text that was read"


def read_contamination(results_dir: Path, grid: Grid) -> pd.DataFrame:
    """A row an item of each task and second test set: id, long_enough, corpus, unlabelled (NA where nothing is adapted to it). Raises InputError."""
    found = []
    for name in grid.tasks:
        table = read_table(results_dir / "contamination" / f"contamination-{name}.parquet")
        own = disambiguate(
            table if name in grid.adapt_tasks else table.drop(columns="unlabelled", errors="ignore")
        )
        found.append(own.reindex(columns=["task", "id", *CONTAMINATION_COLUMNS]))
    return pd.concat(found).astype(dict.fromkeys(CONTAMINATION_COLUMNS, "boolean"))


def count_contaminated_items(contamination: pd.DataFrame) -> list[JsonDict]:
    """For results.json, a record a task: its items, those too short to be told, those that stand in the corpus, and in its unlabelled text."""
    return [
        {
            "task": str(task),
            "items": len(own),
            "too_short": int((~own["long_enough"]).sum()),
            "corpus": int(own["corpus"].sum()),
            "unlabelled": int(own["unlabelled"].sum()) if own["unlabelled"].notna().any() else None,
        }
        for task, own in contamination.groupby("task", sort=False)
    ]


def score_clean_items(
    results_dir: Path,
    grid: Grid,
    table: pd.DataFrame,
    contamination: pd.DataFrame,
    ensemble_predictions: Iterable[pd.DataFrame],
    *,
    split: str,
) -> pd.DataFrame:
    """A row with `items: clean` for each scored row of a task of which items were found: the same score of its other items.

    Predictions are those of the grid's stages, and `more`.
    """
    contaminated = contamination[
        contamination["corpus"] | contamination["unlabelled"].fillna(False)
    ]
    contaminated_ids = {str(task): {*own["id"]} for task, own in contaminated.groupby("task")}
    if not contaminated_ids:
        return table.iloc[:0]
    whole_task = (
        (table["split"] == split)
        & (table["trial"] == "chosen")
        & (table["item_filter"] == "all")
        & (table["group"] == "all")
        & (table["layer"] == "none")
    )
    scored = table[
        whole_task
        & (table["status"] == "ok")
        & table["metric"].isin(list(METRICS))
        & disambiguate(table)["task"].isin(contaminated_ids)
    ]
    by_cell: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in scored.to_dict("records"):
        by_cell.setdefault(
            _hashable_key(row[name] for name in results.RESULT_KEY_COLUMNS), []
        ).append({str(name): value for name, value in row.items()})
    found = []
    for predictions in chain(
        (
            read_table(results_dir / "predictions" / f"{name}.parquet")
            for name in grid_stage_names(grid)
        ),
        ensemble_predictions,
    ):
        selected = predictions.assign(question=disambiguate(predictions)["task"])
        selected = selected[
            (selected["split"] == split)
            & (selected["trial"] == "chosen")
            & selected["question"].isin(contaminated_ids)
        ]
        for (*cell_key, setting), some in selected.groupby(
            [*results.RESULT_KEY_COLUMNS, "question"], dropna=False
        ):
            clean_items = some[~some["id"].isin(contaminated_ids[str(setting)])]
            found += [
                row | _score_row(clean_items, row)
                for row in by_cell.get(_hashable_key(cell_key), ())
            ]
    return results.sort_results(pd.DataFrame(found, columns=list(results.RESULT_COLUMNS)))


def _hashable_key(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(value) else str(value) for value in values)


def _score_row(clean_items: pd.DataFrame, row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that the items that are left change."""
    metric, value = row["metric"], float("nan")
    if (
        len(clean_items) and row["model"] == "chance"
    ):  # one row an item stands for all of its answers: `score` is the share of them that is right
        value = clean_items["score"].mean() if metric == "accuracy" else value
    elif len(clean_items) and load_kind(row["kind"]).has_ties:
        value = clean_items["correct"].mean()
    elif len(clean_items):
        value = METRICS[metric](
            clean_items["label"].to_numpy(object), clean_items["prediction"].to_numpy(object)
        )
    if np.isfinite(value):
        return {"item_filter": "clean", "value": value, "num_examples": len(clean_items)}
    why = f"no {metric} of the items that are left" if len(clean_items) else NO_CLEAN_ITEMS
    return {
        "item_filter": "clean",
        "value": None,
        "num_examples": 0,
        "status": "not_applicable",
        "reason": why,
    }


def build_clean_score_tables(
    clean_scores: pd.DataFrame, best_systems: Sequence[Sequence[ResultCell]]
) -> list[JsonDict]:
    """A table a question: what each way that stands for a variant reaches with all items, and without those that were found."""
    own = disambiguate(clean_scores)
    result_cells = dict(iter(own.groupby([*SYSTEM_COLUMNS, "task", "label_count", "metric"])))
    found = []
    for systems in best_systems:
        lines = []
        for result in systems:
            some = result_cells.get(
                (*asdict(result.system).values(), result.task, result.label_count, result.metric)
            )
            if some is not None:
                kept = [
                    normalize_seeds(result.system, p, s) in result.seed_values
                    for p, s in zip(some["pretrain_seed"], some["finetune_seed"], strict=True)
                ]
                some = some[
                    kept
                ]  # of a repetition of which a fold failed the others count for nothing
                lines.append(
                    {
                        "way": asdict(result.system),
                        "all": result.mean,
                        "clean": _mean_over_seeds(some, result.metric),
                        "left": int(some["num_examples"].max()),
                    }
                )
        if lines:
            found.append(
                {
                    "task": systems[0].task,
                    "label_count": systems[0].label_count,
                    "metric": systems[0].metric,
                    "lines": lines,
                    "train_examples": max(result.train_examples for result in systems),
                }
            )
    return found


def _mean_over_seeds(cell_rows: pd.DataFrame, metric: str) -> float | None:
    """Over repetitions, as a share of a perfect score; within one, over folds by their items. None where a fold has none left."""
    if (cell_rows["status"] != "ok").any():
        return None
    each = [
        np.average(one["value"], weights=one["num_examples"].astype(float))
        for _, one in cell_rows.groupby(["pretrain_seed", "finetune_seed"], dropna=False)
    ]
    return float(np.mean(each)) / RANKING_METRICS[metric]


def format_clean_scores(tree: JsonDict) -> list[JsonDict]:
    """The same for the pages."""
    return [
        {
            "task": one["task"],
            "label_count": sentences.format_label_count(
                one["label_count"], train_examples=one["train_examples"]
            ),
            "heading": sentences.metric_heading(one["metric"]),
            "lines": [
                {
                    "way": sentences.format_system(line["way"]),
                    "all": sentences.format_percent(line["all"]),
                    "clean": sentences.format_percent(line["clean"]),
                }
                for line in one["lines"]
            ],
        }
        for one in tree["clean"]
    ]


def format_contamination(tree: JsonDict, task: str) -> str:
    """`3 of 1,000 in the corpus, 1 in its unlabelled text; 240 are too short to tell`; a dash where nothing is scored."""
    one = next((one for one in tree["overlap"] if one["task"] == task), None)
    if one is None:
        return "–"
    looked = one["items"] - one["too_short"]
    own = "" if one["unlabelled"] is None else f", {one['unlabelled']:,} in its unlabelled text"
    short = (
        f"; {one['too_short']:,} {'is' if one['too_short'] == 1 else 'are'} too short to tell"
        if one["too_short"]
        else ""
    )
    return (
        f"{one['corpus']:,} of {looked:,} in the corpus{own}{short}"
        if looked
        else "all are too short to tell"
    )
