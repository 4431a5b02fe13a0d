"""The crossover point with TF-IDF, and how many labels one model saves over another."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lineage.analysis.records import Analysis, Comparison, System, SystemScore


@dataclass(frozen=True)
class TaskLabelCount:
    """A label count of the grid, and how many training examples that is for a task."""

    label_count: str
    train_examples: int


@dataclass(frozen=True)
class CrossoverLine:
    """A system's comparisons with TF-IDF; None at a label count without one.

    The system is better than TF-IDF with `crossover` training examples and with every larger number
    that was compared; None if there is no such point.
    """

    system: System
    comparisons: tuple[Comparison | None, ...]
    crossover: int | None
    better_at: tuple[int, ...]  # training examples, as is `largest_compared`
    largest_compared: int


@dataclass(frozen=True)
class CrossoverTable:
    """The crossover points of one task."""

    task: str
    label_counts: tuple[TaskLabelCount, ...]  # ascending
    lines: tuple[CrossoverLine, ...]


def build_crossover_tables(analysis: Analysis) -> list[CrossoverTable]:
    """Return a table for each task with at least two numbers of labels."""
    tables = []
    for task in dict.fromkeys(score.task for score in analysis.scores):
        train_examples = {
            score.label_count: score.train_examples
            for score in analysis.scores_of_task(task)
            if score.system.family == "tfidf"
        }
        comparisons_by_system: dict[tuple[str, ...], list[Comparison]] = {}
        for comparison in analysis.comparisons:
            if comparison.comparison_type == "tfidf" and comparison.task == task:
                key = comparison.first.line_key
                comparisons_by_system.setdefault(key, []).append(comparison)
        if len(set(train_examples.values())) < 2 or not comparisons_by_system:
            continue
        label_counts = [TaskLabelCount(*pair) for pair in train_examples.items()]
        label_counts.sort(key=lambda count: count.train_examples)
        lines = [
            _crossover_line(comparisons, label_counts)
            for comparisons in comparisons_by_system.values()
        ]
        tables.append(CrossoverTable(task, tuple(label_counts), tuple(lines)))
    return tables


def _crossover_line(
    comparisons: Sequence[Comparison], label_counts: Sequence[TaskLabelCount]
) -> CrossoverLine:
    by_count = {comparison.label_count: comparison for comparison in comparisons}
    compared = []
    for count in label_counts:
        if count.label_count in by_count:
            is_better = by_count[count.label_count].verdict == "better"
            compared.append((is_better, count.train_examples))
    crossover = None
    for is_better, train_examples in reversed(compared):
        if not is_better:
            break
        crossover = train_examples
    return CrossoverLine(
        system=comparisons[0].first,
        comparisons=tuple(by_count.get(count.label_count) for count in label_counts),
        crossover=crossover,
        better_at=tuple(count for is_better, count in compared if is_better),
        largest_compared=compared[-1][1],
    )


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
    names = [*analysis.model_names, "tfidf"]
    curves: dict[str, list[LabelCurve]] = {}
    for task, systems in candidates.items():
        chosen = [
            _choose_curve(analysis, task, systems[model])
            for model in sorted(systems, key=names.index)
        ]
        own = [curve for curve in chosen if curve is not None]
        if any(len(curve.scores) > 1 for curve in own):
            curves[task] = own
    return curves


def _choose_curve(analysis: Analysis, task: str, candidate: System) -> LabelCurve | None:
    lines: dict[tuple[str, ...], list[SystemScore]] = {}
    for score in analysis.scores_of_task(task):
        system = score.system
        if system.model == candidate.model and system.init != "random" and score.mean is not None:
            lines.setdefault(system.line_key, []).append(score)

    if not lines:
        return None

    def rank(line: Sequence[SystemScore]) -> tuple[int, bool, float]:
        last = max(line, key=lambda score: score.train_examples)
        is_candidate = last.system.line_key == candidate.line_key
        return len(line), is_candidate, last.mean or 0.0

    return _build_label_curve(task, max(lines.values(), key=rank))


def build_system_curve(analysis: Analysis, task: str, system: System) -> LabelCurve | None:
    """Return the scores of one system at its numbers of labels; None without any."""
    line = [
        score
        for score in analysis.scores_of_task(task)
        if score.system.line_key == system.line_key and score.mean is not None
    ]
    return _build_label_curve(task, line) if line else None


def _build_label_curve(task: str, line: Sequence[SystemScore]) -> LabelCurve:
    ordered = sorted(line, key=lambda score: score.train_examples)
    return LabelCurve(
        task,
        ordered[0].metric,
        ordered[-1].system,
        tuple(score.train_examples for score in ordered),
        tuple(score.mean or 0.0 for score in ordered),
    )


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
