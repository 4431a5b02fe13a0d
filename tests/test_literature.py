"""The report shows published results next to ours only if they are for the scored split.

The table of published results must be complete and consistent.
"""

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis.literature import (
    PUBLISHED_METRICS,
    check_benchmark_name,
    read_published_results,
)
from lineage.analysis.records import Analysis
from lineage.answers.metrics import METRICS
from lineage.config.data import Task, extra_test_task
from lineage.config.params import parse_params
from lineage.config.records import parse_record, read_yaml
from lineage.errors import InputError
from lineage.report.formatting import format_model
from lineage.report.section import Table
from lineage.report.sections import published_results
from lineage.report.sections.data import build_data_table
from tests.helpers import tiny
from tests.helpers.sections import read_table
from tests.helpers.study_rows import GRID, KINDS, Study, analyze, render_pages

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
    """Return a study whose sentiment task also has Matthews correlations."""
    results_dir = Study(tmp_path_factory.mktemp("study"), grid=SMALL, items=120).write()
    for path in (results_dir / "rows").glob("*-sentiment.parquet"):
        table = artifacts.read_table(path)
        matthews_rows = table[table["metric"] == "accuracy"].assign(metric="matthews")
        artifacts.write_table(
            path,
            results.sort_results(
                pd.concat([table, matthews_rows.assign(value=2 * matthews_rows["value"] - 1)])
            ),
        )
    return results_dir


def study_tasks(**fields: dict[str, Any]) -> dict[str, Task]:
    """Return the tasks of the study, with extra fields for those that are named."""
    return {
        name: Task(kind=kind, generated="synthetic", **fields.get(name, {}))
        for name, kind in KINDS.items()
    }


def build_analysis(folder: Path, **fields: dict[str, Any]) -> Analysis:
    return analyze(folder, SMALL, tasks=study_tasks(**fields))


def benchmark_lines(analysis: Analysis) -> list[dict[str, str]]:
    rows = published_results.list_benchmark_rows(analysis.published_benchmarks[0], split="test")
    return read_table(Table(published_results.COLUMNS, tuple(rows)))


def test_every_published_result_is_complete() -> None:
    all_results = read_published_results()
    assert len(all_results) > 120
    for published in all_results:
        assert all(
            text and text == text.strip()
            for text in (
                published.source,
                published.system,
                published.task,
                published.metric,
                published.split,
                published.value,
            )
        ), published
        assert published.metric in PUBLISHED_METRICS and published.split in SPLITS, published
        assert re.fullmatch(
            r"(Devlin|Peters|Howard and Ruder|Radford)( et al\.)? 2018, table \d( \(first version\))?",
            published.source,
        ), published
        assert 0 < float(published.value) < 100 and published.training_examples > 1000, published
    assert {published.task for published in all_results} >= {
        "SST-2",
        "CoLA",
        "IMDb",
        "TREC-6",
        "SNLI",
        "CoNLL-2003 NER",
        "SQuAD 1.1",
    }
    assert {published.source.split(" 2018")[0] for published in all_results} == {
        "Peters et al.",
        "Howard and Ruder",
        "Radford et al.",
        "Devlin et al.",
    }


def test_no_published_result_occurs_twice() -> None:
    keys = Counter(
        (published.source, published.system, published.task, published.metric, published.split)
        for published in read_published_results()
    )
    assert set(keys.values()) == {1}


def test_a_benchmark_has_one_training_size_and_90_percent_of_it_for_validation_scores() -> None:
    training_sizes: dict[tuple[str, bool], set[int]] = {}
    for published in read_published_results():
        training_sizes.setdefault((published.task, published.split == "validation"), set()).add(
            published.training_examples
        )
    assert all(len(sizes) == 1 for sizes in training_sizes.values()), training_sizes
    for (task, held_out), (size,) in training_sizes.items():
        assert not held_out or size == round(0.9 * max(training_sizes[task, False])), task


def test_papers_that_print_the_same_score_agree() -> None:
    printed: dict[tuple[str, ...], set[str]] = {}
    for published in read_published_results():
        printed.setdefault(
            (published.system, published.task, published.metric, published.split), set()
        ).add(published.value)
    assert [key for key, values in printed.items() if len(values) > 1] == []


