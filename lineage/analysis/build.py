"""reports/results.json: what the rows say, as a pure function of them. No clock, host or path comes in here."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from lineage import artifacts, results
from lineage.analysis import statistics
from lineage.analysis.cells import (
    disambiguate,
    drop_duplicate_label_counts,
    group_by_setting,
    read_result_cells,
    read_rows,
)
from lineage.analysis.comparisons import (
    best_systems,
    is_above_chance,
    plan_comparisons,
    plan_leader_comparisons,
    run_comparisons,
)
from lineage.analysis.contamination import (
    build_clean_score_tables,
    count_contaminated_items,
    read_contamination,
    score_clean_items,
)
from lineage.analysis.ensembles import build_ensembles
from lineage.analysis.groups import build_group_scores
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.report import literature
from lineage.report.tasks import describe_tasks
from lineage.results import (
    DATA_FAMILY,
    ENSEMBLE_FAMILY,
    HELDOUT_TEST_SET,
    PUBLIC_FAMILY,
    UNKNOWN_TOKEN_METRIC,
)
from lineage.tasks.base import load_kind

SCHEMA_VERSION = 3
MAX_CURVE_POINTS = 200  # at most, of each curve: more cannot be seen
BUDGET_FIELDS = (
    "text_bytes",
    "passes",
    "tokens",
    "body_parameters",
    "total_parameters",
    "train_flops",
)


def build_results(
    results_dir: Path, grid: Grid, report: ReportParams, tasks: Mapping[str, Task] | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows for results.csv and the tree for results.json, from `artifacts/results`; of `tasks` their benchmarks and metrics. Raises InputError."""
    grid_tasks = {name: tasks[name] for name in grid.tasks if name in tasks} if tasks else {}
    ensemble_rows, predictions = build_ensembles(results_dir, grid, grid_tasks)
    table = results.sort_results(pd.concat([read_rows(results_dir, grid), *ensemble_rows]))
    result_cells, duplicate_label_counts = drop_duplicate_label_counts(
        read_result_cells(
            results_dir,
            grid,
            table=table,
            split=report.split,
            tasks=grid_tasks,
            ensemble_predictions=predictions,
        )
    )
    cells_by_setting = group_by_setting(result_cells)
    questions = [
        [c for c in some if c.system.model not in grid.ablation_of]
        for some in cells_by_setting.values()
    ]
    ranked_settings = [(best, some) for some in questions if (best := best_systems(some))]
    ranked_systems, contamination = (
        [best for best, _ in ranked_settings],
        read_contamination(results_dir, grid),
    )
    clean = score_clean_items(
        results_dir, grid, table, contamination, predictions, split=report.split
    )
    comparisons, not_compared = run_comparisons(
        [
            *plan_comparisons(result_cells, grid),
            *(
                pair
                for best, some in ranked_settings
                for pair in plan_leader_comparisons(best, some)
            ),
        ]
    )
    tree = {
        "schema": SCHEMA_VERSION,
        "split": report.split,
        "level": statistics.CONFIDENCE_LEVEL,
        "margin": statistics.EQUIVALENCE_MARGIN,
        "grid": asdict(grid)
        | {
            "label_count": [str(count) for count in grid.label_counts],
            "two_budgets": grid.two_budget_systems,
        },
        "cells": [
            cell.to_record()
            | {
                "above_guessing": is_above_chance(
                    cell, cells_by_setting[cell.task, cell.label_count]
                )
            }
            for cell in result_cells
        ],
        "comparisons": comparisons,
        "not_compared": not_compared,
        "public": [
            name
            for name in grid.models
            if name in {*table.loc[table["family"] == PUBLIC_FAMILY, "model"]}
        ],
        "groups": build_group_scores(table, ranked_systems, split=report.split),
        "benchmark": literature.find_benchmark_results(
            grid_tasks, table, best_systems=ranked_systems, split=report.split
        ),
        "trials": _trial_counts(table),
        "ceilings": _list_ceilings(table),
        "adaptation": _adaptation_effects(results_dir, grid, table),
        "budget": _pretraining_budgets(results_dir, grid),
        "curves": _loss_curves(results_dir, grid),
        "too_many": duplicate_label_counts,
        "tasks": describe_tasks(grid_tasks, table, grid, split=report.split),
        "data": _data_counts(table),
        "overlap": count_contaminated_items(contamination),
        "clean": build_clean_score_tables(clean, ranked_systems),
        "unknown": _unknown_token_shares(table, report.split),
        "swaps": _swap_consistency(table, report.split),
        "failed": _list_failures(table),
    }
    return results.sort_results(pd.concat([table, clean])) if len(clean) else table, _nan_to_none(
        tree
    )


