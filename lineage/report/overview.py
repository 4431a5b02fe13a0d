"""All questions at once: what stands for each variant, and for TF-IDF and guessing, beside what leads."""

from typing import Any

from lineage.report import view, words
from lineage.report.cells import CONTROL_ROWS, SAME_ANSWERS
from lineage.report.tree import cell_of

Tree = dict[str, Any]
MARKS = {"better": " ▼", "worse": " ▲", "not worse": " =", SAME_ANSWERS: " =", "": " ?"}  # of a way that the leader is compared with, or is not
TURNED = {"better": "worse", "worse": "better"}


def overview(tree: Tree) -> Tree:
    """A line a question and a column a variant, with the mean of the way that stands for it, and how far the leader is shown to be better."""
    asked = words.questions(tree)
    lines = [_line(tree, question) for question in asked]
    columns = [name for name in (*view.variants(tree), *CONTROL_ROWS) if any(name in line["cells"] for line in lines)]
    return {
        "columns": [view.named(tree, name) for name in columns],
        "lines": [line | {"cells": [line["cells"].get(name) for name in columns]} for line in lines],
    }


def _line(tree: Tree, question: Tree) -> Tree:
    asked = {"task": question["task"], "labels": question["labels"]}
    verdicts = [(question["way"], "leads"), *((one["second"], one["verdict"]) for one in question["rivals"])]
    verdicts += [(way, "") for way in question["not_compared"]]
    verdicts += [(one["first"], TURNED.get(one["verdict"], one["verdict"])) for one in question["beside"]]  # which are held against the leader
    cells = {}
    for way, verdict in verdicts:
        leads = way in question["level"] and not question["guessed"] and not question["behind"]
        cells[way["variant"]] = {"mean": words.percent(cell_of(tree, way, **asked)["mean"]), "mark": MARKS.get(verdict, ""), "leads": leads,
                                 "behind": verdict == "better", "way": words.way_words(way)}  # fmt: skip
    return {"task": question["task"], "labels": words.labels_words(question["labels"], train_examples=question["train_examples"]),
            "heading": words.heading(question["cell"]["metric"]), "guessed": question["guessed"], "cells": cells}  # fmt: skip
