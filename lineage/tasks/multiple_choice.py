"""Which of several continuations, answers or causes is the right one: a text, what is asked of it, and choices of which one goes with both."""

from typing import Any

import pandas as pd

from lineage.config.data import Task
from lineage.data.language import (
    cell_to_text,
    is_blank,
    normalize_text,
    split_words,
    truncate_pair_lengths,
    truncate_to_words,
)
from lineage.errors import shorten_value
from lineage.tasks.base import (
    Kind,
    TableColumns,
    read_group_column,
    read_label_column,
    read_text_column,
    row_error,
)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, choices (a list, as many in every item), label (the right one's place, counted from 0), asked, group and cut.

    What further columns of `text` ask (the question after a passage) stands at the text's end: its last `asked` characters. With the longest choice
    they have at most max_tokens words; the passage is cut alike beside every choice, and the question is not cut: by a model that cuts more neither,
    as long as it fits.
    """
    assert task.text is not None and task.choices is not None and task.label is not None
    passages, *asked = (read_text_column(columns, name, where) for name in task.text)
    choices, label = (
        _read_choices(columns, task, where),
        read_label_column(columns, task.label, where),
    )
    _check_choice_counts(choices, label, task, where)
    questions = [" ".join(own) for own in zip(*asked, strict=True)] or [""] * len(passages)
    fitted = [
        _truncate_item(row, *own, task, where)
        for row, own in enumerate(zip(passages, questions, choices, strict=True))
    ]
    texts, short, cut = (list(column) for column in zip(*fitted, strict=True))
    group, ends = read_group_column(columns, task.group, where), [*map(len, questions)]
    return pd.DataFrame(
        {"text": texts, "choices": short, "label": label, "asked": ends, "group": group, "cut": cut}
    )


def _truncate_item(
    row: int, passage: str, question: str, choices: list[str], task: Task, where: str
) -> tuple[str, list[str], bool]:
    """The text and the choices within max_tokens words, and whether anything was cut. Raises InputError where no choice is left to tell apart."""
    counts = [len(split_words(text, task.language)) for text in (passage, question, *choices)]
    first, second = truncate_pair_lengths(
        counts[0], counts[1] + max(counts[2:]), max_length=task.max_tokens
    )
    if second <= counts[1]:
        raise row_error(
            row,
            where,
            f"what is asked has {counts[1]} words, which leaves none of max_tokens to a choice; raise it",
        )
    short = [truncate_to_words(choice, second - counts[1], task.language) for choice in choices]
    if len(set(short)) < len(short):
        alike = (
            ""
            if len(set(choices)) < len(choices)
            else f" within max_tokens, which is {task.max_tokens}; raise it"
        )
        raise row_error(row, where, f"two of its choices are the same{alike}")
    kept = truncate_to_words(passage, first, task.language)
    return (
        " ".join([kept, question] if question else [kept]),
        short,
        [passage, *choices] != [kept, *short],
    )


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The text, and each of the choices."""
    return [list(items["text"]), *(list(column) for column in zip(*items["choices"], strict=True))]


def _read_choices(columns: TableColumns, task: Task, where: str) -> list[list[str]]:
    """Each item's choices, from a column for each of them, or from one column of lists."""
    names = task.choices or ()
    if len(names) > 1:
        return [
            list(own)
            for own in zip(
                *(read_text_column(columns, name, where, noun="choice") for name in names),
                strict=True,
            )
        ]
    return [
        _parse_choices(value, row, names[0], where) for row, value in enumerate(columns[names[0]])
    ]


def _parse_choices(value: Any, row: int, name: str, where: str) -> list[str]:
    if value is None or isinstance(value, str | bytes | int | float | dict):
        raise row_error(
            row,
            where,
            f"column '{name}' holds no list; name a column for each choice, or one column of lists",
        )
    try:
        found = [normalize_text(cell_to_text(choice)) for choice in value]
    except TypeError as error:
        raise row_error(row, where, f"column '{name}': a choice {error}") from None
    if any(map(is_blank, found)):
        raise row_error(row, where, f"column '{name}': a choice is blank")
    return found


def _check_choice_counts(
    choices: list[list[str]], labels: list[str], task: Task, where: str
) -> None:
    """As many choices in every item, at least two, and a label that is one of their places."""
    for row, (own, label) in enumerate(zip(choices, labels, strict=True)):
        if len(own) < 2 or len(own) != len(choices[0]):
            what = (
                "one choice is none"
                if len(own) < 2
                else f"it has {len(own)} choices, the first row has {len(choices[0])}; all must have as many"
            )
            raise row_error(
                row, where, f"column '{task.choices[0] if task.choices else ''}': {what}"
            )
        if label not in map(str, range(len(own))):
            raise row_error(
                row,
                where,
                f"column '{task.label}': '{shorten_value(label)}' is none of the {len(own)} choices, which count from 0",
            )


KIND = Kind(
    name="multiple_choice",
    required_columns=("text", "choices", "label"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer_type="choice",
    metrics=("accuracy",),
    identity_columns=("text", "choices"),
)
