"""What was said of the items, as columns of the predictions: gold, prediction and score, whoever said it; and, by the metric, correct.

Shapes: N items, M words of all of them, K labels or tags.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import is_short_name
from lineage.evaluation.metrics import ANSWER_SEPARATOR, CONTRIBUTIONS
from lineage.results import PROBABILITY_PREFIX

PredictionColumns = dict[str, np.ndarray]
MAX_GROUPS = 100  # that scores are told apart by
MAX_ANSWER_WORDS = 30  # words of an answer that is told: of pieces as many in the code released with Devlin et al. 2019


def add_correct_column(columns: PredictionColumns, metric: str) -> PredictionColumns:
    """The same with `correct`: what each item adds to the metric that ways are compared by. No number where there is none, as of a constant."""
    return columns | {"correct": CONTRIBUTIONS[metric](columns["label"], columns["prediction"])}


def format_label_predictions(
    label_names: Sequence[str], labels_N: np.ndarray, probabilities_NK: np.ndarray
) -> PredictionColumns:
    """The likeliest label; score is the gold label's probability. A column of probabilities a label, too."""
    best_N, written = probabilities_NK.argmax(1), np.asarray(label_names, object)
    found = {
        "label": written[labels_N],
        "prediction": written[best_N],
        "score": probabilities_NK[np.arange(len(labels_N)), labels_N],
    }
    found |= {
        f"{PROBABILITY_PREFIX}{name}": probabilities_NK[:, place].astype(np.float32)
        for place, name in enumerate(label_names)
    }
    return found


def format_number_predictions(labels_N: np.ndarray, predictions_N: np.ndarray) -> PredictionColumns:
    """Gold and prediction as texts; score is the prediction."""
    gold, said = (
        np.array([repr(float(number)) for number in numbers], object)
        for numbers in (labels_N, predictions_N)
    )
    return {"label": gold, "prediction": said, "score": predictions_N.astype(float)}


def format_tag_predictions(
    tag_names: Sequence[str],
    lengths: Sequence[int],
    labels_M: np.ndarray,
    probabilities_MK: np.ndarray,
    predictions_M: np.ndarray,
) -> PredictionColumns:
    """The tags of every item's words, as texts with spaces between; score is the mean probability of the gold tags."""
    ends, written = np.cumsum(lengths)[:-1], np.asarray(tag_names, object)
    gold, said = (_join_tags(written[some], ends) for some in (labels_M, predictions_M))
    score_N = np.array(
        [
            part.mean()
            for part in np.split(probabilities_MK[np.arange(len(labels_M)), labels_M], ends)
        ]
    )
    return {"label": gold, "prediction": said, "score": score_N}


def format_span_predictions(items: pd.DataFrame, log_probs_M2: np.ndarray) -> PredictionColumns:
    """The characters of each context from the first to the last word of its likeliest span; gold has all gold answers.

    nats_M2: for every word of the contexts minus infinity to 0, how likely an answer begins there, and ends there. `score` is the probability of the
    span that is learned, 0 where it was cut off.
    """
    said, score_N, firsts = (
        list[str](),
        np.zeros(len(items)),
        np.cumsum([0, *(len(starts) for starts in items["starts"])]),
    )
    for row, (context, starts, ends, label) in enumerate(
        zip(*(items[name] for name in ("context", "starts", "ends", "label")), strict=True)
    ):
        log_probs_W2 = log_probs_M2[firsts[row] : firsts[row + 1]]
        first, last = find_best_span(log_probs_W2)
        said.append(context[starts[first] : ends[last]])
        if len(label):
            score_N[row] = np.exp(log_probs_W2[label[0], 0] + log_probs_W2[label[1], 1])
    gold, prediction = (
        np.array([ANSWER_SEPARATOR.join(answers) for answers in items["answers"]], object),
        np.array(said, object),
    )
    return {"label": gold, "prediction": prediction, "score": score_N}


def find_best_span(scores_W2: np.ndarray) -> tuple[int, int]:
    """The first and the last word of the span of at most LONGEST words with the highest sum of both scores (Devlin et al. 2019, section 4.2).

    Of equals the one that begins first, and of those the shortest. All spans are looked at, so that nothing stands for the released code's 20 best
    firsts and lasts of a window; nor for its way back from pieces to characters, since words know theirs.
    """
    words = np.arange(len(scores_W2))
    reach_WW = words - words[:, None]
    sums_WW = np.where(
        (reach_WW >= 0) & (reach_WW < MAX_ANSWER_WORDS), scores_W2[:, :1] + scores_W2[:, 1], -np.inf
    )
    first, last = np.unravel_index(sums_WW.argmax(), sums_WW.shape)
    return int(first), int(last)


def split_by_group(items: pd.DataFrame, *, fold: int | None) -> list[tuple[str, pd.DataFrame]]:
    """All items, and, where they are of several groups, each group's, by name.

    Groups that folds keep together are no groups to tell scores apart by: there may be as many as authors. Nor are groups without names, such as the
    premise that pairs share: rows and reports would tell private text.
    """
    if fold is not None or items["group"].nunique() < 2 or not can_report_groups(items):
        return [("all", items)]
    return [("all", items), *((str(name), own) for name, own in items.groupby("group", sort=True))]


def can_report_groups(items: pd.DataFrame) -> bool:
    """Whether the groups of these items may be told by name."""
    names = items["group"].unique()
    return len(names) <= MAX_GROUPS and all(map(is_short_name, names))


def describe_truncated_answers(facts: dict[str, Any], table: str) -> str:
    """What to say of a table's questions whose answers max_tokens cut off: nobody can tell them. Nothing where there are none."""
    lost = facts.get("lost", {}).get(table, 0)
    return (
        f"{lost} of {facts['counts'][table]} questions have no answer within max_tokens, and are scored all the same"
        if lost
        else ""
    )


def _join_tags(tags_M: np.ndarray, ends: np.ndarray) -> np.ndarray:
    found = np.empty(len(ends) + 1, object)
    found[:] = [" ".join(part) for part in np.split(tags_M, ends)]
    return found
