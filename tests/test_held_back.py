"""Labels that are none: a split's that all say the same, since they are held back, and those of items that nobody could agree on."""

import json
from pathlib import Path
from typing import Any

import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.errors import InputError
from lineage.tasks.base import load_kind

SAID = r"files\.test: test\.jsonl: column 'label': all (\d+) are '{}', as if labels were held back; name a split that has them"


def made(root: Path, kind: str, label: Any, count: int, *, second: bool = False) -> TaskItems:
    """A task half of whose training labels, or tags, are each of two; all of its test ones, or those of its second test set, are `label`."""
    both = [["O", "B-X"], ["B-X", "O"]] if kind == "token_classification" else [0, 1]
    for split, labels in {"train": both * 20, "good": both * 20, "test": [label] * count}.items():
        rows = [
            {"text": f"text {n}" if kind == "text_classification" else ["a", f"b{n}"], "label": own}
            for n, own in enumerate(labels)
        ]
        (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree: dict[str, Any] = {
        "kind": kind,
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    if second:
        tree |= {
            "files": {"train": "train.jsonl", "test": "good.jsonl"},
            "extra_test_sets": {"hard": {"files": {"test": "test.jsonl"}}},
        }
    task = parse_record(
        Task,
        tree | ({"text": ["text"]} if kind == "text_classification" else {"tokens": "text"}),
        "task",
    )
    return build_items("x", task, load_kind(kind), seed=1, root=root, where="task")


@pytest.mark.parametrize(
    ("kind", "label", "shown", "said"),
    [
        ("text_classification", -1, "-1", 40),
        ("text_classification", 0, "0", 40),
        ("token_classification", ["O", "O"], "O", 80),
    ],
)
def test_labels_that_are_held_back_are_told_by_their_being_all_the_same(
    kind: str, label: Any, shown: str, said: int, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=SAID.format(shown)) as caught:
        made(tmp_path, kind, label, 40)
    assert f"all {said} are" in str(caught.value)


def test_a_few_of_one_label_or_a_second_test_set_of_one_are_scored(tmp_path: Path) -> None:
    assert made(tmp_path, "text_classification", 0, 19).info["counts"]["test"] == 19
    assert (
        made(tmp_path, "text_classification", 0, 40, second=True).info["counts"]["test-hard"] == 40
    )


def test_numbers_and_places_that_are_held_back_are_told_too(tmp_path: Path) -> None:
    """A GLUE test of -1.0 alone has no order; of forty places that are all the first, none would be but by a rule."""
    for kind, keys, train, test in (
        ("text_regression", {"text": ["a", "b"]}, [0.5, 2.0], -1.0),
        ("multiple_choice", {"text": ["a"], "choices": ["b", "c"]}, [0, 1], 0),
    ):
        for split, labels in {"train": train * 20, "test": [test] * 40}.items():
            rows = [
                {name: f"{name} {n}" for name in "abc"} | {"label": own}
                for n, own in enumerate(labels)
            ]
            (tmp_path / f"{split}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows)
            )
        task = parse_record(
            Task,
            {
                "kind": kind,
                "label": "label",
                "files": {"train": "train.jsonl", "test": "test.jsonl"},
                **keys,
            },
            "task",
        )
        said = (
            "every number is -1.0; nothing can be compared"
            if kind == "text_regression"
            else "all 40 are '0', as if labels were held back"
        )
        with pytest.raises(InputError, match=rf"files\.test: test\.jsonl: column 'label': {said}"):
            build_items("x", task, load_kind(kind), seed=1, root=tmp_path, where="task")


def test_a_few_numbers_that_are_alike_and_a_second_test_set_of_one_are_scored(
    tmp_path: Path,
) -> None:
    for split, labels in {
        "train": [1, 2] * 20,
        "test": [1, 2] * 4,
        "validation": [3, 3],
        "second": [3] * 40,
    }.items():
        rows = [{"text": f"{split} {n}", "label": own} for n, own in enumerate(labels)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    tree = {
        "kind": "text_regression",
        "text": ["text"],
        "label": "label",
        "files": files,
        "extra_test_sets": {"hard": {"files": {"test": "second.jsonl"}}},
    }
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("text_regression"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert found.info["counts"] == {"train": 40, "validation": 2, "test": 8, "test-hard": 40}


def test_items_whose_label_is_named_null_are_left_out_and_counted(tmp_path: Path) -> None:
    """Such as those of SNLI and OCNLI on which people did not agree."""
    for split in ("train", "test"):
        rows = [
            {"text": f"{split} {n}", "label": "-" if n % 5 == 0 else f"l{n % 2}"} for n in range(50)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    found = build_items(
        "x",
        parse_record(Task, tree | {"label_map": {"-": None}}, "task"),
        load_kind("text_classification"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert found.info["labels"] == ["l0", "l1"] and found.info["dropped"]["test"] == found.info[
        "dropped"
    ]["train"] == {"unused_label": 10}
    assert not {"test-1", "test-6"} & {*found.splits["test"]["id"]} and {"test-2", "test-50"} <= {
        *found.splits["test"]["id"]
    }
    for split in ("train", "test"):
        (tmp_path / f"{split}2.jsonl").write_text(
            "".join(json.dumps({"text": f"{n}", "label": n % 3}) + "\n" for n in range(30))
        )
    listed = parse_record(
        Task,
        tree
        | {
            "files": {"train": "train2.jsonl", "test": "test2.jsonl"},
            "label_map": ["no", None, "yes"],
        },
        "task",
    )
    assert build_items(
        "x", listed, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
    ).info["dropped"]["test"] == {"unused_label": 10}
    everything = parse_record(
        Task, tree | {"label_map": {"-": None, "l0": None, "l1": None}}, "task"
    )
    with pytest.raises(
        InputError,
        match=r"train\.jsonl: 'label_map' leaves out every item; name a label that stays",
    ):
        build_items(
            "x", everything, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
        )
    tags = parse_record(
        Task,
        {
            "kind": "token_classification",
            "tokens": "text",
            "label": "label",
            "files": tree["files"],
            "label_map": {"-": None},
        },
        "task",
    )
    with pytest.raises(
        InputError,
        match=r"task\.label_map: null leaves out the items with that label, but a tag belongs to one word; give it a name, such as O",
    ):
        build_items(
            "x", tags, load_kind("token_classification"), seed=1, root=tmp_path, where="task"
        )
