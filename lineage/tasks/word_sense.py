"""A word in its sentence, and the sense that it has there, which only the context can tell."""

import pandas as pd

from lineage.answers.label import LabelAnswer
from lineage.config.data import Task
from lineage.errors import row_error, shorten_value
from lineage.language import is_blank, join_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import TableColumns, parse_integer, parse_list, read_label_column


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns tokens (a window of max_words around the target), target, label, truncated."""
    assert task.tokens is not None and task.target is not None
    rows = zip(columns[task.tokens], columns[task.target], strict=True)
    windows = [
        _cut_window(tokens, target, row, task, where) for row, (tokens, target) in enumerate(rows)
    ]
    items = pd.DataFrame(windows, columns=["tokens", "target", "truncated"])
    if task.label is not None:
        items["label"] = read_label_column(columns, task.label, where)
    return items


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Return all tokens as running text; a bag of words cannot see which one is the target."""
    return [[join_words(list(tokens), language) for tokens in items["tokens"]]]


def _cut_window(
    value: object, target: object, row: int, task: Task, where: str
) -> tuple[list[str], int, bool]:
    """Return max_words words around the target, its place among them, and whether there are more."""
    assert task.tokens is not None
    tokens = parse_list(value, row, task.tokens, where)
    try:
        place = parse_integer(target)
    except (TypeError, ValueError, OverflowError):
        raise row_error(
            row,
            where,
            f"column '{task.target}': {shorten_value(target)} is not the index of a token",
        ) from None
    if not 0 <= place < len(tokens):
        raise row_error(
            row,
            where,
            f"column '{task.target}': {place} is outside the {len(tokens)} tokens, which count "
            "from 0",
        )
    if is_blank(tokens[place]):
        raise row_error(
            row,
            where,
            f"column '{task.tokens}': the word at {place}, which '{task.target}' names, is blank",
        )
    first = max(0, min(place - task.max_words // 2, len(tokens) - task.max_words))
    window = tokens[first : first + task.max_words]
    return window, place - first, len(tokens) > task.max_words


KIND = Kind(
    name="word_sense",
    unit="word",
    required_columns=("tokens", "target", "label"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=LabelAnswer,
    metrics=("accuracy", "macro_f1"),
    integer_columns=("target",),
    identity_columns=("tokens", "target"),
)
