"""Read the columns of a user's table: clean texts, labels, numbers, lists; errors name the row."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lineage.answers.label_names import WHOLE_NUMBER
from lineage.config.data import Task
from lineage.errors import InputError, RowError, check_rows, display_width, row_error, shorten_value
from lineage.language import (
    cell_to_text,
    is_blank,
    join_words,
    normalize_text,
    split_words,
    truncate_pair_lengths,
    truncate_to_words,
)

TableColumns = dict[str, list[Any]]  # a user's table: values by column
DECIMAL_WHOLE_NUMBER = re.compile(r"(-?\d+)\.0+")
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
NON_FINITE = ("nan", "inf", "-inf")  # how a column of numbers shows a missing one
MAX_NAME_WIDTH = (
    80  # characters of a label or a group, which reports and logs show; longer is a text
)
# Share of a split's rows that may have a blank text. With more, another column was meant.
MAX_BLANK_SHARE = 0.1
# Separates the words of a cell in Hadoop's tables, and in PaddleNLP's tables of named entities.
LIST_SEPARATOR = "\x02"
NO_ENTRIES = "an entry is blank, or there are none"  # in a list
# A list of texts, numbers or numpy numbers that was written as one text.
STRINGIFIED_LIST = re.compile(r"\[\s*(['\"]|-?\d|[\w.]+\().*\]", re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """A cell of a user's table, and its place for messages."""

    value: Any
    row: int
    column: str
    where: str

    def error(self, problem: str) -> RowError:
        """Return an error that names the row and the column."""
        return row_error(self.row, self.where, f"column '{self.column}': {problem}")


def list_cells(columns: TableColumns, name: str, where: str) -> list[Cell]:
    """Return the cells of a column."""
    return [Cell(value, row, name, where) for row, value in enumerate(columns[name])]


def find_filled_rows(columns: TableColumns) -> list[int]:
    """Return the rows with a value in any column; spreadsheets have empty rows below the table."""
    rows = enumerate(zip(*columns.values(), strict=True))
    return [row for row, values in rows if not all(map(is_empty_cell, values))]


def is_empty_cell(value: Any) -> bool:
    """Tell whether a cell holds nothing: a missing value, a blank text, or a list without entries."""
    if isinstance(value, str | float):
        return is_blank(cell_to_text(value))
    return value is None or (isinstance(value, list) and not value)


def read_cells(columns: TableColumns, name: str, where: str) -> list[str]:
    """Return a column as clean texts, blank where a value is missing.

    Raises InputError if a cell holds more than one value.
    """
    values = []
    for row, value in enumerate(columns[name]):
        try:
            values.append(normalize_text(cell_to_text(value)))
        except TypeError as error:
            raise row_error(row, where, f"column '{name}' {error}") from None
    return values


def read_text_column(
    columns: TableColumns, name: str, where: str, *, noun: str = "text"
) -> list[str]:
    """Return a column as clean texts. Raises InputError if one is missing or blank."""
    values = read_cells(columns, name, where)
    check_rows([not is_blank(v) for v in values], where, f"column '{name}': the {noun} is blank")
    return values


def read_label_column(columns: TableColumns, name: str, where: str) -> list[str]:
    """Return a column as label names, with 1 for 1.0.

    Raises InputError if a label is missing; among numbers `nan` is a missing label.
    """
    values = [normalize_label(value) for value in read_cells(columns, name, where)]
    is_non_finite = [value.lower() in NON_FINITE for value in values]
    are_numbers = all(
        non_finite or WHOLE_NUMBER.fullmatch(value)
        for value, non_finite in zip(values, is_non_finite, strict=True)
    )
    is_label = [
        not is_blank(value) and not (are_numbers and non_finite)
        for value, non_finite in zip(values, is_non_finite, strict=True)
    ]
    missing = "the label is missing (texts without labels may stand in a file of `unlabelled`)"
    check_rows(is_label, where, f"column '{name}': {missing}")
    return _check_name_lengths(values, name, where, noun="label")


def normalize_label(text: str) -> str:
    """Return `1` for 1.0: csv and parquet write whole numbers so where one was missing once."""
    found = DECIMAL_WHOLE_NUMBER.fullmatch(text)
    return found[1] if found else text


