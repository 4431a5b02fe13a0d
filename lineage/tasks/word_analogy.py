"""a is to b as c is to d: the word d is looked for among all words of the task by what a model's vectors add up to, without training."""

import pandas as pd

from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.tasks.base import (
    Kind,
    TableColumns,
    extract_item_words,
    read_group_column,
    read_word_columns,
    row_error,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns words (a list of four: a, b, c, d), group (the category) and cut, which is never true: half a word is another one."""
    words, names = read_word_columns(columns, task, where, num_words=4), task.words or ()
    for row, (a, b, c, d) in enumerate(words):
        if a == b:
            raise row_error(
                row,
                where,
                f"columns '{names[0]}' and '{names[1]}': both are '{shorten_value(a)}', and the two differ in nothing that c could be moved by",
            )
        if d in (a, b, c):
            raise row_error(
                row,
                where,
                f"column '{names[3]}': '{shorten_value(d)}' is one of the three words that are given, which are never the answer",
            )
    return pd.DataFrame(
        {"words": words, "group": read_group_column(columns, task.group, where), "cut": False}
    )


def check_items(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError where there are hardly other words that an answer could be."""
    if len(items) < 3:
        raise InputError(
            f"{where}: {len(items)} analogies are too few, since the words of the others are what an answer is chosen from; give 3 or more"
        )


KIND = Kind(
    name="word_analogy",
    required_columns=("words",),
    make_items=make_items,
    extract_texts=extract_item_words,
    metrics=("accuracy",),
    answer_type=None,
    has_train_split=False,
    check_items=check_items,
    identity_columns=("words",),
)
