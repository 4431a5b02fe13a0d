"""Tasks keep scored texts out of adaptation, count duplicates, and report cut answers."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.answers.label_names import sort_labels
from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.report.notes import format_notes
from lineage.report.sections.data import format_duplicates
from lineage.results import ResultRow
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.questions import TASK_KEYS, build_questions, build_task
from tests.helpers.tasks import build_task_items

WORDS = 200  # more than an item keeps of a text
CLASSIFY = {"kind": "text_classification", "label": "label"}


def long_texts(count: int, first: int = 0) -> list[str]:
    return [
        f"{'so' if n % 2 else 'no'} {' '.join(f'w{n}x{m}' for m in range(WORDS))} end"
        for n in range(first, first + count)
    ]


def build_rows(texts: list[str]) -> pd.DataFrame:
    """Return one row per text, with columns for items of any kind."""
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
def test_scored_texts_are_not_adapted_to_even_if_items_truncate_them(
    keys: dict[str, Any], folds: bool, tmp_path: Path
) -> None:
    scored = long_texts(20, 0)
    more = long_texts(4, 100)
    build_rows(scored).to_parquet(tmp_path / "scored.parquet")
    build_rows(long_texts(20, 40)).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "more.txt").write_text("\n".join([*scored, *more]))
    files = (
        {"train": "scored.parquet"}
        if folds
        else {"train": "train.parquet", "test": "scored.parquet"}
    )
    tree = keys | {"files": files | {"unlabelled": "more.txt"}} | ({"folds": 2} if folds else {})
    task_items = build_task_items(tmp_path, tree)
    assert task_items.splits["unlabelled"]["text"].tolist() == more
    assert task_items.info.dropped["unlabelled"] == {"scored": 20}
    assert task_items.info.truncated["train" if folds else "test"] == 20, (
        "every text is longer than the part that an item keeps"
    )


def test_extra_test_sets_and_a_split_off_validation_are_not_adapted_to(
    tmp_path: Path,
) -> None:
    for name, first in (("train", 0), ("test", 40), ("second", 80)):
        build_rows(long_texts(20, first)).rename(columns={"text": f"text_{name}"}).assign(
            text=long_texts(20, first)
        ).to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "more.txt").write_text("\n".join(long_texts(120)))
    second = {"files": {"test": "second.parquet"}, "text": ["text_second", "other"]}
    tree = CLASSIFY | {"text": ["text", "other"], "extra_test_sets": {"second": second}, "validation_share": 0.2,
                       "files": {"train": "train.parquet", "test": "test.parquet", "unlabelled": "more.txt"}}  # fmt: skip
    task_items = build_task_items(tmp_path, tree)
    validation = {
        int(name.removeprefix("train-")) - 1 for name in task_items.splits["validation"]["id"]
    }
    assert len(validation) == 4 and task_items.info.dropped["unlabelled"] == {"scored": 44}
    expected = [n for n in range(120) if n not in validation | {*range(40, 60), *range(80, 100)}]
    assert task_items.splits["unlabelled"]["text"].tolist() == [
        long_texts(1, n)[0] for n in expected
    ]


def build_task_in_folds(root: Path, frame: pd.DataFrame, **changes: Any) -> TaskItems:
    frame.to_csv(root / "train.csv", index=False)
    tree = {**CLASSIFY, "text": ["text"], "files": {"train": "train.csv"}, "folds": 4} | changes
    return build_task_items(root, tree, name="small", seed=3)


def test_duplicates_that_a_fold_could_separate_are_counted(
    tmp_path: Path,
) -> None:
    table = pd.DataFrame({"text": [f"text {n // 2}" for n in range(36)] + [f"once {n}" for n in range(4)], "label": [n % 2 for n in range(40)],
                          "author": [f"author {n // 4}" for n in range(40)]})  # fmt: skip
    task_items = build_task_in_folds(tmp_path, table)
    assert task_items.info.duplicates_in_folds == {"train": 36}
    assert task_items.info.duplicates_of_train == {}
    train = compute_split_stats(task_items.info, "train")
    assert (train.duplicates_in_folds, train.items) == (36, 40)
    assert format_duplicates({"train": train}) == "36 within train"
    assert build_task_in_folds(tmp_path, table, group="author").info.duplicates_in_folds == {
        "train": 0
    }, "groups keep both copies on one side, since they have the same author"
    swapped = table.assign(author=[f"author {n % 10}" for n in range(40)])
    assert build_task_in_folds(tmp_path, swapped, group="author").info.duplicates_in_folds == {
        "train": 36
    }


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
    tree = CLASSIFY | {
        "text": ["a", "b"],
        "symmetric": symmetric,
        "files": {split: f"{split}.csv" for split in ("train", "validation", "test")},
    }
    task_items = build_task_items(tmp_path, tree)
    assert task_items.info.duplicates_of_train == {"test": repeated, "validation": 5}


def test_a_sentence_with_another_target_word_is_not_a_duplicate(tmp_path: Path) -> None:
    table = build_rows([f"a b c d e {n}" for n in range(20)]).assign(place=1)
    table.to_parquet(tmp_path / "train.parquet")
    table.assign(place=[1] * 3 + [2] * 17).to_parquet(tmp_path / "test.parquet")
    tree = {
        "kind": "word_sense",
        "tokens": "tokens",
        "target": "place",
        "label": "label",
        "files": {"train": "train.parquet", "test": "test.parquet"},
    }
    task_items = build_task_items(tmp_path, tree)
    train_numbers = {int(name.removeprefix("train-")) for name in task_items.splits["train"]["id"]}
    assert task_items.info.duplicates_of_train["test"] == len({1, 2, 3} & train_numbers) > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("language", "zh"), ("symmetric", True), ("probes", ["linear"]), ("metric", ["macro_f1"])],
)
def test_an_extra_test_set_cannot_change_how_items_are_read_and_scored(
    key: str, value: object, tmp_path: Path
) -> None:
    build_rows(long_texts(20)).to_parquet(tmp_path / "train.parquet")
    tree = CLASSIFY | {"text": ["text"], "files": {"train": "train.parquet", "test": "train.parquet"},
                       "extra_test_sets": {"other": {"files": {"test": "train.parquet"}, key: value}}}  # fmt: skip
    with pytest.raises(
        InputError,
        match=rf"task\.extra_test_sets\.other\.{key}: its items are read and scored as the task's own; remove the key",
    ):
        build_task_items(tmp_path, tree)


def baseline_rows(data: TaskData) -> list[ResultRow]:
    """Return the rows of all baselines on a QA task."""
    kind = load_kind("extractive_qa")
    return [
        row
        for rows, _ in tiny.evaluate_baselines(
            kind, data, split="test", finetune_seeds=[0], label_counts=["all"], tfidf_C=(10.0,)
        )
        for row in rows
    ]


def test_answers_cut_off_by_max_words_are_reported_for_each_test_set(tmp_path: Path) -> None:
    table = build_questions(40)
    build_questions(8, seed=9).to_parquet(tmp_path / "second.parquet")
    task_items = build_task(
        tmp_path,
        table,
        table[:10],
        max_words=8,
        extra_test_sets={"second": {"files": {"test": "second.parquet"}}},
    )
    lost = task_items.info.truncated_answers
    assert 0 < lost["test-second"] != lost["test"] > 0
    data = TaskData(task_items.info, task_items.splits)
    notes = {(row.test_set, format_notes(row.reason)) for row in baseline_rows(data)}
    message = "questions have no answer within max_words, and are scored all the same"
    assert notes == {
        ("x", f"{lost['test']} of 10 {message}"),
        ("second", f"{lost['test-second']} of 8 {message}"),
    }


def test_with_folds_unanswerable_questions_are_scored_but_not_trained_on(
    tmp_path: Path,
) -> None:
    build_questions(40).to_parquet(tmp_path / "train.parquet")
    tree = TASK_KEYS | {"files": {"train": "train.parquet"}, "folds": 4, "max_words": 8}
    task_items = build_task_items(tmp_path, tree)
    data = TaskData(task_items.info, task_items.splits)
    items = task_items.splits["train"]
    unanswerable = {*items["id"][items["label"].map(len) == 0]}
    assert task_items.info.counts["train"] == 40
    assert task_items.info.truncated_answers["train"] == len(unanswerable) > 3
    tested = set[str]()
    for fold in range(4):
        train, validation, test = (
            data.select_items(part) for part in data.split_items(seed=0, fold=fold)
        )
        assert not unanswerable & {*train["id"]}
        assert len(train) + len(validation) + len(test) == 40 - len(
            unanswerable - {*validation["id"], *test["id"]}
        )
        tested |= {*test["id"]}
    assert unanswerable < tested and len(tested) == 40
    assert {format_notes(row.reason) for row in baseline_rows(data)} == {
        f"{len(unanswerable)} of 40 questions have no answer within max_words, and are scored all the same"
    }
    with pytest.raises(
        InputError,
        match=r"of 40 questions have no answer within the first max_words words, and with folds each is scored; raise",
    ):
        build_task_items(tmp_path, tree | {"max_words": 4})


def test_labels_are_sorted_as_numbers_if_all_are_integers() -> None:
    assert sort_labels(["10", "2", "010", "02", "2"]) == ["02", "2", "010", "10"]
    assert sort_labels(["--5", "1"]) == ["--5", "1"] and sort_labels(["3", "-1"]) == ["-1", "3"]
