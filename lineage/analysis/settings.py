"""The chance level of a setting, outcomes near it, and fine-tuned runs that collapsed."""

from dataclasses import dataclass

from lineage.analysis.records import (
    CHANCE_BASELINES,
    TEST_SET_SEPARATOR,
    TWO_BUDGET_FAMILIES,
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
# Outcomes that say nothing about the models.
SILENT_OUTCOMES = ("neither shown above chance", "not converged")
TUNED_TRANSFERS = ("finetuned", "setfit")  # those that change the encoder


def chance_level(analysis: Analysis, setting: Setting) -> float:
    """Return the highest score of what learns nothing of how to answer.

    It is zero if none of these has a score, as for correlations.
    """
    means = [
        score.mean
        for score in analysis.scores_of(setting)
        if score.system.family in CHANCE_BASELINES and score.mean is not None
    ]
    return max(means, default=0.0)


def find_random_score(analysis: Analysis, system: System, setting: Setting) -> float | None:
    """Return the score of the same network with random weights; None without one."""
    if system.init == "random":
        return None
    for score in analysis.scores_of(setting):
        other = score.system
        same_use = (other.model, other.method) == (system.model, system.method)
        if other.init == "random" and same_use:
            return score.mean
    return None


def comparison_outcome(analysis: Analysis, comparison: Comparison) -> Outcome:
    """Return the verdict, unless it says nothing about the models.

    It is "not converged" if fine-tuning did not on this task, and "neither shown above chance" if neither
    system is above chance.
    """
    if comparison.first.transfer == "finetuned" and any(
        control.task == comparison.task
        and control.label_count == comparison.label_count
        and not control.has_converged
        for control in analysis.convergence_controls
    ):
        return "not converged"
    scores = [
        analysis.find_score(system, comparison.setting)
        for system in (comparison.first, comparison.second)
    ]
    if not any(score.above_chance for score in scores):
        return "neither shown above chance"
    return comparison.verdict


def baseline_is_near_chance(analysis: Analysis, comparison: Comparison) -> bool:
    """Return whether a system is better than a baseline that is at chance, or hardly above it."""
    if comparison.verdict != "better":
        return False
    first = analysis.find_score(comparison.first, comparison.setting)
    baseline = analysis.find_score(comparison.second, comparison.setting)
    if not baseline.above_chance:
        return True
    assert first.mean is not None and baseline.mean is not None, "systems with a score are compared"
    chance = chance_level(analysis, comparison.setting)
    return baseline.mean - chance < NEAR_CHANCE_SHARE * (first.mean - chance)


@dataclass(frozen=True)
class OmittedMethod:
    """A method that a study uses for a task, but not with this number of labels."""

    transfer: str
    head: str
    label_count: str


def find_omitted_methods(analysis: Analysis, task: str) -> list[OmittedMethod]:
    """Return the methods that lack some of the numbers of labels that others have."""
    trained = [
        score
        for score in analysis.scores_of_task(task)
        if score.system.init != "none" and score.label_count != "none"
    ]
    label_counts = dict.fromkeys(score.label_count for score in trained)
    counts_by_method: dict[tuple[str, str], set[str]] = {}
    for score in trained:
        method = (score.system.transfer, score.system.head)
        counts_by_method.setdefault(method, set()).add(score.label_count)
    return [
        OmittedMethod(*method, count)
        for method, own_counts in counts_by_method.items()
        for count in label_counts
        if count not in own_counts
    ]


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
            siblings = [other.value - chance for other in score.seeds if other != run]
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
