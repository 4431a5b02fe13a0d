"""A word in its sentence and the sense that it has there: which of its meanings, as only the context can tell."""

from typing import Any

import pandas as pd

from lineage.config.data import Task
from lineage.data.language import is_blank, join_words
from lineage.errors import shorten_value
from lineage.tasks.base import (
    Kind,
    TableColumns,
    parse_integer,
    parse_list,
    read_group_column,
    read_label_column,
    row_error,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns tokens (a window of max_tokens round the target), target (its index in them), label, group and cut."""
    assert task.tokens is not None and task.target is not None and task.label is not None
    windows = [
        _cut_window(tokens, target, row, task, where)
        for row, (tokens, target) in enumerate(
            zip(columns[task.tokens], columns[task.target], strict=True)
        )
    ]
    label, group = (
        read_label_column(columns, task.label, where),
        read_group_column(columns, task.group, where),
    )
    tokens, target, cut = (
        (list(column) for column in zip(*windows, strict=True)) if windows else ([], [], [])
    )
    return pd.DataFrame(
        {"tokens": tokens, "target": target, "label": label, "group": group, "cut": cut}
    )


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """All the tokens as running text: a bag of words does not know which is the target."""
    return [[join_words(list(tokens), language) for tokens in items["tokens"]]]


def _cut_window(
    value: Any, target: Any, row: int, task: Task, where: str
) -> tuple[list[str], int, bool]:
    """At most max_tokens words round the target, its place among them, and whether there were more."""
    assert task.tokens is not None
    tokens = parse_list(value, row, task.tokens, where)
    try:
        place = parse_integer(target)
    except (TypeError, ValueError, OverflowError):
        raise row_error(
            row, where, f"column '{task.target}': {shorten_value(target)} is no index of a token"
        ) from None
    if not 0 <= place < len(tokens):
        raise row_error(
            row,
            where,
            f"column '{task.target}': {place} is outside the {len(tokens)} tokens, which count from 0",
        )
    if is_blank(tokens[place]):
        raise row_error(
            row,
            where,
            f"column '{task.tokens}': the word at {place}, which '{task.target}' names, is blank",
        )
    first = max(0, min(place - task.max_tokens // 2, len(tokens) - task.max_tokens))
    return tokens[first : first + task.max_tokens], place - first, len(tokens) > task.max_tokens


KIND = Kind(
    name="word_sense",
    required_columns=("tokens", "target", "label"),
    make_items=make_items,
    extract_texts=extract_texts,
    metrics=("accuracy", "macro_f1"),
    identity_columns=("tokens", "target"),
)
