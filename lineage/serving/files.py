"""Read a user's file in chunks of rows, with all its columns, and write it with further columns.

A task's files are read by the same code. A chunk is a table of columns as lists. Memory does not
grow with the file, except that of a .json that is one list.
"""

import codecs
import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from lineage.analysis.spreadsheets import escape_cell
from lineage.data.files import (
    DELIMITERS,
    FORMATS,
    KNOWN_FORMATS,
    DataFiles,
    data_suffix,
    find_delimiter,
    iter_json_rows,
    open_decompressed,
    open_parquet,
    read_column_names,
)
from lineage.data.inspection import find_conll_columns
from lineage.data.sources import DataTable
from lineage.data.tables import COMMENT_PREFIXES, DOCUMENT_BOUNDARIES, TextTableFormat
from lineage.errors import InputError
from lineage.tasks.columns import TableColumns

ROWS_PER_CHUNK = 2048
OUTPUT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
WORD_SUFFIX = ".conll"  # of a file with one word per line
PLACE = "FILE"  # the argument of the commands, for messages
COLUMN_HINT = "; name the column that holds it with --text-column"


def format_rows(num_rows: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if num_rows == 1 else f"{num_rows:,} rows"


@dataclass(frozen=True)
class InputFile:
    """A file whose columns are known."""

    path: Path
    table: DataTable
    names: tuple[str, ...]

    def check(self, wanted: Sequence[str]) -> None:
        """Raise InputError if the file is empty, damaged, not UTF-8 or lacks a wanted column."""
        # The column of a txt has the name that the task asks for.
        self.table.check(["text"] if self.table.is_plain_text else wanted)


def open_input(
    path: Path, *, text_column: str, csv_quoting: bool = True, word_columns: Sequence[str] = ()
) -> InputFile:
    """Return a file with the names of its columns; a txt has one, `text_column`, and no header.

    `word_columns` are those of the task's own files, if these have one word per line. Raises
    InputError for a file that is missing, empty, damaged or of an unknown format.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; correct the path")
    suffix = data_suffix(path)
    # A file whose name tells no format must have one word per line.
    has_words = bool(word_columns) and suffix not in FORMATS
    if word_columns and suffix in (".txt", ".tsv"):
        found = find_conll_columns(path)
        has_words = found is not None and len(found) == len(word_columns)
    if suffix not in FORMATS and not has_words:
        raise InputError(f"{path}: its format is not known by its name; known: {KNOWN_FORMATS}")
    known_suffix = suffix if suffix in FORMATS else ".txt"
    files = DataFiles((path,), (path.name,), FORMATS[known_suffix], known_suffix, csv_quoting)
    table = DataTable(files, PLACE, "line", missing_column_hint=COLUMN_HINT, is_lenient=False)
    if has_words:
        names = (text_column,) if _count_cells(path) == 1 else tuple(word_columns)
        return InputFile(
            path, replace(table, text_format=TextTableFormat(names, "sentence")), names
        )
    if table.is_plain_text:
        return InputFile(path, table, (text_column,))
    table.check([])  # before the names are read: the file may not be UTF-8
    if files.format == "json":  # rows may differ in their keys
        rows = iter_json_rows(path, f"{PLACE}: {path.name}")
        names = tuple(dict.fromkeys(chain.from_iterable(rows)))
    else:
        names = tuple(read_column_names(path, path.name, PLACE, quoting=files.csv_quoting_mode))
    if names.count("") > 1:
        raise InputError(f"{path.name}: several columns have no name; name all but one of them")
    return InputFile(path, table, names)


def _count_cells(path: Path) -> int:
    """Return how many cells the first line with a word has; 0 if there is none."""
    no_words = (*COMMENT_PREFIXES, *DOCUMENT_BOUNDARIES)
    with open_decompressed(path) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace"):
            if line.strip() and not line.startswith(no_words):
                return len(line.split())
    return 0


def answer_file(
    source: InputFile,
    path: Path,
    new_fields: Mapping[str, pa.DataType],
    answer: Callable[[TableColumns, int], TableColumns],
    *,
    rows_per_chunk: int,
) -> tuple[int, int]:
    """Write a file with new columns, and return how many rows it has, and how many without answer.

    `answer` returns the new columns of a chunk of rows, given how many rows are before it. Raises
    InputError, also where `source` has a column of a new name.
    """
    check_output(path, source)
    for name in new_fields:
        if name in source.names:
            raise InputError(
                f"{source.path.name}: it has a column '{name}' already; rename that column"
            )
    num_rows = 0
    num_unanswered = 0
    status = Console(stderr=True).status("reading")

    def answer_chunks() -> Iterator[TableColumns]:
        nonlocal num_rows, num_unanswered
        names = ["text"] if source.table.is_plain_text else source.names
        for cells in source.table.iter_batches(names, rows_per_chunk):
            columns = dict(zip(source.names, cells.values(), strict=True))
            new_columns = answer(columns, num_rows)
            yield columns | new_columns
            answers = next(iter(new_columns.values()))
            num_rows += len(answers)
            num_unanswered += sum(one is None for one in answers)
            status.update(format_rows(num_rows))

    path.parent.mkdir(parents=True, exist_ok=True)
    with status:
        _write(path, source, new_fields, answer_chunks())
    return num_rows, num_unanswered


def _write(
    path: Path,
    source: InputFile,
    new_fields: Mapping[str, pa.DataType],
    chunks: Iterator[TableColumns],
) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        if path.suffix == ".parquet":
            _write_parquet(draft, path, source, new_fields, chunks)
        else:
            encoding = _choose_encoding(path.suffix, source)
            with draft.open("w", encoding=encoding, newline="") as stream:
                if path.suffix == ".jsonl":
                    _write_json(stream, chunks)
                elif path.suffix == WORD_SUFFIX:
                    _write_words(stream, source, chunks)
                else:
                    _write_csv(stream, path.suffix, source, new_fields, chunks)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _choose_encoding(suffix: str, source: InputFile) -> str:
    """Keep the byte order mark of a csv or tsv: Excel reads no UTF-8 without it."""
    if suffix not in DELIMITERS or data_suffix(source.path) not in DELIMITERS:
        return "utf-8"
    with open_decompressed(source.path) as stream:
        return "utf-8-sig" if stream.read(3) == codecs.BOM_UTF8 else "utf-8"


def check_output(path: Path, source: InputFile) -> None:
    """Raise InputError if a file of this name cannot be written. It needs no reading."""
    suffixes: tuple[str, ...] = OUTPUT_SUFFIXES
    if source.table.text_format is not None:
        suffixes = (*suffixes, WORD_SUFFIX)
    if path.suffix not in suffixes:
        raise InputError(
            f"{path}: its name must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}"
        )
    if path.exists() and path.samefile(source.path):
        raise InputError(f"{path}: this is the input file; give the output another name")


def _write_csv(
    stream: IO[str],
    suffix: str,
    source: InputFile,
    new_names: Iterable[str],
    chunks: Iterator[TableColumns],
) -> None:
    """Write rows as the source has them, with semicolons too. No cell is a formula."""
    delimiter = DELIMITERS[suffix]
    if suffix == data_suffix(source.path):
        delimiter = find_delimiter(source.path)
    rows = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    rows.writerow(map(escape_cell, [*source.names, *new_names]))
    for columns in chunks:
        cells = [map(_cell_to_text, values) for values in columns.values()]
        rows.writerows(zip(*cells, strict=True))


def _cell_to_text(value: object) -> Any:
    """Write lists and mappings as JSON, and no formula; None becomes a blank cell."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return escape_cell(value)


def _write_json(stream: IO[str], chunks: Iterator[TableColumns]) -> None:
    for columns in chunks:
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, map(_without_nan, values), strict=True))
            stream.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _without_nan(value: object) -> Any:
    """Return None for a number that is missing, since JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _write_words(stream: IO[str], source: InputFile, chunks: Iterator[TableColumns]) -> None:
    """Write one word per line with its cells and its tag, and a blank line after a sentence.

    Raises InputError for a word without a tag.
    """
    for columns in chunks:
        tags = [(cell or "").split() for cell in columns["prediction"]]
        cells = [columns[name] for name in source.names]
        for sentence in zip(*cells, tags, strict=True):
            if len(sentence[0]) != len(sentence[-1]):
                raise InputError(
                    f"{source.path.name}: a sentence has a blank word, which gets no tag; write a "
                    ".jsonl instead"
                )
            for word in zip(*sentence, strict=True):
                stream.write("\t".join(word) + "\n")
            stream.write("\n")


def _write_parquet(
    draft: Path,
    path: Path,
    source: InputFile,
    new_fields: Mapping[str, pa.DataType],
    chunks: Iterator[TableColumns],
) -> None:
    """Write the types of a parquet file as they are. Those of JSON are found in the first chunk."""
    try:
        first: TableColumns = next(chunks, {name: [] for name in [*source.names, *new_fields]})
        new = [pa.field(name, data_type) for name, data_type in new_fields.items()]
        schema = pa.schema([*_source_fields(source, first), *new])
        with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
            for columns in chain([first], chunks):
                writer.write_table(pa.Table.from_pydict(columns, schema=schema))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise InputError(
            f"{path}: a column of {source.path.name} holds values of several types, which parquet "
            "cannot; write a .jsonl instead"
        ) from None


def _source_fields(source: InputFile, first: TableColumns) -> list[pa.Field]:
    suffix = data_suffix(source.path)
    if suffix == ".parquet":
        return list(open_parquet(source.path).schema_arrow)
    if FORMATS.get(suffix) == "json":
        return list(pa.Table.from_pydict({name: first[name] for name in source.names}).schema)
    return [pa.field(name, pa.string()) for name in source.names]
