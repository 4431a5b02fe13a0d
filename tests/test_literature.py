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
from lineage.config.data import Task, extra_test_task
from lineage.config.params import ReportParams, parse_params
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.evaluation.metrics import METRICS
from lineage.report import literature, page
from lineage.report.literature import (
    PUBLISHED_METRICS,
    check_benchmark_name,
    read_published_results,
)
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
TITLE = "Published, for orientation"
SPLITS = {"GLUE test", "test", "dev", "validation"}
Tree = dict[str, Any]


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


def tasks(**named: Tree) -> dict[str, Task]:
    """The study's tasks; those that are named with these keys more."""
    return {
        name: Task(kind=kind, generated="synthetic", **named.get(name, {}))
        for name, kind in KINDS.items()
    }


def tree_of(folder: Path, **named: Tree) -> Tree:
    return build_results(folder, SMALL, ReportParams(), tasks(**named))[1]


def shown(tree: Tree) -> dict[str, str]:
    return page.render_report(tree, budget=[], provenance={"stages": []})


def lines(tree: Tree) -> list[Tree]:
    return literature.build_benchmark_table(tree["published"][0], split="test")


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
        match=rf"params\.yaml: tasks\.sentiment\.published: .*'{name}'; did you mean '{nearest}'\?",
    ):
        check_benchmark_name(
            parse_params(tree, "params.yaml").tasks["sentiment"],
            "params.yaml: tasks.sentiment",
        )


def test_whether_the_split_is_the_official_one_must_be_said() -> None:
    block = {"kind": "text_classification", "generated": "synthetic", "benchmark": "SST-2"}
    with pytest.raises(
        InputError, match=r"tasks\.mood: 'benchmark' needs 'official_split': as which split"
    ):
        parse_record(Task, block, "params.yaml: tasks.mood")
    for said in ("GLUE test", False):
        assert (
            parse_record(
                Task, block | {"official_split": said}, "params.yaml: tasks.mood"
            ).official_split
            is said
        )
    with pytest.raises(InputError, match="beside it, not in it"):
        parse_record(
            Task,
            block
            | {"official_split": "test", "mirror": {"files": "a.csv", "official_split": False}},
            "params.yaml: tasks.mood",
        )


def test_nothing_is_shown_where_no_task_names_a_benchmark(folder: Path) -> None:
    for tree in (
        tree_of(folder),
        build_results(folder, SMALL, ReportParams())[1],
        tree_of(folder, sense={"official_split": "test"}),
    ):
        assert tree["published"] == []
        assert not [text for text in shown(tree).values() if TITLE in text or "Devlin" in text]


def test_another_split_is_said_in_one_line_and_no_number_is_shown(folder: Path) -> None:
    tree = tree_of(folder, sense={"benchmark": "SST-2", "official_split": False})
    assert tree["published"] == [
        {"task": "sense", "name": "SST-2", "official_split": False, "ours": None}
    ]
    for text in shown(tree).values():
        assert (
            text.count(TITLE) == 1
            and text.count(
                "sense: there are published numbers of SST-2, but they are of another split"
            )
            == 1
        )
        assert "Devlin" not in text and "94.9" not in text


