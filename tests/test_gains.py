"""All questions at once, and what pretraining and adaptation added: counts, tables, and the marks of what may only guess; and wide tables."""

import re
from typing import Any

import pytest
from rich.console import Console
from study_rows import FAMILIES, GRID, Study

from lineage.analysis import gains
from lineage.analysis.build import build_results
from lineage.analysis.cells import IDENTICAL_PREDICTIONS
from lineage.config.params import ReportParams
from lineage.report import overview, page, sentences
from lineage.report import tree as lookup
from lineage.report.sentences import JsonDict

COUNTED = ("better", "equal", "open", "worse", "guessing")
Cell = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> JsonDict:
    return build_results(Study(tmp_path_factory.mktemp("study")).write(), GRID, ReportParams())[1]


def pages(tree: JsonDict) -> dict[str, str]:
    return page.render_report(tree, budget=[], provenance={"stages": []})


def with_cells(tree: JsonDict, init: str, **changed: float | None) -> JsonDict:
    """The tree with other facts of all cells that begin so."""
    return tree | {
        "cells": [
            cell | changed if cell["init"] == init and cell["mean"] is not None else cell
            for cell in tree["cells"]
        ]
    }


def test_every_comparison_with_a_twin_is_counted_once(found: JsonDict) -> None:
    pretraining, adaptation = gains.build_gain_tables(found)
    assert (pretraining["question"], adaptation["question"]) == ("pretraining", "adaptation")
    for one in (pretraining, adaptation):
        asked = [c for c in found["comparisons"] if c["question"] == one["question"]]
        for lines in (one["kinds"], one["counts"]):
            assert sum(line["asked"] for line in lines) == len(asked) > 0
            assert all(line["asked"] == sum(line[name] for name in COUNTED) for line in lines)
            assert sum(line["worse"] for line in lines) == sum(
                c["verdict"] == "worse" for c in asked
            )
    ways = {(line["model"], line["way"]): line["asked"] for line in pretraining["counts"]}
    assert ways == {
        (v, w): n for v in FAMILIES for w, n in (("frozen", 4), ("finetuned", 4), ("zero-shot", 1))
    }, "two tasks have two numbers of labels"
    assert {line["kind"]: line["asked"] for line in pretraining["kinds"]} == {
        "text_classification": 12,
        "sense": 12,
        "minimal pairs": 3,
    }
    assert {line["asked"] for line in adaptation["counts"]} == {2}


def test_a_table_has_the_differences_with_the_most_labels(found: JsonDict) -> None:
    (table,) = [t for t in gains.build_gain_tables(found)[0]["tables"] if t["way"] == "finetuned"]
    assert table["columns"] == [*FAMILIES] and [line["task"] for line in table["lines"]] == [
        "sentiment",
        "sense",
    ]
    for line in table["lines"]:
        assert line["label_count"] == "all 600 labels"
        for name, cell in zip(table["columns"], line["cells"], strict=True):
            (own,) = [c for c in found["comparisons"] if c["question"] == "pretraining" and (c["task"], c["label_count"]) == (line["task"], "all")
                      and (c["first"]["model"], c["first"]["transfer"]) == (name, "finetuned")]  # fmt: skip
            assert cell["text"].startswith(sentences.format_difference(own["difference"])) and cell[
                "spread"
            ] == sentences.format_comparison(own)
            assert ("▲" in cell["text"]) == (own["verdict"] == "better")


def test_what_was_not_compared_is_left_empty_and_marks_are_of_verdicts(found: JsonDict) -> None:
    """Of two variants' twins, with all labels; networks of all kinds are one way."""
    asked = [
        one
        for one in found["comparisons"]
        if (one["question"], one["first"]["transfer"]) == ("pretraining", "frozen")
        and one["label_count"] == "all"
    ]
    wanted = {
        ("elmo", "sense"): "worse",
        ("elmo", "sentiment"): "not worse",
        ("gpt", "sense"): IDENTICAL_PREDICTIONS,
    }
    kept = [
        one | {"verdict": wanted[key]}
        for one in asked
        if (key := (one["first"]["model"], one["task"])) in wanted
    ]
    (some,) = gains.build_gain_tables(found | {"comparisons": kept})
    shown = {
        line["task"]: [
            cell["text"].lstrip("+−.0123456789") if cell else None for cell in line["cells"]
        ]
        for line in some["tables"][0]["lines"]
    }
    assert shown == {"sentiment": [" =", None], "sense": [" ▼", " ="]}
    assert {
        line["model"]: (line["worse"], line["equal"], line["better"]) for line in some["counts"]
    } == {"elmo": (1, 1, 0), "gpt": (0, 1, 0)}
    heads = [
        one | {"first": one["first"] | {"head": head}}
        for one, head in zip(kept, ("bilstm", "bilstm_crf", "linear"), strict=True)
    ]
    assert [gains._format_method(one) for one in heads] == [
        "frozen + BiLSTM(-CRF)",
        "frozen + BiLSTM(-CRF)",
        "frozen",
    ]


