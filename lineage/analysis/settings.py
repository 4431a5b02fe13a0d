"""Summaries of the settings: the leader, its rivals, and the chance level."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from lineage.analysis.records import (
    CHANCE_BASELINES,
    MEAN_TOLERANCE,
    TEST_SET_SEPARATOR,
    TRAINED_INITS,
    TWO_BUDGET_FAMILIES,
    UNMATCHED_FAMILIES,
    Analysis,
    Comparison,
    Outcome,
    SeedScore,
    Setting,
    System,
    SystemScore,
)

# A baseline is near chance if its lead over chance is less than this share of the other system's.
NEAR_CHANCE_SHARE = 0.1
# How far its siblings must lead over chance for a run to have collapsed.
MIN_SIBLING_LEAD = 0.1
TUNED_TRANSFERS = ("finetuned", "setfit")  # those that change the encoder


@dataclass(frozen=True)
class Rival:
    """The comparison of the leader with a rival."""

    comparison: Comparison
    planned_repetitions: int  # how many there would be if nothing had failed

    @property
    def system(self) -> System:
        return self.comparison.second


@dataclass(frozen=True)
class PublicRival:
    """The comparison of a public checkpoint with the leader."""

    comparison: Comparison
    mean: float


@dataclass(frozen=True)
class BaselineComparison:
    """The comparison of the leader's pretrained model with its random-init baseline."""

    comparison: Comparison
    baseline_near_chance: bool


@dataclass(frozen=True)
class SettingSummary:
    """The leader of a setting and how it compares with the other systems."""

    setting: Setting
    train_examples: int
    leader: System
    score: SystemScore  # of the leader
    tied_leaders: tuple[System, ...]  # the leader, and all with the same mean
    rivals: tuple[Rival, ...]
    not_compared: tuple[System, ...]
    public: tuple[PublicRival, ...]
    vs_chance: Comparison | None  # with the baseline that is hardest to beat
    vs_random_init: BaselineComparison | None
    higher_scores: tuple[SystemScore, ...]  # of systems that are not rivals
    leader_at_chance: bool  # not significantly better than chance

    @property
    def task(self) -> str:
        return self.setting.task

    @property
    def label_count(self) -> str:
        return self.setting.label_count

    @property
    def is_tied(self) -> bool:
        return len(self.tied_leaders) > 1

    @property
    def has_no_rival(self) -> bool:
        return not self.rivals and not self.leader_at_chance

    @property
    def leads_significantly(self) -> bool:
        """Return whether the leader is better than every rival and than chance."""
        verdicts = {rival.comparison.verdict for rival in self.rivals}
        return verdicts == {"better"} and not self.not_compared and not self.leader_at_chance

    @property
    def is_beaten(self) -> bool:
        """Return whether a rival is better on the repetitions that both have."""
        return any(rival.comparison.verdict == "worse" for rival in self.rivals)

    @property
    def has_winner(self) -> bool:
        """Return whether one system leads: above chance, compared, not tied and not beaten."""
        return not (self.leader_at_chance or self.has_no_rival or self.is_beaten or self.is_tied)


@dataclass
class _SettingComparisons:
    """The comparisons of a setting by type."""

    leader: System | None = None
    rivals: list[Comparison] = field(default_factory=list)
    public: list[Comparison] = field(default_factory=list)
    chance: list[Comparison] = field(default_factory=list)
    not_compared: list[System] = field(default_factory=list)


def summarize_settings(analysis: Analysis) -> list[SettingSummary]:
    """Return the summaries of all settings in which two systems could be compared."""
    by_setting = {score.setting: _SettingComparisons() for score in analysis.scores}
    for comparison in analysis.comparisons:
        group = by_setting[comparison.setting]
        if comparison.comparison_type == "leader":
            group.leader = comparison.first
            group.rivals.append(comparison)
        elif comparison.comparison_type == "chance":
            group.leader = comparison.first
            group.chance.append(comparison)
        elif comparison.comparison_type == "public":
            group.leader = group.leader or comparison.second
            group.public.append(comparison)
    for pair in analysis.not_compared:
        by_setting[pair.setting].leader = pair.first
        by_setting[pair.setting].not_compared.append(pair.second)
    return [
        _summarize(analysis, setting, group.leader, group)
        for setting, group in by_setting.items()
        if group.leader is not None
    ]


def _summarize(
    analysis: Analysis, setting: Setting, leader: System, comparisons: _SettingComparisons
) -> SettingSummary:
    score = analysis.find_score(leader, setting)
    vs_chance = min(comparisons.chance, key=lambda comparison: comparison.ci_low, default=None)
    is_chance_baseline = leader.model in CHANCE_BASELINES
    not_above = vs_chance is not None and vs_chance.verdict != "better"
    rivals = [comparison.second for comparison in comparisons.rivals]
    return SettingSummary(
        setting=setting,
        train_examples=max(score.train_examples for score in analysis.scores_of(setting)),
        leader=leader,
        score=score,
        tied_leaders=(
            leader,
            *_tied_systems(analysis, score, [*rivals, *comparisons.not_compared]),
        ),
        rivals=tuple(
            Rival(comparison, _planned_repetitions(analysis, comparison))
            for comparison in comparisons.rivals
        ),
        not_compared=tuple(comparisons.not_compared),
        public=tuple(
            PublicRival(comparison, _mean(analysis, comparison.first, setting))
            for comparison in comparisons.public
        ),
        vs_chance=vs_chance,
        vs_random_init=_random_init_comparison(analysis, leader, setting),
        higher_scores=tuple(_higher_scores(analysis, score)),
        leader_at_chance=is_chance_baseline or not_above,
    )


