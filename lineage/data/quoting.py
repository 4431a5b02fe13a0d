"""Detect quotation marks in a csv or tsv that glue rows together.

A cell that begins with a quote goes on to the next quote, over line ends too (RFC 4180, section 2).
In many tables nothing closes it, and the rows after it would silently be read into its cell.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from lineage.data.files import open_decompressed
from lineage.errors import InputError
from lineage.tasks.columns import is_number

END_OF_FILE = "\n"
MAX_CATEGORIES = 1000  # distinct values of a column that holds names, such as labels
MAX_CATEGORIES_PER_ROW = 0.2
QUOTING_HINT = (
    "if quotation marks are part of the texts, set csv_quoting: false; otherwise put the cell in "
    "quotation marks and double those inside it, or write the table as parquet or jsonl"
)


class _Record(NamedTuple):
    """A row of a table, as its cells are read, and the lines that it takes."""

    first_line: int
    lines: list[str]
    cells: list[str]

    def split(self, delimiter: str) -> list[list[str]]:
        """Return the cells of each line, as if quotes meant nothing."""
        lines = filter(str.strip, self.lines)
        return [line.rstrip("\r\n").split(delimiter) for line in lines]


class _ColumnProfile:
    """The cells of a column in the rows of one line: of all, since a table may be sorted."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.has_blanks = False
        self.has_numbers = False
        self.has_texts = False
        # At most MAX_CATEGORIES + 1 values: enough to show that they are no categories.
        self.distinct_values: set[str] = set()

    def add_cell(self, cell: str) -> None:
        """Add the cell of one more row."""
        self.num_rows += 1
        if cell in self.distinct_values:
            return
        if len(self.distinct_values) <= MAX_CATEGORIES:
            self.distinct_values.add(cell)
        if not cell.strip():
            self.has_blanks = True
        elif not self.has_texts and is_number(cell):
            self.has_numbers = True
        else:
            self.has_texts = True

    @property
    def is_numeric(self) -> bool:
        """True if all filled cells are numbers."""
        return self.has_numbers and not self.has_texts

    @property
    def is_categorical(self) -> bool:
        """True if the column holds a few names."""
        most = min(MAX_CATEGORIES, MAX_CATEGORIES_PER_ROW * self.num_rows)
        return 0 < len(self.distinct_values) <= most

    @property
    def is_distinctive(self) -> bool:
        """True if a piece of a text could hardly occur in the column."""
        return self.is_numeric or self.is_categorical

    def accepts(self, cell: str) -> bool:
        """Return whether a cell may belong to the column, apart from the quotes around it."""
        bare = cell.strip('"') or cell
        if not bare.strip():
            return self.has_blanks or not self.is_distinctive
        if self.is_numeric and not is_number(bare):
            return False
        return not self.is_categorical or bare in self.distinct_values


def check_quotes(
    path: Path, name: str, where: str, *, num_columns: int, delimiter: str, has_header: bool = True
) -> None:
    """Raise InputError if a csv or tsv would be read with rows glued together.

    A quote counts as unclosed if the next one is inside a cell, or if every line up to it looks
    like a row: as many cells, numbers and names where other rows have them. If no column can tell
    rows from text, all cells with line ends must look so. A table of one column is not checked.
    """
    place = f"{where}: {name}"
    num_multiline = 0
    row_like: list[_Record] = []
    for record in _iter_records(path, place, delimiter, has_header=has_header):
        if len(record.lines) > 1:
            num_multiline += 1
            if num_columns > 1 and all(len(row) == num_columns for row in record.split(delimiter)):
                row_like.append(record)
    if not row_like:
        return
    profiles = [_ColumnProfile() for _ in range(num_columns)]
    for record in _iter_records(path, place, delimiter, has_header=has_header):
        if len(record.lines) == 1 and len(record.cells) == num_columns:
            for profile, cell in zip(profiles, record.cells, strict=True):
                profile.add_cell(cell)
    glued = [
        record
        for record in row_like
        if all(_row_fits(row, profiles) for row in record.split(delimiter))
    ]
    can_tell_rows = delimiter == "\t" or any(profile.is_distinctive for profile in profiles)
    if glued and (can_tell_rows or len(glued) == num_multiline):
        num_rows = len(glued[0].split(delimiter))
        raise _unclosed_quote_error(
            place, glued[0].first_line, f"{num_rows} rows would be read as one"
        )


def _row_fits(row: list[str], profiles: list[_ColumnProfile]) -> bool:
    return all(profile.accepts(cell) for profile, cell in zip(profiles, row, strict=True))


def _iter_records(path: Path, place: str, delimiter: str, *, has_header: bool) -> Iterator[_Record]:
    """Yield each record after the header; blank ones are skipped."""
    pending: list[str] = []  # the lines of the current record

    def read_lines(text: Iterable[str]) -> Iterator[str]:
        for line in text:
            pending.append(line)
            yield line

    with open_decompressed(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        # A quote that is open at the end of the file takes the last line into its record.
        lines = read_lines(chain(text, [END_OF_FILE]))
        first_line = 1
        is_after_header = not has_header
        for cells in csv.reader(lines, delimiter=delimiter):
            record = _Record(first_line, [*pending], cells)
            pending.clear()
            first_line += len(record.lines)
            if len(record.lines) > 1:
                _check_closed(record, place, delimiter)
            if any(map(str.strip, record.lines)):
                if is_after_header:
                    yield record
                is_after_header = True


def _check_closed(record: _Record, place: str, delimiter: str) -> None:
    """Raise InputError if text follows the quote that closes a cell of several lines, or none does."""
    rows = csv.reader(record.lines, delimiter=delimiter, strict=True)
    try:
        next(rows)
    except csv.Error:
        problem = "there is no other one up to the end of the file"
        if rows.line_num < len(record.lines) or record.lines[-1] != END_OF_FILE:
            number = record.first_line + rows.line_num - 1
            problem = f"the next one is inside a text, in line {number}"
        raise _unclosed_quote_error(place, record.first_line, problem) from None


def _unclosed_quote_error(place: str, line: int, problem: str) -> InputError:
    return InputError(
        f"{place}, line {line}: a cell begins with a quotation mark that nothing closes: "
        f"{problem}; {QUOTING_HINT}"
    )
