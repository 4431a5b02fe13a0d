"""Published numbers stand beside ours for orientation: whole, named rightly, and only where they are of the split that is scored."""

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from study_rows import GRID, KINDS, Study

from flows.profiles import compose_profile
from lineage import artifacts, results
from lineage.analysis.build import build_results
from lineage.analysis.literature import (
    PUBLISHED_METRICS,
    check_benchmark_name,
    read_published_results,
)
from lineage.analysis.records import Analysis, BenchmarkScore
from lineage.config.data import Task, extra_test_task
from lineage.config.params import ReportParams, parse_params
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.evaluation.metrics import METRICS
from lineage.report import page, tables
from lineage.report.tables import BenchmarkLine
from tests import tiny

ROOT = Path(__file__).resolve().parent.parent
SMALL = dataclasses.replace(
    GRID,
    models=("elmo", "gpt"),
    tasks=("sentiment", "sense"),
    finetune_seeds=(0, 1),
    adapt_models=(),
    adapt_tasks=(),
)
TITLE = "Published results"
SPLITS = {"GLUE test", "test", "dev", "validation"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose task of sentiment is scored by Matthews' correlation too."""
    found = Study(tmp_path_factory.mktemp("study"), grid=SMALL, items=120).write()
    for path in (found / "rows").glob("*-sentiment.parquet"):
        table = artifacts.read_table(path)
        more = table[table["metric"] == "accuracy"].assign(metric="matthews")
        artifacts.write_table(
            path, results.sort_results(pd.concat([table, more.assign(value=2 * more["value"] - 1)]))
        )
    return found


def tasks(**named: dict[str, Any]) -> dict[str, Task]:
    """Return the study's tasks; those that are named have these keys too."""
    return {
        name: Task(kind=kind, generated="synthetic", **named.get(name, {}))
        for name, kind in KINDS.items()
    }


def analysis_of(folder: Path, **named: dict[str, Any]) -> Analysis:
    return build_results(folder, SMALL, ReportParams(), tasks(**named))[1]


def lines(analysis: Analysis) -> list[BenchmarkLine]:
    return tables.build_benchmark_lines(analysis.published_benchmarks[0], split="test")


def test_every_published_number_is_whole() -> None:
    found = read_published_results()
    assert len(found) > 120
    for one in found:
        assert all(
            text and text == text.strip()
            for text in (one.source, one.system, one.task, one.metric, one.split, one.value)
        ), one
        assert one.metric in PUBLISHED_METRICS and one.split in SPLITS, one
        assert re.fullmatch(
            r"(Devlin|Peters|Howard and Ruder|Radford)( et al\.)? 2018, table \d( \(first version\))?",
            one.source,
        ), one
        assert 0 < float(one.value) < 100 and one.training_examples > 1000, one
    assert {one.task for one in found} >= {
        "SST-2",
        "CoLA",
        "IMDb",
        "TREC-6",
        "SNLI",
        "CoNLL-2003 NER",
        "SQuAD 1.1",
    }
    assert {one.source.split(" 2018")[0] for one in found} == {
        "Peters et al.",
        "Howard and Ruder",
        "Radford et al.",
        "Devlin et al.",
    }


def test_no_number_is_given_twice_or_otherwise() -> None:
    keys = Counter(
        (one.source, one.system, one.task, one.metric, one.split)
        for one in read_published_results()
    )
    assert set(keys.values()) == {1}


def test_a_benchmark_has_one_number_of_training_examples_and_nine_tenths_of_it_where_the_rest_is_scored() -> (
    None
):
    examples: dict[tuple[str, bool], set[int]] = {}
    for one in read_published_results():
        examples.setdefault((one.task, one.split == "validation"), set()).add(one.training_examples)
    assert all(len(some) == 1 for some in examples.values()), examples
    for (task, held_out), (number,) in examples.items():
        assert not held_out or number == round(0.9 * max(examples[task, False])), task


def test_two_papers_that_print_one_score_agree() -> None:
    printed: dict[tuple[str, ...], set[str]] = {}
    for one in read_published_results():
        printed.setdefault((one.system, one.task, one.metric, one.split), set()).add(one.value)
    assert [key for key, values in printed.items() if len(values) > 1] == []


def test_measures_are_metrics_of_ours() -> None:
    assert {measure.our_metric for measure in PUBLISHED_METRICS.values()} - {""} <= {*METRICS}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("SST2", "SST-2"), ("IMDB", "IMDb"), ("trec-6", "TREC-6"), ("CoNLL-2003", "CoNLL-2003 NER")],
)
def test_an_unknown_benchmark_is_refused_with_the_nearest(
    name: str, nearest: str, tmp_path: Path
) -> None:
    tree = tiny.shipped()
    tree["tasks"]["sentiment"] |= {"benchmark": name, "official_split": "test"}
    with pytest.raises(
        InputError,
        match=rf"params\.yaml: tasks\.sentiment\.benchmark: .*'{name}'; did you mean '{nearest}'\?",
    ):
        check_benchmark_name(
            parse_params(tree, "params.yaml").tasks["sentiment"],
            "params.yaml: tasks.sentiment",
        )


