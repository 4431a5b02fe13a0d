"""A planted effect reaches the verdict, the same rows give the same bytes, and the page opens with no network."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from study_rows import GRID, Study

from lineage import artifacts
from lineage.analysis import statistics
from lineage.analysis.build import (
    _trial_counts,
    build_results,
    read_results_csv,
    write_results_csv,
)
from lineage.artifacts import file_digest
from lineage.config.params import ReportParams
from lineage.errors import InputError
from lineage.report import page, publication, sentences, view
from lineage.results import RESULT_COLUMNS, ResultRow, sort_results

Tree = dict[str, Any]
MECHANISMS = [
    {"model": name, "unit": "words | pieces", "objective": "next <token>"} for name in GRID.models
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Study(tmp_path_factory.mktemp("study")).write()


@pytest.fixture(scope="module")
def results(folder: Path) -> tuple[pd.DataFrame, Tree]:
    return build_results(folder, GRID, ReportParams())


@pytest.fixture(scope="module")
def tree(results: tuple[pd.DataFrame, Tree]) -> Tree:
    return results[1]


def side(folder: Path, variant: str, **costs: float) -> Tree:
    """What a pretraining left about itself beside the curve in this folder."""
    curve = file_digest(folder / f"curves/pretrain-{variant}-0.parquet")
    return {"stage": f"pretrain@{variant}-0", "curve_sha256": curve, **costs}


@pytest.fixture(scope="module")
def pages(tree: Tree, folder: Path) -> dict[str, str]:
    sides = {
        f"pretrain@{v}-0": side(folder, v, seconds=41.0, peak_memory_bytes=7e8) for v in GRID.models
    }
    provenance = {"commit": "0ed60ea", "working_tree": "clean", "stages": []}
    budget = publication.add_pretraining_costs(tree["budget"], sides, curves_dir=folder / "curves")
    return page.render_report(
        tree, budget=budget, provenance=provenance, model_descriptions=MECHANISMS
    )


def found(tree: Tree, question: str, **where: str) -> list[Tree]:
    return [
        c
        for c in tree["comparisons"]
        if c["question"] == question
        and all(c.get(k, c["first"].get(k)) == v for k, v in where.items())
    ]


def test_a_planted_effect_of_pretraining_is_found_in_every_cell(tree: Tree) -> None:
    twins = found(tree, "pretraining")
    assert len(twins) == 3 * (2 * 2 * 2 + 1), (
        "3 families: 2 tasks x 2 readings x 2 label counts, and zero-shot"
    )
    assert {c["verdict"] for c in twins} == {"better"}
    assert all(
        c["first"]["init"] == "pretrained" and c["second"]["init"] == "random" for c in twins
    )


def test_no_effect_is_not_separated(tmp_path: Path) -> None:
    grid = dataclasses.replace(GRID, tasks=("sense",), adapt_tasks=(), adapt_models=())
    null = build_results(Study(tmp_path, grid=grid, pretraining=0.0).write(), grid, ReportParams())[
        1
    ]
    twins = found(null, "pretraining")
    assert len(twins) == 12 and {c["verdict"] for c in twins} <= {"not separated", "not worse"}


def test_comparisons_hold_the_example_and_the_seed(
    tree: Tree, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = found(tree, "families", task="sense", labels="100", transfer="finetuned")
    assert [(c["first"]["model"], c["second"]["model"]) for c in one] == [
        ("elmo", "gpt"),
        ("elmo", "bert"),
        ("gpt", "bert"),
    ]
    assert all(
        (c["num_examples"], c["repetitions"], c["comparisons_together"]) == (400, 3, 3) for c in one
    )
    way = {"task": "sense", "label_count": "100", "transfer": "finetuned", "init": "pretrained"}
    cells = {c["model"]: c["mean"] for c in tree["cells"] if way.items() <= c.items()}
    assert one[0]["difference"] == pytest.approx(cells["elmo"] - cells["gpt"])
    difference = statistics.estimate_difference
    monkeypatch.setattr(
        statistics,
        "estimate_difference",
        lambda *scores, **how: difference(*scores, **how | {"spreads": ()}),
    )
    alone = build_results(folder, GRID, ReportParams())[1]["comparisons"]
    wider = [
        lent["standard_error"] - own["standard_error"]
        for lent, own in zip(tree["comparisons"], alone, strict=True)
    ]
    assert min(wider) >= 0 and sum(one > 0 for one in wider) > 0.2 * len(wider), (
        "where its own seeds agree by luck, those of others count"
    )


def test_a_way_is_chosen_on_validation_and_judged_on_test(
    results: tuple[pd.DataFrame, Tree],
) -> None:
    table, tree = results
    for question in sentences.summarize_settings(tree):
        way = question["way"]
        own = table[
            (table["model"] == way["model"])
            & (table["task"] == question["task"])
            & (table["label_count"] == question["label_count"])
        ]
        own = own[
            (own["split"] == "validation")
            & own["init"].isin(["pretrained", "adapted"])
            & (own["test_set"] == own["task"])
        ]
        means = own.groupby(["init", "transfer"])["value"].mean()
        assert means.idxmax() == (way["init"], way["transfer"])


def test_the_same_rows_give_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(place: Path) -> list[bytes]:
        table, tree = build_results(folder, GRID, ReportParams())
        write_results_csv(place / "results.csv", table)
        artifacts.write_json(place / "results.json", tree)
        return [(place / name).read_bytes() for name in ("results.csv", "results.json")]

    first = write(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert write(tmp_path / "b") == first
    text = b"".join(first).decode()
    assert (
        str(folder) not in text
        and str(tmp_path) not in text
        and not re.search(r"20\d\d-\d\d-\d\d", text)
    )


def test_rows_survive_the_way_through_csv(
    results: tuple[pd.DataFrame, Tree], tmp_path: Path
) -> None:
    table, _ = results
    write_results_csv(tmp_path / "results.csv", table)
    again = pd.DataFrame(read_results_csv(tmp_path / "results.csv"), columns=list(RESULT_COLUMNS))
    pd.testing.assert_frame_equal(sort_results(again), table, check_dtype=False)
    assert {type(row["label_count"]) for row in read_results_csv(tmp_path / "results.csv")} == {str}


def test_cells_of_an_earlier_grid_are_left_aside(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    grid = dataclasses.replace(GRID, models=("gpt",), adapt_models=("gpt",), tasks=("sentiment",))
    table, tree = build_results(folder, grid, ReportParams())
    assert set(table["model"]) == {"gpt", "majority", "tfidf"} and [
        b["model"] for b in tree["budget"]
    ] == ["gpt"]


def test_a_missing_cell_is_named(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    (folder / "rows" / "evaluate-bert-0-sense.parquet").unlink()
    with pytest.raises(InputError, match=r"evaluate-bert-0-sense\.parquet.*dvc repro"):
        build_results(folder, GRID, ReportParams())


def test_failed_cells_are_named_with_their_reason(tmp_path: Path) -> None:
    study = Study(tmp_path, items=40)
    folder = study.write()
    cell = {
        k: v
        for k, v in next(study.cells("bert", 0, "sense", "pretrained"))[0].items()
        if k not in ("finetune_seed", "label_count", "transfer", "features")
    }
    bad = [ResultRow(**cell, finetune_seed=seed, label_count=labels, transfer=transfer, features=features, kind="word_sense", metric="accuracy", value=None,  # type: ignore[arg-type]
                    num_examples=0, status="failed", reason="loss is not finite | at step 7")
           for seed in GRID.seeds for labels in ("100", "all") for transfer, features in (("frozen", "mix"), ("finetuned", "top"))]  # fmt: skip
    study.evaluate("evaluate-bert-0-sense", [*study.cells("bert", 0, "sense", "random")], more=bad)
    tree = build_results(folder, GRID, ReportParams())[1]
    assert {(f["model"], tuple(f["seeds"])) for f in tree["failed"]} == {("bert", (0, 1, 2))}
    html, md = (
        page.render_report(tree, budget=[], provenance={"stages": []})[kind]
        for kind in ("html", "md")
    )
    assert (
        "failed: loss is not finite | at step 7" in html
        and "loss is not finite \\| at step 7" in md
    )
    assert all(
        q["way"]["model"] != "bert"
        for q in sentences.summarize_settings(tree)
        if q["task"] == "sense"
    )


class Outside(HTMLParser):
    """Collects what a page would fetch, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag in ("script", "link", "iframe", "img", "object", "embed", "base"):
            self.fetched.append(tag)
        self.fetched += [
            value
            for key, value in given.items()
            if key in ("src", "href", "xlink:href") and not value.startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_needs_nothing_but_itself(pages: dict[str, str]) -> None:
    reader = Outside()
    reader.feed(pages["html"])
    assert reader.fetched == []
    assert "@import" not in pages["html"] and "url(" not in pages["html"]


def test_both_pages_open_with_the_verdict(tree: Tree, pages: dict[str, str]) -> None:
    reader = Outside()
    reader.feed(pages["html"])
    text = " ".join(" ".join(reader.words).split())
    for shown in (text, pages["md"]):
        assert sentences.summarize(tree) in shown
        assert shown.index(sentences.summarize(tree)) < shown.index("Where these numbers come from")
        for verdict in view.build_verdict_cards(tree):
            assert all(sentence in shown for sentence in verdict["sentences"])
    assert pages["html"].count('class="strip"') > 2 * 40, "a strip a cell"


def test_adaptation_that_did_not_help_is_marked(tree: Tree, pages: dict[str, str]) -> None:
    assert {a["model"]: a["better"] for a in tree["adaptation"]} == {
        "elmo": True,
        "gpt": True,
        "bert": False,
    }
    marked = [
        line
        for task in view.build_task_tables(tree)
        for line in task["lines"]
        if "†" in line["head"]
    ]
    assert {(line["model"], line["init"]) for line in marked} == {("bert", "adapted")}
    assert "† did not fall" in pages["html"] and "† did not fall" in pages["md"]


def test_measures_that_count_other_things_never_share_a_chart(tree: Tree) -> None:
    charts = view.draw_loss_curves(tree)
    assert len(charts) == 5
    assert not any("masked" in chart and "per byte" in chart for chart in charts)


def test_names_from_outside_are_escaped(pages: dict[str, str]) -> None:
    assert "next &lt;token&gt;" in pages["html"] and "next <token>" not in pages["html"]
    assert "words \\| pieces" in pages["md"]


def test_each_mechanism_says_what_a_byte_of_text_cost(pages: dict[str, str]) -> None:
    assert "| variant | unit | objective | cost |" in pages["md"]
    assert all(
        f"| {name} | words \\| pieces | next <token> | 775 k FLOPs a byte |" in pages["md"]
        for name in GRID.models
    )
    assert pages["html"].count('<td class="n">775 k FLOPs a byte</td>') == len(GRID.models)


def test_a_family_whose_arithmetic_is_not_counted_has_no_cost() -> None:
    budget = [{"model": "glove", "text_bytes": 4_000_000.0, "train_flops": None}]
    lines = view.build_model_descriptions(
        [{"model": "glove", "unit": "words"}, {"model": "gpt", "unit": "pieces"}], budget
    )
    assert [line["cost"] for line in lines] == ["n/a", "n/a"], (
        "nor has one without a line in the budget"
    )


def test_the_terminal_table_is_plain_where_there_is_no_terminal(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    page.print_table(tree, Console(width=120))
    shown = capsys.readouterr().out
    assert (
        shown.isascii()
        and "bert adapted, tuned" in shown
        and sentences.summarize(tree) in shown
        and shown.count("*") >= 5
    )


def test_an_adaptation_that_failed_for_one_seed_leaves_the_others(tmp_path: Path) -> None:
    grid = dataclasses.replace(GRID, pretrain_seeds=(0, 1))
    whole = Study(tmp_path, grid=grid)
    folder = whole.write()
    for path in (folder / "rows").glob("evaluate_adapted-gpt-1-*.parquet"):
        table = artifacts.read_table(path)
        artifacts.write_table(
            path, table[(table["test_set"] != "held_unlabelled") | (table["init"] != "adapted")]
        )
    found = build_results(folder, grid, ReportParams())[1]["adaptation"]
    assert {line["model"] for line in found} == {*GRID.adapt_models}


def test_costs_are_those_of_the_training_whose_curve_is_here(tree: Tree, folder: Path) -> None:
    sides = {"pretrain@gpt-0": side(folder, "gpt", seconds=15.0, peak_memory_bytes=5)}
    sides |= {"pretrain@gpt-1": sides["pretrain@gpt-0"] | {"seconds": 600.0}}  # of an earlier grid
    sides |= {
        "pretrain@elmo-0": side(folder, "elmo", seconds=9.0) | {"curve_sha256": "of another budget"}
    }
    lines = {
        line["model"]: line
        for line in publication.add_pretraining_costs(
            tree["budget"], sides, curves_dir=folder / "curves"
        )
    }
    assert lines["gpt"]["seconds"] == 15 and lines["gpt"]["peak_memory_bytes"] == 5
    assert lines["bert"]["seconds"] is None and lines["elmo"]["seconds"] is None
    spent = {"text_bytes", "passes", "tokens", "body_parameters", "total_parameters", "train_flops"}
    assert {*lines["gpt"]} == {"model", "pretrain_seeds", "seconds", "peak_memory_bytes"} | spent


def test_the_note_links_the_runs_that_made_what_was_cached(tree: Tree) -> None:
    sides = {
        "pretrain@gpt-0": {"mlflow_run_id": "abc", "pipeline_id": "old"},
        "report": {"mlflow_run_id": "def", "pipeline_id": "new"},
    }
    made_by = publication.find_cached_runs(sides, pipeline="new")
    assert made_by == {"pretrain@gpt-0": "abc"}
    text = publication.format_run_note(tree, made_by, experiment_id="1")
    assert (
        "[pretrain@gpt-0](#/experiments/1/runs/abc?workflowType=machine_learning)" in text
        and sentences.summarize(tree) in text
    )
    many = {f"evaluate@gpt-{i}-sentiment": "f" * 32 for i in range(200)}
    assert len(publication.format_run_note(tree, many, experiment_id="1")) <= 8000


def test_the_tree_is_json_that_every_reader_takes(tree: Tree) -> None:
    assert json.loads(json.dumps(tree, allow_nan=False))["schema"] == 3
    assert {
        "cells",
        "comparisons",
        "budget",
        "data",
        "curves",
        "ceilings",
        "adaptation",
        "failed",
    } <= tree.keys()


def test_an_interval_that_allows_everything_is_said_in_words() -> None:
    """Two seeds that differ leave one degree of freedom."""
    one = {
        "difference": 0.024,
        "low": -1.0,
        "high": 1.0,
        "metric": "accuracy",
        "verdict": "not separated",
        "num_examples": 400,
    }
    assert (
        sentences.format_comparison(one | {"num_examples": 3})
        == "+2.4 points, too few items for limits"
    )
    assert sentences.format_comparison(one) == "+2.4 points, too few repetitions for limits"
    assert sentences.format_comparison(one | {"high": 0.5}) == "+2.4 points, −100.0 to +50.0"
    assert (
        sentences.format_comparison(one | {"metric": "pearson"}) == "+2.4 points, −100.0 to +100.0"
    ), "correlations can differ by twice as much"


def test_an_ablation_is_compared_with_its_own_system_alone(tmp_path: Path) -> None:
    folder = Study(tmp_path).write()
    _, tree = build_results(
        folder, dataclasses.replace(GRID, ablation_of={"gpt": "elmo"}), ReportParams()
    )
    mine = [
        one
        for one in tree["comparisons"]
        if "gpt" in (one["first"]["model"], one["second"]["model"])
    ]
    ablations = [one for one in mine if one["question"] == "ablation"]
    assert ablations and {one["question"] for one in mine} <= {
        "ablation",
        "pretraining",
        "adaptation",
    }
    for one in ablations:
        first, second = one["first"], one["second"]
        assert (first["model"], second["model"]) == ("gpt", "elmo")
        assert (
            first["init"] == second["init"] != "random" and first["transfer"] == second["transfer"]
        )
    assert any(one["question"] == "families" for one in tree["comparisons"])


def test_the_report_says_how_often_arms_were_tried_and_where_they_differ(tmp_path: Path) -> None:
    folder = Study(tmp_path / "results").write()
    _, tree = build_results(folder, GRID, ReportParams())
    assert tree["trials"] == {
        "least": 1,
        "most": 1,
    } and "none was chosen on validation" in sentences.describe_trials(tree)
    path = folder / "rows/evaluate-gpt-0-sense.parquet"
    table = artifacts.read_table(path)
    tuned = table[(table["transfer"] == "finetuned") & (table["split"] == "validation")]
    artifacts.write_table(
        path,
        pd.concat(
            [table, *(tuned.assign(trial=str(number)) for number in range(3))], ignore_index=True
        ),
    )
    _, tree = build_results(folder, GRID, ReportParams())
    assert tree["trials"] == {"least": 1, "most": 3}
    assert (
        sentences.describe_trials(tree)
        == "Arms had between 1 and 3 trials on validation: they are not matched in tuning."
    )
    tried = pd.concat(
        [
            table[table["transfer"] == "finetuned"],
            *(tuned.assign(trial=str(number)) for number in range(3)),
        ]
    )
    failed = tuned.assign(variant="bert", trial="chosen", split="test", status="failed")
    assert (
        _trial_counts(tried) == _trial_counts(pd.concat([tried, failed])) == {"least": 3, "most": 3}
    ), "what has no value was not tuned"
    assert (
        sentences.describe_trials({"trials": {"least": 3, "most": 3}})
        == "Each arm, untrained twins and tfidf too, had 3 trials on validation."
    )
