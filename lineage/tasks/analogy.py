"""a is to b as c is to d: the word d is looked for among all words of the task by what a model's vectors add up to, without training."""

import pandas as pd

from lineage.data import Task
from lineage.errors import InputError, shown
from lineage.kind import Columns, Kind, bad_row, group_column, word_columns, words_of_items


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns words (a list of four: a, b, c, d), group (the category) and cut, which is never true: half a word is another one."""
    words, names = word_columns(columns, task, where, count=4), task.words or ()
    for row, (a, b, c, d) in enumerate(words):
        if a == b:
            raise bad_row(
                row, where, f"columns '{names[0]}' and '{names[1]}': both are '{shown(a)}', and the two differ in nothing that c could be moved by"
            )
        if d in (a, b, c):
            raise bad_row(row, where, f"column '{names[3]}': '{shown(d)}' is one of the three words that are given, which are never the answer")
    return pd.DataFrame({"words": words, "group": group_column(columns, task.group, where), "cut": False})


def check(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError where there are hardly other words that an answer could be."""
    if len(items) < 3:
        raise InputError(
            f"{where}: {len(items)} analogies are too few, since the words of the others are what an answer is chosen from; give 3 or more"
        )


KIND = Kind(
    name="analogy",
    needs=("words",),
    items=items,
    texts=words_of_items,
    metrics=("accuracy",),
    answer=None,
    trained=False,
    whole=check,
    reads=("words",),
)
