"""A question, and its answer as a part of a context: reading comprehension as in SQuAD 1.1 (Rajpurkar et al. 2016)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.data.language import (
    cell_to_text,
    normalize_text,
    truncate_pair_lengths,
    truncate_to_words,
    word_spans,
)
from lineage.errors import InputError, shorten_value
from lineage.tasks.base import (
    Kind,
    TableColumns,
    parse_integer,
    read_group_column,
    read_text_column,
    row_error,
)

CharacterSpans = list[tuple[int, int]]  # first character, and the one after the last


@dataclass(frozen=True)
class _RowContext:
    """Where a message is about, and what the columns of the answers and their starts are called."""

    number: int
    where: str
    answers: str
    starts: str

    def error(self, problem: str) -> InputError:
        """An error about this row."""
        return row_error(self.number, self.where, problem)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns question, context, starts and ends (of each word of the context, in characters), answers (all gold texts), label, group and cut.

    Both texts have max_tokens words together, of which the longer one is cut. The label is the first and the last word of the first answer that is
    still there, counted from 0: those that hold its characters. Where none is there it is empty, and the answers stay what they are.
    """
    assert task.question is not None and task.context is not None and task.answers is not None
    if task.max_tokens < 2:
        raise InputError(
            f"{where}: max_tokens is {task.max_tokens}, of which a question leaves nothing to its context; raise it"
        )
    questions = read_text_column(columns, task.question, where, noun="question")
    contexts = read_text_column(columns, task.context, where, noun="context")
    start_lists = (
        [_as_list(starts) for starts in columns[task.answer_starts]]
        if task.answer_starts
        else [None] * len(contexts)
    )
    rows = []
    for number, (question, context, row_answers, starts) in enumerate(
        zip(questions, contexts, columns[task.answers], start_lists, strict=True)
    ):
        row = _RowContext(number, where, task.answers, task.answer_starts or "answer_start")
        answers = _parse_answers(row_answers, starts, row)
        places = _locate_answers(answers, cell_to_text(columns[task.context][number]), context, row)
        rows.append(
            _make_item(
                question, context, [normalize_text(text) for text, _ in answers], places, task
            )
        )
    found = pd.DataFrame(
        rows, columns=["question", "context", "starts", "ends", "answers", "label", "cut"]
    )
    return found.assign(group=read_group_column(columns, task.group, where))


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The questions, and the contexts."""
    return [list(items["question"]), list(items["context"])]


def _parse_answers(
    value: Any, starts: list[Any] | None, row: _RowContext
) -> list[tuple[str, int | None]]:
    """Each gold answer as it is written, and where it is said to begin."""
    if isinstance(value, dict):
        if starts is not None or "text" not in value:
            raise row.error(
                f"column '{row.answers}' holds a mapping, which needs 'text' and may have 'answer_start'; then name no column of starts"
            )
        value, starts = (
            value["text"],
            None if value.get("answer_start") is None else _as_list(value["answer_start"]),
        )
    try:
        written = [cell_to_text(text) for text in _as_list(value)]
    except TypeError as error:
        raise row.error(f"column '{row.answers}' {error}") from None
    if not written or not all(map(normalize_text, written)):
        raise row.error(
            f"column '{row.answers}': an answer is blank, or there are none; every question must have its answer in the context"
        )
    numbers = [None] * len(written) if starts is None else starts
    if len(numbers) != len(written):
        raise row.error(
            f"{len(written)} answers in '{row.answers}' and {len(numbers)} in '{row.starts}'; there must be a start for each answer"
        )
    return [
        (text, None if number is None else _parse_start(number, row))
        for text, number in zip(written, numbers, strict=True)
    ]


def _as_list(value: Any) -> list[Any]:
    return (
        list(value)
        if isinstance(value, list | tuple | np.ndarray)
        else []
        if value is None or value != value
        else [value]
    )


def _parse_start(value: Any, row: _RowContext) -> int:
    try:
        if (number := parse_integer(value)) >= 0:
            return number
        raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise row.error(
            f"column '{row.starts}': '{shorten_value(value)}' is no number of characters"
        ) from None


def _locate_answers(
    answers: list[tuple[str, int | None]], raw_context: str, context: str, row: _RowContext
) -> CharacterSpans:
    """Each answer's characters in the clean context: the place where it stands nearest to its start, which counts in the raw one.

    What cleaning takes out before it is counted out. Raises InputError where the raw context has another text at that start, or the clean one none.
    """
    found = []
    for text, start in answers:
        if start is not None and raw_context[start : start + len(text)] != text:
            there = raw_context[start : start + len(text)]
            raise row.error(
                f"the answer '{shorten_value(text)}' should begin at character {start} of the context, where '{shorten_value(there)}' stands"
            )
        clean = normalize_text(text)
        near = (
            0 if start is None else len(normalize_text(raw_context[:start] + ".")) - 1
        )  # the stop keeps the space before it
        known = [*_find_occurrences(context, clean)]
        if not known:
            raise row.error(
                f"column '{row.answers}': the answer '{shorten_value(text)}' does not stand in the context, letter by letter"
            )
        first = min(known, key=lambda place: abs(place - near))
        found.append((first, first + len(clean)))
    return found


def _find_occurrences(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _make_item(
    question: str, context: str, answers: list[str], answer_spans: CharacterSpans, task: Task
) -> tuple[Any, ...]:
    """One row of the items, cut to max_tokens."""
    asked, words = word_spans(question, task.language), word_spans(context, task.language)
    first, second = truncate_pair_lengths(len(asked), len(words), max_length=task.max_tokens)
    starts, ends = (list(column) for column in zip(*words[:second], strict=True))
    kept = next((place for place in answer_spans if place[1] <= ends[-1]), None)
    answer_words = (
        []
        if kept is None
        else [number for number, (a, b) in enumerate(words[:second]) if a < kept[1] and b > kept[0]]
    )
    short = truncate_to_words(question, first, task.language)
    cut = first < len(asked) or second < len(words)
    return (
        short,
        context[: ends[-1]],
        starts,
        ends,
        answers,
        [answer_words[0], answer_words[-1]] if answer_words else [],
        cut,
    )


KIND = Kind(
    name="extractive_qa",
    required_columns=("question", "context", "answers"),
    optional_columns=("answer_starts", "group"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer_type="span",
    metrics=("f1", "exact_match"),
    identity_columns=("question", "context"),
)
