"""A word in its sentence and the sense that it has there: which of its meanings, as only the context can tell."""

from typing import Any

import pandas as pd

from lineage.data import Task
from lineage.errors import shown
from lineage.kind import Columns, Kind, bad_row, group_column, label_column, listed, whole_number
from lineage.text.language import blank, join


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns tokens (a window of max_tokens round the target), target (its index in them), label, group and cut."""
    assert task.tokens is not None and task.target is not None and task.label is not None
    windows = [_window(tokens, target, row, task, where)
               for row, (tokens, target) in enumerate(zip(columns[task.tokens], columns[task.target], strict=True))]  # fmt: skip
    label, group = label_column(columns, task.label, where), group_column(columns, task.group, where)
    tokens, target, cut = (list(column) for column in zip(*windows, strict=True)) if windows else ([], [], [])
    return pd.DataFrame({"tokens": tokens, "target": target, "label": label, "group": group, "cut": cut})


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """All the tokens as running text: a bag of words does not know which is the target."""
    return [[join(list(tokens), language) for tokens in items["tokens"]]]


def _window(value: Any, target: Any, row: int, task: Task, where: str) -> tuple[list[str], int, bool]:
    """At most max_tokens words round the target, its place among them, and whether there were more."""
    assert task.tokens is not None
    tokens = listed(value, row, task.tokens, where)
    try:
        place = whole_number(target)
    except (TypeError, ValueError, OverflowError):
        raise bad_row(row, where, f"column '{task.target}': {shown(target)} is no index of a token") from None
    if not 0 <= place < len(tokens):
        raise bad_row(row, where, f"column '{task.target}': {place} is outside the {len(tokens)} tokens, which count from 0")
    if blank(tokens[place]):
        raise bad_row(row, where, f"column '{task.tokens}': the word at {place}, which '{task.target}' names, is blank")
    first = max(0, min(place - task.max_tokens // 2, len(tokens) - task.max_tokens))
    return tokens[first : first + task.max_tokens], place - first, len(tokens) > task.max_tokens


KIND = Kind(
    name="sense",
    needs=("tokens", "target", "label"),
    items=items,
    texts=texts,
    metrics=("accuracy", "macro_f1"),
    reads=("tokens", "target"),
)
