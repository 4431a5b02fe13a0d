"""Two words and how similar people find them; the cosine of their vectors answers, untrained."""

import pandas as pd

from lineage.answers.words import SimilarityAnswer
from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    TableColumns,
    extract_item_words,
    read_number_column,
    read_word_columns,
)
from lineage.tasks.recognition import recognize_labelled_texts


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns words (lists of two) and label (people's score); groups are data sets."""
    assert task.label is not None
    return pd.DataFrame(
        {
            "words": read_word_columns(columns, task, where, num_words=2),
            "label": read_number_column(columns, task.label, where),
        }
    )


def check_items(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError if a group has no rank correlation, which each group needs."""
    for name, group_items in items.groupby("group", sort=True):
        place = where
        if task.group is not None:
            place = f"{where}: column '{task.group}': group '{shorten_value(str(name))}'"
        if len(group_items) < 3:
            raise InputError(
                f"{place}: {len(group_items)} pairs are too few for a correlation of ranks; 3 are "
                "needed: add pairs, remove these, or raise max_per_group and limit"
            )
        if group_items["label"].nunique() < 2:
            raise InputError(
                f"{place}: column '{task.label}': every score is {group_items['label'].iloc[0]}, "
                "so the pairs have no order; check what 'label' names, or remove these pairs"
            )


KIND = Kind(
    name="word_similarity",
    unit="word",
    required_columns=("words", "label"),
    make_items=make_items,
    extract_texts=extract_item_words,
    answer=SimilarityAnswer,
    metrics=("spearman",),
    knowledge="word meaning",
    may_truncate=False,  # half a word is another word
    check_items=check_items,
    identity_columns=("words",),
    recognition=recognize_labelled_texts("words", are_numbers=True),
)
