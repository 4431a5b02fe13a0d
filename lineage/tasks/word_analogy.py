"""a is to b as c is to d: find the word d by adding up a model's vectors, without training.

Shapes: V distinct words of the task, N items, n items of a batch.
"""

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.tasks.base import AnswersAndScores, Kind, WordVectorAnswer
from lineage.tasks.columns import (
    TableColumns,
    extract_item_words,
    read_group_column,
    read_word_columns,
    row_error,
)

BATCH_SIZE = 1024  # items


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns words (lists of a, b, c, d), group (the category) and truncated, always False."""
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
            raise row_error(
                row,
                where,
                f"column '{names[3]}': '{shorten_value(d)}' is one of the three words that are "
                "given, which are never the answer",
            )
    groups = read_group_column(columns, task.group, where)
    return pd.DataFrame({"words": words, "group": groups, "truncated": False})


def check_items(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError if there are too few words to choose an answer from."""
    if len(items) < 3:
        raise InputError(
            f"{where}: {len(items)} analogies are too few, since the answer is chosen from the "
            "words of all analogies; give 3 or more"
        )


def answer_analogies(
    words_V: np.ndarray, word_index_N4: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
) -> AnswersAndScores:
    """Answer with the known word, except a, b and c, that is nearest to b - a + c.

    This is 3CosAdd (Mikolov et al. 2013; Levy and Goldberg 2014, equation 2). Vectors have length
    1, so it is the word w with the highest cos(w, b) - cos(w, a) + cos(w, c); the score is that of
    the correct word. Ties go to the first word in alphabetical order. An item with an unknown word
    gets an empty answer and the score NaN.
    """
    answers_N = np.full(len(word_index_N4), "", object)
    scores_N = np.full(len(word_index_N4), np.nan)
    known_items = np.flatnonzero(known_V[word_index_N4].all(1))
    for first in range(0, len(known_items), BATCH_SIZE):
        batch = known_items[first : first + BATCH_SIZE]
        a, b, c, d = word_index_N4[batch].T
        similarity_nV = cosines_VV[b] - cosines_VV[a] + cosines_VV[c]
        rows = np.arange(len(batch))
        scores_N[batch] = similarity_nV[rows, d]
        similarity_nV[:, ~known_V] = -np.inf
        similarity_nV[rows[:, None], word_index_N4[batch, :3]] = -np.inf
        answers_N[batch] = words_V[similarity_nV.argmax(1)]
    return answers_N, scores_N


def read_labels(items: pd.DataFrame) -> np.ndarray:
    """Return the (N,) words d."""
    return np.array([str(words[3]) for words in items["words"]], object)


def are_correct(items: pd.DataFrame, answers_N: np.ndarray, scores_N: np.ndarray) -> np.ndarray:
    """Return 1 for each correct answer, else 0."""
    return (read_labels(items) == answers_N).astype(float)


KIND = Kind(
    name="word_analogy",
    unit="word",
    required_columns=("words",),
    make_items=make_items,
    extract_texts=extract_item_words,
    metrics=("accuracy",),
    answered_by="word_vectors",
    word_vector_answer=WordVectorAnswer(
        answer=answer_analogies,
        labels=read_labels,
        contributions=are_correct,
        item_name="analogies",
        unknown_items="wrong",
    ),
    may_truncate=False,  # half a word is another word
    check_items=check_items,
    identity_columns=("words",),
)