def read_group_column(columns: TableColumns, name: str | None, where: str) -> list[str]:
    """Return the group of each item; `all` where the task names no column."""
    if name is None:
        return ["all"] * len(next(iter(columns.values())))
    groups = read_text_column(columns, name, where, noun="group")
    groups = _check_name_lengths(groups, name, where, noun="group")
    if len({*groups}) > 1:
        problem = f"column '{name}': 'all' is the name of all groups together"
        check_rows([group != "all" for group in groups], where, problem)
    return groups


def _check_name_lengths(values: list[str], name: str, where: str, *, noun: str) -> list[str]:
    too_long = (
        f"column '{name}': the {noun} has more than {MAX_NAME_WIDTH} characters, and reports show it: "
        "it looks like a text (wide characters count as five)"
    )
    check_rows([display_width(value) <= MAX_NAME_WIDTH for value in values], where, too_long)
    return values


def is_number(cell: str) -> bool:
    """Return whether a cell, as it is written, is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def parse_integer(value: Any) -> int:
    """Return the whole number of a cell, including 5.0, as in a column with gaps."""
    number = _parse_number(value)
    if number != int(number):
        raise ValueError
    return int(number)


def _parse_number(value: Any) -> float:
    """Return the number of a cell. Raises TypeError or ValueError for anything else."""
    if isinstance(value, bool) or "_" in str(value):  # Python alone reads 1_000 as a number
        raise ValueError
    return float(value)


def read_number_column(columns: TableColumns, name: str, where: str) -> list[float]:
    """Return a column as numbers. Raises InputError if a value is not a finite number."""
    numbers = []
    for value in columns[name]:
        try:
            numbers.append(_parse_number(value))
        except (TypeError, ValueError):
            numbers.append(math.nan)
    is_finite = [math.isfinite(number) for number in numbers]
    if not all(is_finite):
        first = shorten_value(columns[name][is_finite.index(False)])
        which = " in the first" if is_finite.count(False) > 1 else ""
        hint = " (write a point for the decimal comma)" if DECIMAL_COMMA.fullmatch(first) else ""
        check_rows(
            is_finite, where, f"column '{name}': '{first}'{which} is not a finite number{hint}"
        )
    return numbers


def parse_list(cell: Cell, *, allow_blank: bool = False) -> list[str]:
    """Return a cell as a list of words, tags or choices."""
    value = cell.value
    start = f"column '{cell.column}'"
    if value is None:
        raise cell.error(NO_ENTRIES)
    if not isinstance(value, str | list | tuple) and not hasattr(value, "tolist"):
        raise row_error(cell.row, cell.where, f"{start} does not hold a list")
    entries = value
    if isinstance(value, str):
        if STRINGIFIED_LIST.fullmatch(value):
            problem = (
                f"{start} holds a list written as text; write the words with spaces between them, "
                "or use jsonl or parquet"
            )
            raise row_error(cell.row, cell.where, problem)
        entries = value.split(LIST_SEPARATOR if LIST_SEPARATOR in value else None)
    try:
        texts = [normalize_text(cell_to_text(entry)) for entry in entries]
    except TypeError as error:
        raise cell.error(f"an entry {error}") from None
    if not texts or not (allow_blank or all(texts)):
        raise cell.error(NO_ENTRIES)
    return texts


def parse_place(cell: Cell, tokens: Sequence[str], *, meaning: str) -> int:
    """Return the place of a token, from 0. Raises InputError that says its `meaning`."""
    try:
        place = parse_integer(cell.value)
    except (TypeError, ValueError, OverflowError):
        raise cell.error(f"{shorten_value(cell.value)} is not {meaning}") from None
    if not 0 <= place < len(tokens):
        raise cell.error(f"{place} is outside the {len(tokens)} tokens, which count from 0")
    return place


def parse_start(cell: Cell) -> int:
    """Return the number of characters before something in a text."""
    try:
        start = parse_integer(cell.value)
    except (TypeError, ValueError, OverflowError):
        start = -1
    if start < 0:
        raise cell.error(f"'{shorten_value(cell.value)}' is not a number of characters")
    return start


def read_word_columns(
    columns: TableColumns, task: Task, where: str, *, num_words: int
) -> list[list[str]]:
    """Return each item's words, from the columns that `words` names."""
    names = task.words or ()
    if len(names) != num_words:
        raise InputError(
            f"{where}: words: {list(names)} names {len(names)} columns; {task.kind} reads "
            f"{num_words} words, name a column for each"
        )
    word_columns = [read_text_column(columns, name, where, noun="word") for name in names]
    return [list(words) for words in zip(*word_columns, strict=True)]