def test_without_twins_there_is_no_such_section(found: JsonDict) -> None:
    alone = found | {
        "comparisons": [
            one
            for one in found["comparisons"]
            if one["question"] not in ("pretraining", "adaptation")
        ]
    }
    assert gains.build_gain_tables(alone) == [] and all(
        " added" not in text for text in pages(alone).values()
    )


def test_a_comparison_says_nothing_where_neither_side_is_above_guessing(found: JsonDict) -> None:
    one = next(
        c
        for c in found["comparisons"]
        if c["question"] == "pretraining" and c["label_count"] == "all"
    )
    for verdict in ("better", "not separated", "worse"):
        for above in ({"pretrained"}, {"random"}, set()):
            changed = found
            for init in ("pretrained", "random"):
                changed = with_cells(changed, init, above_guessing=init in above)
            assert lookup.comparison_outcome(changed, one | {"verdict": verdict}) == (
                verdict if above else "guessing"
            )


def test_a_twin_that_keeps_a_tenth_of_the_lead_has_none(found: JsonDict) -> None:
    one = next(
        c
        for c in found["comparisons"]
        if c["question"] == "pretraining" and c["label_count"] == "all"
    ) | {"verdict": "better"}
    asked = {"task": one["task"], "label_count": one["label_count"]}
    level = lookup.chance_level(found, **asked)
    for lead, marked in ((0.029, True), (0.031, False)):
        changed = with_cells(
            with_cells(found, "random", mean=level + lead, above_guessing=True),
            "pretrained",
            mean=level + 0.3,
        )
        assert lookup.baseline_is_near_chance(changed, one) == marked, lead
    assert not lookup.baseline_is_near_chance(changed, one | {"verdict": "not separated"}), (
        "of what is not shown to be better nothing need be said"
    )


def test_pages_say_whose_twin_guesses_and_where_both_may(found: JsonDict) -> None:
    """In the tables, in the counts, and in a question's own sentences; and nothing of it where none does."""
    guessing = with_cells(found, "random", mean=0.0, above_guessing=False)
    better = [
        one
        for one in guessing["comparisons"]
        if one["question"] == "pretraining" and one["verdict"] == "better"
    ]
    assert better and sum(
        line["over_guessing"] for line in gains.build_gain_tables(guessing)[0]["counts"]
    ) == len(better)
    apart = with_cells(found, "random", mean=0.99, above_guessing=True)
    both = with_cells(guessing, "pretrained", mean=0.0, above_guessing=False)
    for kind in ("html", "md"):
        text = pages(guessing)[kind]
        assert (
            "itself not shown to be better than guessing" in text
            and "better °" in text
            and "▲°" in text
        ), kind
        text = pages(apart)[kind]
        assert (
            "What pretraining added" in text
            and "better °" not in text
            and "▲°" not in text
            and "itself not shown" not in text
        ), kind
    counts = gains.build_gain_tables(both)[0]["counts"]
    assert counts and all(
        line["guessing"] == line["asked"] and not line["over_guessing"] for line in counts
    )
    assert "better °" in pages(both)["md"], (
        "that both may guess takes no mark from a twin that does"
    )
    assert all(
        re.fullmatch(r"\([+−]?\d+\.\d\)", cell["text"])
        for table in gains.build_gain_tables(both)[0]["tables"]
        for line in table["lines"]
        for cell in line["cells"]
    )


def test_all_questions_stand_beside_each_other(found: JsonDict) -> None:
    """Each question's leader in bold, the others by what the comparison with it showed, and TF-IDF even where another control does better."""
    shown = overview.build_overview(found)
    asked = sentences.summarize_settings(found)
    assert shown["columns"] == [*FAMILIES, "tfidf"] and len(shown["lines"]) == len(asked) == 5
    for line, question in zip(shown["lines"], asked, strict=True):
        cells = dict(zip(shown["columns"], line["cells"], strict=True))
        assert cells[question["way"]["model"]]["leads"] and not question["guessed"]
        for one in question["rivals"]:
            cell = cells[one["second"]["model"]]
            assert cell["behind"] == (one["verdict"] == "better") == (cell["mark"] == " ▼"), (
                "the comparison is the leader's with it"
            )
            assert cell["way"] == sentences.format_system(one["second"])
        assert (cells["tfidf"] is None) == (question["task"] == "agreement")
    for kind, text in pages(found).items():
        section = text.split("All questions at once")[1].split("What pretraining added")[0]
        assert section.count("<b>" if kind == "html" else "**") == (5 if kind == "html" else 10), (
            kind
        )


