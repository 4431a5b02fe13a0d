"""Questions whose answer is a part of a context: what is taken and refused, where an answer stands, and from where its words are read."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.language import word_spans
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.answers import SpanAnswer
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.encoding import encode_question_context
from lineage.report.notes import format_notes
from lineage.tasks.base import load_kind
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer
from tests import tiny
from tests.questions import KEYS, WORDS, made, questions

NAMES = [name for name in tiny.FAMILIES if tiny.variant(name).family.name == name]
TEXT = "Na\u00efve  Ann saw 3.5 owls; Ann didn't see (any) cats \u2014 or dogs\u2026"


def one(context: str, answers: object, starts: object = None, **keys: Any) -> pd.Series:
    columns = {"ask": ["who ?"], "read": [context], "say": [answers], "at": [starts]}
    task = parse_record(
        Task,
        {
            **KEYS,
            "files": {"train": "x"},
            **({} if starts is None else {"answer_starts": "at"}),
            **keys,
        },
        "task",
    )
    return load_kind("extractive_qa").make_items(columns, task, "here").iloc[0]


def held(item: pd.Series) -> str:
    """The characters that the label says."""
    return str(item["context"][item["starts"][item["label"][0]] : item["ends"][item["label"][1]]])


def test_answers_come_as_a_text_a_list_or_squads_lists(tmp_path: Path) -> None:
    table = questions(20)
    whole = made(tmp_path, table, table[:4])
    assert (
        whole.info["metric"] == ["f1"]
        and whole.info["answer"] == "span"
        and whole.info["labels"] == []
    )
    test = whole.splits["test"]
    assert (
        [held(item) for _, item in test.iterrows()]
        == list(table["say"][:4])
        == [item["answers"][0] for _, item in test.iterrows()]
    )
    lists = table.assign(
        say=[[text, "nothing"] for text in table["say"]], read=table["read"] + " nothing"
    )
    assert (
        made(tmp_path, lists, lists[:4]).splits["test"]["label"].tolist() == test["label"].tolist()
    )
    squad = table.assign(
        say=[
            {"text": [text], "answer_start": [at]}
            for text, at in zip(table["say"], table["at"], strict=True)
        ]
    )
    assert made(tmp_path, squad, squad[:4]).splits["test"].equals(test)
    assert made(tmp_path, table, table[:4], answer_starts="at").splits["test"].equals(test)


@pytest.mark.parametrize(("context", "answer", "start", "label", "text"), [
    (TEXT, "Ann", None, [1, 1], "Ann"),  # the first of two
    (TEXT, "Ann", 25, [6, 6], "Ann"),
    (TEXT, "3.5 owls", 15, [3, 4], "3.5 owls"),
    (TEXT, "see (any)", 36, [9, 12], "see (any)"),
    (TEXT, "dogs\u2026", 56, [16, 17], "dogs\u2026"),
    (TEXT, "an", None, [11, 11], "any"),  # the word that holds it
    (TEXT, "ny) ca", None, [11, 13], "any) cats"),
    ("  cafe\u0301\r\na\tb a b", "a\tb", 9, [1, 2], "a b"),  # six characters become five, and the first two and one of two go
    ("  cafe\u0301\r\na\tb a b", "a b", 13, [3, 4], "a b"),
    ("\ufeffb a a", "a", 5, [2, 2], "a"),
])  # fmt: skip
def test_an_answer_is_found_where_its_start_says_whatever_cleaning_does(
    context: str, answer: str, start: int | None, label: list[int], text: str
) -> None:
    item = one(context, answer, start)
    assert item["label"] == label and held(item) == text


@pytest.mark.parametrize(("context", "answers", "starts", "said"), [
    ("a b", "c", None, "here: row 1: column 'say': the answer 'c' does not stand in the context, letter by letter; correct the data"),
    ("a b", "A", None, "the answer 'A' does not stand in the context"),
    (" ", "a", None, "row 1: column 'read': the context is blank"),
    ("a b", [], None, "column 'say': an answer is blank, or there are none"),
    ("a b", None, None, "column 'say': an answer is blank, or there are none"),
    ("a b", ["a", " "], None, "column 'say': an answer is blank, or there are none"),
    ("a b", [["a"]], None, "column 'say' holds a list, not text"),
    ("a b", {"text": [], "answer_start": []}, None, "column 'say': an answer is blank, or there are none"),
    ("a b", {"answer_start": [0]}, None, "column 'say' holds a mapping, which needs 'text'"),
    ("a b", "b", 0, "the answer 'b' should begin at character 0 of the context, where 'a' stands"),
    ("a b", "b", 7, "the answer 'b' should begin at character 7 of the context, where '' stands"),
    ("a b", {"text": ["a", "b"], "answer_start": [0]}, None, "2 answers in 'say' and 1 in 'answer_start'; there must be a start for each answer"),
    ("a b", "b", "second", "column 'at': 'second' is not a number of characters"),
    ("a b", ["b"], [-1], "column 'at': '-1' is not a number of characters"),
    ("a b", ["b"], [], "1 answers in 'say' and 0 in 'at'"),
])  # fmt: skip
def test_what_is_no_answer_is_refused_with_its_row(
    context: str, answers: object, starts: object, said: str
) -> None:
    with pytest.raises(InputError) as error:
        one(context, answers, starts)
    assert said in str(error.value)


def test_an_answer_that_max_tokens_cuts_off_is_counted_and_only_train_loses_the_question(
    tmp_path: Path,
) -> None:
    table = questions(40)
    item = one("a b c d e f", ["e", "b c"], max_tokens=6)
    assert (
        item["context"] == "a b c d"
        and item["label"] == [1, 2]
        and item["answers"] == ["e", "b c"]
        and item["cut"]
    ), "the second one is there"
    assert one("a b c d e f", ["d e"], max_tokens=6)["label"] == [], "half of it is none"
    found = made(tmp_path, table, table[:10], max_tokens=8)
    cut = {
        split: int(sum(len(label) == 0 for label in some["label"]))
        for split, some in found.splits.items()
    }
    beyond = int(
        (
            (table["at"] + table["say"].str.len())
            > table["read"].map(lambda text: word_spans(text, "en")[4][1])
        ).sum()
    )
    assert 0 < cut["test"] == found.info["lost"]["test"] < 10 == found.info["counts"]["test"]
    assert (
        cut["train"] == 0
        and found.info["dropped"]["train"]["answer_cut_off"] + cut["validation"] == beyond
    )
    answer, splits = SpanAnswer(), found.splits
    told = answer.prediction_columns(
        splits["test"], np.zeros((sum(map(len, splits["test"]["starts"])), 2))
    )
    assert (told["score"] > 0).sum() == 10 - cut["test"]
    rows = [row for some, _ in evaluate_baselines(load_kind("extractive_qa"), TaskData(found.info, splits), split="test", finetune_seeds=[0], label_counts=["all"])
            for row in some]  # fmt: skip
    assert {format_notes(row.reason) for row in rows} == {
        f"{cut['test']} of 10 questions have no answer within max_tokens, and are scored all the same"
    }
    with pytest.raises(
        InputError,
        match="no answer is within the first max_tokens words of its context; raise max_tokens",
    ):
        made(
            tmp_path,
            table.assign(read=" ".join(WORDS[6:14]) + " " + table["read"]),
            table,
            max_tokens=6,
        )


@functools.cache
def _reader(unit: TokenizerType, **over: Any) -> Tokenizer:
    return train_tokenizer(
        [*tiny.documents(), TEXT],
        TokenizerSettings(vocab_size=499, **over),
        tokenizer_type=unit,
        language="en",
    )


READERS = {name: lambda name=name: tiny.reader(name) for name in NAMES} | {
    "backward": lambda: _reader("word", direction="backward"), "mended": lambda: _reader("byte_bpe", normalizer="ftfy"),
    "told": lambda: _reader("word", normalizer="fastai"),
    "with ends of words": lambda: _reader("bpe", end_of_word_suffix=True, normalizer="ftfy", lowercase=True)}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("limit", [None, 19])
def test_every_word_of_a_context_is_read_once_beside_the_question_from_its_own_characters(
    name: str, limit: int | None
) -> None:
    reader, context, asked = (
        READERS[name](),
        " ".join((TEXT, tiny.documents()[0][:60], TEXT)),
        "Ann saw",
    )
    starts, ends = (np.array(column) for column in zip(*word_spans(context, "en"), strict=True))
    item = encode_question_context(
        asked, context, starts, ends, reader, max_length=limit, language="en"
    )
    assert item.num_answers == len(starts) and (len(item.encodings) > 1) == item.truncated == (
        limit is not None
    )
    first, seen = 0, np.zeros(len(starts), bool)
    for reading, pieces, (_, part) in zip(
        item.encodings, item.word_pieces, item.texts, strict=True
    ):
        assert reading.token_type_ids is not None and (limit is None or len(reading.ids) <= limit)
        assert reading.token_type_ids[0] == 0, "the question is read first, whichever way"
        question = reading.offsets[reading.token_type_ids == 0]
        covered = {place for a, b in question for place in range(a, b)}
        assert {place for place, letter in enumerate(asked) if letter != " "} <= covered, (
            "all of it, beside every window"
        )
        assert (reading.token_type_ids[pieces[:, 0]] == 1).all()
        words = np.unique(pieces[:, 1])
        assert words[0] >= first and not seen[words].any(), "no word twice, and in order"
        seen[words] = True
        begin = next(int(at) for at in starts[words[0] :: -1] if context.startswith(part, at))
        for place, word in pieces:
            a, b = reading.offsets[place] + begin
            assert a < ends[word] and b > starts[word], "a piece that holds some of its characters"
        for word in words:
            own = reading.offsets[pieces[pieces[:, 1] == word, 0]] + begin
            assert own[:, 0].min() <= starts[word] and own[:, 1].max() >= ends[word], (
                "and all of them are held"
            )
        first = words[-1] + 1
    unread = [context[a:b] for a, b in zip(starts[~seen], ends[~seen], strict=True)]
    assert not {*unread} - {"\u2014", "\u2026", "\u00ef"}, (
        "what a tokenizer has never seen may be no piece at all"
    )


def test_of_a_long_question_half_of_the_positions_are_read_and_no_word_of_the_context_is_lost() -> (
    None
):
    reader, context, question = tiny.reader("bert"), " ".join(WORDS[:12]), " ".join(WORDS)
    starts, ends = (np.array(column) for column in zip(*word_spans(context, "en"), strict=True))
    item = encode_question_context(
        question, context, starts, ends, reader, max_length=21, language="en"
    )
    assert item.truncated and all(
        0 < (reading.token_type_ids == 0).sum() <= 2 + 18 // 2
        for reading in item.encodings
        if reading.token_type_ids is not None
    )
    assert {int(word) for pieces in item.word_pieces for word in pieces[:, 1]} == set(range(12))
