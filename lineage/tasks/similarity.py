"""Two words and how like each other people find them: a model's vectors say it by their cosine, without training."""

import pandas as pd

from lineage.data import Task
from lineage.errors import InputError, shown
from lineage.kind import Columns, Kind, group_column, number_column, word_columns, words_of_items


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns words (a list of two), label (people's score), group (the data set) and cut, which is never true: half a word is another one."""
    assert task.label is not None
    words, score = word_columns(columns, task, where, count=2), number_column(columns, task.label, where)
    return pd.DataFrame({"words": words, "label": score, "group": group_column(columns, task.group, where), "cut": False})


def check(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError where a group has no order that a model could follow: each group has a correlation of its own."""
    for name, own in items.groupby("group", sort=True):
        place = where if task.group is None else f"{where}: column '{task.group}': group '{shown(str(name))}'"
        if len(own) < 3:
            raise InputError(f"{place}: {len(own)} pairs are too few for a correlation of ranks; 3 are needed: add pairs, take these out, or raise "
                             "per_group and limit")  # fmt: skip
        if own["label"].nunique() < 2:
            raise InputError(f"{place}: column '{task.label}': every score is {own['label'].iloc[0]}, and none is above another; check what 'label' "
                             "names, or take these pairs out")  # fmt: skip


KIND = Kind(
    name="similarity",
    needs=("words", "label"),
    items=items,
    texts=words_of_items,
    metrics=("spearman",),
    answer=None,
    trained=False,
    whole=check,
    reads=("words",),
)
