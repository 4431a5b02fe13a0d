"""How many labels until a way overtakes TF-IDF: the sentence follows the verdicts at every number that was tried."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_rows import GRID, Study

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.crossover import build_crossover_tables
from lineage.config.params import ReportParams

WAY = {
    "model": "gpt",
    "family": "gpt",
    "init": "pretrained",
    "transfer": "finetuned",
    "head": "linear",
}


def tree(verdicts: dict[str, str], examples: dict[str, int]) -> dict[str, Any]:
    cells = [
        {"task": "mine", "label_count": n, "family": "tfidf", "train_examples": count}
        for n, count in examples.items()
    ]
    more = {
        "difference": 0.1,
        "low": 0.05,
        "high": 0.15,
        "metric": "accuracy",
        "question": "controls",
        "task": "mine",
        "first": WAY,
    }
    return {
        "cells": cells,
        "comparisons": [more | {"label_count": n, "verdict": v} for n, v in verdicts.items()],
    }


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (("worse", "better", "better"), "from 100 labels on"),
        (("better", "better", "better"), "from 30 labels on"),
        (("better", "not separated", "better"), "at 216 labels, the most that was tried"),
        (("better", "better", "not worse"), "at 30 and 100 labels, not shown at more"),
        (("worse", "not worse", "not separated"), "at no number that was tried"),
    ],
)
def test_a_way_leads_from_where_it_stays_better(verdicts: tuple[str, ...], said: str) -> None:
    counts = {"30": 30, "all": 216, "100": 100}  # in no order
    (table,) = build_crossover_tables(
        tree(dict(zip(("30", "100", "all"), verdicts, strict=True)), counts)
    )
    assert table["columns"] == ["30 labels", "100 labels", "all 216 labels"] and [
        c["verdict"] for c in table["lines"][0]["cells"]
    ] == [*verdicts]
    assert [(line["way"], line["from"]) for line in table["lines"]] == [("gpt, tuned", said)]


def test_one_number_of_labels_overtakes_nothing() -> None:
    assert build_crossover_tables(tree({"all": "better"}, {"all": 216})) == []
    (table,) = build_crossover_tables(tree({"30": "better"}, {"30": 30, "all": 216}))
    assert (
        table["lines"][0]["from"] == "at 30 labels, the most it was tried with"
        and table["lines"][0]["cells"][1] is None
    )


def test_a_number_that_a_way_was_not_asked_with_does_not_speak_against_it() -> None:
    (table,) = build_crossover_tables(
        tree({"100": "better", "all": "better"}, {"100": 100, "1000": 1000, "all": 2000})
    )
    assert (
        table["lines"][0]["from"] == "from 100 labels on" and table["lines"][0]["cells"][1] is None
    )


def test_a_public_checkpoint_is_there_and_said_not_to_be_matched(tmp_path: Path) -> None:
    """It moves no comparison of the others, whose intervals hold together without it."""
    folder = Study(tmp_path).write()
    before = build_results(
        folder,
        replace(GRID, models=("elmo", "gpt"), adapt_models=("elmo", "gpt")),
        ReportParams(),
    )[1]
    for path in (
        *folder.glob("rows/evaluate*-bert-*"),
        *folder.glob("predictions/evaluate*-bert-*"),
    ):
        artifacts.write_table(path, artifacts.read_table(path).assign(family="public"))
    found = build_results(folder, GRID, ReportParams())[1]
    (table,) = (one for one in build_crossover_tables(found) if one["task"] == "sense")
    lines = {line["way"]: line["cells"] for line in table["lines"]}
    assert [way for way in lines if way.startswith("bert")] == [
        "bert (not budget-matched), frozen",
        "bert (not budget-matched), tuned",
    ]
    assert all(cell for cells in lines.values() for cell in cells)
    others = [
        one
        for one in found["comparisons"]
        if "public" not in (one["first"]["family"], one["second"]["family"])
    ]
    assert others == before["comparisons"]
