"""Scores by group of items, such as the paradigms of BLiMP, which the mean over groups hides."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lineage.analysis.cells import SYSTEM_COLUMNS, ResultCell, disambiguate, system_key
from lineage.analysis.records import GroupScore, GroupScores
from lineage.answers.metrics import RANKING_METRICS

NUMBERED_NAME = re.compile(r"(.*?)(\d+)", re.DOTALL)


def build_group_scores(
    table: pd.DataFrame, best_systems: Sequence[Sequence[ResultCell]], *, split: str
) -> list[GroupScores]:
    """Return the scores by group of each task that has groups, at its largest label count.

    `best_systems` are those of each setting. A score is the mean over seeds; a group has few
    items, so no interval is computed.
    """
    largest_settings = {
        cells[0].task: cells for cells in sorted(best_systems, key=_max_train_examples)
    }
    all_rows = _group_rows(table, split=split)
    group_scores = []
    for task, cells in largest_settings.items():
        rows = all_rows[(all_rows["task"] == task) & (all_rows["metric"] == cells[0].metric)]
        if rows.empty:
            continue
        group_scores.append(
            GroupScores(
                task=task,
                label_count=cells[0].label_count,
                train_examples=_max_train_examples(cells),
                metric=cells[0].metric,
                systems=tuple(cell.system for cell in cells),
                groups=_score_groups(rows, cells),
            )
        )
    return group_scores


def _group_rows(table: pd.DataFrame, *, split: str) -> pd.DataFrame:
    is_group = (
        (table["group"] != "all")
        & (table["split"] == split)
        & (table["trial"] == "chosen")
        & (table["layer"] == "none")
        & (table["family"] != "ceiling")  # num_examples of a ceiling counts all groups
    )
    return disambiguate(table[is_group])


def _score_groups(rows: pd.DataFrame, cells: Sequence[ResultCell]) -> tuple[GroupScore, ...]:
    means = _group_means(rows)
    num_examples = rows.groupby("group")["num_examples"].max()
    counts = sort_groups({str(name): int(count) for name, count in num_examples.items()})
    return tuple(
        GroupScore(name, count, tuple(_normalized_mean(means, cell, name) for cell in cells))
        for name, count in counts.items()
    )


def sort_groups(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Sort groups by name; if all names end in numbers, u2 comes before u10."""
    keys = {}
    for name in groups:
        match = NUMBERED_NAME.fullmatch(name)
        if match is None:
            return {name: groups[name] for name in sorted(groups)}
        keys[name] = (match[1], int(match[2]))
    return {name: groups[name] for name in sorted(groups, key=keys.__getitem__)}


def _max_train_examples(cells: Sequence[ResultCell]) -> int:
    return max(cell.train_examples for cell in cells)


def _group_means(rows: pd.DataFrame) -> dict[tuple[str, ...], float]:
    """Return the mean over repetitions by system, label count and group.

    It is NaN if a repetition has no value.
    """
    values: dict[tuple[str, ...], list[float]] = {}
    columns = [*SYSTEM_COLUMNS, "label_count", "group", "value"]
    for *key, value in rows[columns].itertuples(index=False):
        values.setdefault(tuple(map(str, key)), []).append(float(value))
    return {key: float(np.mean(repetitions)) for key, repetitions in values.items()}


def _normalized_mean(
    means: Mapping[tuple[str, ...], float], cell: ResultCell, group: str
) -> float | None:
    """Return a cell's score in a group as a share of a perfect score; None without a value."""
    mean = means.get((*system_key(cell.system), cell.label_count, group), float("nan"))
    return None if np.isnan(mean) else mean / RANKING_METRICS[cell.metric]
