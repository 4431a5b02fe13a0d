"""Detect quotation marks in a csv or tsv that glue rows together.

A cell that begins with a quote goes on to the next quote, over line ends too (RFC 4180, section
2). Many tables do not follow that rule: where a text begins with a quote that nothing closes, the
rows after it would silently be read into its cell. This module separates such tables from those
whose cells do contain line ends.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from lineage.data.files import open_decompressed
from lineage.errors import InputError

MAX_CATEGORIES = 1000  # distinct values of a column that holds names, such as labels
MAX_CATEGORIES_PER_ROW = 0.2
QUOTING_HINT = (
    "if quotation marks are part of the texts, set csv_quoting: false; otherwise put the cell in "
    "quotation marks and double those inside it, or write the table as parquet or jsonl"
)


class _ColumnProfile:
    """The cells that a column has in the rows of one line.

    All rows are read, since a table may be sorted by label.
    """

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

    A quote counts as unclosed if the next quote is inside a cell, or if every line up to
    it looks like a row: as many cells, numbers where the other rows have numbers, and names that
    they have. If no column can tell rows from pieces of text, commas cannot either: then all
    cells with line ends must look so. A table of one column is not checked.
    """
    place = f"{where}: {name}"
    num_multiline = 0
    row_like: list[tuple[int, list[list[str]]]] = []  # (first line, cells of each line)
    for first_line, lines in _iter_records(path, place, delimiter, has_header=has_header):
        if len(lines) == 1:
            continue
        num_multiline += 1
        rows = [line.rstrip("\r\n").split(delimiter) for line in lines if line.strip()]
        if num_columns > 1 and all(len(row) == num_columns for row in rows):
            row_like.append((first_line, rows))
    if not row_like:
        return
    records = _iter_records(path, place, delimiter, has_header=has_header)
    profiles = _profile_columns(records, num_columns, delimiter)
    glued = [
        (first_line, rows)
        for first_line, rows in row_like
        if all(_row_fits(row, profiles) for row in rows)
    ]
    if not glued:
        return
    can_tell_rows = delimiter == "\t" or any(profile.is_distinctive for profile in profiles)
    if can_tell_rows or len(glued) == num_multiline:
        first_line, rows = glued[0]
        raise _unclosed_quote_error(place, first_line, f"{len(rows)} rows would be read as one")


def _profile_columns(
    records: Iterator[tuple[int, list[str]]], num_columns: int, delimiter: str
) -> list[_ColumnProfile]:
    profiles = [_ColumnProfile() for _ in range(num_columns)]
    for _, lines in records:
        if len(lines) > 1:
            continue
        row = next(csv.reader(lines, delimiter=delimiter))
        if len(row) == num_columns:
            for profile, cell in zip(profiles, row, strict=True):
                profile.add_cell(cell)
    return profiles


def _row_fits(row: list[str], profiles: list[_ColumnProfile]) -> bool:
    return all(profile.accepts(cell) for profile, cell in zip(profiles, row, strict=True))


def _iter_records(
    path: Path, place: str, delimiter: str, *, has_header: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the lines of each record after the header.

    Blank records are skipped. Raises InputError if a quote that closes a cell of several lines
    does not end it.
    """
    pending: list[str] = []  # the lines of the current record
    number = 0
    in_quotes = False
    is_after_header = not has_header
    with open_decompressed(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        for number, line in enumerate(text, 1):
            pending.append(line)
            in_quotes, closes_cleanly = _scan_line(line, in_quotes, delimiter)
            first_line = number + 1 - len(pending)
            if not closes_cleanly:
                raise _unclosed_quote_error(
                    place, first_line, f"the next one is inside a text, in line {number}"
                )
            if in_quotes:
                continue
            is_filled = any(map(str.strip, pending))
            if is_filled and is_after_header:
                yield first_line, pending
            is_after_header = is_after_header or is_filled
            pending = []
    if pending:
        first_line = number + 1 - len(pending)
        raise _unclosed_quote_error(
            place, first_line, "there is no other one up to the end of the file"
        )


def _scan_line(line: str, in_quotes: bool, delimiter: str) -> tuple[bool, bool]:
    """Return whether a line ends within quotes, and whether it closes a cell cleanly.

    The second is False where the cell in which the line began goes on after its closing quote.
    """
    place = 0
    closes_cleanly = True
    is_continued = in_quotes  # within the cell of an earlier line
    while True:
        if in_quotes:
            place = line.find('"', place) + 1
            if not place:
                return True, closes_cleanly
            if line.startswith('"', place):  # a doubled quote is part of the text
                place += 1
                continue
            if is_continued and line[place : place + 1] not in (delimiter, "\r", "\n", ""):
                closes_cleanly = False
            in_quotes = False
            is_continued = False
        elif line.startswith('"', place) and (place == 0 or line[place - 1] == delimiter):
            in_quotes = True
            place += 1
        else:
            place = line.find(delimiter, place) + 1
            if not place:
                return False, closes_cleanly


def is_number(cell: str) -> bool:
    """Return whether a cell, as it is written, is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _unclosed_quote_error(place: str, line: int, problem: str) -> InputError:
    return InputError(
        f"{place}, line {line}: a cell begins with a quotation mark that nothing closes: "
        f"{problem}; {QUOTING_HINT}"
    )
