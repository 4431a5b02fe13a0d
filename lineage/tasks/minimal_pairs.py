"""Two sentences that differ in one thing, of which one is good: a language model that knows better gives it the higher probability."""

import pandas as pd

from lineage.data import Task
from lineage.kind import Columns, Kind, group_column, text_column


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns good, bad, group (the paradigm) and cut, which is never true: a pair that is cut may no longer differ.

    A pair of equal sentences is left out (BLiMP as published holds one): there is nothing to tell apart.
    """
    assert task.good is not None and task.bad is not None
    good, bad = text_column(columns, task.good, where), text_column(columns, task.bad, where)
    table = pd.DataFrame({"good": good, "bad": bad, "group": group_column(columns, task.group, where), "cut": False})
    return table[table["good"] != table["bad"]]


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The good sentences."""
    return [list(items["good"])]


KIND = Kind(
    name="minimal_pairs",
    needs=("good", "bad"),
    items=items,
    texts=texts,
    metrics=("accuracy",),
    answer=None,
    trained=False,
    reads=("good", "bad"),
)
