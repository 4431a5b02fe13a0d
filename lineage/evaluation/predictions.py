"""Predictions as columns: label, prediction, score, and correct by a metric.

`lineage.evaluation.answers` has those of labels, numbers and tags.
Shapes: N items, M words of all items, W words of one context.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import is_short_name
from lineage.evaluation.metrics import ANSWER_SEPARATOR, CONTRIBUTIONS
from lineage.results import Note

PredictionColumns = dict[str, np.ndarray]
MAX_GROUPS = 100  # no scores by group if there are more
MAX_ANSWER_WORDS = 30  # the code released with Devlin et al. 2019 allows 30 pieces


def add_correct_column(columns: PredictionColumns, metric: str) -> PredictionColumns:
    """Return the columns with `correct`, the contribution of each item to a ranking metric.

    It is NaN if the metric is undefined, such as a correlation with a constant.
    """
    contributions = CONTRIBUTIONS[metric](columns["label"], columns["prediction"])
    return columns | {"correct": contributions}


def answer_with_spans(items: pd.DataFrame, log_probs_M2: np.ndarray) -> PredictionColumns:
    """Predict the characters of each context from the first to the last word of the best span.

    log_probs_M2: log-probabilities that the answer begins, and ends, at each word of the contexts.
    """
    predictions: list[str] = []
    columns = (items[name] for name in ("context", "starts", "ends"))
    contexts = _split_contexts(items, log_probs_M2)
    for log_probs_W2, (context, starts, ends) in zip(
        contexts, zip(*columns, strict=True), strict=True
    ):
        first, last = find_best_span(log_probs_W2)
        predictions.append(context[starts[first] : ends[last]])
    return {"prediction": np.array(predictions, object)}


def format_span_predictions(items: pd.DataFrame, log_probs_M2: np.ndarray) -> PredictionColumns:
    """Return labels, which are all correct answers, and `answer_with_spans`.

    Score is the probability of the labelled span, 0 if it was truncated.
    """
    scores_N = np.zeros(len(items))
    contexts = _split_contexts(items, log_probs_M2)
    for row, (log_probs_W2, label) in enumerate(zip(contexts, items["label"], strict=True)):
        if len(label):
            scores_N[row] = np.exp(log_probs_W2[label[0], 0] + log_probs_W2[label[1], 1])
    answers = [ANSWER_SEPARATOR.join(texts) for texts in items["answers"]]
    return {
        "label": np.array(answers, object),
        **answer_with_spans(items, log_probs_M2),
        "score": scores_N,
    }


def _split_contexts(items: pd.DataFrame, log_probs_M2: np.ndarray) -> list[np.ndarray]:
    """Return (W, 2) rows of the words of each item's context."""
    return np.split(log_probs_M2, np.cumsum([len(starts) for starts in items["starts"]])[:-1])


def find_best_span(scores_W2: np.ndarray) -> tuple[int, int]:
    """Return the first and last word of the span with the highest sum of both scores.

    See Devlin et al. 2019, section 4.2. A span has at most MAX_ANSWER_WORDS words. Ties go to the
    span that begins first, then to the shortest. The released code only compares the 20 best starts
    and ends of each window; here all spans are compared.
    """
    words = np.arange(len(scores_W2))
    extra_words_WW = words - words[:, None]
    is_allowed_WW = (extra_words_WW >= 0) & (extra_words_WW < MAX_ANSWER_WORDS)
    sums_WW = np.where(is_allowed_WW, scores_W2[:, :1] + scores_W2[:, 1], -np.inf)
    first, last = np.unravel_index(sums_WW.argmax(), sums_WW.shape)
    return int(first), int(last)


def format_minimal_pair_predictions(margins_N: np.ndarray) -> PredictionColumns:
    """Predict the good sentence where its margin over the bad one is positive; 0 is half right."""
    return {
        "label": np.full(len(margins_N), "good", object),
        "prediction": np.select([margins_N > 0, margins_N < 0], ["good", "bad"], "tie"),
        "score": margins_N,
        "correct": (np.sign(margins_N) + 1) / 2,
    }


def split_by_group(items: pd.DataFrame, *, fold: int | None) -> list[tuple[str, pd.DataFrame]]:
    """Return all items, followed by the items of each group if scores by group can be reported.

    In cross-validation the groups only keep items in one fold. There may be as many groups as
    authors, so scores are not split by them.
    """
    groups: list[tuple[str, pd.DataFrame]] = [("all", items)]
    if fold is None and items["group"].nunique() > 1 and can_report_groups(items):
        for name, group_items in items.groupby("group", sort=True):
            groups.append((str(name), group_items))
    return groups


def can_report_groups(items: pd.DataFrame) -> bool:
    """Tell whether the groups are few and have short names.

    Longer names, such as a premise shared by several pairs, would put private text into reports.
    """
    names = items["group"].unique()
    return len(names) <= MAX_GROUPS and all(map(is_short_name, names))


def truncated_answers_notes(info: Mapping[str, Any], table: str) -> list[Note]:
    """Return a note on the questions of a table whose answer max_words cut off, if there are any.

    No system can answer these.
    """
    num_lost = info.get("truncated_answers", {}).get(table, 0)
    if not num_lost:
        return []
    return [Note("answers_cut_off", {"count": num_lost, "of": info["counts"][table]})]