def extract_item_words(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Return a list for each place in items of single words: the first words, the second, ..."""
    return [list(column) for column in zip(*items["words"], strict=True)]


def extract_sentences(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Return the sentences of items with tokens, as running text."""
    return [[join_words(list(tokens), language) for tokens in items["tokens"]]]


def extract_sources(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Return the texts from which others are written."""
    return [list(items["source"])]


def make_text_items(
    columns: TableColumns,
    task: Task,
    where: str,
    *,
    read_labels: Callable[[TableColumns, str, str], Sequence[str] | Sequence[float]],
) -> pd.DataFrame:
    """Return items of one text or two, in columns text, second, label and truncated.

    Rows with a blank text are left out. Raises InputError where too many rows have one.
    """
    assert task.text is not None
    if len(task.text) not in (1, 2):
        raise InputError(
            f"{where}: text: {list(task.text)} names {len(task.text)} columns; {task.kind} reads "
            "one text or two, name one or two"
        )
    if task.symmetric and len(task.text) == 1:
        raise InputError(
            f"{where}: symmetric needs two texts, but text names one column; name two, or remove "
            "symmetric"
        )
    text_columns = [read_cells(columns, name, where) for name in task.text]
    for name, column in zip(task.text, text_columns, strict=True):
        has_text = [not is_blank(text) for text in column]
        if has_text.count(False) > MAX_BLANK_SHARE * len(has_text):
            check_rows(has_text, where, f"column '{name}': the text is blank")
    kept_rows = []
    truncated_texts = []
    is_cut = []
    for row, texts in enumerate(zip(*text_columns, strict=True)):
        if any(map(is_blank, texts)):
            continue
        truncated = _truncate_texts(texts, task)
        kept_rows.append(row)
        truncated_texts.append(truncated)
        is_cut.append(truncated != texts)
    names = ["text", "second"][: len(text_columns)]
    items = pd.DataFrame(truncated_texts, columns=names, index=kept_rows).assign(truncated=is_cut)
    if task.label is not None:
        labels = read_labels(columns, task.label, where)
        items["label"] = [labels[row] for row in kept_rows]
    return items


def extract_item_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Return the texts of such items: the first ones and, for pairs, the second ones."""
    return [list(items[name]) for name in ("text", "second") if name in items]


def _truncate_texts(texts: tuple[str, ...], task: Task) -> tuple[str, ...]:
    if len(texts) == 1:
        return (truncate_to_words(texts[0], task.max_words, task.language),)
    lengths = [len(split_words(text, task.language)) for text in texts]
    kept_lengths = truncate_pair_lengths(lengths[0], lengths[1], max_length=task.max_words)
    return tuple(
        truncate_to_words(text, length, task.language)
        for text, length in zip(texts, kept_lengths, strict=True)
    )


Sequences = list[list[str]]  # a list of words, or of their tags, for each sentence


def check_tags(tokens: Sequences, tags: Sequences, task: Task, where: str) -> None:
    """Raise InputError unless each token has one tag, which is one word."""
    for row, row_tags in enumerate(tags):
        _check_spaces(row, row_tags, task, where)
    sizes = [(len(words), len(word_tags)) for words, word_tags in zip(tokens, tags, strict=True)]
    are_equal = [num_words == num_tags for num_words, num_tags in sizes]
    if not all(are_equal):
        num_words, num_tags = sizes[are_equal.index(False)]
        start = "the first has " if are_equal.count(False) > 1 else ""
        check_rows(
            are_equal,
            where,
            f"{start}{num_words} tokens in '{task.tokens}' and {num_tags} tags in '{task.label}'; there "
            "must be a tag for each token",
        )


def _check_spaces(row: int, tags: list[str], task: Task, where: str) -> None:
    for tag in tags:
        if len(tag.split()) > 1:
            hint = ""
            if task.columns is not None and task.document_unit is None:
                hint = (
                    "; 'columns' reads one word of a line: where it is a sentence, set "
                    "document_unit: line"
                )
            raise Cell(tags, row, task.label or "", where).error(
                f"the tag '{shorten_value(tag)}' has a space in it; write tags without spaces{hint}"
            )
