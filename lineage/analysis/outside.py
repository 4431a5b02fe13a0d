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
    all_worse: bool  # every candidate is shown to be worse

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
            OutsideTest(one.label_count, one.train_examples, _find_best(own), _are_all_worse(own))
            for one in ascending
            for own in _list_tests(analysis, one.setting)
            if own[0].second == one.system
        ]
        results.append(OutsideResult(ascending[-1], prices.get((task, model)), tuple(tests)))
    return results


def find_outside_leads(analysis: Analysis, setting: Setting) -> list[Comparison]:
    """Return the comparison of the best trained system with each outside system that leads.

    It leads where every candidate is shown to be worse: the best by its score alone is one of
    several, and others may not be worse.
    """
    return [_find_best(own) for own in _list_tests(analysis, setting) if _are_all_worse(own)]


def _list_tests(analysis: Analysis, setting: Setting) -> list[list[Comparison]]:
    """Return the comparisons of all candidates of a setting, by outside system."""
    own = [
        one
        for one in analysis.comparisons
        if one.comparison_type == "outside" and one.setting == setting
    ]
    return list(group_by(own, lambda one: one.second).values())


def _find_best(tests: list[Comparison]) -> Comparison:
    """Return the best candidate of those that are shown to be better, if any are, or else of all."""
    return max(tests, key=lambda one: (one.verdict == "better", one.difference))


def _are_all_worse(tests: list[Comparison]) -> bool:
    return all(one.verdict == "worse" for one in tests)
