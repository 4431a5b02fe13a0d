"""The crossover point with TF-IDF: the label count from which a system beats it."""

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.analysis.records import Analysis, Comparison, System


@dataclass(frozen=True)
class LabelCount:
    """A label count of the grid, and how many labels it is for a task."""

    label_count: str
    train_examples: int


@dataclass(frozen=True)
class CrossoverLine:
    """A system's comparisons with TF-IDF; None at a label count without one.

    The system is better than TF-IDF at `crossover` labels and at every larger number that was
    compared; None if there is no such point. Numbers of labels count training examples.
    """

    system: System
    comparisons: tuple[Comparison | None, ...]
    crossover: int | None
    better_at: tuple[int, ...]
    largest_compared: int


@dataclass(frozen=True)
class CrossoverTable:
    """The crossover points of one task."""

    task: str
    label_counts: tuple[LabelCount, ...]  # ascending
    lines: tuple[CrossoverLine, ...]


def build_crossover_tables(analysis: Analysis) -> list[CrossoverTable]:
    """Return a table for each task with at least two numbers of labels."""
    found = []
    for task in dict.fromkeys(one.task for one in analysis.scores):
        train_examples = {
            one.label_count: one.train_examples
            for one in analysis.scores_of_task(task)
            if one.system.family == "tfidf"
        }
        comparisons = [
            one
            for one in analysis.comparisons
            if one.comparison_type == "tfidf" and one.task == task
        ]
        if len(set(train_examples.values())) < 2 or not comparisons:
            continue
        label_counts = [LabelCount(*pair) for pair in train_examples.items()]
        label_counts.sort(key=lambda one: one.train_examples)
        by_system: dict[tuple[str, ...], list[Comparison]] = {}
        for one in comparisons:
            by_system.setdefault(one.first.line_key, []).append(one)
        lines = [_crossover_line(own, label_counts) for own in by_system.values()]
        found.append(CrossoverTable(task, tuple(label_counts), tuple(lines)))
    return found


def _crossover_line(
    comparisons: Sequence[Comparison], label_counts: Sequence[LabelCount]
) -> CrossoverLine:
    by_count = {one.label_count: one for one in comparisons}
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