def _mean(analysis: Analysis, system: System, setting: Setting) -> float:
    mean = analysis.find_score(system, setting).mean
    assert mean is not None, "only systems with a score are compared"
    return mean


def _tied_systems(
    analysis: Analysis, leader: SystemScore, others: Iterable[System]
) -> list[System]:
    mean = _mean(analysis, leader.system, leader.setting)
    return [
        system
        for system in others
        if abs(_mean(analysis, system, leader.setting) - mean) <= MEAN_TOLERANCE
    ]


def _planned_repetitions(analysis: Analysis, comparison: Comparison) -> int:
    """Return how many repetitions a comparison would have if nothing had failed.

    They are those of the grid, over pretraining seeds if either system has them, and over
    fine-tuning seeds likewise.
    """
    seeds = [
        seed
        for system in (comparison.first, comparison.second)
        for seed in analysis.find_score(system, comparison.setting).seeds
    ]
    counts = []
    if any(seed.pretrain_seed is not None for seed in seeds):
        counts.append(len(analysis.grid.pretrain_seeds))
    if any(seed.finetune_seed is not None for seed in seeds):
        counts.append(len(analysis.grid.finetune_seeds))
    return prod(counts)


def _higher_scores(analysis: Analysis, leader: SystemScore) -> list[SystemScore]:
    """Return the best ablation and the best random-init baseline above the leader, if any.

    They are not among its rivals.
    """
    leader_mean = _mean(analysis, leader.system, leader.setting)
    higher = [
        score
        for score in analysis.scores_of(leader.setting)
        if score.mean is not None and score.mean > leader_mean + MEAN_TOLERANCE
    ]
    higher = [score for score in higher if score.system.family not in UNMATCHED_FAMILIES]
    higher.sort(key=lambda score: -(score.mean or 0.0))
    ablations = [
        score
        for score in higher
        if score.system.model in analysis.grid.ablation_of and score.system.init in TRAINED_INITS
    ]
    baselines = [score for score in higher if score.system.init == "random"]
    return [*ablations[:1], *baselines[:1]]


def _random_init_comparison(
    analysis: Analysis, leader: System, setting: Setting
) -> BaselineComparison | None:
    """Return the comparison of the leader, before any adaptation, with its random-init baseline."""
    for comparison in analysis.comparisons:
        first = comparison.first
        is_leader = (first.model, first.method) == (leader.model, leader.method)
        is_pretraining = comparison.comparison_type == "pretraining"
        if is_pretraining and is_leader and comparison.setting == setting:
            return BaselineComparison(comparison, baseline_is_near_chance(analysis, comparison))
    return None


def count_wins(settings: Iterable[SettingSummary]) -> Counter[str]:
    """Return how many settings each model wins."""
    return Counter(setting.leader.model for setting in settings if setting.has_winner)


def chance_level(analysis: Analysis, setting: Setting) -> float:
    """Return the higher score of the majority class and of chance.

    It is zero if neither has a score, as for correlations.
    """
    means = [
        score.mean
        for score in analysis.scores_of(setting)
        if score.system.family in CHANCE_BASELINES and score.mean is not None
    ]
    return max(means, default=0.0)


def comparison_outcome(analysis: Analysis, comparison: Comparison) -> Outcome:
    """Return the verdict, or "both at chance" if neither system is above chance."""
    scores = [
        analysis.find_score(system, comparison.setting)
        for system in (comparison.first, comparison.second)
    ]
    if not any(score.above_chance for score in scores):
        return "both at chance"
    return comparison.verdict


def baseline_is_near_chance(analysis: Analysis, comparison: Comparison) -> bool:
    """Return whether a system is better than a baseline that is at chance, or hardly above it."""
    if comparison.verdict != "better":
        return False
    baseline = analysis.find_score(comparison.second, comparison.setting)
    if not baseline.above_chance:
        return True
    chance = chance_level(analysis, comparison.setting)
    lead = _mean(analysis, comparison.first, comparison.setting) - chance
    baseline_lead = _mean(analysis, comparison.second, comparison.setting) - chance
    return baseline_lead < NEAR_CHANCE_SHARE * lead


@dataclass(frozen=True)
class CollapsedRun:
    """A fine-tuned run that is at chance while its siblings, of other seeds, are not."""

    system: System
    setting: Setting
    run: SeedScore
    siblings_mean: float


def find_collapsed_runs(analysis: Analysis, task: str) -> list[CollapsedRun]:
    """Return the collapsed runs of a task; none for its extra test sets.

    A run has collapsed if its lead over chance is less than a tenth of its siblings' mean lead, and
    they lead by MIN_SIBLING_LEAD or more. With few labels all runs may be near chance.
    """
    collapsed: list[CollapsedRun] = []
    if TEST_SET_SEPARATOR in task:  # a run may transfer badly without having collapsed
        return collapsed
    for score in fine_tuned_scores(analysis, task):
        chance = chance_level(analysis, score.setting)
        for run in score.seeds:
            siblings = [one.value - chance for one in score.seeds if one != run]
            if not siblings:
                continue
            lead = sum(siblings) / len(siblings)
            if lead >= MIN_SIBLING_LEAD and run.value - chance < NEAR_CHANCE_SHARE * lead:
                collapsed.append(CollapsedRun(score.system, score.setting, run, chance + lead))
    return collapsed


def fine_tuned_scores(analysis: Analysis, task: str) -> list[SystemScore]:
    """Return the scores of a task's systems that were fine-tuned, which ensembles were not."""
    return [
        score
        for score in analysis.scores_of_task(task)
        if score.system.transfer in TUNED_TRANSFERS
        and score.system.family not in TWO_BUDGET_FAMILIES
    ]
