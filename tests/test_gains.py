"""What pretraining and adaptation added, over all questions: the counts, the tables, and the mark of twins that may only guess; and wide tables."""

import re
from pathlib import Path

import pytest
from rich.console import Console
from study_rows import FAMILIES, GRID, Study

from lineage.params import Report
from lineage.report import gains, page, tree, view, words
from lineage.report.cells import SAME_ANSWERS
from lineage.report.results import read_results
from lineage.report.words import Tree


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return read_results(Study(tmp_path_factory.mktemp("study")).write(), GRID, Report())[1]


def pages(tree: Tree) -> dict[str, str]:
    return page.render(tree, budget=[], provenance={"stages": []})


def test_every_comparison_with_a_twin_is_counted_once(found: Tree) -> None:
    pretraining, adaptation = gains.gains(found)
    assert (pretraining["question"], adaptation["question"]) == ("pretraining", "adaptation")
    for one in (pretraining, adaptation):
        asked = [c for c in found["comparisons"] if c["question"] == one["question"]]
        assert sum(line["asked"] for line in one["counts"]) == len(asked) > 0
        for line in one["counts"]:
            assert line["asked"] == sum(line[name] for name in ("better", "not_worse", "same_answers", "not_separated", "worse"))
        for verdict in ("better", "not separated", "worse"):
            assert sum(line[verdict.replace(" ", "_")] for line in one["counts"]) == sum(c["verdict"] == verdict for c in asked), verdict
    ways = {(line["variant"], line["reading"]): line["asked"] for line in pretraining["counts"]}
    assert ways == {(v, r): n for v in FAMILIES for r, n in (("frozen", 4), ("tuned", 4), ("zero-shot", 1))}, (
        "two tasks with two numbers of labels, one without"
    )
    assert {line["asked"] for line in adaptation["counts"]} == {2}


def test_a_table_has_the_differences_with_the_most_labels(found: Tree) -> None:
    (table,) = [t for t in gains.gains(found)[0]["tables"] if t["reading"] == "tuned"]
    assert table["columns"] == [*FAMILIES] and [line["task"] for line in table["lines"]] == ["sentiment", "sense"]
    for line in table["lines"]:
        assert line["labels"] == "all 600 labels"
        for name, cell in zip(table["columns"], line["cells"], strict=True):
            (own,) = [c for c in found["comparisons"] if c["question"] == "pretraining" and (c["task"], c["labels"]) == (line["task"], "all")
                      and (c["first"]["variant"], c["first"]["transfer"]) == (name, "tuned")]  # fmt: skip
            assert cell["text"].startswith(words.signed(own["difference"])) and cell["spread"] == words.spread(own)
            assert ("▲" in cell["text"]) == (own["verdict"] == "better")


def test_what_was_not_compared_is_left_empty_and_marks_are_of_verdicts(found: Tree) -> None:
    """Two variants' twins on one task, with one number of labels each."""
    asked = [
        one for one in found["comparisons"] if (one["question"], one["first"]["transfer"]) == ("pretraining", "frozen") and one["labels"] == "all"
    ]
    wanted = {("elmo", "sense"): "worse", ("elmo", "sentiment"): "not worse", ("gpt", "sense"): SAME_ANSWERS}
    kept = [one | {"verdict": wanted[key]} for one in asked if (key := (one["first"]["variant"], one["task"])) in wanted]
    (some,) = gains.gains(found | {"comparisons": kept})
    shown = {line["task"]: [cell["text"].lstrip("+−.0123456789") if cell else None for cell in line["cells"]] for line in some["tables"][0]["lines"]}
    assert shown == {"sentiment": [" =", None], "sense": [" ▼", " ="]}
    counts = {line["variant"]: (line["worse"], line["not_worse"], line["same_answers"], line["better"]) for line in some["counts"]}
    assert counts == {"elmo": (1, 1, 0, 0), "gpt": (0, 0, 1, 0)}


def test_without_twins_there_is_no_such_section(found: Tree) -> None:
    alone = found | {"comparisons": [one for one in found["comparisons"] if one["question"] not in ("pretraining", "adaptation")]}
    assert gains.gains(alone) == [] and all("added" not in text for text in pages(alone).values())


