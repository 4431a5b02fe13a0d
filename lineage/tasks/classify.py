"""A text, or two, and the label: sentiment, topics, acceptability; entailment, paraphrases."""

import pandas as pd

from lineage.errors import InputError
from lineage.kind import Columns, Kind, group_column, label_column, text_column
from lineage.params import Task
from lineage.text import first_words, fitting, words


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, of two texts also second (cut at max_tokens words, both together), label, group and cut (whether they were longer)."""
    assert task.text is not None and task.label is not None
    if len(task.text) not in (1, 2):
        raise InputError(f"{where}: text: {list(task.text)} names {len(task.text)} columns; classify reads one text or two, name one or two")
    if task.symmetric and len(task.text) == 1:
        raise InputError(f"{where}: symmetric is of two texts, and text names one column; name two, or take symmetric out")
    whole = [text_column(columns, name, where) for name in task.text]
    if len(whole) == 1:
        kept = [[first_words(t, task.max_tokens, task.language) for t in whole[0]]]
    else:
        kept = [list(column) for column in zip(*(_both(a, b, task) for a, b in zip(*whole, strict=True)), strict=True)]
    cut = [short != long for short, long in zip(zip(*kept, strict=True), zip(*whole, strict=True), strict=True)]
    label, group = label_column(columns, task.label, where), group_column(columns, task.group, where)
    return pd.DataFrame({**dict(zip(("text", "second"), kept, strict=False)), "label": label, "group": group, "cut": cut})


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The texts themselves, or the first and the second ones."""
    return [list(items[name]) for name in ("text", "second") if name in items]


def _both(first: str, second: str, task: Task) -> tuple[str, str]:
    a, b = fitting(len(words(first, task.language)), len(words(second, task.language)), most=task.max_tokens)
    return first_words(first, a, task.language), first_words(second, b, task.language)


KIND = Kind(
    name="classify",
    needs=("text", "label"),
    items=items,
    texts=texts,
    metrics=("accuracy", "macro_f1", "matthews"),
    reads=("text", "second"),
)
