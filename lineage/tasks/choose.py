"""Which of several continuations, answers or causes is the right one: a text, and choices of which one goes with it."""

from typing import Any

import pandas as pd

from lineage.data import Task
from lineage.errors import InputError
from lineage.kind import Columns, Kind, bad_row, group_column, label_column, text_column
from lineage.text import blank, cell_text, first_words, fitting, normalise, words


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, choices (a list, as many in every item), label (the right one's place, counted from 0), group and cut.

    The text and the longest choice have at most max_tokens words together; the text is cut alike beside every choice.
    """
    assert task.text is not None and task.choices is not None and task.label is not None
    if len(task.text) != 1:
        raise InputError(f"{where}: text: {list(task.text)} names {len(task.text)} columns; choose reads one text beside its choices, name one")
    whole, choices = text_column(columns, task.text[0], where), _choices(columns, task, where)
    label = label_column(columns, task.label, where)
    _check_count(choices, label, task, where)
    texts, cut, short = [], [], []
    for row, (text, own) in enumerate(zip(whole, choices, strict=True)):
        first, second = fitting(len(words(text, task.language)), max(len(words(c, task.language)) for c in own), most=task.max_tokens)
        texts.append(first_words(text, first, task.language))
        short.append([first_words(c, second, task.language) for c in own])
        cut.append([text, *own] != [texts[-1], *short[-1]])
        if len(set(short[-1])) < len(own):
            raise bad_row(row, where, "two of its choices are the same")
    return pd.DataFrame({"text": texts, "choices": short, "label": label, "group": group_column(columns, task.group, where), "cut": cut})


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The text, and each of the choices."""
    return [list(items["text"]), *(list(column) for column in zip(*items["choices"], strict=True))]


def _choices(columns: Columns, task: Task, where: str) -> list[list[str]]:
    """Each item's choices, from a column for each of them, or from one column of lists."""
    names = task.choices or ()
    if len(names) > 1:
        return [list(own) for own in zip(*(text_column(columns, name, where, what="choice") for name in names), strict=True)]
    return [_listed(value, row, names[0], where) for row, value in enumerate(columns[names[0]])]


def _listed(value: Any, row: int, name: str, where: str) -> list[str]:
    if value is None or isinstance(value, str | bytes | int | float | dict):
        raise bad_row(row, where, f"column '{name}' holds no list; name a column for each choice, or one column of lists")
    try:
        found = [normalise(cell_text(choice)) for choice in value]
    except TypeError as error:
        raise bad_row(row, where, f"column '{name}': a choice {error}") from None
    if any(map(blank, found)):
        raise bad_row(row, where, f"column '{name}': a choice is blank")
    return found


def _check_count(choices: list[list[str]], labels: list[str], task: Task, where: str) -> None:
    """As many choices in every item, at least two, and a label that is one of their places."""
    for row, (own, label) in enumerate(zip(choices, labels, strict=True)):
        if len(own) < 2 or len(own) != len(choices[0]):
            what = "one choice is none" if len(own) < 2 else f"it has {len(own)} choices, the first row has {len(choices[0])}; all must have as many"
            raise bad_row(row, where, f"column '{task.choices[0] if task.choices else ''}': {what}")
        if label not in map(str, range(len(own))):
            raise bad_row(row, where, f"column '{task.label}': '{label}' is none of the {len(own)} choices, which count from 0")


KIND = Kind(
    name="choose",
    needs=("text", "choices", "label"),
    items=items,
    texts=texts,
    answer="choice",
    metrics=("accuracy",),
    reads=("text", "choices"),
)
