"""The answers of a task's candidates by label: F1 of each class, confusions, and calibration.

Shapes: M answers (items, or words of a token classification) over all repetitions of a system,
K labels, B bins.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from lineage.analysis.cells import read_setting_predictions, select_system, shorten_label
from lineage.analysis.decision import largest_label_counts, widest_rankings
from lineage.analysis.records import (
    AnswerDetails,
    Calibration,
    CalibrationBin,
    ClassScore,
    Ranking,
    System,
)
from lineage.answers.spans import are_span_tags, score_spans, split_tags
from lineage.config.params import Grid
from lineage.results import PROBABILITY_PREFIX
from lineage.tasks.base import load_kind

MAX_CLASSES = 30
MAX_CONFUSED = 10  # labels of a confusion matrix
NUM_BINS = 8
Labels = npt.NDArray[np.object_]


def describe_answers(
    rankings: Sequence[Ranking], results_dir: Path, grid: Grid, *, split: str
) -> tuple[AnswerDetails, ...]:
    """Describe the answers of the candidates of each task whose answers are labels or tags."""
    details = []
    for ranking in largest_label_counts(rankings).values():
        answer = load_kind(ranking.kind).answer
        if not answer.names_labels:
            continue
        widest = widest_rankings(rankings)[ranking.setting]
        table = read_setting_predictions(results_dir, grid, ranking.setting, split=split)
        tables = {
            standing.system: select_system(table, standing.system) for standing in widest.standings
        }
        tables = {system: own for system, own in tables.items() if len(own)}
        if tables:
            details.append(_describe_task(ranking, tables, has_tags=answer.are_words))
    return tuple(details)


def _describe_task(
    ranking: Ranking, table_of_system: Mapping[System, pd.DataFrame], *, has_tags: bool
) -> AnswerDetails:
    tables = list(table_of_system.values())
    counted: Literal["items", "words", "spans"] = "items"
    answers = [_read_answers(table, has_tags=has_tags) for table in tables]
    scores = [score_classes(*pair) for pair in answers]
    if has_tags:
        counted = "words"
        if are_span_tags(answers[0][0]):
            counted = "spans"
            scores = [_score_span_types(table) for table in tables]
            answers = [(_strip_prefixes(labels), _strip_prefixes(got)) for labels, got in answers]
    names = sorted({*answers[0][0]})
    if any(len({*labels}) > MAX_CONFUSED for labels, _ in answers):
        names = []
    repetitions = tables[0][["pretrain_seed", "finetune_seed"]].drop_duplicates()
    return AnswerDetails(
        task=ranking.task,
        label_count=ranking.label_count,
        counted=counted,
        systems=tuple(table_of_system),
        classes=_merge_class_scores(scores, len(repetitions)),
        confusion_labels=tuple(shorten_label(name) for name in names),
        confusions=tuple(count_confusions(*pair, names) for pair in answers) if names else (),
        calibrations=tuple(_calibrate_system(table) for table in tables),
    )


def _read_answers(table: pd.DataFrame, *, has_tags: bool) -> tuple[Labels, Labels]:
    """Return the labels and the predictions (M,) of a system."""
    labels = table["label"].to_numpy(dtype=object)
    predictions = table["prediction"].to_numpy(dtype=object)
    if not has_tags:
        return labels, predictions
    split = [
        [tag for tags in column for tag in split_tags(tags)] for column in (labels, predictions)
    ]
    return np.array(split[0], dtype=object), np.array(split[1], dtype=object)


def _strip_prefixes(tags: Labels) -> Labels:
    return np.array([tag if tag == "O" else tag[2:] or "_" for tag in tags], dtype=object)


def score_classes(labels_M: Labels, predictions_M: Labels) -> dict[str, tuple[int, float]]:
    """Return the number of items and F1 of each label."""
    counts = Counter(labels_M)
    predicted = Counter(predictions_M)
    correct = Counter(labels_M[labels_M == predictions_M])
    return {
        label: (count, 2 * correct[label] / (count + predicted[label]))
        for label, count in counts.items()
    }


def _score_span_types(table: pd.DataFrame) -> dict[str, tuple[int, float]]:
    scores = score_spans(table["label"].to_numpy(), table["prediction"].to_numpy())
    return {
        name: (score.support, score.f1) for name, score in scores.by_type.items() if score.support
    }


def _merge_class_scores(
    scores: Sequence[dict[str, tuple[int, float]]], num_repetitions: int
) -> tuple[ClassScore, ...]:
    counts = {label: count for label, (count, _) in scores[0].items()}
    if len(counts) > MAX_CLASSES:
        return ()
    return tuple(
        ClassScore(
            label=shorten_label(label),
            count=counts[label] / num_repetitions,
            f1=tuple(one[label][1] if label in one else 0.0 for one in scores),
        )
        for label in sorted(counts, key=lambda label: (-counts[label], label))
    )


def count_confusions(
    labels_M: Labels, predictions_M: Labels, names: Sequence[str]
) -> tuple[tuple[float, ...], ...]:
    """Return (K, K): the share of each answer (columns) among the items of each label (rows)."""
    pairs = Counter(zip(labels_M, predictions_M, strict=True))
    totals = Counter(labels_M)
    return tuple(
        tuple(pairs[label, answer] / max(1, totals[label]) for answer in names) for label in names
    )


def _calibrate_system(table: pd.DataFrame) -> Calibration | None:
    """Return the calibration of a system; None if it gives no probabilities."""
    columns = [name for name in table if str(name).startswith(PROBABILITY_PREFIX)]
    known = table[columns].dropna(axis="columns", how="all").to_numpy(dtype=np.float64)
    if not known.size and table["label"].nunique() == 2:  # TF-IDF has that of the label alone
        score = table["score"].to_numpy(dtype=np.float64)
        known = np.stack([score, 1 - score], axis=1)
    if not known.size or not np.isfinite(known).all():
        return None
    is_right = (table["label"] == table["prediction"]).to_numpy(dtype=np.float64)
    return calibrate(known.max(axis=1), np.asarray(is_right, dtype=np.float64))


def calibrate(
    confidence_M: npt.NDArray[np.float64], is_right_M: npt.NDArray[np.float64]
) -> Calibration:
    """Return the calibration over bins with equally many answers each.

    The error is the expected calibration error (Guo et al. 2017, section 2) with such bins
    (Nguyen and O'Connor 2015).
    """
    order = np.argsort(confidence_M, kind="stable")
    bins = []
    for rows in np.array_split(order, min(NUM_BINS, len(order))):
        share = len(rows) / len(order)
        means = (float(confidence_M[rows].mean()), float(is_right_M[rows].mean()))
        bins.append(CalibrationBin(*means, share))
    error = sum(one.share * abs(one.confidence - one.accuracy) for one in bins)
    return Calibration(tuple(bins), float(error))
