"""a is to b as c is to d: find the word d by adding up a model's vectors, without training."""

import pandas as pd

from lineage.answers.words import AnalogyAnswer
from lineage.config.data import Task
from lineage.errors import InputError, row_error, shorten_value
from lineage.tasks.base import Kind
from lineage.tasks.columns import Cell, TableColumns, extract_item_words, read_word_columns


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return the column words (lists of a, b, c, d); the groups are categories."""
    words = read_word_columns(columns, task, where, num_words=4)
    names = task.words or ()
    for row, (a, b, c, d) in enumerate(words):
        if a == b:
            raise row_error(
                row,
                where,
                f"columns '{names[0]}' and '{names[1]}': both are '{shorten_value(a)}', so they "
                "have no difference to add to c",
            )
        if d in (a, b, c):
            raise Cell(d, row, names[3], where).error(
                f"'{shorten_value(d)}' is one of the three words that are given, which are never "
                "the answer"
            )
    return pd.DataFrame({"words": words})


def check_items(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError if there are too few words to choose an answer from."""
    if len(items) < 3:
        raise InputError(
            f"{where}: {len(items)} analogies are too few, since the answer is chosen from the "
            "words of all analogies; give 3 or more"
        )


KIND = Kind(
    name="word_analogy",
    unit="word",
    required_columns=("words",),
    make_items=make_items,
    extract_texts=extract_item_words,
    answer=AnalogyAnswer,
    metrics=("accuracy",),
    knowledge="word meaning",
    may_truncate=False,  # half a word is another word
    check_items=check_items,
    identity_columns=("words",),
)
