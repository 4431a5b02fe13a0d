"""Read the rows of csv, JSON and text files.

A csv has a header, and rows of JSON name their columns. params.yaml names those of other tables
(one row per line, CoNLL, one text per file) as a list or as the groups of a regular expression.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import IO, Any, Literal

import regex

from lineage.config.data import parse_column_names
from lineage.data.files import (
    DELIMITERS,
    DataFiles,
    check_columns,
    find_delimiter,
    iter_json_rows,
    open_decompressed,
    read_column_names,
)
from lineage.errors import InputError, list_numbers
from lineage.tasks.columns import TableColumns

ROWS_PER_BATCH = 500
SPACES = re.compile(" +")  # ASCII only: an ideographic space may be a token
# Lines of CoNLL-2003 and CoNLL-2012 between documents.
DOCUMENT_BOUNDARIES = ("-DOCSTART-", "#begin document", "#end document")
COMMENT_PREFIXES = ("# ", "#\t")  # the tab before the head of a sentence in GermEval 2014
CONLLU_METADATA = re.compile(r"# \S+ = ")  # all comments of CoNLL-U but those such as "# newpar"
CONLLU_NUM_COLUMNS = 10
# The id of "don't" above "do" and "n't", and of words that are not written.
CONLLU_MULTIWORD_ID = re.compile(r"\d+[-.]\d+")
MATCH_SECONDS = 5  # for one line: a pattern of the user may take time exponential in its length
MAX_SENTENCE_LINES = 1000  # a file with one longer sentence lacks blank lines
Cells = Sequence[str | None]


@dataclass(frozen=True)
class TextTableFormat:
    """The columns of files that do not name them, and what a row is.

    `line` is one row per line. `spaced` is one sentence per line: tabs separate the columns, and
    spaces the words. `sentence` is one word per line, up to a blank line. `file` is one row per
    file.
    """

    columns: tuple[str, ...] | str  # names, or a regular expression of a line
    row_unit: Literal["line", "spaced", "sentence", "file"] = "line"

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return parse_column_names(self.columns)

    @property
    def is_sentence(self) -> bool:
        """True if a row is a sentence of several lines."""
        return self.row_unit == "sentence"

    def is_csv(self, files: DataFiles) -> bool:
        """Return whether rows follow the rules of a csv."""
        return files.format == "csv" and self.row_unit == "line"

    def check(self, files: DataFiles, where: str) -> None:
        """Raise InputError if files name their columns, or a table is given a pattern."""
        if files.suffix != ".txt" and files.format != "csv":
            raise InputError(
                f"{where}: {files.names[0]} names its columns itself; remove 'columns', and "
                "use the names of the file"
            )
        if self.is_csv(files) and isinstance(self.columns, str):
            raise InputError(
                f"{where}: columns is a pattern of lines, and {files.names[0]} is a table; "
                "give the names of all its columns as a list"
            )


def read_text_table(
    files: DataFiles, table_format: TextTableFormat, wanted: Sequence[str], where: str
) -> Iterator[Sequence[Any]]:
    """Yield the wanted cells of each row; blank lines are rows without values, but in sentences.

    Raises InputError that names the line.
    """
    indices = [table_format.column_names.index(name) for name in wanted]
    for path, name in zip(files.paths, files.names, strict=True):
        with open_decompressed(path) as stream:
            if table_format.row_unit == "file":
                yield [(path.parent.name, stream.read().decode("utf-8-sig"))[i] for i in indices]
                continue
            for row in _read_rows(stream, files, table_format, f"{where}: {name}"):
                yield [row[index] for index in indices]


def _read_rows(
    stream: IO[bytes], files: DataFiles, table_format: TextTableFormat, place: str
) -> Iterator[Sequence[Any]]:
    """Yield the cells of each row of one file; those of a sentence are lists."""
    names = table_format.column_names
    columns = table_format.columns
    is_csv = table_format.is_csv(files)
    numbered_rows: Iterator[tuple[int, Cells]]
    if is_csv:
        rows_of_csv = _read_csv_rows(stream, files, DELIMITERS[files.suffix], place)
        numbered_rows = (
            (number, cells if any(map(str.strip, cells)) else []) for number, cells in rows_of_csv
        )
    elif isinstance(columns, str):
        numbered_rows = _read_pattern_rows(stream, table_format, columns, place)
    else:
        numbered_rows = _read_separated_rows(stream, table_format, columns)
    hint = _cell_count_hint(table_format, is_csv=is_csv)
    rows = _check_cell_counts(numbered_rows, names, place, hint=hint)
    return _group_sentences(rows, len(names), place) if table_format.is_sentence else rows


def read_csv_table(
    files: DataFiles, wanted: Sequence[str], where: str, *, is_lenient: bool
) -> Iterator[Sequence[str]]:
    """Yield the wanted cells of each row of tables with a header; blank lines are skipped.

    With `is_lenient`, lines of spaces are skipped too, and missing cells at a row's end are blank.
    Raises InputError that names the line.
    """
    for path, name in zip(files.paths, files.names, strict=True):
        place = f"{where}: {name}"
        names = read_column_names(path, name, where, quoting=files.csv_quoting_mode)
        check_columns(wanted, names, name, where)
        with open_decompressed(path) as stream:
            rows = _read_csv_rows(stream, files, find_delimiter(path), place)
            filled_rows = ((number, cells) for number, cells in rows if cells)
            next(filled_rows)  # the header
            indices = [names.index(column) for column in wanted]
            for number, cells in filled_rows:
                num_missing = len(names) - len(cells)
                if is_lenient and len(cells) == 1 and cells[0].isspace():
                    continue
                if num_missing < 0 or (num_missing and not is_lenient):
                    raise InputError(
                        f"{place}, line {number}: it has {len(cells)} cells, and the first line "
                        f"names {len(names)} columns; correct it"
                    )
                filled = [*cells, *[""] * num_missing]
                yield [filled[index] for index in indices]


def _read_csv_rows(
    stream: IO[bytes], files: DataFiles, delimiter: str, place: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row, and its cells."""
    rows = csv.reader(
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""),
        delimiter=delimiter,
        quoting=files.csv_quoting_mode,
    )
    try:
        for cells in rows:
            yield rows.line_num, cells
    except csv.Error as error:
        raise InputError(
            f"{place}, line {rows.line_num}: {error}; correct it, or write the table as parquet "
            "or jsonl"
        ) from error