def test_whether_the_split_is_the_official_one_must_be_said() -> None:
    block = {"kind": "text_classification", "generated": "synthetic", "benchmark": "SST-2"}
    with pytest.raises(
        InputError, match=r"tasks\.mood: 'benchmark' needs 'official_split': the published split"
    ):
        parse_record(Task, block, "params.yaml: tasks.mood")
    for said in ("GLUE test", False):
        assert (
            parse_record(
                Task, block | {"official_split": said}, "params.yaml: tasks.mood"
            ).official_split
            is said
        )
    with pytest.raises(
        InputError, match="'mirror' is a copy of the same data; move 'official_split' out of it"
    ):
        parse_record(
            Task,
            block
            | {"official_split": "test", "mirror": {"files": "a.csv", "official_split": False}},
            "params.yaml: tasks.mood",
        )


def test_nothing_is_shown_where_no_task_names_a_benchmark(folder: Path) -> None:
    for analysis in (
        analysis_of(folder),
        build_results(folder, SMALL, ReportParams())[1],
        analysis_of(folder, sense={"official_split": "test"}),
    ):
        assert analysis.published_benchmarks == ()
        for text in page.render_report(analysis).values():
            assert TITLE not in text and "Devlin" not in text


def test_another_split_is_named_in_one_line_and_no_number_is_shown(folder: Path) -> None:
    analysis = analysis_of(folder, sense={"benchmark": "SST-2", "official_split": False})
    assert analysis.published_benchmarks == (BenchmarkScore("sense", "SST-2", False, None),)
    line = "sense: the published results of SST-2 are for another split"
    for text in page.render_report(analysis).values():
        assert text.count(TITLE) == 1 and text.count(line) == 1
        assert "Devlin" not in text and "94.9" not in text


@pytest.mark.parametrize(("keys", "key"), [
    ({"folds": 5, "files": {"train": "a.csv"}, "generated": None}, "folds"),
    ({"limit": {"test": 500, "train": 100}}, "limit.test"),
    ({"max_per_group": 5, "group": "author"}, "max_per_group"),
])  # fmt: skip
def test_an_official_split_is_scored_as_a_whole(keys: dict[str, object], key: str) -> None:
    block = {"kind": "text_classification", "generated": "synthetic", "benchmark": "SST-2"} | keys
    with pytest.raises(
        InputError,
        match=rf"params\.yaml: tasks\.mood: official_split is test, but with {key} .*; remove {key}, or set",
    ):
        parse_record(Task, block | {"official_split": "test"}, "params.yaml: tasks.mood")
    assert (
        parse_record(Task, block | {"official_split": False}, "params.yaml: tasks.mood").benchmark
        == "SST-2"
    )


def test_less_of_train_and_a_smaller_second_test_set_leave_the_official_split_as_it_is() -> None:
    block = {"kind": "text_classification", "files": {"train": "a.csv", "test": "b.csv"}, "text": ["text"], "label": "label",
             "benchmark": "SST-2", "official_split": "GLUE test", "limit": {"train": 100, "validation": 50},
             "extra_test_sets": {"other": {"files": {"test": "c.csv"}, "limit": {"test": 20}}}}  # fmt: skip
    assert (
        extra_test_task(parse_record(Task, block, "tasks.mood"), "other", "tasks.mood").limit.test
        == 20
    )


