"""What stands in the tree of results.json, looked up."""

from typing import Any

from lineage.analysis.cells import CHANCE_BASELINES

JsonDict = dict[str, Any]
NEAR_CHANCE_SHARE = (
    0.1  # of the other's lead over guessing: a twin that keeps less has as good as none
)


def find_result(tree: JsonDict, system: JsonDict, *, task: str, label_count: str) -> JsonDict:
    """The cell of a way."""
    return next(
        c
        for c in tree["cells"]
        if c["task"] == task and c["label_count"] == label_count and system.items() <= c.items()
    )


def chance_level(tree: JsonDict, *, task: str, label_count: str) -> float:
    """What is right without looking at an item: the higher one of the majority class and chance, and zero where neither has a value, as of
    correlations."""
    here = [c for c in tree["cells"] if (c["task"], c["label_count"]) == (task, label_count)]
    return max(
        (
            float(c["mean"])
            for c in here
            if c["family"] in CHANCE_BASELINES and c["mean"] is not None
        ),
        default=0.0,
    )


def may_be_at_chance(tree: JsonDict, system: JsonDict, *, task: str, label_count: str) -> bool:
    """Whether a way is not shown to be better than guessing (`comparisons.above_guessing`)."""
    return not find_result(tree, system, task=task, label_count=label_count)["above_guessing"]


def comparison_outcome(tree: JsonDict, comparison: JsonDict) -> str:
    """A comparison's verdict, or `guessing` where neither side is shown to be better than that, and to part them says nothing of either."""
    systems = (comparison["first"], comparison["second"])
    both = all(
        may_be_at_chance(tree, way, task=comparison["task"], label_count=comparison["label_count"])
        for way in systems
    )
    return "guessing" if both else str(comparison["verdict"])


def baseline_is_near_chance(tree: JsonDict, comparison: JsonDict) -> bool:
    """Whether a comparison says that its first is better than what may itself guess, or keeps next to nothing of the first's lead over guessing."""
    setting = {"task": comparison["task"], "label_count": comparison["label_count"]}
    if comparison["verdict"] != "better":
        return False
    chance = chance_level(tree, **setting)
    first, second = (
        float(find_result(tree, way, **setting)["mean"]) - chance
        for way in (comparison["first"], comparison["second"])
    )
    return (
        may_be_at_chance(tree, comparison["second"], **setting)
        or second < NEAR_CHANCE_SHARE * first
    )
