"""What stands in the tree of results.json, looked up."""

from typing import Any

from lineage.report.cells import GUESSES, SAME

Tree = dict[str, Any]


def cell_of(tree: Tree, way: Tree, *, task: str, labels: str) -> Tree:
    """The cell of a way."""
    return next(c for c in tree["cells"] if c["task"] == task and c["labels"] == labels and way.items() <= c.items())


def over_guessing(tree: Tree, one: Tree) -> bool:
    """Whether a comparison says that its first is better than what may itself be no better than guessing.

    That is where the second's own interval, or its mean where it has none, reaches down to what is right without looking at an item: the higher one
    of the majority class and chance, and zero where neither has a value, as of correlations.
    """
    cell = cell_of(tree, one["second"], task=one["task"], labels=one["labels"])
    here = [c for c in tree["cells"] if (c["task"], c["labels"]) == (one["task"], one["labels"])]
    guessed = max((c["mean"] for c in here if c["family"] in GUESSES and c["mean"] is not None), default=0.0)
    lowest = cell["mean"] if cell["low"] is None else cell["low"]
    return bool(one["verdict"] == "better" and lowest <= guessed + SAME)
