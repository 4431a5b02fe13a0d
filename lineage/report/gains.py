"""What pretraining, and adaptation after it, has added: the comparisons with twins, of all questions together."""

from collections import Counter
from typing import Any

from lineage.report import words
from lineage.report.cells import SAME_ANSWERS
from lineage.report.tree import over_guessing

Tree = dict[str, Any]
WHAT = {"pretraining": "over its untrained twin", "adaptation": "over the same model before adaptation"}
COUNTED = ("better", "not worse", SAME_ANSWERS, "not separated", "worse")
MARKS = {"better": " ▲", "worse": " ▼", "not worse": " =", SAME_ANSWERS: " ="}


def gains(tree: Tree) -> list[Tree]:
    """For pretraining, and for adaptation: how many questions came out in which way, a line a variant and reading; and a table a reading, at the most
    labels that it was tried with, a line a task and a column a variant."""
    found = []
    for question, over in WHAT.items():
        asked = [one for one in tree["comparisons"] if one["question"] == question]
        variants = [name for name in tree["grid"]["families"] if any(one["first"]["variant"] == name for one in asked)]
        readings = sorted({_reading(one) for one in asked}, key=_order)
        lines = [_counts(tree, variant, reading, asked) for variant in variants for reading in readings]
        if asked:
            found.append({"question": question, "over": over, "counts": [line for line in lines if line["asked"]],
                          "guessed": any(line["over_guessing"] for line in lines),
                          "tables": [_table(tree, reading, asked, variants) for reading in readings]})  # fmt: skip
    return found


def _reading(one: Tree) -> str:
    """`frozen`, `frozen + BiLSTM`, `tuned`, `zero-shot`; other layers than the mix are a reading of their own."""
    way = one["first"]
    layers = "" if way["features"] in ("mix", "none") or way["transfer"] != "frozen" else f" ({way['features']})"
    return f"{way['transfer'].replace('_', '-')}{layers}{words.head_words(way)}"


def _order(reading: str) -> tuple[int, str]:
    return ("frozen", "tuned", "zero-shot").index(reading.split()[0]), reading


def _counts(tree: Tree, variant: str, reading: str, asked: list[Tree]) -> Tree:
    own = [one for one in asked if one["first"]["variant"] == variant and _reading(one) == reading]
    counts = Counter(one["verdict"] for one in own)
    return {"variant": variant, "reading": reading, "asked": len(own), **{verdict.replace(" ", "_"): counts[verdict] for verdict in COUNTED},
            "over_guessing": sum(over_guessing(tree, one) for one in own)}  # fmt: skip


def _table(tree: Tree, reading: str, asked: list[Tree], variants: list[str]) -> Tree:
    """The differences of one reading, each at the most labels that its task was compared with."""
    own = [one for one in asked if _reading(one) == reading]
    examples = {(cell["task"], cell["labels"]): cell["train_examples"] for cell in tree["cells"]}
    lines = []
    for task in dict.fromkeys(one["task"] for one in own):
        labels = max((one["labels"] for one in own if one["task"] == task), key=lambda some: examples[task, some])
        here = {one["first"]["variant"]: one for one in own if (one["task"], one["labels"]) == (task, labels)}
        cells = [_cell(tree, here[name]) if name in here else None for name in variants]
        lines.append({"task": task, "labels": words.labels_words(labels, train_examples=examples[task, labels]), "cells": cells})
    return {"reading": reading, "columns": variants, "lines": lines}


def _cell(tree: Tree, one: Tree) -> Tree:
    text = words.signed(one["difference"]) + MARKS.get(one["verdict"], "") + ("°" if over_guessing(tree, one) else "")
    return {"text": text, "verdict": one["verdict"], "spread": words.spread(one)}
