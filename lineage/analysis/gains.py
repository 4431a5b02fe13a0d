"""What pretraining, and adaptation after it, has added: the comparisons with twins, of all questions together."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lineage.analysis.cells import IDENTICAL_PREDICTIONS
from lineage.report import sentences, view
from lineage.report.tree import baseline_is_near_chance, comparison_outcome

JsonDict = dict[str, Any]
BASELINE_NAMES = {
    "pretraining": "its untrained twin",
    "adaptation": "the same model before adaptation",
}
VERDICT_MARKS = {"better": " ▲", "worse": " ▼", "not worse": " =", IDENTICAL_PREDICTIONS: " ="}


def build_gain_tables(tree: JsonDict) -> list[JsonDict]:
    """For pretraining, and for adaptation: how its comparisons came out, a line a kind of task, and a line a variant and way.

    And a table a way, at the largest number of labels that it was tried with, a line a task and a column a variant.
    """
    found = []
    for comparison_type, baseline in BASELINE_NAMES.items():
        comparisons = [one for one in tree["comparisons"] if one["question"] == comparison_type]
        kind_of = {cell["task"]: str(cell["kind"]).replace("_", " ") for cell in tree["cells"]}
        kinds = dict.fromkeys(kind_of[one["task"]] for one in comparisons)
        models = [
            name
            for name in view.model_names(tree)
            if any(one["first"]["model"] == name for one in comparisons)
        ]
        methods = sorted({_format_method(one) for one in comparisons}, key=_method_order)
        if comparisons:
            found.append(
                {
                    "question": comparison_type,
                    "twin": baseline,
                    "kinds": [
                        {"kind": kind}
                        | _count_outcomes(
                            tree, [one for one in comparisons if kind_of[one["task"]] == kind]
                        )
                        for kind in kinds
                    ],
                    "counts": [
                        {"model": view.format_model_name(tree, name), "way": way}
                        | _count_outcomes(tree, own)
                        for name in models
                        for way in methods
                        if (
                            own := [
                                one
                                for one in comparisons
                                if (one["first"]["model"], _format_method(one)) == (name, way)
                            ]
                        )
                    ],
                    "tables": [
                        _gain_table(
                            tree,
                            way,
                            [one for one in comparisons if _format_method(one) == way],
                            models,
                        )
                        for way in methods
                    ],
                }
            )
    return found


def _format_method(comparison: JsonDict) -> str:
    """`frozen`, `frozen + BiLSTM(-CRF)`, `tuned`, `zero-shot`. Which network it is follows from the kind of task; of layers a variant reads some."""
    system = comparison["first"]
    return f"{system['transfer'].replace('_', '-')}{' + BiLSTM(-CRF)' if sentences.format_head(system) else ''}"


def _method_order(method: str) -> tuple[int, str]:
    return ("frozen", "finetuned", "zero-shot").index(method.split()[0]), method


def _count_outcomes(tree: JsonDict, comparisons: Sequence[JsonDict]) -> JsonDict:
    counts = Counter(comparison_outcome(tree, one) for one in comparisons)
    gained = [one for one in comparisons if comparison_outcome(tree, one) == "better"]
    return {
        "asked": len(comparisons),
        "better": counts["better"],
        "over_guessing": sum(baseline_is_near_chance(tree, one) for one in gained),
        "equal": counts["not worse"] + counts[IDENTICAL_PREDICTIONS],
        "open": counts["not separated"],
        "worse": counts["worse"],
        "guessing": counts["guessing"],
    }


def _gain_table(
    tree: JsonDict, method: str, comparisons: Sequence[JsonDict], models: Sequence[str]
) -> JsonDict:
    """The differences of one way, each at the largest number of labels with which its task was compared."""
    examples = {
        (cell["task"], cell["label_count"]): cell["train_examples"] for cell in tree["cells"]
    }
    lines = []
    for task in dict.fromkeys(one["task"] for one in comparisons):
        labels = max(
            (one["label_count"] for one in comparisons if one["task"] == task),
            key=lambda some: examples[task, some],
        )
        here = {
            one["first"]["model"]: one
            for one in comparisons
            if (one["task"], one["label_count"]) == (task, labels)
        }
        cells = [_format_gain(tree, here[name]) if name in here else None for name in models]
        lines.append(
            {
                "task": task,
                "label_count": sentences.format_label_count(
                    labels, train_examples=examples[task, labels]
                ),
                "cells": cells,
            }
        )
    return {
        "way": method,
        "columns": [view.format_model_name(tree, name) for name in models],
        "lines": lines,
    }


def _format_gain(tree: JsonDict, comparison: JsonDict) -> JsonDict:
    word, points = (
        comparison_outcome(tree, comparison),
        sentences.format_difference(comparison["difference"]),
    )
    mark = "°" if baseline_is_near_chance(tree, comparison) else ""
    text = f"({points})" if word == "guessing" else points + VERDICT_MARKS.get(word, "") + mark
    return {"text": text, "verdict": word, "spread": sentences.format_comparison(comparison)}