def write_results_csv(path: Path, table: pd.DataFrame) -> None:
    """Rows as CSV, the same bytes for the same rows; what is missing is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n")


def read_results_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file, None where a value is missing."""
    numbers = {**dict.fromkeys(results.INTEGER_COLUMNS, "Int64"), "value": "Float64"}
    types = {name: numbers.get(name, "str") for name in results.RESULT_COLUMNS}
    table = pd.read_csv(
        path, dtype=types, keep_default_na=False, na_values={name: [""] for name in numbers}
    )
    return [
        {str(name): None if value is pd.NA else value for name, value in row.items()}
        for row in table.astype(object).to_dict("records")
    ]


def _trial_counts(table: pd.DataFrame) -> dict[str, int]:
    """The fewest and the most ways that an arm was tried in on validation: 1 where it had its own numbers alone. Failed trials count, and TF-IDF.

    An arm without a value, as one that cannot be read so or whose every trial failed, was tuned by nothing: the report lists it apart.
    """
    system_columns = ["model", "init", "transfer", "head", "task", "label_count"]
    read = table["transfer"].isin(["frozen", "finetuned"]) & table["init"].isin(
        ["pretrained", "adapted", "random"]
    )
    read |= (table["model"] == "tfidf") & (table["train_examples"] > 0)
    # Nothing about a translator is chosen on validation.
    is_translated = table["kind"].map(lambda kind: load_kind(kind).answered_by == "translator")
    tuned = table[read & (table["family"] != ENSEMBLE_FAMILY) & ~is_translated.astype(bool)]
    tuned = tuned[
        (tuned["status"] == "ok").groupby([tuned[name] for name in system_columns]).transform("any")
    ]
    counts = tuned.groupby(system_columns)["trial"].agg(
        lambda trials: max(1, len({*trials} - {"chosen"}))
    )
    return (
        {"least": int(counts.min()), "most": int(counts.max())}
        if len(counts)
        else {"least": 1, "most": 1}
    )


def _list_ceilings(table: pd.DataFrame) -> list[dict[str, Any]]:
    found = table[
        (table["family"] == "ceiling") & (table["group"] == "all") & (table["status"] == "ok")
    ]
    return [
        {"task": row.task, "reads": row.features, "value": row.value} for row in found.itertuples()
    ]


