"""A text, a question about it, and several choices, one of which is right."""

import re

import pandas as pd

from lineage.answers.choice import ChoiceAnswer
from lineage.config.data import Task
from lineage.errors import row_error, shorten_value
from lineage.language import is_blank, split_words, truncate_pair_lengths, truncate_to_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    Cell,
    TableColumns,
    list_cells,
    parse_list,
    read_label_column,
    read_text_column,
)
from lineage.tasks.recognition import ColumnChoice, Recognition, SampleTable

CHOICE_NAME = re.compile(r"(choice|option|ending)_?(\d|[a-e])", re.I)


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns text, choices (the same number in every item), label, asked and truncated.

    `label` is the place of the right choice, from 0. The question is at the end of the text, its
    last `asked` characters; it is never cut.
    """
    assert task.text is not None and task.choices is not None
    text_columns = [read_text_column(columns, name, where) for name in task.text]
    choices = _read_choices(columns, task, where)
    _check_choice_counts(choices, task, where)
    passages = text_columns[0]
    questions = [""] * len(passages)
    if len(text_columns) > 1:
        questions = [" ".join(parts) for parts in zip(*text_columns[1:], strict=True)]
    items = [
        _truncate_item(row, *parts, task, where)
        for row, parts in enumerate(zip(passages, questions, choices, strict=True))
    ]
    table = pd.DataFrame(items, columns=["text", "choices", "truncated"])
    if task.label is not None:
        table["label"] = _read_labels(columns, choices, task.label, where)
    return table.assign(asked=[len(question) for question in questions])


def _truncate_item(
    row: int, passage: str, question: str, choices: list[str], task: Task, where: str
) -> tuple[str, list[str], bool]:
    """Cut an item to max_words words. Return its text and choices, and whether it was cut.

    Raises InputError if this leaves no words of a choice, or makes two choices equal.
    """
    passage_length = len(split_words(passage, task.language))
    question_length = len(split_words(question, task.language))
    choice_length = max(len(split_words(choice, task.language)) for choice in choices)
    max_passage, max_rest = truncate_pair_lengths(
        passage_length, question_length + choice_length, max_length=task.max_words
    )
    max_choice = max_rest - question_length
    if max_choice <= 0:
        raise row_error(
            row,
            where,
            f"the question has {question_length} words, so max_words leaves none for a choice; "
            "raise it",
        )
    short_choices = [truncate_to_words(choice, max_choice, task.language) for choice in choices]
    if len(set(short_choices)) < len(short_choices):
        limit = ""
        if len(set(choices)) == len(choices):
            limit = f" within max_words, which is {task.max_words}; raise it"
        raise row_error(row, where, f"two of its choices are the same{limit}")
    short_passage = truncate_to_words(passage, max_passage, task.language)
    text = f"{short_passage} {question}" if question else short_passage
    return text, short_choices, short_passage != passage or short_choices != choices


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Return the texts, the first choices, the second choices, ..."""
    choice_columns = zip(*items["choices"], strict=True)
    return [list(items["text"]), *(list(column) for column in choice_columns)]


def _read_choices(columns: TableColumns, task: Task, where: str) -> list[list[str]]:
    """Return each item's choices, from a column for each of them or from one column of lists."""
    names = task.choices or ()
    if len(names) == 1:
        return list(map(_parse_choices, list_cells(columns, names[0], where)))
    choice_columns = [read_text_column(columns, name, where, noun="choice") for name in names]
    return [list(choices) for choices in zip(*choice_columns, strict=True)]


def _parse_choices(cell: Cell) -> list[str]:
    if cell.value is None or isinstance(cell.value, str | bytes | int | float | dict):
        raise row_error(
            cell.row,
            cell.where,
            f"column '{cell.column}' does not hold a list; name a column for each choice, or one "
            "column of lists",
        )
    choices = parse_list(cell, allow_blank=True)
    if any(map(is_blank, choices)):
        raise cell.error("a choice is blank")
    return choices


def _check_choice_counts(choices: list[list[str]], task: Task, where: str) -> None:
    assert task.choices is not None
    for row, own in enumerate(choices):
        cell = Cell(own, row, task.choices[0], where)
        if len(own) < 2:
            raise cell.error("there must be at least two choices")
        if len(own) != len(choices[0]):
            raise cell.error(
                f"it has {len(own)} choices, but the first row has {len(choices[0])}; all rows "
                "must have the same number"
            )


def _read_labels(
    columns: TableColumns, choices: list[list[str]], name: str, where: str
) -> list[str]:
    labels = read_label_column(columns, name, where)
    for row, (own, label) in enumerate(zip(choices, labels, strict=True)):
        if label not in map(str, range(len(own))):
            raise Cell(label, row, name, where).error(
                f"'{shorten_value(label)}' is not one of the {len(own)} choices, which count from 0"
            )
    return labels


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of a table with a column for each choice."""
    choices = [name for name in table.columns if CHOICE_NAME.fullmatch(name)]
    if len(choices) < 2:
        return None
    others = table.without(choices)
    texts = table.requested.text or others.choose_texts()[0]
    label, notes = others.choose_label(texts)
    keys = {"text": list(texts), "choices": choices, "label": label}
    return ColumnChoice(keys, (*texts, choices[0]), is_cut=True, notes=notes)


KIND = Kind(
    name="multiple_choice",
    unit="choice",
    required_columns=("text", "choices", "label"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=ChoiceAnswer,
    metrics=("accuracy",),
    identity_columns=("text", "choices"),
    reads_pairs=True,
    text_list_columns=("choices",),
    recognition=Recognition(
        "names",
        choose_columns,
        needs="a column for each choice, named choice1, choice2 and so on; rename them",
    ),
)
