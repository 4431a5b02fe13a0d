"""The crossover point with TF-IDF, and how many labels one model saves over another."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lineage.analysis.records import Analysis, System, group_by
from lineage.results import OUTSIDE_FAMILY


def find_crossover(is_better: Sequence[tuple[int, bool]]) -> int | None:
    """Return the number of labels from which on a system is better at all that were tried.

    `is_better` has these numbers, ascending. The result is None if there is no such point.
    """
    crossover = None
    for count, better in reversed(is_better):
        if not better:
            break
        crossover = count
    return crossover


@dataclass(frozen=True)
class LabelCurve:
    """The mean score of one system at each number of labels."""

    task: str
    metric: str
    system: System
    train_examples: tuple[int, ...]  # ascending
    scores: tuple[float, ...]


def build_label_curves(analysis: Analysis) -> dict[str, list[LabelCurve]]:
    """Return the curve of each model, on each task that has several numbers of labels.

    A curve is that of one system, since a jump from one method to another says nothing about
    labels: the model's system with the most numbers of labels. Among equals it is the one that
    represents the model at the most labels, or else the highest score there.
    """
    candidates: dict[str, dict[str, System]] = {}  # by task and model, at the most labels
    largest: dict[str, int] = {}
    for ranking in analysis.rankings:
        if ranking.train_examples >= largest.get(ranking.task, 0):
            largest[ranking.task] = ranking.train_examples
            for standing in ranking.standings:
                candidates.setdefault(ranking.task, {})[standing.system.model] = standing.system
    curves: dict[str, list[LabelCurve]] = {}
    for task, systems in candidates.items():
        chosen = [
            _choose_curve(analysis, task, systems[model])
            for model in sorted(systems, key=analysis.place_of_model)
        ]
        own = [curve for curve in chosen if curve is not None]
        if any(len(curve.scores) > 1 for curve in own):
            curves[task] = own
    return curves


def _choose_curve(analysis: Analysis, task: str, candidate: System) -> LabelCurve | None:
    curves = _build_system_curves(analysis, task, candidate.model).values()
    return max(
        curves,
        key=lambda curve: (
            len(curve.scores),
            curve.system.line_key == candidate.line_key,
            curve.scores[-1],
        ),
        default=None,
    )


def build_system_curve(analysis: Analysis, task: str, system: System) -> LabelCurve | None:
    """Return the scores of one system at its numbers of labels; None without any."""
    return _build_system_curves(analysis, task, system.model).get(system.line_key)


def build_outside_curves(analysis: Analysis, task: str) -> list[LabelCurve]:
    """Return the scores of a task's outside systems, the same at every number of labels."""
    names = {
        score.system.model: None
        for score in analysis.scores_of_task(task)
        if score.system.family == OUTSIDE_FAMILY
    }
    return [
        curve for name in names for curve in _build_system_curves(analysis, task, name).values()
    ]


def _build_system_curves(
    analysis: Analysis, task: str, model: str
) -> dict[tuple[str, ...], LabelCurve]:
    known = [
        score
        for score in analysis.scores_of_task(task)
        if score.system.model == model and score.system.init != "random" and score.mean is not None
    ]
    curves: dict[tuple[str, ...], LabelCurve] = {}
    for key, line in group_by(known, lambda score: score.system.line_key).items():
        line.sort(key=lambda score: score.train_examples)
        counts = tuple(score.train_examples for score in line)
        means = tuple(score.mean or 0.0 for score in line)
        curves[key] = LabelCurve(task, line[0].metric, line[-1].system, counts, means)
    return curves


def labels_needed(curve: LabelCurve, score: float) -> float | None:
    """Return the number of labels at which a curve reaches a score; None if it never does.

    Between two numbers that were tried, the score is linear in the logarithm of the number.
    """
    if curve.scores[0] >= score:
        return float(curve.train_examples[0])
    points = list(zip(curve.train_examples, curve.scores, strict=True))
    for (low, low_score), (high, high_score) in pairwise(points):
        if low_score < score <= high_score:
            share = (score - low_score) / (high_score - low_score)
            return float(low * (high / low) ** share)
    return None


def find_overtaking(first: LabelCurve, second: LabelCurve) -> float | None:
    """Return the number of labels from which `first` stays above `second`; None if it ends below.

    The number is between two that were tried, or the smallest one of both if it is above there.
    """
    others = dict(zip(second.train_examples, second.scores, strict=True))
    leads = [
        (count, score - others[count])
        for count, score in zip(first.train_examples, first.scores, strict=True)
        if count in others
    ]
    if not leads or leads[-1][1] <= 0:
        return None
    crossing = float(leads[0][0])
    for (low, low_lead), (high, high_lead) in pairwise(leads):
        if low_lead <= 0 < high_lead:
            share = -low_lead / (high_lead - low_lead)
            crossing = float(low * (high / low) ** share)
    return crossing
