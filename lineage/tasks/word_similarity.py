"""Two words and how like each other people find them: a model's vectors say it by their cosine, without training."""

import pandas as pd

from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.tasks.base import (
    Kind,
    TableColumns,
    extract_item_words,
    read_group_column,
    read_number_column,
    read_word_columns,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns words (a list of two), label (people's score), group (the data set) and cut, which is never true: half a word is another one."""
    assert task.label is not None
    words, score = (
        read_word_columns(columns, task, where, num_words=2),
        read_number_column(columns, task.label, where),
    )
    return pd.DataFrame(
        {
            "words": words,
            "label": score,
            "group": read_group_column(columns, task.group, where),
            "cut": False,
        }
    )


def check_items(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError where a group has no order that a model could follow: each group has a correlation of its own."""
    for name, own in items.groupby("group", sort=True):
        place = (
            where
            if task.group is None
            else f"{where}: column '{task.group}': group '{shorten_value(str(name))}'"
        )
        if len(own) < 3:
            raise InputError(
                f"{place}: {len(own)} pairs are too few for a correlation of ranks; 3 are needed: add pairs, take these out, or raise "
                "per_group and limit"
            )
        if own["label"].nunique() < 2:
            raise InputError(
                f"{place}: column '{task.label}': every score is {own['label'].iloc[0]}, and none is above another; check what 'label' "
                "names, or take these pairs out"
            )


KIND = Kind(
    name="word_similarity",
    required_columns=("words", "label"),
    make_items=make_items,
    extract_texts=extract_item_words,
    metrics=("spearman",),
    answer_type=None,
    has_train_split=False,
    check_items=check_items,
    identity_columns=("words",),
)
