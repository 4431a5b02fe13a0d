"""Two words and how similar people find them; the cosine of their vectors answers, untrained.

Shapes: V distinct words of the task, N items.
"""

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.errors import EvaluationError, InputError, shorten_value
from lineage.evaluation.metrics import spearman_contributions
from lineage.tasks.base import UNKNOWN_WORDS_HINT, AnswersAndScores, Kind, WordVectorAnswer
from lineage.tasks.columns import (
    TableColumns,
    extract_item_words,
    read_group_column,
    read_number_column,
    read_word_columns,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns words (lists of two), label (people's score), group (the data set) and truncated.

    `truncated` is always False.
    """
    assert task.label is not None
    return pd.DataFrame(
        {
            "words": read_word_columns(columns, task, where, num_words=2),
            "label": read_number_column(columns, task.label, where),
            "group": read_group_column(columns, task.group, where),
            "truncated": False,
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


def answer_similarities(
    words_V: np.ndarray, word_index_N2: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
) -> AnswersAndScores:
    """Answer with the cosine of each pair, as texts and as numbers.

    A pair with an unknown word gets the mean of the others, which changes no rank among them.
    Raises EvaluationError if every pair has an unknown word.
    """
    known_N = known_V[word_index_N2].all(1)
    if not known_N.any():
        raise EvaluationError(f"the model knows both words of no pair; {UNKNOWN_WORDS_HINT}")
    cosines_N = cosines_VV[word_index_N2[:, 0], word_index_N2[:, 1]]
    cosines_N = np.where(known_N, cosines_N, cosines_N[known_N].mean())
    return np.array([repr(float(number)) for number in cosines_N], object), cosines_N


def read_labels(items: pd.DataFrame) -> np.ndarray:
    """Return the (N,) scores of people, as texts."""
    return np.array([repr(float(score)) for score in items["label"]], object)


def correlation_contributions(
    items: pd.DataFrame, answers_N: np.ndarray, scores_N: np.ndarray
) -> np.ndarray:
    """Return (N,) numbers whose mean is the mean over groups of the rank correlation.

    They are NaN in a group that has no correlation.
    """
    labels_N = items["label"].to_numpy(np.float64)
    return spearman_contributions(labels_N, scores_N, items["group"].to_numpy(object))


KIND = Kind(
    name="word_similarity",
    unit="word",
    required_columns=("words", "label"),
    make_items=make_items,
    extract_texts=extract_item_words,
    metrics=("spearman",),
    answered_by="word_vectors",
    word_vector_answer=WordVectorAnswer(
        answer=answer_similarities,
        labels=read_labels,
        contributions=correlation_contributions,
        item_name="pairs",
        unknown_items="mean_cosine",
    ),
    averages_groups=True,
    may_truncate=False,  # half a word is another word
    check_items=check_items,
    identity_columns=("words",),
)
