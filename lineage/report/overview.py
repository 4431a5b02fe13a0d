"""All questions at once: what stands for each variant, and for TF-IDF and guessing, beside what leads."""

from typing import Any

from lineage.analysis.cells import BASELINES, IDENTICAL_PREDICTIONS
from lineage.report import sentences, view
from lineage.report.tree import find_result

JsonDict = dict[str, Any]
VERDICT_MARKS = {
    "better": " ▼",
    "worse": " ▲",
    "not worse": " =",
    IDENTICAL_PREDICTIONS: " =",
    "": " ?",
}  # of a way that the leader is compared with, or is not
REVERSED_VERDICTS = {"better": "worse", "worse": "better"}


def build_overview(tree: JsonDict) -> JsonDict:
    """A line a question and a column a variant, with the mean of the way that stands for it, and how far the leader is shown to be better."""
    asked = sentences.summarize_settings(tree)
    lines = [_overview_line(tree, question) for question in asked]
    columns = [
        name
        for name in (*view.model_names(tree), *BASELINES)
        if any(name in line["cells"] for line in lines)
    ]
    return {
        "columns": [view.format_model_name(tree, name) for name in columns],
        "lines": [
            line | {"cells": [line["cells"].get(name) for name in columns]} for line in lines
        ],
    }


def _overview_line(tree: JsonDict, setting: JsonDict) -> JsonDict:
    asked = {"task": setting["task"], "label_count": setting["label_count"]}
    verdicts = [
        (setting["way"], "leads"),
        *((one["second"], one["verdict"]) for one in setting["rivals"]),
    ]
    verdicts += [(system, "") for system in setting["not_compared"]]
    verdicts += [
        (one["first"], REVERSED_VERDICTS.get(one["verdict"], one["verdict"]))
        for one in setting["beside"]
    ]  # which are held against the leader
    cells = {}
    for system, verdict in verdicts:
        leads = system in setting["level"] and not setting["guessed"] and not setting["behind"]
        cells[system["model"]] = {
            "mean": sentences.format_percent(find_result(tree, system, **asked)["mean"]),
            "mark": VERDICT_MARKS.get(verdict, ""),
            "leads": leads,
            "behind": verdict == "better",
            "way": sentences.format_system(system),
        }
    return {
        "task": setting["task"],
        "label_count": sentences.format_label_count(
            setting["label_count"], train_examples=setting["train_examples"]
        ),
        "heading": sentences.metric_heading(setting["cell"]["metric"]),
        "guessed": setting["guessed"],
        "cells": cells,
    }
