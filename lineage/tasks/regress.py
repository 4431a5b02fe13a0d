"""A text, or two, and a number: how like two sentences are, how good a review is, how hard a text is to read."""

import pandas as pd

from lineage.data import Task
from lineage.kind import Columns, Kind, group_column, number_column, one_or_two_texts, texts_of_items


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, of two texts also second (cut at max_tokens words, both together), label (the number), group and cut."""
    assert task.label is not None
    read = one_or_two_texts(columns, task, where)
    label, group = number_column(columns, task.label, where), group_column(columns, task.group, where)
    return read.assign(label=[label[row] for row in read.index], group=[group[row] for row in read.index])


KIND = Kind(
    name="regress",
    needs=("text", "label"),
    items=items,
    texts=texts_of_items,
    answer="number",
    metrics=("pearson", "spearman"),
    reads=("text", "second"),
)
