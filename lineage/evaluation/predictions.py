"""Predictions of any system as columns: label, prediction, score, and correct by a metric.

Shapes: N items, M words of all items, W words of one context, K labels or tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import is_short_name
from lineage.evaluation.metrics import ANSWER_SEPARATOR, CONTRIBUTIONS
from lineage.results import PROBABILITY_PREFIX, Note

PredictionColumns = dict[str, np.ndarray]
MAX_GROUPS = 100  # no scores by group if there are more
MAX_ANSWER_WORDS = 30  # the code released with Devlin et al. 2019 allows 30 pieces


def add_correct_column(columns: PredictionColumns, metric: str) -> PredictionColumns:
    """Return the columns with `correct`, the contribution of each item to a ranking metric.

    It is NaN where the metric is undefined, such as a correlation with a constant.
    """
    contributions = CONTRIBUTIONS[metric](columns["label"], columns["prediction"])
    return columns | {"correct": contributions}


def answer_with_labels(
    label_names: Sequence[str], probabilities_NK: np.ndarray
) -> PredictionColumns:
    """Predict the most probable label. Each label also has a column with its probabilities."""
    names = np.asarray(label_names, object)
    columns = {"prediction": names[probabilities_NK.argmax(1)]}
    for index, name in enumerate(label_names):
        columns[f"{PROBABILITY_PREFIX}{name}"] = probabilities_NK[:, index].astype(np.float32)
    return columns


def format_label_predictions(
    label_names: Sequence[str], labels_N: np.ndarray, probabilities_NK: np.ndarray
) -> PredictionColumns:
    """Return `answer_with_labels` beside the labels; score is the probability of the true label."""
    answers = answer_with_labels(label_names, probabilities_NK)
    return {
        "label": np.asarray(label_names, object)[labels_N],
        "prediction": answers.pop("prediction"),
        "score": probabilities_NK[np.arange(len(labels_N)), labels_N],
        **answers,
    }


def answer_with_numbers(predictions_N: np.ndarray) -> PredictionColumns:
    """Predict numbers."""
    return {"prediction": predictions_N.astype(float)}


def format_number_predictions(labels_N: np.ndarray, predictions_N: np.ndarray) -> PredictionColumns:
    """Write labels and predictions as texts; score is the prediction."""
    return {
        "label": _format_numbers(labels_N),
        "prediction": _format_numbers(predictions_N),
        "score": predictions_N.astype(float),
    }


def _format_numbers(numbers_N: np.ndarray) -> np.ndarray:
    return np.array([repr(float(number)) for number in numbers_N], object)


def answer_with_tags(
    tag_names: Sequence[str], lengths: Sequence[int], predictions_M: np.ndarray
) -> PredictionColumns:
    """Write the predicted tags of each item as one text, separated by spaces.

    `lengths` are the words of each item.
    """
    names = np.asarray(tag_names, object)
    return {"prediction": _join_tags(names[predictions_M], np.cumsum(lengths)[:-1])}


def format_tag_predictions(
    tag_names: Sequence[str],
    lengths: Sequence[int],
    labels_M: np.ndarray,
    probabilities_MK: np.ndarray,
    predictions_M: np.ndarray,
) -> PredictionColumns:
    """Return `answer_with_tags` beside the labels.

    Score is the mean probability of the true tags.
    """
    names = np.asarray(tag_names, object)
    ends = np.cumsum(lengths)[:-1]
    probabilities_M = probabilities_MK[np.arange(len(labels_M)), labels_M]
    return {
        "label": _join_tags(names[labels_M], ends),
        **answer_with_tags(tag_names, lengths, predictions_M),
        "score": np.array([item.mean() for item in np.split(probabilities_M, ends)]),
    }


def _join_tags(tags_M: np.ndarray, ends: np.ndarray) -> np.ndarray:
    texts = np.empty(len(ends) + 1, object)
    texts[:] = [" ".join(tags) for tags in np.split(tags_M, ends)]
    return texts


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
    """Return `answer_with_spans` beside the labels, which are all correct answers.

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


def truncated_answers_notes(facts: Mapping[str, Any], table: str) -> list[Note]:
    """Return a note on the questions of a table whose answer max_words cut off, if there are any.

    No system can answer these.
    """
    num_lost = facts.get("truncated_answers", {}).get(table, 0)
    if not num_lost:
        return []
    return [Note("answers_cut_off", {"count": num_lost, "of": facts["counts"][table]})]
