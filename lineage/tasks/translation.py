"""A sentence and its translation; the text that a model generates is scored."""

import pandas as pd

from lineage.answers.text import TextAnswer
from lineage.config.data import Task
from lineage.language import truncate_to_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import TableColumns, extract_sources, read_text_column


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns source (at most max_words words), target (never cut) and truncated."""
    assert task.source is not None
    whole_sources = read_text_column(columns, task.source, where, noun="source")
    sources = [truncate_to_words(text, task.max_words, task.language) for text in whole_sources]
    is_cut = [len(a) < len(b) for a, b in zip(sources, whole_sources, strict=True)]
    items = pd.DataFrame({"source": sources, "truncated": is_cut})
    if task.target is not None:
        items["target"] = read_text_column(columns, task.target, where, noun="target")
    return items


KIND = Kind(
    name="translation",
    unit="sentence",
    required_columns=("source", "target"),
    make_items=make_items,
    extract_texts=extract_sources,
    answer=TextAnswer,
    metrics=("bleu", "chrf"),
    label_columns=("target",),
    whole_text_columns=("target",),
    identity_columns=("source",),
)
