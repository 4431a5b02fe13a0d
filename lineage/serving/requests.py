"""Read the rows of a request, in the forms that MLflow's scoring server takes.

The bytes are checked before they are parsed, so that a hostile request costs little.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import regex

from lineage.errors import InputError, row_error, shorten_value
from lineage.tasks.columns import TableColumns, is_empty_cell

PLACE = "request"  # for messages
RECORDS = "dataframe_records"
SPLIT = "dataframe_split"
FORMS = frozenset({RECORDS, SPLIT, "inputs", "instances"})
# A string without its end goes on to the end of the bytes, so each byte is read once.
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
BRACKET = re.compile(rb"[\[\]{}]")
MARKS = regex.compile(r"\p{M}++")  # accents and the like, which are drawn over a letter
# Unicode's NFC sorts the marks of a letter in quadratic time: 20,000 of them take seconds.
MAX_MARKS = 100


@dataclass(frozen=True)
class RequestLimits:
    """The most that one request may ask for. `lineage predict` labels files of any size."""

    rows: int
    characters: int
    values: int  # texts, numbers, lists and objects: cells may be lists of words
    depth: int  # of lists and objects in each other


REQUEST_LIMITS = RequestLimits(rows=1000, characters=1_000_000, values=200_000, depth=10)


def read_request(
    body: bytes, *, names: Sequence[str], text_columns: Collection[str]
) -> TableColumns:
    """Return the columns `names` of a request, which may have no others. Raises InputError."""
    check_structure(body)
    try:
        content = json.loads(body)
    except ValueError as error:
        raise InputError(f"{PLACE}: it is not JSON ({error}); correct it") from None
    if not isinstance(content, dict) or len(FORMS & content.keys()) != 1:
        raise InputError(
            f"{PLACE}: it must be an object with one of {', '.join(sorted(FORMS))}; send one"
        )
    (form,) = FORMS & content.keys()
    columns = _read_form(form, content[form], names)
    check_request(columns, text_columns=text_columns)
    return columns


def check_structure(body: bytes) -> None:
    """Raise InputError if JSON has too many values, or is nested too deeply."""
    outside_strings = JSON_STRING.sub(b"", body)
    num_values = sum(map(outside_strings.count, (b",", b"[", b"{")))
    if num_values > REQUEST_LIMITS.values:
        raise InputError(
            f"{PLACE}: it has {num_values:,} values, of at most {REQUEST_LIMITS.values:,}; send "
            "fewer rows, and only columns that the task reads"
        )
    depth = 0
    for bracket in BRACKET.findall(outside_strings):
        depth += 1 if bracket in b"[{" else -1
        if depth > REQUEST_LIMITS.depth:
            raise InputError(f"{PLACE}: it is nested too deeply; send rows of texts")


def _read_form(form: str, table: object, names: Sequence[str]) -> TableColumns:
    if form == SPLIT:
        return _read_records(_split_to_records(table, names), names)
    if form != RECORDS and isinstance(table, dict):
        return _read_columns(table, names)
    if not isinstance(table, list):
        raise InputError(f"{PLACE}: '{form}' must be a list of rows; send one")
    are_texts = bool(table) and all(isinstance(cell, str) for cell in table)
    if form != RECORDS and are_texts and len(names) == 1:
        return {names[0]: table}
    return _read_records(table, names)


def _split_to_records(table: object, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of {"columns": [name, ...], "data": [[cell, ...], ...]} as objects."""
    columns = table.get("columns") if isinstance(table, dict) else None
    rows = table.get("data") if isinstance(table, dict) else None
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise InputError(f"{PLACE}: '{SPLIT}' must have lists 'columns' and 'data'; send both")
    _check_names(columns, names)
    _check_num_rows(len(rows))
    if len(set(columns)) < len(columns):
        raise InputError(f"{PLACE}: two columns have the same name; rename one")
    for row, cells in enumerate(rows):
        if not isinstance(cells, list) or len(cells) != len(columns):
            raise row_error(row, PLACE, f"it must be a list of {len(columns)} cells")
    return [dict(zip(columns, cells, strict=True)) for cells in rows]


