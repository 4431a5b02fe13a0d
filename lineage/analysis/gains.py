"""Gains of pretraining, adaptation, general text and continued pretraining, over all settings."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from lineage.analysis.records import Analysis, Comparison, Outcome, Setting
from lineage.analysis.settings import baseline_is_near_chance, comparison_outcome
from lineage.methods.registry import list_uses, name_use

GainType = Literal["pretraining", "adaptation", "general_text", "continuation"]


@dataclass(frozen=True)
class OutcomeCounts:
    """How many comparisons have each outcome."""

    num_comparisons: int
    better: int
    baseline_near_chance: int  # of those that are better
    equivalent: int  # or with identical predictions
    no_significant_difference: int
    worse: int
    both_at_chance: int


@dataclass(frozen=True)
class KindCounts:
    """Outcomes of one kind of task."""

    kind: str
    counts: OutcomeCounts


@dataclass(frozen=True)
class ModelCounts:
    """Outcomes of one model with one method."""

    model: str
    method: str
    counts: OutcomeCounts


@dataclass(frozen=True)
class Gain:
    """One comparison, with its outcome."""

    comparison: Comparison
    outcome: Outcome
    baseline_near_chance: bool


@dataclass(frozen=True)
class GainLine:
    """The gains of all models on one task; None without a comparison."""

    setting: Setting
    train_examples: int
    gains: tuple[Gain | None, ...]


@dataclass(frozen=True)
class GainTable:
    """The gains of one method, by task and model."""

    method: str
    models: tuple[str, ...]
    lines: tuple[GainLine, ...]


@dataclass(frozen=True)
class GainSummary:
    """All comparisons of one type: counts by kind of task and by model, and tables."""

    comparison_type: GainType
    kind_counts: tuple[KindCounts, ...]
    model_counts: tuple[ModelCounts, ...]
    tables: tuple[GainTable, ...]


def summarize_gains(analysis: Analysis) -> list[GainSummary]:
    """Summarize the gains of each type, if there are comparisons.

    The tables have the largest label count of each task.
    """
    summaries = []
    for gain_type in get_args(GainType):
        comparisons = [
            comparison
            for comparison in analysis.comparisons
            if comparison.comparison_type == gain_type
        ]
        if comparisons:
            summaries.append(_summarize(analysis, gain_type, comparisons))
    return summaries


def _summarize(
    analysis: Analysis, gain_type: GainType, comparisons: Sequence[Comparison]
) -> GainSummary:
    kind_of_task = {score.task: score.kind for score in analysis.scores}
    by_kind: dict[str, list[Comparison]] = {}
    by_method: dict[str, list[Comparison]] = {}
    by_use: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        model = comparison.first.model
        method = name_use(comparison.first.transfer, comparison.first.head)
        by_kind.setdefault(kind_of_task[comparison.task], []).append(comparison)
        by_method.setdefault(method, []).append(comparison)
        by_use.setdefault((model, method), []).append(comparison)
    compared = {model for model, _ in by_use}
    models = tuple(name for name in analysis.model_names if name in compared)
    methods = sorted(by_method, key=list_uses().index)
    kind_counts = [
        KindCounts(kind, _count_outcomes(analysis, group)) for kind, group in by_kind.items()
    ]
    model_counts = [
        ModelCounts(*use, _count_outcomes(analysis, by_use[use]))
        for use in product(models, methods)
        if use in by_use
    ]
    tables = [
        GainTable(method, models, _table_lines(analysis, by_method[method], models))
        for method in methods
    ]
    return GainSummary(gain_type, tuple(kind_counts), tuple(model_counts), tuple(tables))


def _count_outcomes(analysis: Analysis, comparisons: Iterable[Comparison]) -> OutcomeCounts:
    gains = [_gain(analysis, comparison) for comparison in comparisons]
    counts = Counter(gain.outcome for gain in gains)
    return OutcomeCounts(
        num_comparisons=len(gains),
        better=counts["better"],
        baseline_near_chance=sum(
            gain.baseline_near_chance for gain in gains if gain.outcome == "better"
        ),
        equivalent=counts["equivalent"] + counts["identical predictions"],
        no_significant_difference=counts["no significant difference"],
        worse=counts["worse"],
        both_at_chance=counts["both at chance"],
    )


def _gain(analysis: Analysis, comparison: Comparison) -> Gain:
    return Gain(
        comparison,
        comparison_outcome(analysis, comparison),
        baseline_is_near_chance(analysis, comparison),
    )


def _table_lines(
    analysis: Analysis, comparisons: Sequence[Comparison], models: Sequence[str]
) -> tuple[GainLine, ...]:
    train_examples = {score.setting: score.train_examples for score in analysis.scores}
    lines = []
    for task in dict.fromkeys(comparison.task for comparison in comparisons):
        settings = [comparison.setting for comparison in comparisons if comparison.task == task]
        setting = max(settings, key=train_examples.__getitem__)
        by_model = {
            comparison.first.model: comparison
            for comparison in comparisons
            if comparison.setting == setting
        }
        gains = tuple(
            _gain(analysis, by_model[model]) if model in by_model else None for model in models
        )
        lines.append(GainLine(setting, train_examples[setting], gains))
    return tuple(lines)