def test_published_metrics_map_to_our_metrics() -> None:
    assert {measure.our_metric for measure in PUBLISHED_METRICS.values()} - {""} <= {*METRICS}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("SST2", "SST-2"), ("IMDB", "IMDb"), ("trec-6", "TREC-6"), ("CoNLL-2003", "CoNLL-2003 NER")],
)
def test_an_unknown_benchmark_is_refused_with_the_nearest_name(
    name: str, nearest: str, tmp_path: Path
) -> None:
    tree = tiny.demo_params()
    tree["tasks"]["sentiment"] |= {"benchmark": name, "official_split": "test"}
    with pytest.raises(
        InputError,
        match=rf"params\.yaml: tasks\.sentiment\.benchmark: .*'{name}'; did you mean '{nearest}'\?",
    ):
        check_benchmark_name(
            parse_params(tree, "params.yaml").tasks["sentiment"], "params.yaml: tasks.sentiment"
        )


def test_a_benchmark_needs_official_split() -> None:
    fields = {"kind": "text_classification", "generated": "synthetic", "benchmark": "SST-2"}
    with pytest.raises(
        InputError, match=r"tasks\.mood: 'benchmark' needs 'official_split': the published split"
    ):
        parse_record(Task, fields, "params.yaml: tasks.mood")
    for official_split in ("GLUE test", False):
        task = parse_record(
            Task, fields | {"official_split": official_split}, "params.yaml: tasks.mood"
        )
        assert task.official_split is official_split
    with pytest.raises(
        InputError, match="'mirror' is a copy of the same data; move 'official_split' out of it"
    ):
        parse_record(
            Task,
            fields
            | {"official_split": "test", "mirror": {"files": "a.csv", "official_split": False}},
            "params.yaml: tasks.mood",
        )


def test_no_published_results_are_shown_if_no_task_names_a_benchmark(folder: Path) -> None:
    for analysis in (
        build_analysis(folder),
        analyze(folder, SMALL),
        build_analysis(folder, sense={"official_split": "test"}),
    ):
        assert analysis.published_benchmarks == ()
        for text in render_pages(analysis).values():
            assert TITLE not in text and "Devlin" not in text


@pytest.mark.parametrize(("fields", "key"), [
    ({"folds": 5, "files": {"train": "a.csv"}, "generated": None}, "folds"),
    ({"limit": {"test": 500, "train": 100}}, "limit.test"),
    ({"max_per_group": 5, "group": "author"}, "max_per_group"),
])  # fmt: skip
def test_an_official_split_must_be_scored_completely(fields: dict[str, object], key: str) -> None:
    task_fields = {
        "kind": "text_classification",
        "generated": "synthetic",
        "benchmark": "SST-2",
    } | fields
    with pytest.raises(
        InputError,
        match=rf"params\.yaml: tasks\.mood: official_split is test, but with {key} .*; remove {key}, or set",
    ):
        parse_record(Task, task_fields | {"official_split": "test"}, "params.yaml: tasks.mood")
    task = parse_record(Task, task_fields | {"official_split": False}, "params.yaml: tasks.mood")
    assert task.benchmark == "SST-2"


def test_limits_on_train_and_extra_test_sets_are_allowed_with_an_official_split() -> None:
    fields = {"kind": "text_classification", "files": {"train": "a.csv", "test": "b.csv"}, "text": ["text"], "label": "label",
             "benchmark": "SST-2", "official_split": "GLUE test", "limit": {"train": 100, "validation": 50},
             "extra_test_sets": {"other": {"files": {"test": "c.csv"}, "limit": {"test": 20}}}}  # fmt: skip
    task = parse_record(Task, fields, "tasks.mood")
    assert extra_test_task(task, "other", "tasks.mood").limit.test == 20


