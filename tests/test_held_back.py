"""Splits whose labels are all the same are refused as held back, and null labels are dropped."""

from pathlib import Path
from typing import Any

import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems
from lineage.errors import InputError
from tests.helpers.tasks import build_task_items, write_jsonl

MESSAGE = r"files\.test: test\.jsonl: column 'label': all (\d+) are '{}', as if labels were held back; name a split that has them"


def build_task(
    root: Path, kind: str, label: Any, count: int, *, extra_test_set: bool = False
) -> TaskItems:
    """Build a task with two balanced training labels, where every test label is `label`.

    With `extra_test_set`, only the labels of an extra test set are all the same.
    """
    balanced = [["O", "B-X"], ["B-X", "O"]] if kind == "token_classification" else [0, 1]
    for split, labels in {
        "train": balanced * 20,
        "good": balanced * 20,
        "test": [label] * count,
    }.items():
        rows = [
            {
                "text": f"text {number}" if kind == "text_classification" else ["a", f"b{number}"],
                "label": value,
            }
            for number, value in enumerate(labels)
        ]
        write_jsonl(root / f"{split}.jsonl", rows)
    fields: dict[str, Any] = {
        "kind": kind,
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    if extra_test_set:
        fields |= {
            "files": {"train": "train.jsonl", "test": "good.jsonl"},
            "extra_test_sets": {"hard": {"files": {"test": "test.jsonl"}}},
        }
    if kind == "text_classification":
        fields["text"] = ["text"]
    else:
        fields["tokens"] = "text"
    task = parse_record(Task, fields, "task")
    return build_task_items(root, task)


@pytest.mark.parametrize(
    ("kind", "label", "shown", "count"),
    [
        ("text_classification", -1, "-1", 40),
        ("text_classification", 0, "0", 40),
        ("token_classification", ["O", "O"], "O", 80),
    ],
)
def test_a_test_split_whose_labels_are_all_the_same_is_refused(
    kind: str, label: Any, shown: str, count: int, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=MESSAGE.format(shown)) as error:
        build_task(tmp_path, kind, label, 40)
    assert f"all {count} are" in str(error.value)


def test_a_small_test_split_or_extra_test_set_with_one_label_is_allowed(tmp_path: Path) -> None:
    assert build_task(tmp_path, "text_classification", 0, 19).info.counts["test"] == 19
    assert (
        build_task(tmp_path, "text_classification", 0, 40, extra_test_set=True).info.counts[
            "test-hard"
        ]
        == 40
    )


def test_held_back_numbers_and_choices_are_refused_too(tmp_path: Path) -> None:
    """GLUE has only -1.0 in its test split; forty times the first choice is as suspicious."""
    for kind, fields, train, test in (
        ("text_regression", {"text": ["a", "b"]}, [0.5, 2.0], -1.0),
        ("multiple_choice", {"text": ["a"], "choices": ["b", "c"]}, [0, 1], 0),
    ):
        for split, labels in {"train": train * 20, "test": [test] * 40}.items():
            rows = [
                {name: f"{name} {number}" for name in "abc"} | {"label": label}
                for number, label in enumerate(labels)
            ]
            write_jsonl(tmp_path / f"{split}.jsonl", rows)
        task = parse_record(
            Task,
            {
                "kind": kind,
                "label": "label",
                "files": {"train": "train.jsonl", "test": "test.jsonl"},
                **fields,
            },
            "task",
        )
        message = "all 40 are '0', as if labels were held back"
        if kind == "text_regression":
            message = "every number is -1.0; nothing can be compared"
        with pytest.raises(
            InputError, match=rf"files\.test: test\.jsonl: column 'label': {message}"
        ):
            build_task_items(tmp_path, task)


def test_few_equal_numbers_and_an_extra_test_set_with_one_number_are_allowed(
    tmp_path: Path,
) -> None:
    for split, labels in {
        "train": [1, 2] * 20,
        "test": [1, 2] * 4,
        "validation": [3, 3],
        "second": [3] * 40,
    }.items():
        rows = [
            {"text": f"{split} {number}", "label": label} for number, label in enumerate(labels)
        ]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    fields = {
        "kind": "text_regression",
        "text": ["text"],
        "label": "label",
        "files": files,
        "extra_test_sets": {"hard": {"files": {"test": "second.jsonl"}}},
    }
    task_items = build_task_items(tmp_path, fields)
    assert task_items.info.counts == {"train": 40, "validation": 2, "test": 8, "test-hard": 40}


def test_items_whose_label_is_mapped_to_null_are_dropped_and_counted(tmp_path: Path) -> None:
    """SNLI and OCNLI have such items, on which annotators disagreed."""
    for split in ("train", "test"):
        rows = [
            {"text": f"{split} {number}", "label": "-" if number % 5 == 0 else f"l{number % 2}"}
            for number in range(50)
        ]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    fields = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    task_items = build_task_items(tmp_path, fields | {"label_map": {"-": None}})
    assert task_items.info.labels == ["l0", "l1"]
    for split in ("train", "test"):
        assert task_items.info.dropped[split] == {"unused_label": 10}
    test_ids = {*task_items.splits["test"]["id"]}
    assert not {"test-1", "test-6"} & test_ids
    assert {"test-2", "test-50"} <= test_ids
    for split in ("train", "test"):
        write_jsonl(
            tmp_path / f"{split}2.jsonl",
            [{"text": f"{number}", "label": number % 3} for number in range(30)],
        )
    task_with_list = parse_record(
        Task,
        fields
        | {
            "files": {"train": "train2.jsonl", "test": "test2.jsonl"},
            "label_map": ["no", None, "yes"],
        },
        "task",
    )
    assert build_task_items(tmp_path, task_with_list).info.dropped["test"] == {"unused_label": 10}
    task_without_labels = parse_record(
        Task, fields | {"label_map": {"-": None, "l0": None, "l1": None}}, "task"
    )
    with pytest.raises(
        InputError,
        match=r"train\.jsonl: 'label_map' leaves out every item; name a label that stays",
    ):
        build_task_items(tmp_path, task_without_labels)
    tagging_task = parse_record(
        Task,
        {
            "kind": "token_classification",
            "tokens": "text",
            "label": "label",
            "files": fields["files"],
            "label_map": {"-": None},
        },
        "task",
    )
    with pytest.raises(
        InputError,
        match=r"task\.label_map: null leaves out the items with that label, but a tag belongs to one word; give it a name, such as O",
    ):
        build_task_items(tmp_path, tagging_task)
