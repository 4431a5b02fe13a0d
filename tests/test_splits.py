"""Validation keeps small groups whole, subsets are nested, and repeated texts are counted."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems
from lineage.data.splits import (
    choose_whole_groups,
    describe_repeats,
    nested_random_subset,
    nested_stratified_subset,
)
from lineage.data.task_data import assign_fold_splits
from lineage.errors import InputError
from lineage.report.sections.data import format_duplicates
from lineage.tasks.info import TaskInfo
from tests.helpers.tasks import TEXTS, build_table_task, build_task_items, write_jsonl
from tests.helpers.user_project import RunStage, make_project, mood_reviews, write_params

Rows = list[dict[str, Any]]


def build_rows(
    authors: Sequence[str], labels: Sequence[Any] = (0, 1), *, prefix: str = "text"
) -> Rows:
    return [
        {"text": f"{prefix} {n}", "label": labels[n % len(labels)], "author": author}
        for n, author in enumerate(authors)
    ]


def build_task(root: Path, train: Rows, test: Rows | None = None, **keys: Any) -> TaskItems:
    files = {"train": train}
    if test != []:
        files["test"] = test or build_rows("xyz" * 4, prefix="other")
    for split, rows in files.items():
        write_jsonl(root / f"{split}.jsonl", rows)
    return build_task_items(
        root, TEXTS | {"files": {split: f"{split}.jsonl" for split in files}} | keys
    )


def split_groups(task: TaskItems) -> tuple[set[str], set[str]]:
    """Return the groups of train and those of validation."""
    return {*task.splits["train"]["group"]}, {*task.splits["validation"]["group"]}


@pytest.mark.parametrize("keys", [{}, {"limit": {"train": 80}}, {"folds": 5}])
def test_frequent_labels_keep_their_share_in_validation_among_many_rare_ones(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """One item per label would make validation a mean over classes, unlike test."""
    labels = ["often"] * 60 + [f"rare {n}" for n in range(35) for _ in range(2)] + ["some"] * 70
    rows = [{"text": f"text {n}", "label": label, "author": n} for n, label in enumerate(labels)]
    task = build_task(
        tmp_path, rows, [] if "folds" in keys else rows[:3], validation_share=0.2, **keys
    )
    if "folds" in keys:
        table = task.splits["train"]
        splits = assign_fold_splits(
            table, folds=5, fold=1, seed=1, by_group=False, validation_share=0.2
        )
        table = table.iloc[splits["validation"]]
    else:
        table = task.splits["validation"]
    shares = table["label"].map(task.info.labels.__getitem__).value_counts(normalize=True)
    assert shares["often"] == pytest.approx(60 / 200, abs=0.1)
    assert shares["some"] == pytest.approx(70 / 200, abs=0.1)


@pytest.mark.parametrize("limit", [{}, {"train": 30}])
def test_groups_are_kept_in_one_split_if_the_task_names_their_column(
    limit: dict[str, int], tmp_path: Path
) -> None:
    train = build_rows([f"author {n // 5}" for n in range(100)])
    task = build_task(tmp_path, train, group="author", limit=limit)
    train_groups, validation_groups = split_groups(task)
    assert (
        validation_groups
        and not train_groups & validation_groups
        and task.info.held_out_from_train == 10
    )
    assert task.info.groups_in_train == {"validation": 0, "test": 0}
    reversed_task = build_task(tmp_path, train[::-1], group="author", limit=limit)
    assert split_groups(reversed_task)[1] == validation_groups or limit, (
        "the groups must not depend on the order of rows"
    )
    task_without_groups = build_task(tmp_path, train, limit=limit)
    assert task_without_groups.info.groups_in_train == {}
    assert task_without_groups.info.held_out_from_train == 10


def test_groups_that_are_too_large_are_divided_and_the_overlap_is_counted(tmp_path: Path) -> None:
    """Half of train would be too much for validation, as with the two questions of COPA."""
    train = build_rows("ab" * 50, (0, 0, 1, 1))
    test = build_rows("acb" * 4, prefix="other")
    task = build_task(tmp_path, train, test, group="author")
    task_without_groups = build_task(tmp_path, train, test)
    assert task.info.counts == {"train": 90, "validation": 10, "test": 12}
    assert list(task.splits["validation"]["id"]) == list(
        task_without_groups.splits["validation"]["id"]
    ), "the split must be that of a task without groups, stratified by label"
    assert task.info.groups_in_train == {"validation": 10, "test": 8}
    test_stats = compute_split_stats(task.info, "test")
    validation_stats = compute_split_stats(task.info, "validation")
    assert (test_stats.groups_in_train, test_stats.items) == (8, 12)
    assert (validation_stats.groups_in_train, validation_stats.items) == (10, 10)


def test_no_group_takes_the_last_items_of_a_label_out_of_train(tmp_path: Path) -> None:
    rows = build_rows("abcdefghij" * 4)
    for row in rows:
        if row["author"] == "b":
            row["label"] = 2
    for seed in range(20):
        labels = np.array([row["label"] for row in rows]).astype(str)
        chosen = choose_whole_groups(
            np.array([row["author"] for row in rows]), labels, 12, rng=np.random.default_rng(seed)
        )
        assert len(chosen) == 12 and "2" not in labels[chosen]
    # Each author has only one label, and both labels must stay in train.
    task = build_task(tmp_path, build_rows("ab" * 20, (0, 1)), group="author")
    assert {*task.splits["train"]["label"]} == {0, 1}


@pytest.mark.parametrize(("sizes", "count", "taken"), [
    ([5] * 20, 10, 10), ([3] * 20, 10, 9), ([4] * 20, 10, 8), ([7] * 9, 10, 7), ([15] * 4, 10, 15), ([20] * 4, 10, 0), ([30, 1, 1, 30], 10, 2),
    ([8, 40, 11], 10, 8),
])  # fmt: skip
def test_whole_groups_come_as_close_to_the_requested_count_as_possible(
    sizes: list[int], count: int, taken: int
) -> None:
    names = np.repeat([f"g{n}" for n in range(len(sizes))], sizes)
    for seed in range(9):
        chosen = choose_whole_groups(
            names, np.zeros(len(names)), count, rng=np.random.default_rng(seed)
        )
        assert len(chosen) == taken and list(chosen) == sorted({*chosen})
        assert not {*names[chosen]} & {*np.delete(names, chosen)}


def test_groups_of_an_extra_test_set_are_counted_if_it_names_their_column(tmp_path: Path) -> None:
    extra_test_sets = {
        "again": {"files": {"test": "train.jsonl"}, "group": "author"},
        "plain": {"files": {"test": "train.jsonl"}},
    }
    counted = build_task(
        tmp_path,
        build_rows([f"author {n // 5}" for n in range(100)]),
        group="author",
        extra_test_sets=extra_test_sets,
    ).info.groups_in_train
    assert counted == {"validation": 0, "test": 0, "test-again": 90}


def test_groups_of_a_synthetic_task_are_not_counted_as_named_groups(tmp_path: Path) -> None:
    items = build_task_items(
        tmp_path, {"kind": "text_classification", "generated": "synthetic"}, name="sentiment"
    )
    assert items.info.groups_in_train == {} and len({*items.splits["test"]["group"]}) > 1


def test_unlabelled_text_of_a_tagging_task_is_not_counted_as_repeated(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", f"w{n}"], "label": ["O", "B-X"]} for n in range(20)]
    write_jsonl(tmp_path / "t.jsonl", rows)
    write_jsonl(tmp_path / "u.jsonl", [{"tokens": f"more text {n}"} for n in range(9)])
    tree = {
        "kind": "token_classification",
        "tokens": "tokens",
        "label": "label",
        "files": {"train": "t.jsonl", "test": "t.jsonl", "unlabelled": "u.jsonl"},
    }
    items = build_task_items(tmp_path, tree)
    assert items.info.duplicates_of_train == {"test": 18, "validation": 0}
    assert items.info.counts["unlabelled"] == 9


def test_labels_that_never_occur_twice_are_rejected(tmp_path: Path) -> None:
    numbers = build_rows("a" * 100, [n / 7 for n in range(100)])
    with pytest.raises(
        InputError,
        match=r"column 'label' has no label that occurs twice among 100 items: is this a text_regression task",
    ):
        build_task(tmp_path, numbers, numbers[:9])
    # If one label occurs twice, the labels are accepted.
    with_a_repeated_label = build_rows("a" * 100, [min(n, 98) for n in range(100)])
    assert build_task(tmp_path, with_a_repeated_label).info.held_out_from_train == 1


def test_duplicates_that_a_fold_could_separate_are_counted(tmp_path: Path) -> None:
    table = pd.DataFrame({"text": [f"text {n // 2}" for n in range(36)] + [f"once {n}" for n in range(4)], "label": [n % 2 for n in range(40)],
                          "author": [f"author {n // 4}" for n in range(40)]})  # fmt: skip
    task_items = build_table_task(tmp_path, table, folds=4)
    assert task_items.info.duplicates_in_folds == {"train": 36}
    assert task_items.info.duplicates_of_train == {}
    train = compute_split_stats(task_items.info, "train")
    assert (train.duplicates_in_folds, train.items) == (36, 40)
    assert format_duplicates({"train": train}) == "36 within train"
    assert build_table_task(tmp_path, table, folds=4, group="author").info.duplicates_in_folds == {
        "train": 0
    }, "groups keep both copies on one side, since they have the same author"
    swapped = table.assign(author=[f"author {n % 10}" for n in range(40)])
    assert build_table_task(
        tmp_path, swapped, folds=4, group="author"
    ).info.duplicates_in_folds == {"train": 36}


@pytest.mark.parametrize(("symmetric", "repeated"), [(True, 12), (False, 0)])
def test_swapped_text_pairs_are_duplicates_if_the_task_is_symmetric(
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
    tree = TEXTS | {
        "text": ["a", "b"],
        "symmetric": symmetric,
        "files": {split: f"{split}.csv" for split in ("train", "validation", "test")},
    }
    task_items = build_task_items(tmp_path, tree)
    assert task_items.info.duplicates_of_train == {"test": repeated, "validation": 5}


def test_a_sentence_with_another_target_word_is_not_a_duplicate(tmp_path: Path) -> None:
    for split, targets in {"train": [1] * 20, "test": [1] * 3 + [2] * 17}.items():
        rows = [
            {"tokens": [*"abcde", str(n)], "target": target, "label": str(n % 2)}
            for n, target in enumerate(targets)
        ]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    block = {
        "kind": "word_sense",
        "tokens": "tokens",
        "target": "target",
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    task_items = build_task_items(tmp_path, block)
    train_numbers = {int(name.removeprefix("train-")) for name in task_items.splits["train"]["id"]}
    assert task_items.info.duplicates_of_train["test"] == len({1, 2, 3} & train_numbers) > 0


# The fourth is in validation.
REMEDY = "train has too, word for word, so they are learned and then scored; remove them from train or from here"


@pytest.mark.parametrize("num_repeated", [1, 4])
def test_a_test_file_with_many_texts_of_train_is_reported_before_a_run(
    num_repeated: int, tmp_path: Path, run_stage: RunStage
) -> None:
    write_params(tmp_path, make_project(tmp_path))
    table = pd.concat([mood_reviews(num_repeated), mood_reviews(20 - num_repeated, 2000)])
    table.to_csv(tmp_path / "mood/test.csv", index=False)
    code, message = run_stage(tmp_path, "sources")
    assert code == 0
    warning = f"params.yaml: tasks.mood.files: test has 3 of 20 texts that {REMEDY}\n"
    assert message == (warning if num_repeated == 4 else "")


def test_copies_that_folds_may_part_are_reported() -> None:
    info = TaskInfo(
        "x", "text_classification", counts={"train": 1200}, duplicates_in_folds={"train": 1100}
    )
    (warning,) = describe_repeats(info)
    assert warning == (
        "train has 1,100 of 1,200 texts that occur several times, so copies may be in both parts "
        "of a fold; keep one of each"
    )


def test_subsets_are_nested_stratified_and_hold_every_label():
    labels = np.random.default_rng(0).choice(4, 500, p=[0.7, 0.2, 0.09, 0.01])
    subsets = [nested_stratified_subset(labels, count, seed=5) for count in (10, 100, 400, "all")]
    for small, large in itertools.pairwise(subsets):
        assert set(small) < set(large)
    for subset in subsets:
        assert set(labels[subset]) == {0, 1, 2, 3}
        assert len(set(subset)) == len(subset)
    assert np.allclose(np.bincount(labels[subsets[1]]) / 100, np.bincount(labels) / 500, atol=0.02)
    assert set(nested_stratified_subset(labels, 100, seed=6)) != set(subsets[1])
    assert len(nested_stratified_subset(labels, 1000, seed=5)) == 500
    small_subset, large_subset = (
        nested_random_subset(50, num_labels, rng=np.random.default_rng(1)) for num_labels in (5, 20)
    )
    assert set(small_subset) < set(large_subset)