def _read_records(rows: list[Any], names: Sequence[str]) -> TableColumns:
    """Return the columns of rows that are objects; a key that a row lacks is a missing value."""
    _check_num_rows(len(rows))
    for row, cells in enumerate(rows):
        if not isinstance(cells, dict):
            raise row_error(row, PLACE, "it must be an object with a value for each column")
        _check_names(cells, names)
    for name in names:
        if not any(name in cells for cells in rows):
            raise _missing_column(name)
    return {name: [cells.get(name) for cells in rows] for name in names}


def _read_columns(table: dict[str, Any], names: Sequence[str]) -> TableColumns:
    """Return the columns of {name: [cell, ...], ...}; one cell alone is a row."""
    _check_names(table, names)
    columns: TableColumns = {}
    for name in names:
        if name not in table:
            raise _missing_column(name)
        cells = table[name]
        columns[name] = cells if isinstance(cells, list) else [cells]
    if len(set(map(len, columns.values()))) > 1:
        raise InputError(f"{PLACE}: its columns have different numbers of cells; correct them")
    return columns


def _missing_column(name: str) -> InputError:
    return InputError(f"{PLACE}: it has no column '{name}'; send one")


def _check_names(found: Iterable[Any], names: Sequence[str]) -> None:
    for name in found:
        if name not in names:
            raise InputError(
                f"{PLACE}: the task does not read a column '{shorten_value(name)}'; send "
                f"{', '.join(names)} only"
            )


def _check_num_rows(num_rows: int) -> None:
    if num_rows > REQUEST_LIMITS.rows:
        raise InputError(
            f"{PLACE}: it has {num_rows:,} rows, and at most {REQUEST_LIMITS.rows:,} are answered "
            "at once; send fewer, or label a file with `lineage predict`"
        )


def check_request(columns: TableColumns, *, text_columns: Collection[str]) -> None:
    """Raise InputError if a request holds no text, something else, or more than REQUEST_LIMITS."""
    _check_num_rows(len(next(iter(columns.values()))))
    for name in text_columns:
        for row, cell in enumerate(columns[name]):
            if isinstance(cell, str):
                _check_characters(cell, row, name)
            elif not is_empty_cell(cell):
                problem = f"column '{name}': a text is expected, not {type(cell).__name__}"
                raise row_error(row, PLACE, problem)
    num_characters = count_characters(columns)
    if num_characters > REQUEST_LIMITS.characters:
        raise InputError(
            f"{PLACE}: it has {num_characters:,} characters, and at most "
            f"{REQUEST_LIMITS.characters:,} are answered at once; send fewer rows, or shorter texts"
        )
    rows = zip(*columns.values(), strict=True)
    if all(any(map(is_empty_cell, cells)) for cells in rows):
        raise InputError(f"{PLACE}: no row has a value in {', '.join(columns)}; give one at least")


def _check_characters(text: str, row: int, name: str) -> None:
    """Raise InputError if a text has half of a character, or endless accents on a letter."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = f"column '{name}': a surrogate stands without its other half"
        raise row_error(row, PLACE, problem) from None
    if any(len(marks[0]) > MAX_MARKS for marks in MARKS.finditer(text)):
        problem = f"column '{name}': a letter has more than {MAX_MARKS} combining marks"
        raise row_error(row, PLACE, problem)


def count_characters(columns: TableColumns) -> int:
    """Return the number of characters in all cells of a table."""
    num_characters = 0
    for cell in chain.from_iterable(columns.values()):
        if isinstance(cell, str):
            num_characters += len(cell)
        elif isinstance(cell, list | tuple | np.ndarray):
            num_characters += sum(len(str(entry)) for entry in cell)
    return num_characters
