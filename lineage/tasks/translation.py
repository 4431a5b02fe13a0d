"""A sentence and its translation: what is scored is the text that a model writes."""

import pandas as pd

from lineage.config.data import Task
from lineage.data.language import truncate_to_words
from lineage.tasks.base import Kind, TableColumns, read_group_column, read_text_column


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns source (cut at max_tokens words), target (never cut: it is what translations are scored by), group and cut."""
    assert task.source is not None and task.target is not None
    whole, target = (
        read_text_column(columns, task.source, where, noun="source"),
        read_text_column(columns, task.target, where, noun="target"),
    )
    source = [truncate_to_words(text, task.max_tokens, task.language) for text in whole]
    cut = [len(a) < len(b) for a, b in zip(source, whole, strict=True)]
    return pd.DataFrame(
        {
            "source": source,
            "target": target,
            "group": read_group_column(columns, task.group, where),
            "cut": cut,
        }
    )


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The sources."""
    return [list(items["source"])]


KIND = Kind(
    name="translation",
    required_columns=("source", "target"),
    make_items=make_items,
    extract_texts=extract_texts,
    metrics=("bleu", "chrf"),
    answer_type=None,
    identity_columns=("source",),
)
