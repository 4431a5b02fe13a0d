"""A question, and its answer as a part of a context: reading comprehension as in SQuAD 1.1 (Rajpurkar et al. 2016)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lineage.data import Task
from lineage.errors import InputError, shown
from lineage.kind import Columns, Kind, bad_row, group_column, text_column, whole_number
from lineage.text.language import cell_text, first_words, fitting, normalise, word_spans

Places = list[tuple[int, int]]  # first character, and the one after the last


@dataclass(frozen=True)
class _Row:
    """Where a message is about, and what the columns of the answers and their starts are called."""

    number: int
    where: str
    answers: str
    starts: str

    def bad(self, what: str) -> InputError:
        """An error about this row."""
        return bad_row(self.number, self.where, what)


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns question, context, starts and ends (of each word of the context, in characters), answers (all gold texts), label, group and cut.

    Both texts have max_tokens words together, of which the longer one is cut. The label is the first and the last word of the first answer that is
    still there, counted from 0: those that hold its characters. Where none is there it is empty, and the answers stay what they are.
    """
    assert task.question is not None and task.context is not None and task.answers is not None
    if task.max_tokens < 2:
        raise InputError(f"{where}: max_tokens is {task.max_tokens}, of which a question leaves nothing to its context; raise it")
    questions = text_column(columns, task.question, where, what="question")
    contexts = text_column(columns, task.context, where, what="context")
    given = [_listed(starts) for starts in columns[task.starts]] if task.starts else [None] * len(contexts)
    rows = []
    for number, (question, context, said, starts) in enumerate(zip(questions, contexts, columns[task.answers], given, strict=True)):
        row = _Row(number, where, task.answers, task.starts or "answer_start")
        answers = _answers(said, starts, row)
        places = _places(answers, cell_text(columns[task.context][number]), context, row)
        rows.append(_item(question, context, [normalise(text) for text, _ in answers], places, task))
    found = pd.DataFrame(rows, columns=["question", "context", "starts", "ends", "answers", "label", "cut"])
    return found.assign(group=group_column(columns, task.group, where))


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The questions, and the contexts."""
    return [list(items["question"]), list(items["context"])]


def _answers(said: Any, starts: list[Any] | None, row: _Row) -> list[tuple[str, int | None]]:
    """Each gold answer as it is written, and where it is said to begin."""
    if isinstance(said, dict):
        if starts is not None or "text" not in said:
            raise row.bad(f"column '{row.answers}' holds a mapping, which needs 'text' and may have 'answer_start'; then name no column of starts")
        said, starts = said["text"], None if said.get("answer_start") is None else _listed(said["answer_start"])
    try:
        written = [cell_text(text) for text in _listed(said)]
    except TypeError as error:
        raise row.bad(f"column '{row.answers}' {error}") from None
    if not written or not all(map(normalise, written)):
        raise row.bad(f"column '{row.answers}': an answer is blank, or there are none; every question must have its answer in the context")
    numbers = [None] * len(written) if starts is None else starts
    if len(numbers) != len(written):
        raise row.bad(f"{len(written)} answers in '{row.answers}' and {len(numbers)} in '{row.starts}'; there must be a start for each answer")
    return [(text, None if number is None else _whole(number, row)) for text, number in zip(written, numbers, strict=True)]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | np.ndarray) else [] if value is None or value != value else [value]


def _whole(value: Any, row: _Row) -> int:
    try:
        if (number := whole_number(value)) >= 0:
            return number
        raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise row.bad(f"column '{row.starts}': '{shown(value)}' is no number of characters") from None


def _places(answers: list[tuple[str, int | None]], raw: str, context: str, row: _Row) -> Places:
    """Each answer's characters in the clean context: the place where it stands nearest to its start, which counts in the raw one.

    What cleaning takes out before it is counted out. Raises InputError where the raw context has another text at that start, or the clean one none.
    """
    found = []
    for text, start in answers:
        if start is not None and raw[start : start + len(text)] != text:
            there = raw[start : start + len(text)]
            raise row.bad(f"the answer '{shown(text)}' should begin at character {start} of the context, where '{shown(there)}' stands")
        clean = normalise(text)
        near = 0 if start is None else len(normalise(raw[:start] + ".")) - 1  # the stop keeps the space before it
        known = [*_occurrences(context, clean)]
        if not known:
            raise row.bad(f"column '{row.answers}': the answer '{shown(text)}' does not stand in the context, letter by letter")
        first = min(known, key=lambda place: abs(place - near))
        found.append((first, first + len(clean)))
    return found


def _occurrences(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _item(question: str, context: str, answers: list[str], places: Places, task: Task) -> tuple[Any, ...]:
    """One row of the items, cut to max_tokens."""
    asked, words = word_spans(question, task.language), word_spans(context, task.language)
    first, second = fitting(len(asked), len(words), most=task.max_tokens)
    starts, ends = (list(column) for column in zip(*words[:second], strict=True))
    kept = next((place for place in places if place[1] <= ends[-1]), None)
    held = [] if kept is None else [number for number, (a, b) in enumerate(words[:second]) if a < kept[1] and b > kept[0]]
    short = first_words(question, first, task.language)
    cut = first < len(asked) or second < len(words)
    return short, context[: ends[-1]], starts, ends, answers, [held[0], held[-1]] if held else [], cut


KIND = Kind(
    name="span",
    needs=("question", "context", "answers"),
    may=("starts", "group"),
    items=items,
    texts=texts,
    answer="span",
    metrics=("f1", "exact_match"),
    reads=("question", "context"),
)
