"""A text, or two, and a number: how like two sentences are, how good a review is, how hard a text is to read."""

import pandas as pd

from lineage.config.data import Task
from lineage.tasks.base import (
    Kind,
    TableColumns,
    extract_item_texts,
    make_text_items,
    read_group_column,
    read_number_column,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, of two texts also second (cut at max_tokens words, both together), label (the number), group and cut."""
    assert task.label is not None
    text_items = make_text_items(columns, task, where)
    label, group = (
        read_number_column(columns, task.label, where),
        read_group_column(columns, task.group, where),
    )
    return text_items.assign(
        label=[label[row] for row in text_items.index],
        group=[group[row] for row in text_items.index],
    )


KIND = Kind(
    name="text_regression",
    required_columns=("text", "label"),
    make_items=make_items,
    extract_texts=extract_item_texts,
    answer_type="number",
    metrics=("pearson", "spearman"),
    identity_columns=("text", "second"),
)
