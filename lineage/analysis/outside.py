"""Outside systems beside what is trained here: which is better, and from how many labels on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lineage.analysis.crossover import find_crossover
from lineage.analysis.records import (
    Analysis,
    Comparison,
    OutsidePrice,
    Setting,
    SystemScore,
    group_by,
)
from lineage.config.data import Task
from lineage.results import OUTSIDE_FAMILY


def list_outside_prices(tasks: Mapping[str, Task]) -> Iterator[OutsidePrice]:
    """Yield the prices that the tasks name."""
    for task, block in tasks.items():
        for name, system in block.outside_systems.items():
            if system.price_per_1000_items is not None:
                yield OutsidePrice(task, name, system.price_per_1000_items)


@dataclass(frozen=True)
class OutsideTest:
    """The best trained system of a setting, compared with an outside system."""

    label_count: str
    train_examples: int
    comparison: Comparison

    @property
    def is_better(self) -> bool:
        """True if a trained system is shown to be better."""
        return self.comparison.verdict == "better"


@dataclass(frozen=True)
class OutsideResult:
    """The score of an outside system on a task, and the tests at each number of labels."""

    score: SystemScore  # the same at all numbers of labels
    price_per_1000_items: float | None
    tests: tuple[OutsideTest, ...]  # the fewest labels first

    @property
    def crossover(self) -> int | None:
        """The number of labels from which on a trained system is better, at all that were tried."""
        return find_crossover([(test.train_examples, test.is_better) for test in self.tests])


def list_outside_results(analysis: Analysis) -> list[OutsideResult]:
    """Return the result of each outside system on each task, in the order of the analysis."""
    prices = {(one.task, one.model): one.price_per_1000_items for one in analysis.outside_prices}
    outside = [
        one
        for one in analysis.scores
        if one.system.family == OUTSIDE_FAMILY and one.mean is not None
    ]
    by_name = group_by(outside, lambda one: (one.task, one.system.model))
    results = []
    for (task, model), scores in by_name.items():
        ascending = sorted(scores, key=lambda one: one.train_examples)
        tests = [
            OutsideTest(one.label_count, one.train_examples, comparison)
            for one in ascending
            for comparison in find_outside_tests(analysis, one.setting)
            if comparison.second == one.system
        ]
        results.append(OutsideResult(ascending[-1], prices.get((task, model)), tuple(tests)))
    return results


def find_outside_tests(analysis: Analysis, setting: Setting) -> list[Comparison]:
    """Return the comparison of the best trained system of a setting with each outside system.

    It is the best of those that are shown to be better, if any are, or else of all.
    """
    own = [
        one
        for one in analysis.comparisons
        if one.comparison_type == "outside" and one.setting == setting
    ]
    return [
        max(tests, key=lambda one: (one.verdict == "better", one.difference))
        for tests in group_by(own, lambda one: one.second).values()
    ]


def find_outside_leads(analysis: Analysis, setting: Setting) -> list[Comparison]:
    """Return these comparisons where the best trained system is shown to be worse."""
    return [one for one in find_outside_tests(analysis, setting) if one.verdict == "worse"]
