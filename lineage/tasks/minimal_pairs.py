"""Two sentences that differ in one thing, of which one is good: a language model that knows better gives it the higher probability."""

import pandas as pd

from lineage.config.data import Task
from lineage.tasks.base import Kind, TableColumns, read_group_column, read_text_column


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns good, bad, group (the paradigm) and cut, which is never true: a pair that is cut may no longer differ.

    A pair of equal sentences is left out (BLiMP as published holds one): there is nothing to tell apart.
    """
    assert task.good is not None and task.bad is not None
    good, bad = (
        read_text_column(columns, task.good, where),
        read_text_column(columns, task.bad, where),
    )
    table = pd.DataFrame(
        {
            "good": good,
            "bad": bad,
            "group": read_group_column(columns, task.group, where),
            "cut": False,
        }
    )
    return table[table["good"] != table["bad"]]


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The good sentences."""
    return [list(items["good"])]


KIND = Kind(
    name="minimal_pairs",
    required_columns=("good", "bad"),
    make_items=make_items,
    extract_texts=extract_texts,
    metrics=("accuracy",),
    answer_type=None,
    has_train_split=False,
    identity_columns=("good", "bad"),
)
