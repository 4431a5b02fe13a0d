"""Scores by group of items, such as the paradigms of BLiMP, ambiguous words, or relations of analogies: what a mean over them hides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from lineage.analysis.cells import SYSTEM_COLUMNS, ResultCell, disambiguate
from lineage.evaluation.metrics import RANKING_METRICS
from lineage.report import sentences

JsonDict = dict[str, Any]
NUMBERED_NAME = re.compile(r"(.*?)(\d+)", re.DOTALL)


def build_group_scores(
    table: pd.DataFrame, best_systems: Sequence[Sequence[ResultCell]], *, split: str
) -> list[JsonDict]:
    """A table a task whose items have groups, at the most labels that it was learned with: each winner's mean over seeds in each of them.

    `winners` holds for each question the ways that stand for the variants. A group has few items, and no interval is computed.
    """
    largest_settings = {
        result_cells[0].task: result_cells
        for result_cells in sorted(best_systems, key=_max_train_examples)
    }
    mask = (
        (table["group"] != "all")
        & (table["split"] == split)
        & (table["trial"] == "chosen")
        & (table["layer"] == "none")
    )
    groups = disambiguate(
        table[mask & (table["family"] != "ceiling")]
    )  # whose rows count the examples of all groups
    records = []
    for task, result_cells in largest_settings.items():
        task_rows = groups[(groups["task"] == task) & (groups["metric"] == result_cells[0].metric)]
        if task_rows.empty:
            continue
        means = _group_means(task_rows)
        examples = task_rows.groupby("group")["num_examples"].max()
        records.append(
            {
                "task": task,
                "label_count": result_cells[0].label_count,
                "train_examples": _max_train_examples(result_cells),
                "metric": result_cells[0].metric,
                "ways": [asdict(cell.system) for cell in result_cells],
                "groups": [
                    {
                        "group": str(name),
                        "num_examples": int(count),
                        "values": [
                            _normalized_group_mean(means, cell, str(name)) for cell in result_cells
                        ],
                    }
                    for name, count in sort_groups(
                        {str(name): count for name, count in examples.items()}
                    ).items()
                ],
            }
        )
    return records


def sort_groups(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Groups by their names, u2 before u10 where all end in a number."""
    matches = [NUMBERED_NAME.fullmatch(name) for name in groups]
    keys = {one[0]: (one[1], int(one[2])) for one in matches if one}
    return {
        name: groups[name]
        for name in sorted(groups, key=keys.__getitem__ if all(matches) else None)
    }


def _max_train_examples(result_cells: Sequence[ResultCell]) -> int:
    return max(cell.train_examples for cell in result_cells)


def _group_means(table: pd.DataFrame) -> dict[tuple[str, ...], float]:
    """Way, labels and group -> the mean over repetitions; not a number where one of them has no value."""
    values: dict[tuple[str, ...], list[float]] = {}
    for *key, value in table[[*SYSTEM_COLUMNS, "label_count", "group", "value"]].itertuples(
        index=False
    ):
        values.setdefault(tuple(map(str, key)), []).append(float(value))
    return {key: float(np.mean(some)) for key, some in values.items()}


def _normalized_group_mean(
    means: Mapping[tuple[str, ...], float], result: ResultCell, group: str
) -> float | None:
    """What a cell's way reached in a group, as a share of a perfect score; None where it has no value."""
    mean = means.get((*asdict(result.system).values(), result.label_count, group), float("nan"))
    return None if np.isnan(mean) else mean / RANKING_METRICS[result.metric]


def format_group_scores(tree: JsonDict) -> list[JsonDict]:
    """The same for the pages: percentages, the best of each line marked where it stands alone."""
    return [
        {
            "task": one["task"],
            "label_count": sentences.format_label_count(
                one["label_count"], train_examples=one["train_examples"]
            ),
            "heading": sentences.metric_heading(one["metric"]),
            "ways": [sentences.format_system(way) for way in one["ways"]],
            "lines": [_format_group(group) for group in one["groups"]],
        }
        for one in tree["groups"]
    ]


def _format_group(group: JsonDict) -> JsonDict:
    values = [sentences.format_percent(value) for value in group["values"]]
    scores = [value for value in group["values"] if value is not None]
    has_single_best = (
        len(scores) > 1
        and [sentences.format_percent(value) for value in scores].count(
            sentences.format_percent(max(scores))
        )
        == 1
    )
    best = group["values"].index(max(scores)) if has_single_best else None
    return {
        "group": group["group"],
        "num_examples": group["num_examples"],
        "cells": [{"value": v, "best": i == best} for i, v in enumerate(values)],
    }
