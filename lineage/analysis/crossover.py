"""The crossover point with TF-IDF: the label count from which a system beats it."""

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.analysis.records import Analysis, Comparison, System


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