def test_an_official_split_shows_our_result_next_to_the_published_ones(folder: Path) -> None:
    analysis = build_analysis(folder, sense={"benchmark": "SST-2", "official_split": "GLUE test"})
    ours, *published = benchmark_lines(analysis)
    best = max(
        (ranking.best for ranking in analysis.rankings if ranking.task == "sense"),
        key=lambda standing: standing.mean,
    )
    assert (ours["value"], ours["metric"]) == (f"{100 * best.mean:.1f}", "% correct")
    assert ours["system"].startswith(format_model(best.system.model))
    assert ours["system"].endswith(" (our best)")
    assert (ours["training examples"], ours["split"]) == ("600", "test, 120 items")
    printed = {record["system"]: record["value"] for record in published}
    assert printed["BERT large"] == "94.9" and printed["OpenAI GPT"] == "91.3"
    assert printed["OpenAI GPT without pretraining"] == "84.0"
    assert {record["training examples"] for record in published} == {"67,000"} and len(
        published
    ) == 9
    (line,) = [one for one in read_table(build_data_table(analysis)) if one["task"] == "sense"]
    assert line["test set"] == "SST-2's own"


@pytest.mark.parametrize(
    ("name", "split", "systems"),
    [("IMDb", "test", {"ULMFiT"}), ("SQuAD 1.1", "dev", {"BERT base single"})],
)
def test_published_results_on_other_splits_are_not_shown(
    name: str, split: str, systems: set[str], folder: Path
) -> None:
    published = benchmark_lines(
        build_analysis(folder, sense={"benchmark": name, "official_split": split})
    )[1:]
    assert {line["split"] for line in published} == {split}
    assert systems <= {line["system"] for line in published}
    assert len(published) < sum(line.task == name for line in read_published_results()), (
        "there are results on other splits"
    )


def test_a_split_without_published_results_is_refused_with_those_that_have_some() -> None:
    fields = {
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
        check_benchmark_name(parse_record(Task, fields, "tasks.mood"), "tasks.mood")
    with pytest.raises(
        InputError, match=r"tasks\.mood\.official_split: expected a text, found True \(bool\); or"
    ):
        parse_record(Task, fields | {"official_split": True}, "tasks.mood")


def test_our_result_uses_the_metric_of_the_paper_if_it_was_measured(folder: Path) -> None:
    def our_line(task: str, benchmark: str, official_split: str) -> dict[str, str]:
        fields = {"benchmark": benchmark, "official_split": official_split}
        return benchmark_lines(build_analysis(folder, **{task: fields}))[0]

    matthews = our_line("sentiment", "CoLA", "GLUE test")
    assert matthews["metric"] == "Matthews' r x 100"
    assert our_line("sense", "CoLA", "GLUE test")["metric"] == "% correct", (
        "this task has no Matthews correlation"
    )
    error_rate = our_line("sentiment", "IMDb", "test")
    accuracy = our_line("sentiment", "SST-2", "GLUE test")
    assert error_rate["metric"] == "% wrong"
    assert float(error_rate["value"]) == pytest.approx(100 - float(accuracy["value"]), abs=0.11)
    assert float(matthews["value"]) == pytest.approx(2 * float(accuracy["value"]) - 100, abs=0.21)


def test_the_analysis_does_not_depend_on_the_published_results(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corrected number in literature.csv changes the page but no result."""
    fields = {"benchmark": "IMDb", "official_split": "test"}
    before = build_analysis(folder, sense=fields)
    monkeypatch.setattr(published_results, "read_published_results", lambda: ())
    assert build_analysis(folder, sense=fields) == before and "Howard" not in str(before)


def test_a_study_names_a_benchmark_only_if_it_scores_the_complete_test_split() -> None:
    benchmark_tasks = {}
    for path in (ROOT / "studies").glob("*.yaml"):
        for name, fields in read_yaml(path)["tasks"].items():
            if fields.get("benchmark"):
                benchmark_tasks[path.stem, name] = fields
    assert {*benchmark_tasks} == {("paper", "imdb")}, "the README names it"
    for fields in benchmark_tasks.values():
        task = parse_record(Task, fields, "tasks")
        assert task.official_split
        assert task.limit.test is None
        assert task.folds is None
        assert task.max_per_group is None
        assert task.mirror is None