def _read_pattern_rows(
    stream: IO[bytes], table_format: TextTableFormat, columns: str, place: str
) -> Iterator[tuple[int, Cells]]:
    """Yield the groups of a regular expression of a line."""
    pattern = regex.compile(columns)
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig")
    for number, line_with_end in enumerate(lines, 1):
        line = line_with_end.rstrip("\n")
        if _is_row_boundary(line, table_format):
            yield number, []
            continue
        try:
            match = pattern.fullmatch(line, timeout=MATCH_SECONDS)
        except TimeoutError:
            raise InputError(
                f"{place}, line {number}: the pattern in 'columns' is not done with it in "
                f"{MATCH_SECONDS} s; write one without repetitions of repetitions, such as "
                "[^;]* in place of (.*)*"
            ) from None
        if match:
            yield number, [match[name] for name in pattern.groupindex]
        elif not _may_be_comment(line, table_format):
            raise InputError(
                f"{place}, line {number}: it does not match the pattern in 'columns'; "
                "correct it, or the pattern"
            )


def _read_separated_rows(
    stream: IO[bytes], table_format: TextTableFormat, columns: tuple[str, ...]
) -> Iterator[tuple[int, Cells]]:
    """Yield the cells of lines that tabs or spaces separate, as they do in the first line."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    lines, has_tabs = _detect_tabs(text, table_format, len(columns))
    is_conllu = table_format.is_sentence and has_tabs and len(columns) == CONLLU_NUM_COLUMNS
    max_splits = 0 if table_format.is_sentence else len(columns) - 1  # 0: split at all spaces
    for number, line_with_end in enumerate(lines, 1):
        line = line_with_end.rstrip("\n")
        if _is_row_boundary(line, table_format):
            yield number, []
            continue
        if has_tabs or table_format.row_unit == "spaced":
            cells = line.split("\t")
        elif len(columns) == 1:
            cells = [line]
        else:
            cells = SPACES.split(line.strip(" "), maxsplit=max_splits)
        if _may_be_comment(line, table_format):
            has_cells_of_token = len(cells) == len(columns) and not CONLLU_METADATA.match(line)
            if not has_cells_of_token:
                continue
        if is_conllu and CONLLU_MULTIWORD_ID.fullmatch(cells[0]):
            continue
        yield number, cells


def _is_row_boundary(line: str, table_format: TextTableFormat) -> bool:
    if not line.strip():
        return True
    return table_format.is_sentence and line.startswith(DOCUMENT_BOUNDARIES)


def _may_be_comment(line: str, table_format: TextTableFormat) -> bool:
    return table_format.is_sentence and line.startswith(COMMENT_PREFIXES)


def _detect_tabs(
    lines: Iterator[str], table_format: TextTableFormat, num_columns: int
) -> tuple[Iterator[str], bool]:
    """Return all lines, and whether tabs separate the cells: whether the first row has one."""
    seen = []
    for line in lines:
        seen.append(line)
        is_comment = (
            table_format.is_sentence
            and line.startswith((*COMMENT_PREFIXES, *DOCUMENT_BOUNDARIES))
            and len(line.split("\t")) != num_columns
        )
        if line.strip() and not is_comment:
            break
    has_tabs = bool(seen) and "\t" in seen[-1]
    return chain(seen, lines), has_tabs


def _cell_count_hint(table_format: TextTableFormat, *, is_csv: bool) -> str:
    """Return what to do about a line with another number of cells than there are names."""
    if is_csv:
        return "correct it, or name all columns; without a header, commas separate the cells"
    if table_format.row_unit == "spaced":
        return (
            "document_unit is line, whose words and tags a tab parts: correct it, name all "
            "columns, or, if a word is a line, remove document_unit"
        )
    names = table_format.column_names
    pattern = f"'(?P<{names[0]}>.*?)_(?P<{names[-1]}>.*)'"
    return (
        "lines are parted by tabs, by spaces where the first has none: correct it, name all "
        f"columns, or say how with a pattern, as columns: {pattern}"
    )


def _check_cell_counts(
    rows: Iterable[tuple[int, Cells]], names: Sequence[str], place: str, *, hint: str
) -> Iterator[Cells]:
    """Yield the cells of each row, as many as names, after a first line that holds the names.

    A blank line gives None for each name. Raises InputError if the numbers differ.
    """
    is_first = True
    for number, cells in rows:
        if not cells:
            yield [None] * len(names)
            continue
        if len(cells) != len(names):
            others = [other for other, its_cells in rows if len(its_cells) not in (0, len(names))]
            lines = f", line {number}: it"
            if others:
                shown = list_numbers([number, *others])
                lines = f": {len(others) + 1:,} lines ({shown}): the first"
            raise InputError(
                f"{place}{lines} has {len(cells)} cells, and columns names "
                f"{len(names)}: {', '.join(names)}; {hint}"
            )
        if is_first and _is_header(cells, names, f"{place}, line {number}"):
            is_first = False
            continue
        is_first = False
        yield cells


def _is_header(cells: Cells, names: Sequence[str], place: str) -> bool:
    """Return whether a line holds the names of the columns."""
    lowered_cells = [(cell or "").lower() for cell in cells]
    lowered_names = [name.lower() for name in names]
    if lowered_cells == lowered_names:
        return True
    if any(a and a == b for a, b in zip(lowered_cells, lowered_names, strict=True)):
        raise InputError(
            f"{place}: it is a header, and 'columns' gives other names; use the names of the header"
        )
    return False


def _group_sentences(
    rows: Iterable[Cells], num_columns: int, place: str
) -> Iterator[list[list[str | None]]]:
    """Yield the columns of each sentence."""
    lines: list[Cells] = []
    num_sentences = 0
    longest = 0
    for cells in chain(rows, [[None] * num_columns]):
        if any(cell is not None for cell in cells):
            lines.append(cells)
        elif lines:
            yield [list(column) for column in zip(*lines, strict=True)]
            num_sentences += 1
            longest = max(longest, len(lines))
            lines = []
    if num_sentences == 1 and longest > MAX_SENTENCE_LINES:
        raise InputError(
            f"{place}: its {longest:,} lines are one sentence, since no blank line separates them; "
            "put one after each sentence, or, if a line is a sentence, set document_unit: line"
        )


def read_json_table(files: DataFiles, wanted: Sequence[str], where: str) -> Iterator[Sequence[Any]]:
    """Yield the wanted keys of JSON rows; None if a row lacks one. Others may hold anything."""
    for path, name in zip(files.paths, files.names, strict=True):
        for row in iter_json_rows(path, f"{where}: {name}"):
            yield [row.get(key) for key in wanted]


def read_texts(
    files: DataFiles, document_unit: Literal["file", "blank_line", "line"]
) -> Iterator[Sequence[str]]:
    """Yield each text of files of running text. Blank lines may hold spaces, as WikiText's do."""
    for path in files.paths:
        with (
            open_decompressed(path) as stream,
            io.TextIOWrapper(stream, encoding="utf-8-sig") as lines,
        ):
            if document_unit == "file":
                yield [lines.read()]
            elif document_unit == "line":
                yield from ([line.rstrip("\n")] for line in lines)
            else:
                for is_filled, block in groupby(lines, key=lambda line: bool(line.strip())):
                    if is_filled:
                        yield ["".join(block).rstrip("\n")]


def batch_rows(
    rows: Iterator[Sequence[Any]], names: Sequence[str], rows_per_batch: int
) -> Iterator[TableColumns]:
    """Yield rows as tables of so many rows."""
    while batch := list(islice(rows, rows_per_batch)):
        columns = zip(*batch, strict=True)
        yield {name: list(column) for name, column in zip(names, columns, strict=True)}