def test_what_is_above_the_leader_and_what_was_not_compared_with_it_are_told_apart(
    found: JsonDict,
) -> None:
    """A rival may be better on test, for validation chose its way; a public checkpoint is held against the leader, the other way round."""
    lead = sentences.summarize_settings(found)[0]
    other = lead["rivals"][0]["second"]["model"]

    def mark(**changed: Any) -> str:
        tree = found | {
            "comparisons": [
                one | changed if one in lead["own"] else one for one in found["comparisons"]
            ]
        }
        line = overview.build_overview(tree)["lines"][0]
        return dict(zip(overview.build_overview(tree)["columns"], line["cells"], strict=True))[
            other
        ]["mark"]

    lead["own"] = [one for one in found["comparisons"] if one["question"] == "best" and one["second"] == lead["rivals"][0]["second"]
                   and (one["task"], one["label_count"]) == (lead["task"], lead["label_count"])]  # fmt: skip
    marks = {
        verdict: mark(verdict=verdict)
        for verdict in ("better", "worse", "not worse", IDENTICAL_PREDICTIONS, "not separated")
    }
    assert marks == {
        "better": " ▼",
        "worse": " ▲",
        "not worse": " =",
        IDENTICAL_PREDICTIONS: " =",
        "not separated": "",
    }
    (one,) = lead["own"]
    turned = {"question": "beside", "first": one["second"], "second": one["first"]}
    assert (
        mark(**turned, verdict="better"),
        mark(**turned, verdict="worse"),
        mark(**turned, verdict="not separated"),
    ) == (" ▲", " ▼", "")
    apart = found | {
        "comparisons": [c for c in found["comparisons"] if c is not one],
        "not_compared": [one],
    }
    assert (
        dict(
            zip(
                overview.build_overview(apart)["columns"],
                overview.build_overview(apart)["lines"][0]["cells"],
                strict=True,
            )
        )[other]["mark"]
        == " ?"
    )


def test_a_table_of_the_page_is_whole(found: JsonDict) -> None:
    """As many cells in each line as its head has."""
    text = pages(found)["md"]
    for title, count in (
        ("All questions at once", 1),
        ("What pretraining added", 5),
        ("What adaptation added", 4),
    ):
        section = text.split(f"## {title}")[1].split("\n## ")[0]
        tables = [part.splitlines() for part in section.split("\n\n") if part.startswith("|")]
        assert len(tables) == count, title
        for table in tables:
            assert len(table) > 2 and {line.count("|") for line in table} == {table[0].count("|")}


def test_the_terminal_has_tasks_below_each_other_where_there_is_no_room(
    found: JsonDict, capsys: pytest.CaptureFixture[str]
) -> None:
    """No cell is folded into a column of single digits, and each stands in one table."""
    names = ["sentiment", "sense", "agreement"]
    for width, tables in ((200, 1), (60, 3)):
        page.print_table(found, Console(width=width))
        shown = capsys.readouterr().out
        heads = [
            line
            for line in shown.splitlines()
            if line.startswith("|") and any(name in line for name in names)
        ]
        assert len(heads) == tables, width
        assert re.findall("|".join(names), " ".join(heads)) == [
            "sentiment",
            "sentiment",
            "sense",
            "sense",
            "agreement",
        ]
        (line,) = [line for line in shown.splitlines() if line.startswith("|gpt, zero-shot")]
        means = [
            c["mean"]
            for c in found["cells"]
            if (c["model"], c["init"], c["transfer"]) == ("gpt", "pretrained", "zero_shot")
        ]
        assert re.findall(r"\d+\.\d", line) == [sentences.format_percent(mean) for mean in means]


def test_a_zero_has_no_sign_and_a_minus_is_one() -> None:
    assert (
        sentences.format_percent(-0.0001) == "0.0"
        and sentences.format_percent(-0.001) == "−0.1"
        and sentences.format_percent(None) == "–"
    )
