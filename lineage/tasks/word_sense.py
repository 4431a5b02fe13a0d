"""A word in its sentence, and the sense that it has there, which only the context can tell."""

import pandas as pd

from lineage.answers.sense import SenseAnswer
from lineage.config.data import Task
from lineage.language import is_blank
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    Cell,
    TableColumns,
    extract_sentences,
    list_cells,
    parse_list,
    parse_place,
    read_label_column,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns tokens (a window of max_words around the target), target, label, truncated."""
    assert task.tokens is not None and task.target is not None
    windows = [
        _cut_window(tokens, target, task.max_words)
        for tokens, target in zip(
            list_cells(columns, task.tokens, where),
            list_cells(columns, task.target, where),
            strict=True,
        )
    ]
    items = pd.DataFrame(windows, columns=["tokens", "target", "truncated"])
    if task.label is not None:
        items["label"] = read_label_column(columns, task.label, where)
    return items


def _cut_window(words: Cell, target: Cell, max_words: int) -> tuple[list[str], int, bool]:
    """Return max_words words around the target, its place among them, and whether there are more."""
    tokens = parse_list(words)
    place = parse_place(target, tokens, meaning="the index of a token")
    if is_blank(tokens[place]):
        raise words.error(f"the word at {place}, which '{target.column}' names, is blank")
    first = max(0, min(place - max_words // 2, len(tokens) - max_words))
    window = tokens[first : first + max_words]
    return window, place - first, len(tokens) > max_words


KIND = Kind(
    name="word_sense",
    unit="word",
    required_columns=("tokens", "target", "label"),
    make_items=make_items,
    extract_texts=extract_sentences,
    answer=SenseAnswer,
    metrics=("accuracy", "macro_f1"),
    integer_columns=("target",),
    identity_columns=("tokens", "target"),
)
