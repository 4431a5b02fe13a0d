"""What is scored and what is read before: long texts of every kind to adapt to, items that stand several times, and what a second test set shares."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems, build_items
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.baselines import evaluate_baselines
from lineage.report import tasks
from lineage.report.notes import format_notes
from lineage.tasks.base import load_kind
from lineage.tasks.columns import sort_labels
from tests.questions import KEYS, made, questions

WORDS = 200  # more than are read of a text
CLASSIFY = {"kind": "text_classification", "label": "label"}


def long_texts(count: int, first: int = 0) -> list[str]:
    return [
        f"{'so' if n % 2 else 'no'} {' '.join(f'w{n}x{m}' for m in range(WORDS))} end"
        for n in range(first, first + count)
    ]


def rows(texts: list[str]) -> pd.DataFrame:
    """Items of any kind, whose text is one of those."""
    numbers = range(len(texts))
    return pd.DataFrame({"text": texts, "other": [f"is it {n} ?" for n in numbers], "label": [str(n % 2) for n in numbers],
                         "ways": [["one", f"two {n}"] for n in numbers], "tokens": [text.split() for text in texts], "place": [150 for _ in numbers],
                         "answer": [text[:2] for text in texts]})  # fmt: skip


@pytest.mark.parametrize("keys", [
    CLASSIFY | {"text": ["text"]},
    CLASSIFY | {"text": ["text", "other"]},
    CLASSIFY | {"text": ["other", "text"]},
    {"kind": "multiple_choice", "text": ["text", "other"], "choices": ["ways"], "label": "label"},
    {"kind": "word_sense", "tokens": "tokens", "target": "place", "label": "label"},
    {"kind": "extractive_qa", "context": "text", "question": "other", "answers": "answer"},
])  # fmt: skip
@pytest.mark.parametrize("folds", [False, True])
def test_a_long_text_that_is_scored_is_not_adapted_to_whatever_part_of_it_an_item_keeps(
    keys: dict[str, Any], folds: bool, tmp_path: Path
) -> None:
    scored, more = long_texts(20, 0), long_texts(4, 100)
    rows(scored).to_parquet(tmp_path / "scored.parquet")
    rows(long_texts(20, 40)).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "more.txt").write_text("\n".join([*scored, *more]))
    files = (
        {"train": "scored.parquet"}
        if folds
        else {"train": "train.parquet", "test": "scored.parquet"}
    )
    tree = keys | {"files": files | {"unlabelled": "more.txt"}} | ({"folds": 2} if folds else {})
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind(keys["kind"]),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert found.splits["unlabelled"]["text"].tolist() == more and found.info["dropped"][
        "unlabelled"
    ] == {"scored": 20}
    assert found.info["cut"]["train" if folds else "test"] == 20, (
        "each is longer than what is read of it"
    )


def test_a_second_test_set_and_a_carved_validation_are_not_adapted_to_either(
    tmp_path: Path,
) -> None:
    for name, first in (("train", 0), ("test", 40), ("second", 80)):
        rows(long_texts(20, first)).rename(columns={"text": f"text_{name}"}).assign(
            text=long_texts(20, first)
        ).to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "more.txt").write_text("\n".join(long_texts(120)))
    second = {"files": {"test": "second.parquet"}, "text": ["text_second", "other"]}
    tree = CLASSIFY | {"text": ["text", "other"], "extra_test_sets": {"second": second}, "validation_share": 0.2,
                       "files": {"train": "train.parquet", "test": "test.parquet", "unlabelled": "more.txt"}}  # fmt: skip
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("text_classification"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    validation = {int(name.removeprefix("train-")) - 1 for name in found.splits["validation"]["id"]}
    assert len(validation) == 4 and found.info["dropped"]["unlabelled"] == {"scored": 44}
    left = [n for n in range(120) if n not in validation | {*range(40, 60), *range(80, 100)}]
    assert found.splits["unlabelled"]["text"].tolist() == [long_texts(1, n)[0] for n in left]


def in_folds(root: Path, frame: pd.DataFrame, **keys: Any) -> TaskItems:
    frame.to_csv(root / "train.csv", index=False)
    tree = {**CLASSIFY, "text": ["text"], "files": {"train": "train.csv"}, "folds": 4} | keys
    return build_items(
        "small",
        parse_record(Task, tree, "task"),
        load_kind("text_classification"),
        seed=3,
        root=root,
        where="task",
    )


def test_items_that_stand_several_times_are_counted_where_they_may_stand_on_both_sides_of_a_fold(
    tmp_path: Path,
) -> None:
    twice = pd.DataFrame({"text": [f"text {n // 2}" for n in range(36)] + [f"once {n}" for n in range(4)], "label": [n % 2 for n in range(40)],
                          "author": [f"author {n // 4}" for n in range(40)]})  # fmt: skip
    found = in_folds(tmp_path, twice)
    assert (
        found.info["repeated_in_folds"] == {"train": 36} and found.info["repeated_in_train"] == {}
    )
    train = compute_split_stats(found.info, "train")
    assert (train.duplicates_in_folds, train.items) == (36, 40)
    assert tasks.format_duplicates({"train": train}) == "36 within train"
    assert in_folds(tmp_path, twice, group="author").info["repeated_in_folds"] == {"train": 0}, (
        "both are the same author's"
    )
    swapped = twice.assign(author=[f"author {n % 10}" for n in range(40)])
    assert in_folds(tmp_path, swapped, group="author").info["repeated_in_folds"] == {"train": 36}


@pytest.mark.parametrize(("symmetric", "repeated"), [(True, 12), (False, 0)])
def test_two_texts_that_are_symmetric_are_the_same_the_other_way_round(
    symmetric: bool, repeated: int, tmp_path: Path
) -> None:
    train = pd.DataFrame(
        {
            "a": [f"one {n}" for n in range(40)],
            "b": [f"two {n}" for n in range(40)],
            "label": [n % 2 for n in range(40)],
        }
    )
    train.to_csv(tmp_path / "train.csv", index=False)
    train.head(12).rename(columns={"a": "b", "b": "a"}).to_csv(tmp_path / "test.csv", index=False)
    train.tail(5).to_csv(tmp_path / "validation.csv", index=False)
    tree = CLASSIFY | {
        "text": ["a", "b"],
        "symmetric": symmetric,
        "files": {split: f"{split}.csv" for split in ("train", "validation", "test")},
    }
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("text_classification"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert found.info["repeated_in_train"] == {"test": repeated, "validation": 5}


def test_a_sentence_that_train_asks_another_word_of_is_no_item_of_train(tmp_path: Path) -> None:
    table = rows([f"a b c d e {n}" for n in range(20)]).assign(place=1)
    table.to_parquet(tmp_path / "train.parquet")
    table.assign(place=[1] * 3 + [2] * 17).to_parquet(tmp_path / "test.parquet")
    tree = {
        "kind": "word_sense",
        "tokens": "tokens",
        "target": "place",
        "label": "label",
        "files": {"train": "train.parquet", "test": "test.parquet"},
    }
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("word_sense"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    there = {int(name.removeprefix("train-")) for name in found.splits["train"]["id"]}
    assert found.info["repeated_in_train"]["test"] == len({1, 2, 3} & there) > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("language", "zh"), ("symmetric", True), ("probes", ["linear"]), ("metric", ["macro_f1"])],
)
def test_a_second_test_set_is_read_as_its_task_is(key: str, value: object, tmp_path: Path) -> None:
    rows(long_texts(20)).to_parquet(tmp_path / "train.parquet")
    tree = CLASSIFY | {"text": ["text"], "files": {"train": "train.parquet", "test": "train.parquet"},
                       "extra_test_sets": {"other": {"files": {"test": "train.parquet"}, key: value}}}  # fmt: skip
    with pytest.raises(
        InputError,
        match=rf"task\.extra_test_sets\.other\.{key}: its items are read and scored as the task's own; remove the key",
    ):
        build_items(
            "x",
            parse_record(Task, tree, "task"),
            load_kind("text_classification"),
            seed=1,
            root=tmp_path,
            where="task",
        )


def test_what_max_tokens_cut_off_is_told_of_the_test_set_that_lost_it(tmp_path: Path) -> None:
    table = questions(40)
    questions(8, seed=9).to_parquet(tmp_path / "second.parquet")
    found = made(
        tmp_path,
        table,
        table[:10],
        max_tokens=8,
        extra_test_sets={"second": {"files": {"test": "second.parquet"}}},
    )
    lost = found.info["lost"]
    assert 0 < lost["test-second"] != lost["test"] > 0
    told = {(row.test_set, format_notes(row.reason)) for some, _ in evaluate_baselines(load_kind("extractive_qa"), TaskData(found.info, found.splits), split="test", finetune_seeds=[0],
                                                                  label_counts=["all"]) for row in some}  # fmt: skip
    words = "questions have no answer within max_tokens, and are scored all the same"
    assert told == {
        ("x", f"{lost['test']} of 10 {words}"),
        ("second", f"{lost['test-second']} of 8 {words}"),
    }


def test_with_folds_a_question_that_nobody_can_answer_is_scored_and_not_learned_from(
    tmp_path: Path,
) -> None:
    questions(40).to_parquet(tmp_path / "train.parquet")
    tree = KEYS | {"files": {"train": "train.parquet"}, "folds": 4, "max_tokens": 8}
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("extractive_qa"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    data, cut = (
        TaskData(found.info, found.splits),
        {*found.splits["train"]["id"][found.splits["train"]["label"].map(len) == 0]},
    )
    assert found.info["counts"]["train"] == 40 and found.info["lost"]["train"] == len(cut) > 3
    tested = set[str]()
    for fold in range(4):
        train, validation, test = (
            data.select_items(part) for part in data.split_items(seed=0, fold=fold)
        )
        assert not cut & {*train["id"]} and len(train) + len(validation) + len(test) == 40 - len(
            cut - {*validation["id"], *test["id"]}
        )
        tested |= {*test["id"]}
    assert cut < tested and len(tested) == 40
    told = {
        format_notes(row.reason)
        for some, _ in evaluate_baselines(
            load_kind("extractive_qa"), data, split="test", finetune_seeds=[0], label_counts=["all"]
        )
        for row in some
    }
    assert told == {
        f"{len(cut)} of 40 questions have no answer within max_tokens, and are scored all the same"
    }
    with pytest.raises(
        InputError,
        match=r"of 40 questions have no answer within the first max_tokens words, and with folds each is scored; raise",
    ):
        build_items(
            "x",
            parse_record(Task, tree | {"max_tokens": 4}, "task"),
            load_kind("extractive_qa"),
            seed=1,
            root=tmp_path,
            where="task",
        )


def test_the_order_of_labels_is_theirs_alone() -> None:
    assert sort_labels(["10", "2", "010", "02", "2"]) == ["02", "2", "010", "10"]
    assert sort_labels(["--5", "1"]) == ["--5", "1"] and sort_labels(["3", "-1"]) == ["-1", "3"]