def _adaptation_effects(results_dir: Path, grid: Grid, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Held text of the target before and after adaptation, a line a variant, task and measure, and how much was read: means over pretrainings."""
    heldout = table[(table["test_set"] == HELDOUT_TEST_SET) & (table["status"] == "ok")]
    found = []
    for key, group in heldout.groupby(["model", "task", "metric"], sort=True):
        before, after = (
            group[group["init"] == init].groupby("pretrain_seed")["value"].mean()
            for init in ("pretrained", "adapted")
        )
        before, after = before.align(after, join="inner")  # an adaptation that failed has no after
        if len(before):
            better = (after > before) if str(key[2]).endswith("_accuracy") else (after < before)
            reasons = {
                part
                for reason in group["reason"]
                for part in reason.split("; ")
                if part and not part.startswith("no fall")
            }
            note = "; ".join(sorted(reasons))
            found.append(
                dict(zip(("model", "task", "metric"), key, strict=True))
                | {"better": int(better.sum()), "pretrainings": len(better)}
                | {
                    "before": float(before.mean()),
                    "after": float(after.mean()),
                    "note": note,
                    "text_bytes": _adaptation_text_bytes(
                        results_dir, grid, model=str(key[0]), task=str(key[1])
                    ),
                }
            )
    return found


def _adaptation_text_bytes(results_dir: Path, grid: Grid, *, model: str, task: str) -> float | None:
    """Bytes of the target's text at the end of the adaptations' curves."""
    paths = [
        results_dir / "curves" / f"adapt-{model}-{seed}-{task}.parquet"
        for seed in grid.pretrain_seeds
    ]
    read = [
        artifacts.read_table(path, ["text_bytes"])["text_bytes"].max()
        for path in paths
        if path.is_file()
    ]
    read = [
        count for count in read if np.isfinite(count)
    ]  # one whose pretraining failed has read nothing
    return float(np.mean(read)) if read else None


def _pretraining_budgets(results_dir: Path, grid: Grid) -> list[dict[str, Any]]:
    """What each variant's pretraining took: means over pretrainings, which differ by a batch at most, without those that failed on the way."""
    found: list[dict[str, Any]] = []
    for model in grid.models:
        paths = {
            seed: results_dir / "budgets" / f"pretrain-{model}-{seed}.json"
            for seed in grid.pretrain_seeds
        }
        every = {seed: artifacts.read_json(path) for seed, path in paths.items() if path.is_file()}
        own = {seed: one for seed, one in every.items() if one.get("status", "ok") == "ok"} or every
        budgets = [*own.values()]
        if budgets:
            means = {
                name: float(np.mean([one[name] for one in budgets]))
                if budgets[0][name] is not None
                else None
                for name in BUDGET_FIELDS
            }
            found.append(
                {"model": model, "pretrain_seeds": [*own]}
                | means
                | ({} if budgets[0].get("matched", True) else {"matched": False})
            )
    lines = {line["model"]: line for line in found}
    for name, members in grid.two_budget_systems.items():
        if lines.keys() >= {*members}:
            both = [[lines[member][name] for member in members] for name in BUDGET_FIELDS]
            sums = {
                key: None if None in values else sum(values)
                for key, values in zip(BUDGET_FIELDS, both, strict=True)
            }
            found.append({"model": name, "budgets": list(members)} | sums)
    return found


def _loss_curves(results_dir: Path, grid: Grid) -> list[dict[str, Any]]:
    """Validation losses over text bytes, as each variant measures them."""
    found = []
    for model in grid.models:
        for seed in grid.pretrain_seeds:
            path = results_dir / "curves" / f"pretrain-{model}-{seed}.parquet"
            if not path.is_file():
                continue
            curve = artifacts.read_table(path)
            for column in [name for name in curve.columns if name.startswith("validation_")]:
                seen = curve[np.isfinite(curve[column].astype(float))]
                if len(seen):
                    few = seen.iloc[
                        np.unique(
                            np.linspace(0, len(seen) - 1, MAX_CURVE_POINTS).round().astype(int)
                        )
                    ]
                    found.append(
                        {
                            "model": model,
                            "pretrain_seed": seed,
                            "measure": column.removeprefix("validation_"),
                            "text_bytes": few["text_bytes"].astype(int).tolist(),
                            "value": few[column].astype(float).tolist(),
                        }
                    )
    return found


def _data_counts(table: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """What tasks' data was found to hold, by what was counted: a line a task and split of which there is any."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in disambiguate(table[table["family"] == DATA_FAMILY]).itertuples():
        found.setdefault(str(row.metric), []).append(
            {
                "task": row.task,
                "split": row.split,
                "count": int(row.value),  # type: ignore[arg-type]
                "items": int(row.num_examples),  # type: ignore[arg-type]
            }
        )
    return found


def _unknown_token_shares(table: pd.DataFrame, split: str) -> list[dict[str, Any]]:
    """The share of a task's tokens that each model does not know: means over pretrainings."""
    own = disambiguate(table[(table["metric"] == UNKNOWN_TOKEN_METRIC) & (table["split"] == split)])
    columns = ["task", "model", "init"]
    return [
        dict(zip(columns, key, strict=True)) | {"value": float(some["value"].mean())}
        for key, some in own.groupby(columns, sort=True)
    ]


def _swap_consistency(table: pd.DataFrame, split: str) -> list[dict[str, Any]]:
    """The share of answers that stay when the two texts change places, by way: means over repetitions."""
    own = table[
        (table["metric"] == "swap_consistency")
        & (table["group"] == "all")
        & (table["split"] == split)
        & (table["trial"] == "chosen")
    ]
    columns = ["task", "label_count", "model", "family", "init", "transfer", "head"]
    each = disambiguate(own).groupby(columns, sort=True)
    return [
        dict(zip(columns, key, strict=True)) | {"value": float(some["value"].mean())}
        for key, some in each
    ]


def _list_failures(table: pd.DataFrame) -> list[dict[str, Any]]:
    """What has no value, and why: one line for all seeds that share a reason, and for all pretrainings of which the same seeds do."""
    columns = [
        "model",
        "init",
        "transfer",
        "head",
        "task",
        "label_count",
        "group",
        "metric",
        "status",
        "reason",
    ]
    failed_rows = disambiguate(table[(table["status"] != "ok") & (table["trial"] == "chosen")])
    found: dict[tuple[Any, ...], list[int]] = {}
    for key, group in failed_rows.groupby([*columns, "pretrain_seed"], sort=True, dropna=False):
        *of, pretraining = cast(tuple[Any, ...], key)
        seeds = tuple(sorted({int(seed) for seed in group["finetune_seed"].dropna()}))
        found.setdefault((*of, seeds), []).extend(
            [] if pd.isna(pretraining) else [int(pretraining)]
        )
    return [
        dict(zip(columns, of, strict=True)) | {"finetune_seeds": [*seeds], "pretrain_seeds": own}
        for (*of, seeds), own in found.items()
    ]


def _nan_to_none(value: Any) -> Any:
    """The tree with None for what is not a number, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _nan_to_none(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_nan_to_none(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
