"""A text, or two, and the label: sentiment, topics, acceptability; entailment, paraphrases."""

import pandas as pd

from lineage.data import Task
from lineage.kind import Columns, Kind, group_column, label_column, one_or_two_texts, texts_of_items


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, of two texts also second (cut at max_tokens words, both together), label, group and cut (whether they were longer)."""
    assert task.label is not None
    read = one_or_two_texts(columns, task, where)
    label, group = label_column(columns, task.label, where), group_column(columns, task.group, where)
    return read.assign(label=[label[row] for row in read.index], group=[group[row] for row in read.index])


KIND = Kind(
    name="classify",
    needs=("text", "label"),
    items=items,
    texts=texts_of_items,
    metrics=("accuracy", "macro_f1", "matthews"),
    reads=("text", "second"),
)
