"""A question, and its answer as a part of a context, as in SQuAD 1.1 (Rajpurkar et al. 2016)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lineage.answers.span import SpanAnswer
from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.language import (
    cell_to_text,
    normalize_text,
    truncate_pair_lengths,
    truncate_to_words,
    word_spans,
)
from lineage.tasks.base import Kind
from lineage.tasks.columns import Cell, TableColumns, parse_start, read_text_column
from lineage.tasks.recognition import recognize_by_names

CharacterSpan = tuple[int, int]  # the first character, and the one after the last


@dataclass(frozen=True)
class _Answer:
    """A correct answer as it is written, and the character of the raw context where it begins."""

    text: str
    start: int | None  # None if the data does not tell


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns question, context, starts, ends, answers, label and truncated.

    `starts` and `ends` hold the characters of each word of the context, `answers` all correct
    texts. `label` is the first and the last word, from 0, of the first answer that is not cut off;
    empty where every answer is.
    """
    assert task.question is not None and task.context is not None
    if task.max_words < 2:
        raise InputError(
            f"{where}: max_words is {task.max_words}, which leaves no room for both a question "
            "and its context; raise it"
        )
    questions = read_text_column(columns, task.question, where, noun="question")
    contexts = read_text_column(columns, task.context, where, noun="context")
    items = []
    for row, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        texts: list[str] = []
        spans: list[CharacterSpan] = []
        if task.answers is not None:
            cell = Cell(columns[task.answers][row], row, task.answers, where)
            starts = None
            if task.answer_starts:
                starts = Cell(columns[task.answer_starts][row], row, task.answer_starts, where)
            raw_context = cell_to_text(columns[task.context][row])
            answers = _parse_answers(cell, starts)
            texts = [normalize_text(answer.text) for answer in answers]
            spans = [_locate_answer(answer, raw_context, context, cell) for answer in answers]
        items.append(_make_item(question, context, texts, spans, task))
    names = ["question", "context", "starts", "ends", "answers", "label", "truncated"]
    return pd.DataFrame(items, columns=names)


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    return [list(items["question"]), list(items["context"])]


def _parse_answers(cell: Cell, starts: Cell | None) -> list[_Answer]:
    """Read the correct answers of a cell, which holds texts or SQuAD's mapping."""
    value = cell.value
    if isinstance(value, dict):
        if starts is not None or "text" not in value:
            raise cell.error(
                "it holds a mapping, which needs 'text' and may have 'answer_start'; then name no "
                "column of starts"
            )
        if value.get("answer_start") is not None:
            starts = replace(cell, value=value["answer_start"], column="answer_start")
        value = value["text"]
    try:
        texts = [cell_to_text(text) for text in _as_list(value)]
    except TypeError as error:
        raise cell.error(f"an answer {error}") from None
    if not texts or not all(map(normalize_text, texts)):
        raise cell.error(
            "an answer is blank, or there are none; every question must have its answer in the "
            "context"
        )
    if starts is None:
        return [_Answer(text, None) for text in texts]
    places = _as_list(starts.value)
    if len(places) != len(texts):
        raise starts.error(
            f"{len(places)} starts for {len(texts)} answers in '{cell.column}'; there must be a "
            "start for each answer"
        )
    return [
        _Answer(text, None if place is None else parse_start(replace(starts, value=place)))
        for text, place in zip(texts, places, strict=True)
    ]


def _as_list(value: object) -> list[Any]:
    """Return a list of the cell's values; empty where the cell is missing."""
    if isinstance(value, list | tuple | np.ndarray):
        return list(value)
    is_missing = value is None or value != value
    return [] if is_missing else [value]


def _locate_answer(answer: _Answer, raw_context: str, context: str, cell: Cell) -> CharacterSpan:
    """Find the answer in the clean context, at the occurrence nearest to its start.

    The start counts characters of the raw context. Raises InputError if the raw context has another
    text there, or the clean one lacks the answer.
    """
    text = normalize_text(answer.text)
    expected = 0
    if answer.start is not None:
        there = raw_context[answer.start : answer.start + len(answer.text)]
        if there != answer.text:
            raise cell.error(
                f"the answer '{shorten_value(answer.text)}' should begin at character "
                f"{answer.start} of the context, where '{shorten_value(there)}' stands"
            )
        before = normalize_text(raw_context[: answer.start] + ".")  # "." keeps the space before it
        expected = len(before) - 1
    places = list(_find_occurrences(context, text))
    if not places:
        raise cell.error(
            f"the answer '{shorten_value(answer.text)}' does not stand in the context, letter by "
            "letter"
        )
    first = min(places, key=lambda place: abs(place - expected))
    return first, first + len(text)


def _find_occurrences(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _make_item(
    question: str, context: str, answers: list[str], spans: list[CharacterSpan], task: Task
) -> tuple[Any, ...]:
    question_words = word_spans(question, task.language)
    context_words = word_spans(context, task.language)
    max_question, max_context = truncate_pair_lengths(
        len(question_words), len(context_words), max_length=task.max_words
    )
    kept_words = context_words[:max_context]
    starts = [start for start, _ in kept_words]
    ends = [end for _, end in kept_words]
    return (
        truncate_to_words(question, max_question, task.language),
        context[: ends[-1]],
        starts,
        ends,
        answers,
        _find_answer_words(spans, kept_words),
        max_question < len(question_words) or max_context < len(context_words),
    )


def _find_answer_words(spans: list[CharacterSpan], words: list[CharacterSpan]) -> list[int]:
    """Return the first and the last word of the first answer within the words; else nothing."""
    end_of_context = words[-1][1]
    for first, end in spans:
        if end <= end_of_context:
            inside = [number for number, (a, b) in enumerate(words) if a < end and b > first]
            return [inside[0], inside[-1]] if inside else []
    return []


KIND = Kind(
    name="extractive_qa",
    unit="word",
    required_columns=("question", "context", "answers"),
    optional_columns=("answer_starts", "group"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=SpanAnswer,
    metrics=("f1", "exact_match"),
    label_columns=("answers", "answer_starts"),
    identity_columns=("question", "context"),
    reads_pairs=True,
    recognition=recognize_by_names(
        "question", "context", "answers", optional=("answer_starts",), num_cut=2
    ),
)
