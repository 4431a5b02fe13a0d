"""The page says what was done to the data of tasks: how many items there are, what was cut and left out, and where a test set comes from."""

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_rows import GRID, Study

from lineage import results
from lineage.analysis import build, cells
from lineage.analysis.build import build_results
from lineage.config.data import Task
from lineage.config.params import ReportParams
from lineage.config.records import parse_record
from lineage.config.study import load_family
from lineage.data.items import build_items
from lineage.data.task_data import TaskData
from lineage.evaluation.baselines import data_count_rows, fold_rows
from lineage.evaluation.evaluate import evaluate_runs
from lineage.evaluation.result_rows import unknown_token_rows
from lineage.evaluation.systems import EvalContext, EvalRun
from lineage.report import page, tasks, view
from lineage.results import UNKNOWN_TOKEN_METRIC
from lineage.tasks.base import load_kind
from tests import tiny

Tree = dict[str, Any]
TEXTS = {"kind": "text_classification", "text": ["text"], "label": "label"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return build_results(
        Study(tmp_path_factory.mktemp("study"), items=40).write(), GRID, ReportParams()
    )[1]


def frame(count: int) -> pd.DataFrame:
    """Texts of three to five words, by authors who wrote five each, every second one of either label."""
    text = [
        " ".join(["so", "good" if i % 2 else "bad", f"n{i}", "and", "more"][: 3 + i % 3])
        for i in range(count)
    ]
    return pd.DataFrame(
        {
            "text": text,
            "label": np.arange(count) % 2,
            "author": [f"author {i // 5}" for i in range(count)],
        }
    )


def overlap(tree: Tree, *names: str) -> list[Tree]:
    """What is told of other tasks, told of these."""
    return [tree["overlap"][0] | {"task": name} for name in names]


def told(tree: Tree, folder: Path, **keys: Any) -> tuple[Tree, dict[str, str], str]:
    """What the report makes of a task `small` with these keys: the page's line of it, by column; the Markdown; and the HTML's text."""
    task = parse_record(Task, TEXTS | keys, "tasks.small")
    items = build_items(
        "small", task, load_kind(task.kind), seed=3, root=folder, where="tasks.small"
    )
    table = results.results_frame(
        [*data_count_rows(items.info), *fold_rows(TaskData(items.info, items.splits), GRID.seeds)]
    )
    found = tree | {
        "tasks": tasks.describe_tasks({"small": task}, table, dataclasses.replace(GRID, tasks=("small",)), split="test"),
        "data": build._data_counts(table),
        "cells": [cell | {"task": "small"} for cell in tree["cells"] if cell["task"] == "sense"],
        "comparisons": [], "ceilings": [], "overlap": overlap(tree, "small"),
    }  # fmt: skip
    said = page.render_report(found, budget=[], provenance={"stages": []})
    head, _, *lines = [
        line
        for line in said["md"].partition("## The tasks")[2].splitlines()
        if line.startswith("|")
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, lines[0])]
    text = html.unescape(re.sub(r"<[^>]+>", " ", said["html"]))
    assert all(cell in text for cell in cells[1]), "both pages say the same"
    return dict(zip(*cells, strict=True)), {"md": said["md"]}, " ".join(text.split())


def test_what_was_used_cut_and_left_out_is_counted_on_the_page(tree: Tree, tmp_path: Path) -> None:
    frame(40).to_csv(tmp_path / "train.csv", index=False)
    own = pd.concat(
        [frame(43).iloc[38:], pd.DataFrame({"text": ["  "], "label": [1]})]
    )  # two of train's items, three of their own, a blank one
    pd.concat(
        [own, *[own.iloc[:4].assign(text=own["text"].iloc[:4] + f" {n} x y") for n in range(5)]]
    ).to_csv(tmp_path / "test.csv", index=False)
    pd.DataFrame({"text": ["new one", "", frame(43)["text"].iloc[42], "another"]}).to_csv(
        tmp_path / "more.csv", index=False
    )
    files = {"train": "train.csv", "test": "test.csv", "unlabelled": "more.csv"}
    whole, _, _ = told(tree, tmp_path, files=files, max_tokens=5)
    assert (whole["train"], whole["validation"], whole["test"]) == (
        "36",
        "4, taken out of train",
        "25",
    )
    assert (
        whole["unlabelled"] == "2"
        and whole["left out"]
        == "test: 1 with nothing to read, or to tell apart; unlabelled: 1 blank, 1 that are scored"
    )
    assert (
        whole["test set"] == "given"
        and whole["kind"] == "text_classification"
        and whole["compared by"] == "% right"
    )
    assert whole["cut after"] == "5 words: 20 of test" and whole["in train too"] != "none"
    less, _, _ = told(
        tree, tmp_path, files=files, max_tokens=4, limit={"train": 10, "test": 6}, language="zh"
    )
    assert (less["train"], less["test"]) == ("10", "6") and less["cut after"].startswith(
        "4 characters: "
    )
    assert less["left out"].startswith(
        "train: 26 over the limit; validation: 3 over the limit; test: 19 over the limit, 1 with nothing to read"
    )


