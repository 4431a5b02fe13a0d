"""Files that do not name their columns: tables without a line of names, a label and a text a line, a word a line with its tags, and a text a file.

The task names them: a list of what stands between the commas, tabs or spaces, or a pattern of a line, whose named groups they are. A file that is
an item as a whole has the name of its folder and its text. Rows of JSON do name their columns, and are read here too: no two have to be alike. So
are documents that blank lines part.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import IO, Any, Literal

from lineage.config.data import parse_column_names
from lineage.data.files import DELIMITERS, DataFiles, iter_json_rows, open_decompressed
from lineage.errors import InputError
from lineage.tasks.columns import TableColumns

ROWS_PER_BATCH = 500  # rows
SPACES = re.compile(" +")  # of ASCII alone: a token may be an ideographic one
DOCUMENT_BOUNDARIES = (
    "-DOCSTART-",
    "#begin document",
    "#end document",
)  # lines of CoNLL-2003 and of CoNLL-2012 between documents, and no sentences
COMMENT_PREFIXES = ("# ", "#\t")  # with a tab as the heads of sentences of GermEval 2014
CONLLU_METADATA = re.compile(
    r"# \S+ = "
)  # as comments of CoNLL-U are written, but for marks such as "# newpar"
CONLLU_NUM_COLUMNS = 10  # its columns
CONLLU_MULTIWORD_ID = re.compile(
    r"\d+[-.]\d+"
)  # the first of them for "don't" above "do" and "n't", and for words that are not written
MAX_SENTENCE_LINES = 1000  # lines: no sentence is longer that is all of a file
Cells = Sequence[str | None]


@dataclass(frozen=True)
class TextTableFormat:
    """What the files hold: their columns, and what a row is. A sentence is a list for each column, an entry a line, up to a blank line or the end.

    Of a line with `spaced` cells, such as a sentence and its tags, only tabs part them.
    """

    columns: tuple[str, ...] | str  # or a pattern of a line
    row_unit: Literal["line", "spaced", "sentence", "file"] = "line"

    @property
    def column_names(self) -> list[str]:
        """Of the columns."""
        return parse_column_names(self.columns)

    def check(self, files: DataFiles, where: str) -> None:
        """Raise InputError where the files name their columns themselves, or where a pattern is given of a table."""
        if files.suffix != ".txt" and files.format != "csv":
            raise InputError(
                f"{where}: {files.names[0]} names its columns itself; take 'columns' out, and name those that are read"
            )
        if files.format == "csv" and self.row_unit == "line" and isinstance(self.columns, str):
            raise InputError(
                f"{where}: columns is a pattern of lines, and {files.names[0]} is a table; give the names of all its columns as a list"
            )


def read_text_table(
    files: DataFiles, table_format: TextTableFormat, wanted: Sequence[str], where: str
) -> Iterator[TableColumns]:
    """The wanted columns, some rows at a time. Blank lines, but between sentences, are rows without values. Raises InputError that names the line."""
    if table_format.row_unit == "file":
        yield from _read_whole_files(files, wanted)
        return
    names, sentences, table = (
        table_format.column_names,
        table_format.row_unit == "sentence",
        files.format == "csv" and table_format.row_unit == "line",
    )
    places = [names.index(name) for name in wanted]
    for path, name in zip(files.paths, files.names, strict=True):
        place = f"{where}: {name}"
        with open_decompressed(path) as stream:
            found: Iterable[tuple[int, Cells]] = (
                _read_csv_rows(stream, files, place)
                if table
                else _read_line_rows(stream, table_format, place)
            )
            checked = _check_cell_counts(
                found, names, place, hint=_cell_count_hint(table_format, is_csv=table)
            )
            rows: Iterator[Sequence[Any]] = (
                _group_sentences(checked, len(names), place) if sentences else iter(checked)
            )
            while batch := list(islice(rows, ROWS_PER_BATCH)):
                yield {
                    column: [row[at] for row in batch]
                    for column, at in zip(wanted, places, strict=True)
                }


def _read_whole_files(files: DataFiles, wanted: Sequence[str]) -> Iterator[TableColumns]:
    """The wanted ones of `lineage.config.data.WHOLE`."""
    for first in range(0, len(files.paths), ROWS_PER_BATCH):
        some = files.paths[first : first + ROWS_PER_BATCH]
        found = {
            "folder": [path.parent.name for path in some],
            "text": [_read_whole_file(path) for path in some],
        }
        yield {name: found[name] for name in wanted}


def _read_whole_file(path: Path) -> str:
    with open_decompressed(path) as stream:
        return stream.read().decode("utf-8-sig")


def read_json_table(files: DataFiles, wanted: Sequence[str], where: str) -> Iterator[TableColumns]:
    """The wanted keys of rows of JSON, some at a time; one that a row lacks is missing there. Keys that nobody asked for may hold anything."""
    for path, name in zip(files.paths, files.names, strict=True):
        rows = iter_json_rows(path, f"{where}: {name}")
        while batch := list(islice(rows, ROWS_PER_BATCH)):
            yield {key: [row.get(key) for row in batch] for key in wanted}


def _read_csv_rows(stream: IO[bytes], files: DataFiles, place: str) -> Iterator[tuple[int, Cells]]:
    """The number of the line where each row ends, and its cells; none of a blank line."""
    rows = csv.reader(
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""),
        delimiter=DELIMITERS[files.suffix],
        quoting=files.csv_quoting_mode,
    )
    try:
        for cells in rows:
            yield rows.line_num, [*cells] if any(map(str.strip, cells)) else []
    except csv.Error as error:
        raise InputError(
            f"{place}, line {rows.line_num}: {error}; correct it, or write the table as parquet or jsonl"
        ) from error


def _read_line_rows(
    stream: IO[bytes], table_format: TextTableFormat, place: str
) -> Iterator[tuple[int, Cells]]:
    """The number of each line and its cells; none of a blank one. Cells are parted as in the first line: by tabs where it has one, else by spaces,
    and then, but in sentences, the last column has the rest of the line. What CoNLL-U has between words is left out of sentences."""
    columns, sentences = table_format.columns, table_format.row_unit == "sentence"
    lines, tabs = _detect_tabs(
        io.TextIOWrapper(stream, encoding="utf-8-sig"),
        sentences,
        0 if isinstance(columns, str) else len(columns),
    )
    pattern, most = (
        (re.compile(columns), 0)
        if isinstance(columns, str)
        else (None, 0 if sentences else len(columns) - 1)
    )
    for number, ended in enumerate(lines, 1):
        line = ended.rstrip("\n")
        if not line.strip() or (sentences and line.startswith(DOCUMENT_BOUNDARIES)):
            yield number, []
            continue
        comment = sentences and line.startswith(
            COMMENT_PREFIXES
        )  # unless it has the cells of a token
        if pattern is not None:
            if match := pattern.fullmatch(line):
                yield number, [match[name] for name in pattern.groupindex]
            elif not comment:
                raise InputError(
                    f"{place}, line {number}: it does not have the form of the pattern that columns gives; correct it, or the pattern"
                )
            continue
        cells = (
            line.split("\t")
            if tabs or table_format.row_unit == "spaced"
            else [line]
            if len(columns) == 1
            else SPACES.split(line.strip(" "), maxsplit=most)
        )
        if comment and (len(cells) != len(columns) or CONLLU_METADATA.match(line)):
            continue
        if not (
            sentences
            and tabs
            and len(columns) == CONLLU_NUM_COLUMNS
            and CONLLU_MULTIWORD_ID.fullmatch(cells[0])
        ):
            yield number, cells


def _detect_tabs(lines: Iterable[str], sentences: bool, count: int) -> tuple[Iterator[str], bool]:
    """The lines, and whether cells are parted by tabs: whether the first that has cells holds one. A comment may hold some too."""
    held, lines = [], iter(lines)
    for line in lines:
        held.append(line)
        if line.strip() and not (
            sentences
            and line.startswith((*COMMENT_PREFIXES, *DOCUMENT_BOUNDARIES))
            and len(line.split("\t")) != count
        ):
            break
    return chain(held, lines), bool(held) and "\t" in held[-1]


def _cell_count_hint(table_format: TextTableFormat, *, is_csv: bool) -> str:
    """What to do about a line with more or fewer cells than there are names."""
    names = table_format.column_names
    if is_csv:
        return "correct it, or name all columns"
    if table_format.row_unit == "spaced":
        return "document is line, whose words and tags a tab parts: correct it, name all columns, or, where a word is a line, take document out"
    how = f"'(?P<{names[0]}>.*?)_(?P<{names[-1]}>.*)'"
    return f"lines are parted by tabs, by spaces where the first has none: correct it, name all columns, or say how with a pattern, as columns: {how}"


def _check_cell_counts(
    rows: Iterable[tuple[int, Cells]], names: Sequence[str], place: str, *, hint: str
) -> Iterator[Cells]:
    """The cells of each row; a first line that holds just the names is none. Raises InputError where there are not as many as names."""
    first = True
    for number, cells in rows:
        if cells and len(cells) != len(names):
            raise InputError(
                f"{place}, line {number}: it has {len(cells)} cells, and columns names {len(names)}: {', '.join(names)}; {hint}"
            )
        heading = first and any(
            cell and cell.lower() == name.lower() for cell, name in zip(cells, names, strict=False)
        )
        if heading and [(cell or "").lower() for cell in cells] != [name.lower() for name in names]:
            raise InputError(
                f"{place}, line {number}: it holds names of columns, and columns gives others; give those that stand there"
            )
        first = first and not cells
        if not heading:
            yield cells or [None] * len(names)


def _group_sentences(
    rows: Iterable[Cells], count: int, place: str
) -> Iterator[list[list[str | None]]]:
    """The columns of each sentence. Raises InputError at the end of a file that is one alone, and so long that blank lines must be missing."""
    held: list[Cells] = []
    found = longest = 0
    for cells in chain(rows, [[None] * count]):
        if any(cell is not None for cell in cells):
            held.append(cells)
        elif held:
            yield [list(column) for column in zip(*held, strict=True)]
            found, longest, held = found + 1, max(longest, len(held)), []
    if found == 1 and longest > MAX_SENTENCE_LINES:
        raise InputError(
            f"{place}: its {longest:,} lines are one sentence, since no blank line stands between; put one after each sentence, or, "
            "where a line is a sentence, say document: line"
        )


def read_paragraphs(files: DataFiles) -> Iterator[TableColumns]:
    """What stands between blank lines, some at a time. These may hold spaces, as WikiText's do; `datasets` cuts only where they hold none."""
    for path in files.paths:
        with (
            open_decompressed(path) as stream,
            io.TextIOWrapper(stream, encoding="utf-8-sig") as lines,
        ):
            blocks = (
                "".join(own).rstrip("\n")
                for filled, own in groupby(lines, key=lambda line: bool(line.strip()))
                if filled
            )
            while some := [*islice(blocks, ROWS_PER_BATCH)]:
                yield {"text": some}
