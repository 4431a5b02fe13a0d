"""Scores by group of items, such as the paradigms of BLiMP, ambiguous words, or relations of analogies: what a mean over them hides."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from lineage.metrics import COMPARED
from lineage.report import words
from lineage.report.cells import WAY, Cell, told_apart

Tree = dict[str, Any]


def by_group(table: pd.DataFrame, winners: Sequence[Sequence[Cell]], *, split: str) -> list[Tree]:
    """A table a task whose items have groups, at the most labels that it was learned with: each winner's mean over seeds in each of them.

    `winners` holds for each question the ways that stand for the variants. A group has few items, and no interval is computed.
    """
    most = {cells[0].task: cells for cells in sorted(winners, key=_labels)}
    known = (table["group"] != "all") & (table["split"] == split) & (table["trial"] == "chosen") & (table["layer"] == "none")
    groups = told_apart(table[known])
    found = []
    for task, cells in most.items():
        own = groups[(groups["task"] == task) & (groups["metric"] == cells[0].metric)]
        if own.empty:
            continue
        values = [_means(own, cell) for cell in cells]
        examples = own.groupby("group", sort=True)["examples"].max()
        found.append({
            "task": task, "labels": cells[0].labels, "train_examples": _labels(cells), "metric": cells[0].metric,
            "ways": [asdict(cell.way) for cell in cells],
            "groups": [{"group": str(name), "examples": int(count), "values": [one.get(str(name)) for one in values]}
                       for name, count in examples.items()]})  # fmt: skip
    return found


def _labels(cells: Sequence[Cell]) -> int:
    return max(cell.train_examples for cell in cells)


def _means(table: pd.DataFrame, cell: Cell) -> Mapping[str, float | None]:
    """Group -> the mean over repetitions, as a share of a perfect score; None where one of them has no value."""
    way = asdict(cell.way)
    own = table[(table[list(WAY)] == [way[name] for name in WAY]).all(axis=1) & (table["labels"] == cell.labels)]
    means = own.astype({"value": float}).groupby("group")["value"].agg(lambda values: values.mean(skipna=False))
    return {str(name): None if pd.isna(value) else float(value) / COMPARED[cell.metric] for name, value in means.items()}


def shown(tree: Tree) -> list[Tree]:
    """The same for the pages: percentages, the best of each line marked where it stands alone."""
    return [{"task": one["task"], "labels": words.labels_words(one["labels"], train_examples=one["train_examples"]),
             "heading": words.heading(one["metric"]), "ways": [words.way_words(way) for way in one["ways"]],
             "lines": [_line(group) for group in one["groups"]]} for one in tree["groups"]]  # fmt: skip


def _line(group: Tree) -> Tree:
    values = [words.percent(value) for value in group["values"]]
    known = [value for value in group["values"] if value is not None]
    alone = len(known) > 1 and [words.percent(value) for value in known].count(words.percent(max(known))) == 1
    best = group["values"].index(max(known)) if alone else None
    return {"group": group["group"], "examples": group["examples"], "cells": [{"value": v, "best": i == best} for i, v in enumerate(values)]}
