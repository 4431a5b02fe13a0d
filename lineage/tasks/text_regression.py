"""One text or two, and a number: how similar two sentences are, how good a review is."""

import pandas as pd

from lineage.answers.number import NumberAnswer
from lineage.config.data import Task
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    TableColumns,
    extract_item_texts,
    make_text_items,
    read_group_column,
    read_number_column,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns text, second (of two texts), label (the number), group and truncated.

    Both texts together have at most max_words words; `truncated` tells that they had more.
    """
    items = make_text_items(columns, task, where)
    if task.label is not None:
        numbers = read_number_column(columns, task.label, where)
        items["label"] = [numbers[row] for row in items.index]
    groups = read_group_column(columns, task.group, where)
    return items.assign(group=[groups[row] for row in items.index])


KIND = Kind(
    name="text_regression",
    unit="text",
    required_columns=("text", "label"),
    make_items=make_items,
    extract_texts=extract_item_texts,
    answer=NumberAnswer,
    metrics=("pearson", "spearman"),
    identity_columns=("text", "second"),
)
