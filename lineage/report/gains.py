"""What pretraining, and adaptation after it, has added: the comparisons with twins, of all questions together."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lineage.report import view, words
from lineage.report.cells import SAME_ANSWERS
from lineage.report.tree import outcome, over_guessing

Tree = dict[str, Any]
TWINS = {"pretraining": "its untrained twin", "adaptation": "the same model before adaptation"}
MARKS = {"better": " ▲", "worse": " ▼", "not worse": " =", SAME_ANSWERS: " ="}


def gains(tree: Tree) -> list[Tree]:
    """For pretraining, and for adaptation: how its comparisons came out, a line a kind of task, and a line a variant and way.

    And a table a way, at the largest number of labels that it was tried with, a line a task and a column a variant.
    """
    found = []
    for question, twin in TWINS.items():
        asked = [one for one in tree["comparisons"] if one["question"] == question]
        kind_of = {cell["task"]: str(cell["kind"]).replace("_", " ") for cell in tree["cells"]}
        kinds = dict.fromkeys(kind_of[one["task"]] for one in asked)
        variants = [name for name in view.variants(tree) if any(one["first"]["variant"] == name for one in asked)]
        ways = sorted({_way(one) for one in asked}, key=_order)
        if asked:
            found.append({
                "question": question, "twin": twin,
                "kinds": [{"kind": kind} | _counts(tree, [one for one in asked if kind_of[one["task"]] == kind]) for kind in kinds],
                "counts": [{"variant": view.named(tree, name), "way": way} | _counts(tree, own) for name in variants for way in ways
                           if (own := [one for one in asked if (one["first"]["variant"], _way(one)) == (name, way)])],
                "tables": [_table(tree, way, [one for one in asked if _way(one) == way], variants) for way in ways]})  # fmt: skip
    return found


def _way(one: Tree) -> str:
    """`frozen`, `frozen + BiLSTM(-CRF)`, `tuned`, `zero-shot`. Which network it is follows from the kind of task; of layers a variant reads some."""
    way = one["first"]
    return f"{way['transfer'].replace('_', '-')}{' + BiLSTM(-CRF)' if words.head_words(way) else ''}"


def _order(way: str) -> tuple[int, str]:
    return ("frozen", "tuned", "zero-shot").index(way.split()[0]), way


def _counts(tree: Tree, own: Sequence[Tree]) -> Tree:
    counts = Counter(outcome(tree, one) for one in own)
    gained = [one for one in own if outcome(tree, one) == "better"]
    return {"asked": len(own), "better": counts["better"], "over_guessing": sum(over_guessing(tree, one) for one in gained),
            "equal": counts["not worse"] + counts[SAME_ANSWERS], "open": counts["not separated"], "worse": counts["worse"],
            "guessing": counts["guessing"]}  # fmt: skip


def _table(tree: Tree, way: str, own: Sequence[Tree], variants: Sequence[str]) -> Tree:
    """The differences of one way, each at the largest number of labels with which its task was compared."""
    examples = {(cell["task"], cell["labels"]): cell["train_examples"] for cell in tree["cells"]}
    lines = []
    for task in dict.fromkeys(one["task"] for one in own):
        labels = max((one["labels"] for one in own if one["task"] == task), key=lambda some: examples[task, some])
        here = {one["first"]["variant"]: one for one in own if (one["task"], one["labels"]) == (task, labels)}
        cells = [_cell(tree, here[name]) if name in here else None for name in variants]
        lines.append({"task": task, "labels": words.labels_words(labels, train_examples=examples[task, labels]), "cells": cells})
    return {"way": way, "columns": [view.named(tree, name) for name in variants], "lines": lines}


def _cell(tree: Tree, one: Tree) -> Tree:
    word, points = outcome(tree, one), words.signed(one["difference"])
    mark = "°" if over_guessing(tree, one) else ""
    text = f"({points})" if word == "guessing" else points + MARKS.get(word, "") + mark
    return {"text": text, "verdict": word, "spread": words.spread(one)}
