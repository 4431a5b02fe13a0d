"""What stands in the tree of results.json, looked up."""

from typing import Any

from lineage.report.cells import GUESSES

Tree = dict[str, Any]
LITTLE = 0.1  # of the other's lead over guessing: a twin that keeps less has as good as none


def cell_of(tree: Tree, way: Tree, *, task: str, labels: str) -> Tree:
    """The cell of a way."""
    return next(c for c in tree["cells"] if c["task"] == task and c["labels"] == labels and way.items() <= c.items())


def guessed(tree: Tree, *, task: str, labels: str) -> float:
    """What is right without looking at an item: the higher one of the majority class and chance, and zero where neither has a value, as of
    correlations."""
    here = [c for c in tree["cells"] if (c["task"], c["labels"]) == (task, labels)]
    return max((float(c["mean"]) for c in here if c["family"] in GUESSES and c["mean"] is not None), default=0.0)


def may_guess(tree: Tree, way: Tree, *, task: str, labels: str) -> bool:
    """Whether a way is not shown to be better than guessing (`comparisons.above_guessing`)."""
    return not cell_of(tree, way, task=task, labels=labels)["above_guessing"]


def outcome(tree: Tree, one: Tree) -> str:
    """A comparison's verdict, or `guessing` where neither side is shown to be better than that, and to part them says nothing of either."""
    ways = (one["first"], one["second"])
    both = all(may_guess(tree, way, task=one["task"], labels=one["labels"]) for way in ways)
    return "guessing" if both else str(one["verdict"])


def over_guessing(tree: Tree, one: Tree) -> bool:
    """Whether a comparison says that its first is better than what may itself guess, or keeps next to nothing of the first's lead over guessing."""
    asked = {"task": one["task"], "labels": one["labels"]}
    if one["verdict"] != "better":
        return False
    level = guessed(tree, **asked)
    first, second = (float(cell_of(tree, way, **asked)["mean"]) - level for way in (one["first"], one["second"]))
    return may_guess(tree, one["second"], **asked) or second < LITTLE * first
