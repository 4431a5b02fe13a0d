"""Groups and the validation split that is carved out of train: whole groups where they are small enough, and what stands on both sides counted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.dataset_stats import SplitStats, compute_split_stats
from lineage.data.items import TaskItems, build_items
from lineage.data.splits import choose_whole_groups
from lineage.data.task_data import assign_fold_splits
from lineage.errors import InputError
from lineage.report.tasks import format_duplicates
from lineage.tasks.base import load_kind

Rows = list[dict[str, Any]]


def texts(authors: Sequence[str], labels: Sequence[Any] = (0, 1), *, said: str = "text") -> Rows:
    return [
        {"text": f"{said} {n}", "label": labels[n % len(labels)], "author": author}
        for n, author in enumerate(authors)
    ]


def made(root: Path, train: Rows, test: Rows | None = None, **keys: Any) -> TaskItems:
    files = {"train": train} | (
        {} if test == [] else {"test": test or texts("xyz" * 4, said="other")}
    )
    for split, rows in files.items():
        (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {split: f"{split}.jsonl" for split in files},
    }
    return build_items(
        "x",
        parse_record(Task, tree | keys, "task"),
        load_kind("text_classification"),
        seed=1,
        root=root,
        where="task",
    )


def sides(found: TaskItems) -> tuple[set[str], set[str]]:
    return {*found.splits["train"]["group"]}, {*found.splits["validation"]["group"]}


@pytest.mark.parametrize("keys", [{}, {"limit": {"train": 80}}, {"folds": 5}])
def test_of_many_labels_each_has_its_share_of_validation(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """One item of each, as of the first that are learned from, would make it a mean over classes, unlike test."""
    labels = ["often"] * 60 + [f"rare {n}" for n in range(35) for _ in range(2)] + ["some"] * 70
    rows = [{"text": f"text {n}", "label": label, "author": n} for n, label in enumerate(labels)]
    found = made(tmp_path, rows, [] if "folds" in keys else rows[:3], validation_share=0.2, **keys)
    table = found.splits["train" if "folds" in keys else "validation"]
    if "folds" in keys:
        table = table.iloc[
            assign_fold_splits(
                table, folds=5, fold=1, seed=1, by_group=False, validation_share=0.2
            )["validation"]
        ]
    shares = table["label"].map(found.info["labels"].__getitem__).value_counts(normalize=True)
    assert shares["often"] == pytest.approx(60 / 200, abs=0.1) and shares["some"] == pytest.approx(
        70 / 200, abs=0.1
    )


@pytest.mark.parametrize("limit", [{}, {"train": 30}])
def test_the_items_of_a_named_group_stand_on_one_side_and_of_none_they_are_dealt_out(
    limit: dict[str, int], tmp_path: Path
) -> None:
    train = texts([f"author {n // 5}" for n in range(100)])
    found = made(tmp_path, train, group="author", limit=limit)
    learned, held = sides(found)
    assert held and not learned & held and found.info["carved"] == 10
    assert found.info["group_in_train"] == {"validation": 0, "test": 0}
    again = made(tmp_path, train[::-1], group="author", limit=limit)
    assert sides(again)[1] == held or limit, "which they are does not depend on the order of rows"
    plain = made(tmp_path, train, limit=limit)
    assert plain.info["group_in_train"] == {} and plain.info["carved"] == 10


def test_groups_that_are_too_large_are_not_kept_whole_and_that_is_counted(tmp_path: Path) -> None:
    """Such as the two questions of COPA, whose scores are told apart: half of train is no validation split."""
    found, plain = (
        made(tmp_path, texts("ab" * 50, (0, 0, 1, 1)), texts("acb" * 4, said="other"), **keys)
        for keys in ({"group": "author"}, {})
    )
    assert found.info["counts"] == {"train": 90, "validation": 10, "test": 12}
    assert list(found.splits["validation"]["id"]) == list(plain.splits["validation"]["id"]), (
        "as without a group, every label with its share"
    )
    assert found.info["group_in_train"] == {"validation": 10, "test": 8}
    test = compute_split_stats(found.info, "test")
    validation = compute_split_stats(found.info, "validation")
    assert (test.groups_in_train, test.items) == (8, 12)
    assert (validation.groups_in_train, validation.items) == (10, 10)


def test_no_group_takes_the_last_items_of_a_label(tmp_path: Path) -> None:
    rare = [row | ({"label": 2} if row["author"] == "b" else {}) for row in texts("abcdefghij" * 4)]
    for seed in range(20):
        labels = np.array([row["label"] for row in rare]).astype(str)
        chosen = choose_whole_groups(
            np.array([row["author"] for row in rare]), labels, 12, rng=np.random.default_rng(seed)
        )
        assert len(chosen) == 12 and "2" not in labels[chosen]
    assert {*made(tmp_path, texts("ab" * 20, (0, 1)), group="author").splits["train"]["label"]} == {
        0,
        1,
    }, "each author has one label"


@pytest.mark.parametrize(("sizes", "count", "taken"), [
    ([5] * 20, 10, 10), ([3] * 20, 10, 9), ([4] * 20, 10, 8), ([7] * 9, 10, 7), ([15] * 4, 10, 15), ([20] * 4, 10, 0), ([30, 1, 1, 30], 10, 2),
    ([8, 40, 11], 10, 8),
])  # fmt: skip
def test_whole_groups_come_as_near_as_they_can(sizes: list[int], count: int, taken: int) -> None:
    names = np.repeat([f"g{n}" for n in range(len(sizes))], sizes)
    for seed in range(9):
        chosen = choose_whole_groups(
            names, np.zeros(len(names)), count, rng=np.random.default_rng(seed)
        )
        assert len(chosen) == taken and list(chosen) == sorted({*chosen})
        assert not {*names[chosen]} & {*np.delete(names, chosen)}


def test_groups_of_a_second_test_set_count_where_it_names_them(tmp_path: Path) -> None:
    again = {
        "again": {"files": {"test": "train.jsonl"}, "group": "author"},
        "plain": {"files": {"test": "train.jsonl"}},
    }
    counted = made(
        tmp_path,
        texts([f"author {n // 5}" for n in range(100)]),
        group="author",
        extra_test_sets=again,
    ).info["group_in_train"]
    assert counted == {"validation": 0, "test": 0, "test-again": 90}


def test_a_task_of_the_generated_language_has_no_groups_that_anybody_named(tmp_path: Path) -> None:
    task = parse_record(Task, {"kind": "text_classification", "generated": "synthetic"}, "task")
    found = build_items(
        "sentiment", task, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
    )
    assert found.info["group_in_train"] == {} and len({*found.splits["test"]["group"]}) > 1


def test_unlabelled_text_of_sentences_in_words_is_no_item_that_could_be_repeated(
    tmp_path: Path,
) -> None:
    rows = [{"tokens": ["a", f"w{n}"], "label": ["O", "B-X"]} for n in range(20)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "u.jsonl").write_text(
        "".join(json.dumps({"tokens": f"more text {n}"}) + "\n" for n in range(9))
    )
    tree = {
        "kind": "token_classification",
        "tokens": "tokens",
        "label": "label",
        "files": {"train": "t.jsonl", "test": "t.jsonl", "unlabelled": "u.jsonl"},
    }
    found = build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("token_classification"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert (
        found.info["repeated_in_train"] == {"test": 18, "validation": 0}
        and found.info["counts"]["unlabelled"] == 9
    )


def test_duplicates_in_train_are_counted_by_text_and_by_group() -> None:
    train = SplitStats(90)
    test = SplitStats(12, duplicates_of_train=3)
    assert format_duplicates({"train": train, "test": test}) == "3 of test"
    grouped = {
        "train": train,
        "validation": SplitStats(10, groups_in_train=10),
        "test": SplitStats(12, duplicates_of_train=3, groups_in_train=8),
    }
    expected = "3 of test; by group 10 of validation, 8 of test"
    assert format_duplicates(grouped) == expected


def test_as_many_labels_as_items_are_no_labels(tmp_path: Path) -> None:
    numbers = texts("a" * 100, [n / 7 for n in range(100)])
    with pytest.raises(
        InputError,
        match=r"column 'label' has no label that occurs twice among 100 items: is this a text_regression task",
    ):
        made(tmp_path, numbers, numbers[:9])
    assert made(tmp_path, texts("a" * 100, [min(n, 98) for n in range(100)])).info["carved"] == 1, (
        "one label has two"
    )
