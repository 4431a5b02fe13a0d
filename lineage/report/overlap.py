"""Scores without the items that stand in text that models have read (`lineage.text.overlap`): what is known by heart may flatter them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import rows
from lineage.params import Grid
from lineage.report import words
from lineage.report.cells import WAY, Cell, read_table, seeds_of, stage_names, told_apart
from lineage.scoring.metrics import COMPARED, METRICS

Tree = dict[str, Any]
FOUND = ("long_enough", "corpus", "unlabelled")
NOTHING_LEFT = "all of its items stand in text that was read"


def read_overlap(folder: Path, grid: Grid) -> pd.DataFrame:
    """A row an item of each task and second test set: id, long_enough, corpus, unlabelled (NA where nothing is adapted to it). Raises InputError."""
    found = []
    for name in grid.tasks:
        table = read_table(folder / "overlap" / f"overlap-{name}.parquet")
        own = told_apart(table if name in grid.adapt_tasks else table.drop(columns="unlabelled", errors="ignore"))
        found.append(own.reindex(columns=["task", "id", *FOUND]))
    return pd.concat(found).astype(dict.fromkeys(FOUND, "boolean"))


def counted(overlap: pd.DataFrame) -> list[Tree]:
    """For results.json, a record a task: its items, those too short to be told, those that stand in the corpus, and in its unlabelled text."""
    return [{"task": str(task), "items": len(own), "too_short": int((~own["long_enough"]).sum()), "corpus": int(own["corpus"].sum()),
             "unlabelled": int(own["unlabelled"].sum()) if own["unlabelled"].notna().any() else None}
            for task, own in overlap.groupby("task", sort=False)]  # fmt: skip


def clean_rows(folder: Path, grid: Grid, table: pd.DataFrame, overlap: pd.DataFrame, more: Iterable[pd.DataFrame], *, split: str) -> pd.DataFrame:
    """A row with `items: clean` for each scored row of a task of which items were found: the same score of its other items.

    Predictions are those of the grid's stages, and `more`.
    """
    met = overlap[overlap["corpus"] | overlap["unlabelled"].fillna(False)]
    known = {str(task): {*own["id"]} for task, own in met.groupby("task")}
    if not known:
        return table.iloc[:0]
    whole = (
        (table["split"] == split) & (table["trial"] == "chosen") & (table["items"] == "all") & (table["group"] == "all") & (table["layer"] == "none")
    )
    scored = table[whole & (table["status"] == "ok") & table["metric"].isin(list(METRICS)) & told_apart(table)["task"].isin(known)]
    by_cell: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in scored.to_dict("records"):
        by_cell.setdefault(_key(row[name] for name in rows.CELL), []).append({str(name): value for name, value in row.items()})
    found = []
    for said in chain((read_table(folder / "predictions" / f"{name}.parquet") for name in stage_names(grid)), more):
        asked = said.assign(question=told_apart(said)["task"])
        asked = asked[(asked["split"] == split) & (asked["trial"] == "chosen") & asked["question"].isin(known)]
        for (*cell, question), some in asked.groupby([*rows.CELL, "question"], dropna=False):
            left = some[~some["id"].isin(known[str(question)])]
            found += [row | _value(left, row) for row in by_cell.get(_key(cell), ())]
    return rows.tidy(pd.DataFrame(found, columns=list(rows.COLUMNS)))


def _key(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(value) else str(value) for value in values)


def _value(left: pd.DataFrame, row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that the items that are left change."""
    metric, value = row["metric"], float("nan")
    if len(left) and row["variant"] == "chance":  # one row an item stands for all of its answers: `score` is the share of them that is right
        value = left["score"].mean() if metric == "accuracy" else value
    elif len(left) and row["kind"] == "minimal_pairs":  # of which a tie is half right
        value = left["correct"].mean()
    elif len(left):
        value = METRICS[metric](left["gold"].to_numpy(object), left["prediction"].to_numpy(object))
    if np.isfinite(value):
        return {"items": "clean", "value": value, "examples": len(left)}
    why = f"no {metric} of the items that are left" if len(left) else NOTHING_LEFT
    return {"items": "clean", "value": None, "examples": 0, "status": "not_applicable", "reason": why}


def without(clean: pd.DataFrame, winners: Sequence[Sequence[Cell]]) -> list[Tree]:
    """A table a question: what each way that stands for a variant reaches with all items, and without those that were found."""
    own = told_apart(clean)
    cells = dict(iter(own.groupby([*WAY, "task", "labels", "metric"])))
    found = []
    for ways in winners:
        lines = []
        for cell in ways:
            some = cells.get((*asdict(cell.way).values(), cell.task, cell.labels, cell.metric))
            if some is not None:
                kept = [seeds_of(cell.way, p, s) in cell.values for p, s in zip(some["pretrain_seed"], some["seed"], strict=True)]
                some = some[kept]  # of a repetition of which a fold failed the others count for nothing
                lines.append({"way": asdict(cell.way), "all": cell.mean, "clean": _mean(some, cell.metric), "left": int(some["examples"].max())})
        if lines:
            found.append({"task": ways[0].task, "labels": ways[0].labels, "metric": ways[0].metric, "lines": lines,
                          "train_examples": max(cell.train_examples for cell in ways)})  # fmt: skip
    return found


def _mean(some: pd.DataFrame, metric: str) -> float | None:
    """Over repetitions, as a share of a perfect score; within one, over folds by their items. None where a fold has none left."""
    if (some["status"] != "ok").any():
        return None
    each = [np.average(one["value"], weights=one["examples"].astype(float)) for _, one in some.groupby(["pretrain_seed", "seed"], dropna=False)]
    return float(np.mean(each)) / COMPARED[metric]


def shown(tree: Tree) -> list[Tree]:
    """The same for the pages."""
    return [{"task": one["task"], "labels": words.labels_words(one["labels"], train_examples=one["train_examples"]),
             "heading": words.heading(one["metric"]),
             "lines": [{"way": words.way_words(line["way"]), "all": words.percent(line["all"]), "clean": words.percent(line["clean"])}
                       for line in one["lines"]]} for one in tree["clean"]]  # fmt: skip


def said(tree: Tree, task: str) -> str:
    """`3 of 1,000 in the corpus, 1 in its unlabelled text; 240 are too short to tell`; a dash where nothing is scored."""
    one = next((one for one in tree["overlap"] if one["task"] == task), None)
    if one is None:
        return "–"
    looked = one["items"] - one["too_short"]
    own = "" if one["unlabelled"] is None else f", {one['unlabelled']:,} in its unlabelled text"
    short = f"; {one['too_short']:,} {'is' if one['too_short'] == 1 else 'are'} too short to tell" if one["too_short"] else ""
    return f"{one['corpus']:,} of {looked:,} in the corpus{own}{short}" if looked else "all are too short to tell"