@pytest.mark.parametrize(("keys", "key"), [
    ({"folds": 5, "files": {"train": "a.csv"}, "generated": None}, "folds"),
    ({"limit": {"test": 500, "train": 100}}, "limit.test"),
    ({"max_per_group": 5, "group": "author"}, "per_group"),
])  # fmt: skip
def test_an_official_split_is_scored_as_a_whole(keys: dict[str, object], key: str) -> None:
    block = {"kind": "text_classification", "generated": "synthetic", "benchmark": "SST-2"} | keys
    with pytest.raises(
        InputError,
        match=rf"params\.yaml: tasks\.mood: official_split is test, and with {key} .*; take {key} out, or say",
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


def test_the_official_split_has_ours_and_theirs_side_by_side(folder: Path) -> None:
    tree = tree_of(folder, sense={"benchmark": "SST-2", "official_split": "GLUE test"})
    ours, *theirs = lines(tree)
    cell = max(
        (q for q in tree["comparisons"] if q["question"] == "best" and q["task"] == "sense"),
        key=lambda q: mean_of(tree, q),
    )
    assert (
        ours["ours"]
        and ours["value"] == f"{100 * mean_of(tree, cell):.1f}"
        and ours["metric"] == "% right"
    )
    assert ours["system"].startswith(cell["first"]["model"]) and (
        ours["num_examples"],
        ours["split"],
    ) == ("600", "test, 120 items")
    printed = {one["system"]: one["value"] for one in theirs}
    assert [
        printed[system] for system in ("BERT large", "OpenAI GPT", "OpenAI GPT without pretraining")
    ] == ["94.9", "91.3", "84.0"]
    assert {one["num_examples"] for one in theirs} == {"67,000"} and len(theirs) == 9
    for text in shown(tree).values():
        assert (
            text.count(TITLE) == 1
            and "this is no comparison" in text
            and "Devlin et al. 2018, table 1" in text
            and "the best of ours" in text
        )
    (line,) = [
        line
        for line in shown(tree)["md"].partition("## The tasks")[2].splitlines()
        if line.startswith("| sense |")
    ]
    assert "| SST-2's own |" in line
    assert (
        f"| the best of ours: {ours['system']} | {ours['value']} | % right | test, 120 items | 600 | this report |"
        in shown(tree)["md"]
    )


@pytest.mark.parametrize(
    ("name", "split", "systems"),
    [("IMDb", "test", {"ULMFiT"}), ("SQuAD 1.1", "dev", {"BERT base single"})],
)
def test_numbers_on_another_split_of_the_benchmark_are_not_shown(
    name: str, split: str, systems: set[str], folder: Path
) -> None:
    theirs = lines(tree_of(folder, sense={"benchmark": name, "official_split": split}))[1:]
    assert {one["split"] for one in theirs} == {split} and systems <= {
        one["system"] for one in theirs
    }
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
        match=r"tasks\.mood\.official_split: there are no numbers of SST-2 on 'dev', but on: GLUE test; name the one that",
    ):
        check_benchmark_name(parse_record(Task, block, "tasks.mood"), "tasks.mood")
    with pytest.raises(
        InputError, match=r"tasks\.mood\.official_split: expected a text, found True \(bool\); or"
    ):
        parse_record(Task, block | {"official_split": True}, "tasks.mood")


def mean_of(tree: Tree, one: Tree) -> float:
    way = one["first"] | {"task": one["task"], "label_count": one["label_count"]}
    return next(c["mean"] for c in tree["cells"] if way.items() <= c.items())


def test_ours_is_given_in_the_papers_measure_where_it_was_measured(folder: Path) -> None:
    both = {
        task: lines(
            tree_of(folder, **{task: {"benchmark": "CoLA", "official_split": "GLUE test"}})
        )[0]
        for task in ("sentiment", "sense")
    }
    assert (
        both["sentiment"]["metric"] == "Matthews' r x 100" and both["sense"]["metric"] == "% right"
    ), "sense has no Matthews"
    two = (("IMDb", "test"), ("SST-2", "GLUE test"))
    wrong, right = (
        lines(tree_of(folder, sentiment={"benchmark": name, "official_split": split}))[0]
        for name, split in two
    )
    assert wrong["metric"] == "% wrong" and float(wrong["value"]) == pytest.approx(
        100 - float(right["value"]), abs=0.11
    )
    assert float(both["sentiment"]["value"]) == pytest.approx(
        2 * float(right["value"]) - 100, abs=0.21
    )


def test_results_stay_a_function_of_rows_and_parameters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number mended in the file changes the page, and no result."""
    keys = {"benchmark": "IMDb", "official_split": "test"}
    before = tree_of(folder, sense=keys)
    monkeypatch.setattr(literature, "read_published_results", lambda: ())
    assert tree_of(folder, sense=keys) == before and "Howard" not in str(before)


def test_a_profile_names_a_benchmark_where_it_scores_all_of_its_test() -> None:
    named = {}
    for path in (ROOT / "profiles").glob("*.yaml"):
        for name, block in (
            compose_profile(ROOT / "profiles", path.stem)["tasks"] if path.stem != "base" else {}
        ).items():
            if block.get("published"):
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
