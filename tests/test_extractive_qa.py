"""Extractive QA items are validated, locate their answers, and are encoded with all words."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.answers.span import SpanAnswer
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.language import word_spans
from lineage.methods.encoding import encode_question_context
from lineage.report.notes import format_notes
from lineage.results import ResultRow
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.questions import TASK_KEYS, WORDS, build_questions, build_task
from tests.helpers.tasks import build_task_items
from tests.helpers.tokenizers import ENGLISH_TEXT


def make_item(context: str, answers: object, starts: object = None, **changes: Any) -> pd.Series:
    columns = {"ask": ["who ?"], "read": [context], "say": [answers], "at": [starts]}
    task = parse_record(
        Task,
        {
            **TASK_KEYS,
            "files": {"train": "x"},
            **({} if starts is None else {"answer_starts": "at"}),
            **changes,
        },
        "task",
    )
    return load_kind("extractive_qa").read_items(columns, task, "here").iloc[0]


def label_text(item: pd.Series) -> str:
    """Return the text that the label points to."""
    return str(item["context"][item["starts"][item["label"][0]] : item["ends"][item["label"][1]]])


def test_answers_may_be_a_text_a_list_or_the_lists_of_squad(tmp_path: Path) -> None:
    table = build_questions(20)
    task = build_task(tmp_path, table, table[:4])
    assert task.info.metric == ["f1"]
    assert task.info.labels == []
    test = task.splits["test"]
    assert (
        [label_text(item) for _, item in test.iterrows()]
        == list(table["say"][:4])
        == [item["answers"][0] for _, item in test.iterrows()]
    )
    lists = table.assign(
        say=[[text, "nothing"] for text in table["say"]], read=table["read"] + " nothing"
    )
    assert (
        build_task(tmp_path, lists, lists[:4]).splits["test"]["label"].tolist()
        == test["label"].tolist()
    )
    squad = table.assign(
        say=[
            {"text": [text], "answer_start": [at]}
            for text, at in zip(table["say"], table["at"], strict=True)
        ]
    )
    assert build_task(tmp_path, squad, squad[:4]).splits["test"].equals(test)
    assert build_task(tmp_path, table, table[:4], answer_starts="at").splits["test"].equals(test)


@pytest.mark.parametrize(("context", "answer", "start", "label", "text"), [
    (ENGLISH_TEXT, "Ann", None, [1, 1], "Ann"),  # the first of two occurrences
    (ENGLISH_TEXT, "Ann", 25, [6, 6], "Ann"),
    (ENGLISH_TEXT, "3.5 owls", 15, [3, 4], "3.5 owls"),
    (ENGLISH_TEXT, "see (any)", 36, [9, 12], "see (any)"),
    (ENGLISH_TEXT, "dogs\u2026", 56, [16, 17], "dogs\u2026"),
    (ENGLISH_TEXT, "an", None, [11, 11], "any"),  # the word that contains it
    (ENGLISH_TEXT, "ny) ca", None, [11, 13], "any) cats"),
    ("  cafe\u0301\r\na\tb a b", "a\tb", 9, [1, 2], "a b"),  # six characters become five; the first two and one of two are removed
    ("  cafe\u0301\r\na\tb a b", "a b", 13, [3, 4], "a b"),
    ("\ufeffb a a", "a", 5, [2, 2], "a"),
])  # fmt: skip
def test_an_answer_is_found_at_its_start_even_if_cleaning_moves_it(
    context: str, answer: str, start: int | None, label: list[int], text: str
) -> None:
    item = make_item(context, answer, start)
    assert item["label"] == label and label_text(item) == text


@pytest.mark.parametrize(("context", "answers", "starts", "message"), [
    ("a b", "c", None, "here: row 1: column 'say': the answer 'c' does not stand in the context, letter by letter; correct the data"),
    ("a b", "A", None, "the answer 'A' does not stand in the context"),
    (" ", "a", None, "row 1: column 'read': the context is blank"),
    ("a b", [], None, "column 'say': an answer is blank, or there are none"),
    ("a b", None, None, "column 'say': an answer is blank, or there are none"),
    ("a b", ["a", " "], None, "column 'say': an answer is blank, or there are none"),
    ("a b", [["a"]], None, "column 'say': an answer holds a list, not text"),
    ("a b", {"text": [], "answer_start": []}, None, "column 'say': an answer is blank, or there are none"),
    ("a b", {"answer_start": [0]}, None, "column 'say': it holds a mapping, which needs 'text'"),
    ("a b", "b", 0, "the answer 'b' should begin at character 0 of the context, where 'a' stands"),
    ("a b", "b", 7, "the answer 'b' should begin at character 7 of the context, where '' stands"),
    ("a b", {"text": ["a", "b"], "answer_start": [0]}, None, "column 'answer_start': 1 starts for 2 answers in 'say'; there must be a start for each answer"),
    ("a b", "b", "second", "column 'at': 'second' is not a number of characters"),
    ("a b", ["b"], [-1], "column 'at': '-1' is not a number of characters"),
    ("a b", ["b"], [], "column 'at': 0 starts for 1 answers in 'say'"),
])  # fmt: skip
def test_an_invalid_answer_is_refused_with_its_row(
    context: str, answers: object, starts: object, message: str
) -> None:
    with pytest.raises(InputError) as error:
        make_item(context, answers, starts)
    assert message in str(error.value)


def test_answers_beyond_max_words_are_counted_and_dropped_only_from_train(tmp_path: Path) -> None:
    table = build_questions(40)
    item = make_item("a b c d e f", ["e", "b c"], max_words=6)
    assert item["context"] == "a b c d" and item["truncated"]
    assert item["answers"] == ["e", "b c"]
    assert item["label"] == [1, 2], "the second answer is within max_words"
    assert make_item("a b c d e f", ["d e"], max_words=6)["label"] == [], (
        "half an answer does not count"
    )
    task = build_task(tmp_path, table, table[:10], max_words=8)
    cut_counts = {
        split: int(sum(len(label) == 0 for label in rows["label"]))
        for split, rows in task.splits.items()
    }
    answer_ends = table["at"] + table["say"].str.len()
    context_ends = table["read"].map(lambda text: word_spans(text, "en")[4][1])
    num_beyond = int((answer_ends > context_ends).sum())
    assert (
        0
        < cut_counts["test"]
        == task.info.truncated_answers["test"]
        < 10
        == task.info.counts["test"]
    )
    assert cut_counts["train"] == 0
    assert task.info.dropped["train"]["answer_cut_off"] + cut_counts["validation"] == num_beyond
    answer = SpanAnswer()
    splits = task.splits
    predictions = answer.prediction_columns(
        splits["test"], np.zeros((sum(map(len, splits["test"]["starts"])), 2))
    )
    assert (predictions["score"] > 0).sum() == 10 - cut_counts["test"]
    with pytest.raises(
        InputError,
        match="no answer is within the first max_words words of its context; raise max_words",
    ):
        build_task(
            tmp_path,
            table.assign(read=" ".join(WORDS[6:14]) + " " + table["read"]),
            table,
            max_words=6,
        )


def test_a_long_question_takes_half_of_the_positions_and_no_context_word_is_lost() -> None:
    tokenizer = tiny.tokenizer("bert")
    context = " ".join(WORDS[:12])
    question = " ".join(WORDS)
    starts, ends = (np.array(column) for column in zip(*word_spans(context, "en"), strict=True))
    item = encode_question_context(
        question, context, starts, ends, tokenizer, max_length=21, language="en"
    )
    assert item.truncated
    assert all(
        0 < (encoding.token_type_ids == 0).sum() <= 2 + 18 // 2
        for encoding in item.encodings
        if encoding.token_type_ids is not None
    )
    words_read = np.concatenate(item.word_pieces)[:, 1]
    assert set(words_read.tolist()) == set(range(12))


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
    notes = {
        (row.test_set, format_notes(row.reason))
        for row in baseline_rows(data)
        if row.split == "test"
    }
    message = "questions have no answer within max_words, and are scored all the same"
    assert notes == {
        ("x", f"{lost['test']} of 10 {message}"),
        ("second", f"{lost['test-second']} of 8 {message}"),
    }


def test_with_folds_unanswerable_questions_are_scored_but_not_trained_on(tmp_path: Path) -> None:
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
