"""reports/results.json: what the rows say, as a pure function of them. No clock, host or path comes in here."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from lineage import artifacts, rows
from lineage.data import Task
from lineage.params import Grid, Report
from lineage.report import literature
from lineage.report.bygroup import by_group
from lineage.report.cells import asked_once, by_question, read_cells, read_rows, told_apart
from lineage.report.comparisons import above_guessing, compared, leads, pairs, winners
from lineage.report.ensembles import joined
from lineage.report.overlap import clean_rows, counted, read_overlap, without
from lineage.report.tasks import described
from lineage.rows import DATA, ENSEMBLE, HELD_TEXT, PUBLIC, UNKNOWN
from lineage.scoring import statistics

SCHEMA = 3
CURVE_POINTS = 200  # at most, of each curve: more cannot be seen
SPENT = ("text_bytes", "passes", "tokens", "body_parameters", "total_parameters", "train_flops")


def read_results(folder: Path, grid: Grid, report: Report, tasks: Mapping[str, Task] | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows for results.csv and the tree for results.json, from `artifacts/results`; of `tasks` their benchmarks and metrics. Raises InputError."""
    named = {name: tasks[name] for name in grid.tasks if name in tasks} if tasks else {}
    more, predictions = joined(folder, grid, named)
    table = rows.tidy(pd.concat([read_rows(folder, grid), *more]))
    cells, too_many = asked_once(read_cells(folder, grid, table=table, split=report.split, tasks=named, more=predictions))
    asked = by_question(cells)
    questions = [[c for c in some if c.way.variant not in grid.against] for some in asked.values()]
    led = [(best, some) for some in questions if (best := winners(some))]
    firsts, overlap = [best for best, _ in led], read_overlap(folder, grid)
    clean = clean_rows(folder, grid, table, overlap, predictions, split=report.split)
    comparisons, not_compared = compared([*pairs(cells, grid), *(pair for best, some in led for pair in leads(best, some))])
    tree = {
        "schema": SCHEMA,
        "split": report.split,
        "level": statistics.LEVEL,
        "margin": statistics.MARGIN,
        "grid": asdict(grid) | {"labels": [str(count) for count in grid.labels], "two_budgets": grid.two_budgets},
        "cells": [cell.facts() | {"above_guessing": above_guessing(cell, asked[cell.task, cell.labels])} for cell in cells],
        "comparisons": comparisons,
        "not_compared": not_compared,
        "public": [name for name in grid.families if name in {*table.loc[table["family"] == PUBLIC, "variant"]}],
        "groups": by_group(table, firsts, split=report.split),
        "published": literature.named(named, table, winners=firsts, split=report.split),
        "trials": _trials(table),
        "ceilings": _ceilings(table),
        "adaptation": _adaptation(folder, grid, table),
        "budget": _budgets(folder, grid),
        "curves": _curves(folder, grid),
        "too_many": too_many,
        "tasks": described(named, table, grid, split=report.split),
        "data": _data(table),
        "overlap": counted(overlap),
        "clean": without(clean, firsts),
        "unknown": _unknown(table, report.split),
        "swaps": _swaps(table, report.split),
        "failed": _failed(table),
    }
    return rows.tidy(pd.concat([table, clean])) if len(clean) else table, _finite(tree)


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Rows as CSV, the same bytes for the same rows; what is missing is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n")


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file, None where a value is missing."""
    numbers = {**dict.fromkeys(rows.INTEGERS, "Int64"), "value": "Float64"}
    types = {name: numbers.get(name, "str") for name in rows.COLUMNS}
    table = pd.read_csv(path, dtype=types, keep_default_na=False, na_values={name: [""] for name in numbers})
    return [{str(name): None if value is pd.NA else value for name, value in row.items()} for row in table.astype(object).to_dict("records")]


def _trials(table: pd.DataFrame) -> dict[str, int]:
    """The fewest and the most ways that an arm was tried in on validation: 1 where it had its own numbers alone. Failed trials count, and TF-IDF.

    An arm without a value, as one that cannot be read so or whose every trial failed, was tuned by nothing: the report lists it apart.
    """
    arms = ["variant", "init", "transfer", "head", "task", "labels"]
    read = table["transfer"].isin(["frozen", "tuned"]) & table["init"].isin(["pretrained", "adapted", "untrained"])
    read |= (table["variant"] == "tfidf") & (table["train_examples"] > 0)
    learned = table[read & (table["family"] != ENSEMBLE) & (table["kind"] != "translate")]  # of which nothing is chosen on validation
    learned = learned[(learned["status"] == "ok").groupby([learned[name] for name in arms]).transform("any")]
    counts = learned.groupby(arms)["trial"].agg(lambda trials: max(1, len({*trials} - {"chosen"})))
    return {"least": int(counts.min()), "most": int(counts.max())} if len(counts) else {"least": 1, "most": 1}


def _ceilings(table: pd.DataFrame) -> list[dict[str, Any]]:
    found = table[(table["family"] == "ceiling") & (table["group"] == "all") & (table["status"] == "ok")]
    return [{"task": row.task, "reads": row.features, "value": row.value} for row in found.itertuples()]


def _adaptation(folder: Path, grid: Grid, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Held text of the target before and after adaptation, a line a variant, task and measure, and how much was read: means over pretrainings."""
    held = table[(table["test_set"] == HELD_TEXT) & (table["status"] == "ok")]
    found = []
    for key, group in held.groupby(["variant", "task", "metric"], sort=True):
        before, after = (group[group["init"] == init].groupby("pretrain_seed")["value"].mean() for init in ("pretrained", "adapted"))
        before, after = before.align(after, join="inner")  # an adaptation that failed has no after
        if len(before):
            better = (after > before) if str(key[2]).endswith("_accuracy") else (after < before)
            reasons = {part for reason in group["reason"] for part in reason.split("; ") if part and not part.startswith("no fall")}
            note = "; ".join(sorted(reasons))
            found.append(dict(zip(("variant", "task", "metric"), key, strict=True)) | {"better": int(better.sum()), "pretrainings": len(better)} |
                         {"before": float(before.mean()), "after": float(after.mean()), "note": note,
                          "text_bytes": _text_read(folder, grid, variant=str(key[0]), task=str(key[1]))})  # fmt: skip
    return found


