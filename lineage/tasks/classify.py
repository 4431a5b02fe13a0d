"""A text and its label: sentiment, topics, acceptability."""

import pandas as pd

from lineage.errors import InputError
from lineage.kind import Columns, Kind, group_column, label_column, text_column
from lineage.params import Task
from lineage.text import first_words


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns text (cut at max_tokens words), label, group and cut (whether it was longer)."""
    assert task.text is not None and task.label is not None
    if len(task.text) != 1:
        raise InputError(f"{where}: text: {list(task.text)} names {len(task.text)} columns; classify reads exactly one, name one")
    whole = text_column(columns, task.text[0], where)
    text = [first_words(t, task.max_tokens, task.language) for t in whole]
    cut = [len(a) < len(b) for a, b in zip(text, whole, strict=True)]
    label, group = label_column(columns, task.label, where), group_column(columns, task.group, where)
    return pd.DataFrame({"text": text, "label": label, "group": group, "cut": cut})


def texts(items: pd.DataFrame, language: str) -> list[str]:
    """The texts themselves."""
    return list(items["text"])


KIND = Kind(
    name="classify",
    needs=("text", "label"),
    items=items,
    texts=texts,
    metrics=("accuracy", "macro_f1", "matthews"),
    reads=("text",),
)