def test_the_official_split_has_ours_and_theirs_next_to_each_other(folder: Path) -> None:
    analysis = analysis_of(folder, sense={"benchmark": "SST-2", "official_split": "GLUE test"})
    ours, *theirs = lines(analysis)
    leaders = [
        analysis.find_score(one.first, one.setting)
        for one in analysis.comparisons
        if one.comparison_type == "leader" and one.task == "sense"
    ]
    best = max(leaders, key=lambda score: score.mean or 0.0)
    assert best.mean and ours.is_ours
    assert (ours.value, ours.metric) == (f"{100 * best.mean:.1f}", "% correct")
    assert ours.system.startswith(best.system.model)
    assert (ours.train_examples, ours.split) == ("600", "test, 120 items")
    printed = {one.system: one.value for one in theirs}
    assert printed["BERT large"] == "94.9" and printed["OpenAI GPT"] == "91.3"
    assert printed["OpenAI GPT without pretraining"] == "84.0"
    assert {one.train_examples for one in theirs} == {"67,000"} and len(theirs) == 9
    pages = page.render_report(analysis)
    for text in pages.values():
        assert text.count(TITLE) == 1 and "not comparable" in text
        assert "Devlin et al. 2018, table 1" in text and "our best" in text
    data = pages["md"].partition("## Data")[2].splitlines()
    (line,) = [line for line in data if line.startswith("| sense |")]
    assert "| SST-2's own |" in line
    line = f"| our best: {ours.system} | {ours.value} | % correct | test, 120 items | 600 | this report |"
    assert line in pages["md"]


@pytest.mark.parametrize(
    ("name", "split", "systems"),
    [("IMDb", "test", {"ULMFiT"}), ("SQuAD 1.1", "dev", {"BERT base single"})],
)
def test_numbers_on_another_split_of_the_benchmark_are_not_shown(
    name: str, split: str, systems: set[str], folder: Path
) -> None:
    theirs = lines(analysis_of(folder, sense={"benchmark": name, "official_split": split}))[1:]
    assert {one.split for one in theirs} == {split}
    assert systems <= {one.system for one in theirs}
    assert len(theirs) < sum(one.task == name for one in read_published_results()), (
        "there are some on other splits"
    )


def test_a_split_without_numbers_is_refused_with_those_that_have_some() -> None:
    block = {
        "kind": "text_classification",
        "generated": "synthetic",
        "benchmark": "SST-2",
        "official_split": "dev",
    }
    with pytest.raises(
        InputError,
        match=r"tasks\.mood\.official_split: there are no published results for SST-2 on 'dev'; "
        r"there are on: GLUE test; name the split that",
    ):
        check_benchmark_name(parse_record(Task, block, "tasks.mood"), "tasks.mood")
    with pytest.raises(
        InputError, match=r"tasks\.mood\.official_split: expected a text, found True \(bool\); or"
    ):
        parse_record(Task, block | {"official_split": True}, "tasks.mood")


def test_ours_is_given_in_the_papers_metric_where_it_was_measured(folder: Path) -> None:
    def our_line(task: str, benchmark: str, official_split: str) -> BenchmarkLine:
        keys = {"benchmark": benchmark, "official_split": official_split}
        return lines(analysis_of(folder, **{task: keys}))[0]

    matthews = our_line("sentiment", "CoLA", "GLUE test")
    assert matthews.metric == "Matthews' r x 100"
    assert our_line("sense", "CoLA", "GLUE test").metric == "% correct", "it has no Matthews"
    wrong = our_line("sentiment", "IMDb", "test")
    right = our_line("sentiment", "SST-2", "GLUE test")
    assert wrong.metric == "% wrong"
    assert float(wrong.value) == pytest.approx(100 - float(right.value), abs=0.11)
    assert float(matthews.value) == pytest.approx(2 * float(right.value) - 100, abs=0.21)


def test_the_analysis_is_a_function_of_results_and_parameters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corrected number in literature.csv changes the page, and no result."""
    keys = {"benchmark": "IMDb", "official_split": "test"}
    before = analysis_of(folder, sense=keys)
    monkeypatch.setattr(tables, "read_published_results", lambda: ())
    assert analysis_of(folder, sense=keys) == before and "Howard" not in str(before)


def test_a_profile_names_a_benchmark_where_it_scores_all_of_its_test() -> None:
    named = {}
    for path in (ROOT / "profiles").glob("*.yaml"):
        for name, block in (
            compose_profile(ROOT / "profiles", path.stem)["tasks"] if path.stem != "base" else {}
        ).items():
            if block.get("benchmark"):
                named[path.stem, name] = block
    assert {*named} == {("paper", "imdb")}, "README says which"
    for block in named.values():
        task = parse_record(Task, block, "tasks")
        assert (
            task.official_split
            and task.limit.test is None
            and task.folds is None
            and task.max_per_group is None
            and task.mirror is None
        )