def test_folds_and_their_groups_are_said_where_a_task_is_scored_by_them(
    tree: Tree, tmp_path: Path
) -> None:
    frame(40).to_csv(tmp_path / "train.csv", index=False)
    plain, said, text = told(tree, tmp_path, files={"train": "train.csv"}, folds=4)
    assert plain["test set"] == "4 folds of train, dealt anew for each of 3 seeds"
    assert (plain["train"], plain["validation"], plain["test"]) == (
        "40",
        "part of the other folds",
        "each item once",
    )
    assert (
        plain["cut after"] == "128 words: none"
        and plain["left out"] == plain["in train too"] == "none"
    )
    grouped, said, text = told(
        tree, tmp_path, files={"train": "train.csv"}, folds=4, group="author"
    )
    words = "4 folds of train, dealt anew for each of 3 seeds, its 8 groups kept whole"
    assert grouped["test set"] == words
    assert (
        f"; scored by {words}." in said["md"].partition("## small")[2].partition("\n|")[0]
        and f"; scored by {words}" in text
    )


def test_what_a_model_could_not_read_whole_is_said_beside_the_tasks(
    tree: Tree, tmp_path: Path
) -> None:
    """As a real evaluation wrote it into its rows."""
    pd.DataFrame(
        {
            "text": [f"{'so ' * (3 + 9 * (n % 4))}good" for n in range(40)],
            "label": np.arange(40) % 2,
        }
    ).to_csv(tmp_path / "train.csv")
    task = parse_record(
        Task, TEXTS | {"files": {"train": "train.csv", "test": "train.csv"}}, "tasks.small"
    )
    items = build_items(
        "small", task, load_kind("text_classification"), seed=3, root=tmp_path, where="tasks.small"
    )
    settings = tiny.variant("bert").evaluate
    found = EvalContext(
        tiny.checkpoint("bert"),
        TaskData(items.info, items.splits),
        settings,
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    (tmp_path / "keep").mkdir()
    scored, _ = evaluate_runs(
        found,
        [EvalRun("random", "frozen", 20, 3)],
        cache_dir=tmp_path / "keep",
        report_progress=lambda *_: None,
    )
    table = results.results_frame([*scored, *data_count_rows(items.info)])
    described = tasks.describe_tasks(
        {"small": task}, table, dataclasses.replace(GRID, tasks=("small",)), split="test"
    )
    assert [re.sub(r"\d+", "N", note) for note in described[0]["notes"]] == [
        "bert: N% of the texts were longer than N pieces, and cut"
    ]
    said = page.render_report(
        tree | {"tasks": [tree["tasks"][0] | {"notes": described[0]["notes"]}]},
        budget=[],
        provenance={"stages": []},
    )
    for text in said.values():
        assert (
            f"{tree['tasks'][0]['task']}, as each could read it: {described[0]['notes'][0]}."
            in text
        )


def test_tasks_without_such_data_have_their_lines_too(tree: Tree) -> None:
    assert [one["task"] for one in tree["tasks"]] == ["sentiment", "sense", "agreement"]
    lines = {line["task"]: line for line in tasks.format_task_table(tree)}
    assert lines["agreement"]["cut"] == "never" and lines["agreement"]["metric"] == "% right"
    assert (
        not tasks.format_folds(tree, "sense")
        and "scored by" not in page.render_report(tree, budget=[], provenance={"stages": []})["md"]
    )


def test_a_second_test_set_has_its_own_line(tree: Tree, tmp_path: Path) -> None:
    for name in ("train", "test", "other"):
        frame(30).to_csv(tmp_path / f"{name}.csv", index=False)
    other = {"files": {"test": "other.csv"}, "max_tokens": 5}
    task = parse_record(
        Task,
        TEXTS
        | {
            "files": {"train": "train.csv", "test": "test.csv"},
            "extra_test_sets": {"products": other},
        },
        "t",
    )
    items = build_items(
        "small", task, load_kind("text_classification"), seed=3, root=tmp_path, where="t"
    )
    table = results.results_frame(data_count_rows(items.info))
    described = tasks.describe_tasks(
        {"small": task}, table, dataclasses.replace(GRID, tasks=("small",)), split="test"
    )
    found = tree | {
        "tasks": described,
        "data": build._data_counts(table),
        "overlap": overlap(tree, "small", "small on products"),
    }
    own, second = tasks.format_task_table(found)
    assert (own["cut"], second["cut"]) == ("128 words: none", "5 words: none")
    assert (own["task"], second["task"]) == ("small", "small on products")
    assert (
        own["items"]["train"],
        second["items"]["train"],
        second["items"]["test"],
        second["source"],
    ) == ("27", "–", "30", "a second one")
    assert second["repeated"] == "27 of test"


def setting(
    name: str, *, kind: str = "text_classification", folds: int | None = None, **columns: list[Any]
) -> EvalContext:
    """A tiny variant before six items, of which one word in three is none of its language."""
    facts = {
        "name": "small",
        "kind": kind,
        "answer": None,
        "language": "en",
        "folds": folds,
        "grouped": False,
        "validation_share": 0.2,
    }
    table = pd.DataFrame(
        {"label": [0, 1] * 3, "group": "all"}
        | (columns or {"text": ["kenfes qqq zzz", "kenfes kenfes kenfes"] * 3})
    )
    data = TaskData(facts, {"train": table} if folds else {"train": table, "test": table})
    return EvalContext(
        tiny.checkpoint(name), data, tiny.variant(name).evaluate, 0, 1000, "fp32", tiny.CPU
    )


@pytest.mark.parametrize(("name", "share"), [("word2vec", 1 / 3), ("ulmfit", 1 / 3), ("glove", 1 / 3), ("taglm", 1 / 3), ("fasttext", 0.0),
                                             ("elmo", 0.0), ("gpt", 0.0)])  # fmt: skip
def test_a_share_of_tokens_is_unknown_to_closed_vocabularies_and_none_to_those_that_spell(
    name: str, share: float
) -> None:
    assert tiny.reader(name).backend_tokenizer.token_to_id("kenfes") is not None or name == "gpt"
    for folds in (None, 2):
        (row,) = unknown_token_rows(setting(name, folds=folds), "pretrained")
        assert row.value == pytest.approx(share) and (
            row.metric,
            row.split,
            row.test_set,
            row.num_examples,
        ) == (UNKNOWN_TOKEN_METRIC, "test", "small", 6)
        assert (row.model, row.init, row.transfer, row.label_count) == (
            name,
            "pretrained",
            "none",
            "none",
        )


def test_words_that_a_target_brought_in_are_known_and_what_reads_nothing_has_no_row() -> None:
    plain = setting("ulmfit")
    reader = plain.checkpoint.tokenizer.with_added_words(["qqq"])
    (row,) = unknown_token_rows(
        dataclasses.replace(
            plain, checkpoint=dataclasses.replace(plain.checkpoint, tokenizer=reader)
        ),
        "adapted",
    )
    assert row.value == pytest.approx(1 / 6) and (row.init, row.adapt_text) == ("adapted", "task")
    pairs = {"kind": "minimal_pairs", "good": ["kenfes zzz"] * 6, "bad": ["zzz kenfes"] * 6}
    assert not [*unknown_token_rows(setting("word2vec", **pairs), "pretrained")], (
        "it gives sentences no probability"
    )
    (row,) = unknown_token_rows(setting("ulmfit", **pairs), "pretrained")
    assert row.value == pytest.approx(1 / 2)
    (row,) = unknown_token_rows(
        setting("word2vec", kind="word_similarity", words=[["kenfes", "zzz"]] * 6), "pretrained"
    )
    assert row.value == pytest.approx(1 / 2)


def test_unknown_words_are_a_table_of_the_page_and_compare_nothing(tree: Tree) -> None:
    about = {
        "task": "sense",
        "kind": "word_sense",
        "metric": UNKNOWN_TOKEN_METRIC,
        "num_examples": 40,
    }
    values = {
        ("elmo", "pretrained"): 0.0,
        ("gpt", "pretrained"): 0.125,
        ("gpt", "adapted"): 0.0625,
        ("bert", "pretrained"): 0.5,
        ("bert", "adapted"): 0.5,
    }
    found = [results.ResultRow(model=name, family=name, init=init, pretrain_seed=seed, value=value, **about)  # type: ignore[arg-type]
             for (name, init), value in values.items() for seed in (0, 1)]  # fmt: skip
    found.append(
        results.ResultRow(
            model="gpt", family="gpt", init="pretrained", split="validation", value=1.0, **about
        )
    )  # type: ignore[arg-type]
    table = results.results_frame(found)
    assert not cells._build_cells(table, split="test", tasks={}) and build._trial_counts(table) == {
        "least": 1,
        "most": 1,
    }
    shown = tree | {"unknown": build._unknown_token_shares(table, "test")}
    assert tasks.build_unknown_token_table(shown)["columns"] == [
        "gpt",
        "gpt adapted",
        "bert",
    ] and tasks.build_unknown_token_table(shown)["known"] == ["elmo"]
    said = page.render_report(shown, budget=[], provenance={"stages": []})
    assert (
        "| task | gpt | gpt adapted | bert |\n|---|---:|---:|---:|\n" in said["md"]
        and "| sense | 12.5 | 6.2 | 50.0 |\n" in said["md"]
    )
    assert "| sentiment | – | – | – |" in said["md"]
    for text in said.values():
        assert (
            text.count("Words and pieces that a model does not know") == 1
            and "To elmo none is unknown." in text
        )
    known = page.render_report(
        tree | {"unknown": build._unknown_token_shares(table[table["model"] == "elmo"], "test")},
        budget=[],
        provenance={"stages": []},
    )
    assert (
        all("To elmo none is unknown." in text for text in known.values())
        and "| task | elmo |\n" not in known["md"]
    )
    assert (
        "does not know"
        not in page.render_report(tree, budget=[], provenance={"stages": []})["html"]
    ), "where nothing was measured"


def test_what_reads_words_reads_characters_where_the_language_has_no_spaces() -> None:
    units = {
        name: load_family(name).input_unit for name in ("glove", "elmo", "fasttext", "gpt", "bert")
    }
    said = {
        name: view.adjust_unit_for_language({"unit": unit, "direction": "x"}, "zh-Hant")
        for name, unit in units.items()
    }
    assert {name: line["unit"] for name, line in said.items()} == {
        "glove": "characters, each a word", "elmo": "characters, each a word, read as bytes",
        "fasttext": "characters, each a word, and their character n-grams", "gpt": units["gpt"], "bert": units["bert"]}  # fmt: skip
    assert all(
        view.adjust_unit_for_language({"unit": unit}, "en") == {"unit": unit}
        for unit in units.values()
    )


def test_a_score_of_several_is_said_to_be_a_mean_and_a_second_test_set_where_it_was_learned(
    tree: Tree,
) -> None:
    alike = {
        "init": "pretrained",
        "family": "gpt",
        "task": "alike",
        "kind": "word_similarity",
        "label_count": "none",
        "transfer": "zero_shot",
        "head": "none",
    }
    groups = [
        {"task": "alike", "label_count": "none", "groups": [{"group": name} for name in "abc"]}
    ]
    shown = tree | {"cells": [*tree["cells"], alike], "groups": groups}
    assert tasks.describe_task_data(shown, "alike") == [
        "The mean of 3 correlations, one of each group, which count alike."
    ]
    assert (
        tasks.describe_task_data(
            shown | {"cells": [alike | {"kind": "text_classification"}]}, "alike"
        )
        == tasks.describe_task_data(shown | {"groups": []}, "alike")
        == []
    )
    (said,) = [
        note for note in tasks.describe_task_data(tree, "sentiment on films") if "Learned" in note
    ]
    assert (
        said
        == "Learned from sentiment, and scored on films: majority is the commonest label of sentiment."
    )
    assert not any("Learned" in note for note in tasks.describe_task_data(tree, "sentiment"))