@pytest.mark.parametrize(("low", "mean", "guesses"), [(0.54, 0.6, True), (0.56, 0.6, False), (None, 0.55, True), (None, 0.56, False)])
def test_a_twin_guesses_where_its_interval_reaches_what_needs_no_item(found: Tree, low: float | None, mean: float, guesses: bool) -> None:
    one = next(c for c in found["comparisons"] if c["question"] == "pretraining" and c["labels"] == "all")
    asked = {"task": one["task"], "labels": one["labels"]}
    changed = found | {"cells": [dict(cell) for cell in found["cells"]]}
    tree.cell_of(changed, one["second"], **asked).update(low=low, mean=mean)
    majority = next(c for c in changed["cells"] if c["family"] == "majority" and (c["task"], c["labels"]) == (one["task"], one["labels"]))
    majority["mean"] = 0.55
    assert tree.over_guessing(changed, one | {"verdict": "better"}) == guesses
    assert not tree.over_guessing(changed, one | {"verdict": "not separated"}), "of what is not shown to be better nothing need be said"
    majority["mean"] = None
    assert not tree.over_guessing(changed, one | {"verdict": "better"}), "without a guess it is zero"


def test_pages_say_whose_twin_guesses(found: Tree) -> None:
    """In the tables, in the counts, and in a question's own sentences; and nothing of it where none does."""
    guessing = found | {
        "cells": [cell | {"low": 0.0} if cell["init"] == "untrained" and cell["low"] is not None else cell for cell in found["cells"]]
    }
    better = [one for one in guessing["comparisons"] if one["question"] == "pretraining" and one["verdict"] == "better"]
    assert better and sum(line["over_guessing"] for line in gains.gains(guessing)[0]["counts"]) == len(better)
    apart = found | {"cells": [cell | {"low": 0.9} if cell["init"] == "untrained" else cell for cell in found["cells"]]}
    for kind, text in pages(guessing).items():
        assert "itself not shown to be better than guessing" in text and "better °" in text and "▲°" in text, kind
    for kind, text in pages(apart).items():
        assert "What pretraining added" in text and "°" not in text and "better than guessing)" not in text, kind
    lines = [line for task in view.tasks(guessing) for line in task["lines"] if line["init"] == "untrained"]
    assert lines and not any(cell["twin"] for line in lines for cell in line["cells"] if cell)


def test_a_table_of_the_page_is_whole(found: Tree) -> None:
    """As many cells in each line as its head has, in both sections."""
    text = pages(found)["md"]
    for question in ("pretraining", "adaptation"):
        section = text.split(f"## What {question} added")[1].split("\n## ")[0]
        tables = [part.splitlines() for part in section.split("\n\n") if part.startswith("|")]
        assert len(tables) == (4 if question == "pretraining" else 3)
        for table in tables:
            assert len(table) > 2 and {line.count("|") for line in table} == {table[0].count("|")}


def test_the_terminal_has_tasks_below_each_other_where_there_is_no_room(found: Tree, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No cell is folded into a column of single digits, and each stands in one table."""
    names = ["sentiment", "sense", "agreement"]
    for width, tables in ((200, 1), (60, 3)):
        page.print_table(found, Console(width=width))
        shown = capsys.readouterr().out
        heads = [line for line in shown.splitlines() if line.startswith("|") and any(name in line for name in names)]
        assert len(heads) == tables, width
        assert re.findall("|".join(names), " ".join(heads)) == ["sentiment", "sentiment", "sense", "sense", "agreement"]
        (line,) = [line for line in shown.splitlines() if line.startswith("|gpt, zero-shot")]
        means = [c["mean"] for c in found["cells"] if (c["variant"], c["init"], c["transfer"]) == ("gpt", "pretrained", "zero_shot")]
        assert re.findall(r"\d+\.\d", line) == [words.percent(mean) for mean in means]


def test_a_zero_has_no_sign() -> None:
    assert words.percent(-0.0001) == "0.0" and words.percent(-0.001) == "-0.1" and words.percent(None) == "–"