def _text_read(folder: Path, grid: Grid, *, variant: str, task: str) -> float | None:
    """Bytes of the target's text at the end of the adaptations' curves."""
    paths = [folder / "curves" / f"adapt-{variant}-{seed}-{task}.parquet" for seed in grid.pretrain_seeds]
    read = [artifacts.read_table(path, ["text_bytes"])["text_bytes"].max() for path in paths if path.is_file()]
    read = [count for count in read if np.isfinite(count)]  # one whose pretraining failed has read nothing
    return float(np.mean(read)) if read else None


def _budgets(folder: Path, grid: Grid) -> list[dict[str, Any]]:
    """What each variant's pretraining took: means over pretrainings, which differ by a batch at most, without those that failed on the way."""
    found: list[dict[str, Any]] = []
    for variant in grid.families:
        paths = {seed: folder / "budgets" / f"pretrain-{variant}-{seed}.json" for seed in grid.pretrain_seeds}
        every = {seed: artifacts.read_json(path) for seed, path in paths.items() if path.is_file()}
        own = {seed: one for seed, one in every.items() if one.get("status", "ok") == "ok"} or every
        spent = [*own.values()]
        if spent:
            means = {name: float(np.mean([one[name] for one in spent])) if spent[0][name] is not None else None for name in SPENT}
            found.append({"variant": variant, "pretrain_seeds": [*own]} | means | ({} if spent[0].get("matched", True) else {"matched": False}))
    lines = {line["variant"]: line for line in found}
    for name, members in grid.two_budgets.items():
        if lines.keys() >= {*members}:
            both = [[lines[member][name] for member in members] for name in SPENT]
            sums = {key: None if None in values else sum(values) for key, values in zip(SPENT, both, strict=True)}
            found.append({"variant": name, "budgets": list(members)} | sums)
    return found


def _curves(folder: Path, grid: Grid) -> list[dict[str, Any]]:
    """Validation losses over text bytes, as each variant measures them."""
    found = []
    for variant in grid.families:
        for seed in grid.pretrain_seeds:
            path = folder / "curves" / f"pretrain-{variant}-{seed}.parquet"
            if not path.is_file():
                continue
            curve = artifacts.read_table(path)
            for column in [name for name in curve.columns if name.startswith("validation_")]:
                seen = curve[np.isfinite(curve[column].astype(float))]
                if len(seen):
                    few = seen.iloc[np.unique(np.linspace(0, len(seen) - 1, CURVE_POINTS).round().astype(int))]
                    found.append({"variant": variant, "pretrain_seed": seed, "measure": column.removeprefix("validation_"),
                                  "text_bytes": few["text_bytes"].astype(int).tolist(), "value": few[column].astype(float).tolist()})  # fmt: skip
    return found


def _data(table: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """What tasks' data was found to hold, by what was counted: a line a task and split of which there is any."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in told_apart(table[table["family"] == DATA]).itertuples():
        found.setdefault(str(row.metric), []).append({"task": row.task, "split": row.split, "count": int(row.value), "items": int(row.examples)})  # type: ignore[arg-type]
    return found


def _unknown(table: pd.DataFrame, split: str) -> list[dict[str, Any]]:
    """The share of a task's tokens that each model does not know: means over pretrainings."""
    own = told_apart(table[(table["metric"] == UNKNOWN) & (table["split"] == split)])
    columns = ["task", "variant", "init"]
    return [dict(zip(columns, key, strict=True)) | {"value": float(some["value"].mean())} for key, some in own.groupby(columns, sort=True)]


def _swaps(table: pd.DataFrame, split: str) -> list[dict[str, Any]]:
    """The share of answers that stay when the two texts change places, by way: means over repetitions."""
    own = table[(table["metric"] == "swap_consistency") & (table["group"] == "all") & (table["split"] == split) & (table["trial"] == "chosen")]
    columns = ["task", "labels", "variant", "family", "init", "transfer", "head"]
    each = told_apart(own).groupby(columns, sort=True)
    return [dict(zip(columns, key, strict=True)) | {"value": float(some["value"].mean())} for key, some in each]


def _failed(table: pd.DataFrame) -> list[dict[str, Any]]:
    """What has no value, and why: one line for all seeds that share a reason, and for all pretrainings of which the same seeds do."""
    columns = ["variant", "init", "transfer", "head", "task", "labels", "group", "metric", "status", "reason"]
    bad = told_apart(table[(table["status"] != "ok") & (table["trial"] == "chosen")])
    found: dict[tuple[Any, ...], list[int]] = {}
    for key, group in bad.groupby([*columns, "pretrain_seed"], sort=True, dropna=False):
        *of, pretraining = cast(tuple[Any, ...], key)
        seeds = tuple(sorted({int(seed) for seed in group["seed"].dropna()}))
        found.setdefault((*of, seeds), []).extend([] if pd.isna(pretraining) else [int(pretraining)])
    return [dict(zip(columns, of, strict=True)) | {"seeds": [*seeds], "pretrain_seeds": own} for (*of, seeds), own in found.items()]


def _finite(value: Any) -> Any:
    """The tree with None for what is not a number, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
