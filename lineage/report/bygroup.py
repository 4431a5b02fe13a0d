"""Scores by group of items, such as the paradigms of BLiMP, ambiguous words, or relations of analogies: what a mean over them hides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from lineage.report import words
from lineage.report.cells import WAY, Cell, told_apart
from lineage.scoring.metrics import COMPARED

Tree = dict[str, Any]
NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def by_group(table: pd.DataFrame, winners: Sequence[Sequence[Cell]], *, split: str) -> list[Tree]:
    """A table a task whose items have groups, at the most labels that it was learned with: each winner's mean over seeds in each of them.

    `winners` holds for each question the ways that stand for the variants. A group has few items, and no interval is computed.
    """
    most = {cells[0].task: cells for cells in sorted(winners, key=_labels)}
    known = (table["group"] != "all") & (table["split"] == split) & (table["trial"] == "chosen") & (table["layer"] == "none")
    groups = told_apart(table[known & (table["family"] != "ceiling")])  # whose rows count the examples of all groups
    found = []
    for task, cells in most.items():
        own = groups[(groups["task"] == task) & (groups["metric"] == cells[0].metric)]
        if own.empty:
            continue
        means = _means(own)
        examples = own.groupby("group")["examples"].max()
        found.append({
            "task": task, "labels": cells[0].labels, "train_examples": _labels(cells), "metric": cells[0].metric,
            "ways": [asdict(cell.way) for cell in cells],
            "groups": [{"group": str(name), "examples": int(count), "values": [_share(means, cell, str(name)) for cell in cells]}
                       for name, count in in_order({str(name): count for name, count in examples.items()}).items()]})  # fmt: skip
    return found


def in_order(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Groups by their names, u2 before u10 where all end in a number."""
    numbered = [NUMBERED.fullmatch(name) for name in groups]
    keys = {one[0]: (one[1], int(one[2])) for one in numbered if one}
    return {name: groups[name] for name in sorted(groups, key=keys.__getitem__ if all(numbered) else None)}


def _labels(cells: Sequence[Cell]) -> int:
    return max(cell.train_examples for cell in cells)


def _means(table: pd.DataFrame) -> dict[tuple[str, ...], float]:
    """Way, labels and group -> the mean over repetitions; not a number where one of them has no value."""
    values: dict[tuple[str, ...], list[float]] = {}
    for *key, value in table[[*WAY, "labels", "group", "value"]].itertuples(index=False):
        values.setdefault(tuple(map(str, key)), []).append(float(value))
    return {key: float(np.mean(some)) for key, some in values.items()}


def _share(means: Mapping[tuple[str, ...], float], cell: Cell, group: str) -> float | None:
    """What a cell's way reached in a group, as a share of a perfect score; None where it has no value."""
    mean = means.get((*asdict(cell.way).values(), cell.labels, group), float("nan"))
    return None if np.isnan(mean) else mean / COMPARED[cell.metric]


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
