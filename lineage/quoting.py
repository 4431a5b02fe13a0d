"""Quotation marks in tables of text. A cell that begins with one goes on to the next, over line ends too (RFC 4180, section 2).

Many tables are written without regard for that. Where a text begins with a mark that nothing closes, the rows after it would become a part of its
cell, without a word: here such tables are told from those whose cells do hold line ends.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lineage.errors import InputError
from lineage.files import open_bytes

LEARNED = 1000  # rows that tell what a column holds
NAMES = 0.2  # distinct values a row, at most, of a column that holds names, such as labels
MEND = ("write a mark that is a part of a text twice, within marks round its cell, or write the table anew as parquet or jsonl; "
        "pandas.read_csv(..., quoting=3) reads one in which marks mean nothing")  # fmt: skip


@dataclass(frozen=True)
class _Column:
    """What the rows of one line each have in a column."""

    filled: bool
    numbers: bool
    names: frozenset[str] | None  # the values, where they are few

    @property
    def telling(self) -> bool:
        """Whether a piece of a text could hardly stand there."""
        return self.numbers or self.names is not None

    def fits(self, cell: str) -> bool:
        """Whether a cell may be one of the column's; marks round it do not matter, and blank ones may be where others are, or where texts are."""
        bare = cell.strip('"') or cell
        if not bare.strip():
            return not (self.filled and self.telling)
        return (not self.numbers or _is_number(bare)) and (self.names is None or bare in self.names)


def check_marks(path: Path, name: str, where: str, *, columns: int, delimiter: str, named: bool = True) -> None:
    """Raise InputError where a csv or tsv of so many columns would be read with rows glued together.

    A mark is taken for one that nothing closes where the next one stands within a cell, or where the lines up to it look like rows, each of them: as
    many cells, numbers where the others have numbers, names that they have. Where no column tells rows from pieces of texts, commas do not either:
    then all cells with line ends must look so. A table of one column has nothing to tell them by.
    """
    rows: list[list[str]] = []
    like_rows: list[tuple[int, list[list[str]]]] = []
    over_lines = 0
    with open_bytes(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        records = ((first, lines) for first, lines in _records(text, f"{where}: {name}", delimiter) if any(map(str.strip, lines)))
        if named:
            next(records, None)  # the names of the columns
        for first, lines in records:
            if len(lines) > 1:
                over_lines += 1
                cells = [line.rstrip("\r\n").split(delimiter) for line in lines if line.strip()]
                if columns > 1 and all(len(own) == columns for own in cells):
                    like_rows.append((first, cells))
            elif len(rows) < LEARNED and len(row := _cells(lines[0], delimiter)) == columns:
                rows.append(row)
    known = [_column(list(values)) for values in zip(*rows, strict=True)]
    glued = [(first, cells) for first, cells in like_rows if all(c.fits(cell) for own in cells for c, cell in zip(known, own, strict=False))]
    if glued and (delimiter == "\t" or any(column.telling for column in known) or len(glued) == over_lines):
        first, cells = glued[0]
        raise _unclosed(f"{where}: {name}", first, f"{len(cells)} rows would be read as one")


def _records(lines: Iterable[str], place: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of each row, and the number of the first. Raises InputError where a mark that closes a cell over several lines does not end it."""
    held: list[str] = []
    number, inside = 0, False
    for number, line in enumerate(lines, 1):
        held.append(line)
        inside, ended = _after(line, inside, delimiter)
        if not ended:
            raise _unclosed(place, number + 1 - len(held), f"the next one stands within a text in line {number}")
        if not inside:
            yield number + 1 - len(held), held
            held = []
    if held:
        raise _unclosed(place, number + 1 - len(held), "no other mark does up to the end of the file")


def _after(line: str, inside: bool, delimiter: str) -> tuple[bool, bool]:
    """Whether a line ends inside a cell in marks; and whether the cell inside which it began, if any, ends where its mark says so."""
    place, ended = 0, True
    going_on = inside
    while True:
        if inside:
            place = line.find('"', place) + 1
            if not place:
                return True, ended
            if line.startswith('"', place):  # two of them are one that is a part of the text
                place += 1
                continue
            ended = ended and (not going_on or line[place : place + 1] in (delimiter, "\r", "\n", ""))
            inside = going_on = False
        elif line.startswith('"', place) and (place == 0 or line[place - 1] == delimiter):
            inside, place = True, place + 1
        else:
            place = line.find(delimiter, place) + 1
            if not place:
                return False, ended


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a row of one line; none where one is longer than the reader takes, which is no row to learn from."""
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:
        return []


def _column(values: list[str]) -> _Column:
    filled = [value for value in values if value.strip()]
    names = frozenset(values) if len(set(values)) <= NAMES * len(values) else None
    return _Column(len(filled) == len(values), bool(filled) and all(map(_is_number, filled)), names)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _unclosed(place: str, line: int, what: str) -> InputError:
    return InputError(f"{place}, line {line}: a cell begins with a quotation mark that nothing closes: {what}; {MEND}")
