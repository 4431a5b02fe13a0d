"""Say in sentences which systems are champions in the registry of models, and why."""

from collections.abc import Sequence

from lineage.analysis.champion import ChampionDecision, ChampionOutcome
from lineage.analysis.decision import Decision
from lineage.analysis.records import Standing
from lineage.report.decisions import format_interval, name_system
from lineage.report.formatting import (
    format_build_time,
    format_difference,
    format_label_count,
    format_percent,
    format_range,
    metric_unit,
)


def describe_champion(outcome: ChampionOutcome) -> str:
    """Say in a sentence whether the champion of a task has changed, and why."""
    new = f"{outcome.system} (version {outcome.version})"
    old = f"{outcome.champion} (version {outcome.champion_version})"
    decision = outcome.decision
    if decision is None:
        return f"The champion is still {new}: the recommended system is the very same."
    points = _format_points(decision)
    sentences = {
        "first": f"The champion is {new}, the first one.",
        "same system": f"The champion is {new}: the same system as version "
        f"{outcome.champion_version}, scored on other test items.",
        "better": f"The champion is now {new}: it is better than {old} on the same test items "
        f"({points}).",
        "equivalent and cheaper": f"The champion is now {new}: it takes less time to build than "
        f"{old}, and is at most 2 points below it ({points}).",
        "not better": f"The champion is still {old}: {new} is not shown to be better on the same "
        f"test items ({points}), nor equivalent and cheaper.",
        "other test items": f"The champion is still {old}: {new} was scored on other test items or "
        "by another metric, so the two cannot be compared.",
        "no item scores": f"The champion is still {old}: {new} cannot be compared with it, since "
        "no scores are kept where answers are texts, unless `report.show_text` allows it.",
    }
    return sentences[decision.reason]


def describe_version(study: str, decision: Decision, sentence: str) -> str:
    """Describe a version of a registered model in a paragraph."""
    use = decision.use.standing
    labels = format_label_count(decision.label_count, train_examples=decision.train_examples)
    score = describe_score(use, decision.metric)
    text = (
        f"The study {study} recommends it for {decision.task}: {name_system(use.system)}, "
        f"trained on {labels}. On test items it scores {score}."
    )
    if not use.above_chance:
        text += " This is not shown to be above chance."
    if decision.use.cost.seconds is not None:
        text += f" It takes {format_build_time(decision.use.cost, ' to build')}."
    return f"{text} {sentence}"


def describe_score(standing: Standing, metric: str) -> str:
    """Return a score with its unit and interval: `84.4 % correct (83.0 to 85.8, ...)`."""
    score = f"{format_percent(standing.mean)} {metric_unit(metric)}"
    interval = format_interval(standing)
    return f"{score} ({interval}, 95 % confidence)" if interval else score


def list_changes(outcomes: Sequence[ChampionOutcome]) -> list[str]:
    """Return a line for each task whose champion has changed, for the terminal."""
    return [f"{one.task}: {describe_champion(one)}" for one in outcomes if one.has_changed]


def _format_points(decision: ChampionDecision) -> str:
    """Format a difference with its interval: `+2.1 points, +0.4 to +3.8`."""
    if decision.difference is None:
        return ""
    points = f"{format_difference(decision.difference)} points"
    if decision.low is None or decision.high is None:
        return f"{points}, of a single item"
    return f"{points}, {format_range(decision.low, decision.high)}"
