"""A document and its summary; the text that a model writes is scored."""

import pandas as pd

from lineage.answers.metrics import ANSWER_SEPARATOR
from lineage.answers.summary import SummaryAnswer
from lineage.config.data import Task
from lineage.language import split_words, truncate_to_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import TableColumns, read_text_column


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns source (at most max_words words), num_words, truncated and target.

    `num_words` is the length of the whole document. Several summaries of a test item are joined
    with ANSWER_SEPARATOR.
    """
    assert task.source is not None
    documents = read_text_column(columns, task.source, where, noun="document")
    lengths = [len(split_words(text, task.language)) for text in documents]
    sources = [truncate_to_words(text, task.max_words, task.language) for text in documents]
    items = pd.DataFrame({"source": sources, "num_words": lengths})
    items["truncated"] = items["num_words"] > task.max_words
    names = [name for name in (task.target, *(task.references or ())) if name in columns]
    if names:
        summaries = [
            read_text_column(columns, name, where, noun="summary") for name in dict.fromkeys(names)
        ]
        items["target"] = list(map(ANSWER_SEPARATOR.join, zip(*summaries, strict=True)))
    return items


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    return [list(items["source"])]


KIND = Kind(
    name="summarization",
    unit="sentence",
    required_columns=("source", "target"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=SummaryAnswer,
    metrics=("rougeL", "rouge1", "rouge2"),
    optional_columns=("references", "group"),
    label_columns=("target", "references"),
    test_label_columns=("references",),
    whole_text_columns=("target",),
    identity_columns=("source",),
)
