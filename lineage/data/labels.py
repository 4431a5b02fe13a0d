"""Rename the labels of a task by its `label_map`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lineage.answers.base import row_number
from lineage.answers.label_names import describe_labels, sort_labels
from lineage.config.data import Task
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.data.unlabelled import UserTable
from lineage.errors import InputError, row_error, shorten_value

MAX_SUGGESTED_LABELS = 10  # labels of the data, to be copied into label_map


def apply_label_map(
    splits: dict[str, pd.DataFrame],
    tables: Mapping[str, UserTable],
    dropped: dict[str, dict[str, int]],
    where: str,
) -> dict[str, pd.DataFrame]:
    """Rename labels or tags by the `label_map` of the task of each split.

    Items whose label is mapped to null are dropped and counted. Raises InputError, also for a key
    that no split has as a label while some label has no key.
    """
    splits_by_place: dict[str, list[str]] = {}
    for split in splits:
        place = where
        if split.startswith(EXTRA_TEST_PREFIX):
            place = f"{where}.extra_test_sets.{split.removeprefix(EXTRA_TEST_PREFIX)}"
        splits_by_place.setdefault(place, []).append(split)
    for place, names in splits_by_place.items():
        task = tables[names[0]].task
        if isinstance(task.label_map, dict):
            _check_label_map([splits[name]["label"] for name in names], task, f"{place}.label_map")
    mapped = {}
    for split, table in splits.items():
        user_table = tables[split]
        if user_table.task.label_map:
            table = _map_table_labels(table, user_table.task, user_table.place, dropped[split])
        mapped[split] = table
    return mapped


def _check_label_map(labels: list["pd.Series[Any]"], task: Task, where: str) -> None:
    """Raise InputError for the first key of label_map that is no label, and may be misspelt."""
    all_labels = pd.concat(labels).explode().to_list()
    known = sort_labels(all_labels)
    keys = task.label_names_by_value
    unknown = [key for key in keys if key not in known]
    if not unknown or all(label in keys for label in known):
        return
    if len(unknown) < len(keys):
        fix = "correct it, or remove it"
    else:
        fix = "correct them, or remove 'label_map'"
    raise InputError(
        f"{where}: no label of any split is '{shorten_value(unknown[0])}'; there are "
        f"{describe_labels(known, len(all_labels), MAX_SUGGESTED_LABELS)}; {fix}"
    )


def _map_table_labels(
    table: pd.DataFrame, task: Task, where: str, dropped: dict[str, int]
) -> pd.DataFrame:
    if isinstance(task.label_map, tuple):
        _check_numbered_labels(table, task, where)
    names = task.label_names_by_value
    labels: list[Any] = []
    for label in table["label"]:
        if isinstance(label, str):
            labels.append(names.get(label, label))
        else:
            labels.append([names.get(tag, tag) for tag in label])
    table = table.assign(label=pd.Series(labels, table.index))
    if num_unused := int(table["label"].isna().sum()):
        dropped["unused_label"] = num_unused
        table = table[table["label"].notna()].reset_index(drop=True)
    if table.empty:
        raise InputError(f"{where}: 'label_map' leaves out every item; name a label that stays")
    return table


def _check_numbered_labels(table: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError for the first label that is no place in a list of names."""
    names = task.label_names_by_value
    for item_label, item_id in zip(table["label"], table["id"], strict=True):
        labels = [item_label] if isinstance(item_label, str) else item_label
        unknown = [label for label in labels if label not in names]
        if not unknown:
            continue
        if unknown[0].lstrip("-").isdecimal():
            problem = (
                f"none of 0 to {len(names) - 1} of 'label_map'; give the names of all labels, "
                "from 0 on, or as 'label: name'"
            )
        else:
            problem = (
                "a name already, and 'label_map' is a list, of numbers; remove 'label_map', or "
                "write it as 'label: name'"
            )
        raise row_error(
            row_number(item_id) - 1,
            where,
            f"column '{task.label}': '{shorten_value(unknown[0])}' is {problem}",
        )
