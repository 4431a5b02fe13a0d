"""A sentence and its translation: what is scored is the text that a model writes."""

import pandas as pd

from lineage.data import Task
from lineage.kind import Columns, Kind, group_column, text_column
from lineage.text.language import first_words


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns source (cut at max_tokens words), target (never cut: it is what translations are scored by), group and cut."""
    assert task.source is not None and task.target is not None
    whole, target = text_column(columns, task.source, where, what="source"), text_column(columns, task.target, where, what="target")
    source = [first_words(text, task.max_tokens, task.language) for text in whole]
    cut = [len(a) < len(b) for a, b in zip(source, whole, strict=True)]
    return pd.DataFrame({"source": source, "target": target, "group": group_column(columns, task.group, where), "cut": cut})


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The sources."""
    return [list(items["source"])]


KIND = Kind(
    name="translate",
    needs=("source", "target"),
    items=items,
    texts=texts,
    metrics=("bleu", "chrf"),
    answer=None,
    reads=("source",),
)
