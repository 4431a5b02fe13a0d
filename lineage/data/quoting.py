"""Quotation marks in tables of text. A cell that begins with one goes on to the next, over line ends too (RFC 4180, section 2).

Many tables are written without regard for that. Where a text begins with a mark that nothing closes, the rows after it would become a part of its
cell, without a word: here such tables are told from those whose cells do hold line ends.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from lineage.data.files import open_decompressed
from lineage.errors import InputError

MAX_CATEGORIES = 1000  # distinct values, at most, of a column that holds names, such as labels
MAX_CATEGORIES_PER_ROW = 0.2  # and a row, at most
QUOTING_HINT = (
    "if marks are but a part of the texts, say quotes: false; else write such a one twice, within marks round its cell, or write the table anew "
    "as parquet or jsonl"
)


class _ColumnProfile:
    """What the rows of one line each have in a column; all of them, since a table may be in the order of its labels."""

    def __init__(self) -> None:
        self.num_rows, self.has_blanks, self.has_numbers, self.has_texts = (
            0,
            False,
            False,
            False,
        )  # how many, and what is among them
        self.distinct_values: set[str] = set()  # no more than show that they are no names

    def add_cell(self, cell: str) -> None:
        """One more row."""
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
        """Whether all that is there are numbers."""
        return self.has_numbers and not self.has_texts

    @property
    def is_categorical(self) -> bool:
        """Whether it holds a few names."""
        return (
            0
            < len(self.distinct_values)
            <= min(MAX_CATEGORIES, MAX_CATEGORIES_PER_ROW * self.num_rows)
        )

    @property
    def is_distinctive(self) -> bool:
        """Whether a piece of a text could hardly stand there."""
        return self.is_numeric or self.is_categorical

    def accepts(self, cell: str) -> bool:
        """Whether a cell may be one of the column's; marks round it do not matter, and blank ones may be where others are, or where texts are."""
        bare = cell.strip('"') or cell
        if not bare.strip():
            return self.has_blanks or not self.is_distinctive
        return (not self.is_numeric or is_number(bare)) and (
            not self.is_categorical or bare in self.distinct_values
        )


def check_quotes(
    path: Path, name: str, where: str, *, num_columns: int, delimiter: str, has_header: bool = True
) -> None:
    """Raise InputError where a csv or tsv of so many columns would be read with rows glued together.

    A mark is taken for one that nothing closes where the next one stands within a cell, or where the lines up to it look like rows, each of them: as
    many cells, numbers where the others have numbers, names that they have. Where no column tells rows from pieces of texts, commas do not either:
    then all cells with line ends must look so. A table of one column has nothing to tell them by.
    """
    like_rows: list[tuple[int, list[list[str]]]] = []
    over_lines, place = 0, f"{where}: {name}"
    for first, lines in _iter_records(path, place, delimiter, has_header=has_header):
        if len(lines) > 1:
            over_lines += 1
            cells = [line.rstrip("\r\n").split(delimiter) for line in lines if line.strip()]
            if num_columns > 1 and all(len(own) == num_columns for own in cells):
                like_rows.append((first, cells))
    known = [_ColumnProfile() for _ in range(num_columns)]
    for _, lines in (
        _iter_records(path, place, delimiter, has_header=has_header) if like_rows else ()
    ):
        if (
            len(lines) == 1
            and len(row := next(csv.reader(lines, delimiter=delimiter))) == num_columns
        ):
            for column, cell in zip(known, row, strict=True):
                column.add_cell(cell)
    glued = [
        (first, cells)
        for first, cells in like_rows
        if all(c.accepts(cell) for own in cells for c, cell in zip(known, own, strict=True))
    ]
    if glued and (
        delimiter == "\t"
        or any(column.is_distinctive for column in known)
        or len(glued) == over_lines
    ):
        first, cells = glued[0]
        raise _unclosed_quote_error(place, first, f"{len(cells)} rows would be read as one")


def _iter_records(
    path: Path, place: str, delimiter: str, *, has_header: bool
) -> Iterator[tuple[int, list[str]]]:
    """The lines of each row, behind the names of the columns if they are named, and the number of the first; blank ones are passed over.

    Raises InputError where a mark that closes a cell over several lines does not end it.
    """
    held: list[str] = []
    number, inside, below = 0, False, not has_header
    with open_decompressed(path) as stream:
        for number, line in enumerate(
            io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), 1
        ):
            held.append(line)
            inside, ended = _scan_line(line, inside, delimiter)
            if not ended:
                raise _unclosed_quote_error(
                    place,
                    number + 1 - len(held),
                    f"the next one stands within a text in line {number}",
                )
            if not inside:
                there = any(map(str.strip, held))
                if there and below:
                    yield number + 1 - len(held), held
                below, held = below or there, []
    if held:
        raise _unclosed_quote_error(
            place, number + 1 - len(held), "no other mark does up to the end of the file"
        )


def _scan_line(line: str, in_quotes: bool, delimiter: str) -> tuple[bool, bool]:
    """Whether a line ends inside a cell in marks; and whether the cell inside which it began, if any, ends where its mark says so."""
    place, ended = 0, True
    going_on = in_quotes
    while True:
        if in_quotes:
            place = line.find('"', place) + 1
            if not place:
                return True, ended
            if line.startswith('"', place):  # two of them are one that is a part of the text
                place += 1
                continue
            ended = ended and (
                not going_on or line[place : place + 1] in (delimiter, "\r", "\n", "")
            )
            in_quotes = going_on = False
        elif line.startswith('"', place) and (place == 0 or line[place - 1] == delimiter):
            in_quotes, place = True, place + 1
        else:
            place = line.find(delimiter, place) + 1
            if not place:
                return False, ended


def is_number(cell: str) -> bool:
    """Whether a cell as it is written is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _unclosed_quote_error(place: str, line: int, what: str) -> InputError:
    return InputError(
        f"{place}, line {line}: a cell begins with a quotation mark that nothing closes: {what}; {QUOTING_HINT}"
    )
