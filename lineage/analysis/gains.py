"""Gains of pretraining, adaptation, general text and continued pretraining, over all settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lineage.analysis.records import Analysis, Comparison, Outcome, group_by
from lineage.analysis.settings import baseline_is_near_chance, comparison_outcome
from lineage.methods.registry import list_uses, name_use

GainType = Literal["pretraining", "adaptation", "general_text", "continuation"]


@dataclass(frozen=True)
class Gain:
    """One comparison with a baseline, and its outcome."""

    comparison: Comparison
    kind: str  # of its task
    method: str
    train_examples: int
    outcome: Outcome
    baseline_near_chance: bool

    @property
    def model(self) -> str:
        return self.comparison.first.model


@dataclass(frozen=True)
class GainSummary:
    """All comparisons of one type, in the order of the analysis."""

    comparison_type: GainType
    models: tuple[str, ...]  # that are compared
    gains: tuple[Gain, ...]
    # Those at the largest label count of each method and task: by method, task and model.
    at_most_labels: tuple[Gain, ...]


def list_gains(analysis: Analysis) -> list[Gain]:
    """Return the comparisons of all types, in the order of the analysis."""
    kinds = {score.task: score.kind for score in analysis.scores}
    train_examples = {score.setting: score.train_examples for score in analysis.scores}
    return [
        Gain(
            comparison,
            kinds[comparison.task],
            name_use(comparison.first.transfer, comparison.first.head),
            train_examples[comparison.setting],
            comparison_outcome(analysis, comparison),
            baseline_is_near_chance(analysis, comparison),
        )
        for comparison in analysis.comparisons
        if comparison.comparison_type in get_args(GainType)
    ]


def summarize_gains(analysis: Analysis) -> list[GainSummary]:
    """Summarize the gains of each type, if there are comparisons."""
    by_type = group_by(list_gains(analysis), lambda gain: gain.comparison.comparison_type)
    summaries = []
    for gain_type in get_args(GainType):
        own = by_type.get(gain_type, [])
        compared = {gain.model for gain in own}
        models = tuple(name for name in analysis.model_names if name in compared)
        if own:
            largest = tuple(_select_most_labels(own, models))
            summaries.append(GainSummary(gain_type, models, tuple(own), largest))
    return summaries


def _select_most_labels(gains: Sequence[Gain], models: Sequence[str]) -> list[Gain]:
    selected = []
    by_method = group_by(gains, lambda gain: gain.method)
    for method in sorted(by_method, key=list_uses().index):
        for own in group_by(by_method[method], lambda gain: gain.comparison.task).values():
            setting = max(own, key=lambda gain: gain.train_examples).comparison.setting
            by_model = {gain.model: gain for gain in own if gain.comparison.setting == setting}
            selected += [by_model[model] for model in models if model in by_model]
    return selected
