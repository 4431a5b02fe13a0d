"""Read a user's file in chunks of rows, with all its columns, and write it with further columns.

Formats are those of `lineage.data.files`, by suffix, and CoNLL columns where the task's own files
have them. A chunk is a table of columns as lists. Memory does not grow with the file, except that
of a .json that is one list.
"""

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.analysis.spreadsheets import escape_cell
from lineage.data.files import (
    DELIMITERS,
    FORMATS,
    JSON_LINES,
    KNOWN_FORMATS,
    DataFiles,
    data_suffix,
    find_delimiter,
    iter_json_rows,
    open_decompressed,
    open_parquet,
    read_column_names,
)
from lineage.data.inspect_task import find_conll_columns
from lineage.data.sources import DataTable
from lineage.data.tables import (
    COMMENT_PREFIXES,
    DOCUMENT_BOUNDARIES,
    TextTableFormat,
    read_text_table,
)
from lineage.errors import InputError
from lineage.tasks.columns import TableColumns

ROWS_PER_CHUNK = 2048
OUTPUT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
WORD_SUFFIX = ".conll"  # of a file with one word per line
PLACE = "FILE"  # the argument of the commands, for messages
COLUMN_HINT = "; name the column that holds it with --text-column"


@dataclass(frozen=True)
class InputFile:
    """A file whose columns are known."""

    path: Path
    suffix: str  # without the compression
    names: tuple[str, ...]
    csv_quoting: bool = True
    text_format: TextTableFormat | None = None  # of a file with one word per line

    @property
    def place(self) -> str:
        """The name for messages."""
        return self.path.name

    @property
    def files(self) -> DataFiles:
        """The file as the reader of a task's files knows it."""
        suffix = self.suffix if self.suffix in FORMATS else ".txt"
        return DataFiles((self.path,), (self.place,), FORMATS[suffix], suffix, self.csv_quoting)

    def check(self, wanted: Sequence[str]) -> None:
        """Raise InputError if the file is empty, damaged, not UTF-8 or lacks a wanted column."""
        table = DataTable(
            self.files,
            PLACE,
            "line",
            text_format=self.text_format,
            missing_column_hint=COLUMN_HINT,
        )
        # The column of a txt has the name that the task asks for.
        table.check(["text"] if table.is_plain_text else wanted)

    def iter_chunks(self, rows_per_chunk: int) -> Iterator[TableColumns]:
        """Yield all columns, so many rows at a time. Raises InputError that names a line."""
        if self.text_format is not None:
            yield from read_text_table(self.files, self.text_format, self.names, PLACE)
            return
        if self.suffix == ".parquet":
            for batch in open_parquet(self.path).iter_batches(rows_per_chunk):
                yield batch.to_pydict()
            return
        readers = {
            ".txt": self._iter_lines,
            ".csv": self._iter_csv_rows,
            ".tsv": self._iter_csv_rows,
        }
        rows = readers.get(self.suffix, self._iter_json_rows)()
        while chunk := list(islice(rows, rows_per_chunk)):
            columns = zip(*chunk, strict=True)
            yield {name: list(column) for name, column in zip(self.names, columns, strict=True)}

    def _iter_lines(self) -> Iterator[tuple[Any, ...]]:
        with open_decompressed(self.path) as stream:
            for line in io.TextIOWrapper(stream, encoding="utf-8-sig"):
                yield (line.rstrip("\n"),)

    def _iter_csv_rows(self) -> Iterator[tuple[Any, ...]]:
        with open_decompressed(self.path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            rows = csv.reader(
                text,
                delimiter=find_delimiter(self.path),
                quoting=self.files.csv_quoting_mode,
            )
            try:
                filled_rows = filter(None, rows)
                next(filled_rows)  # the header
                for row in filled_rows:
                    if len(row) != len(self.names):
                        raise InputError(
                            f"{self.place}, line {rows.line_num}: it has {len(row)} cells, and the "
                            f"first line names {len(self.names)} columns; correct it"
                        )
                    yield tuple(row)
            except csv.Error as error:
                raise InputError(
                    f"{self.place}, line {rows.line_num}: {error}; correct it, or write the table "
                    "as parquet or jsonl"
                ) from error

    def _iter_json_rows(self) -> Iterator[tuple[Any, ...]]:
        for row in iter_json_rows(self.path, self.place):
            yield tuple(row.get(name) for name in self.names)


def open_input(
    path: Path, *, text_column: str, csv_quoting: bool = True, word_columns: Sequence[str] = ()
) -> InputFile:
    """Return a file with the names of its columns; a txt has one, `text_column`, and no header.

    `word_columns` are the columns of the task's own files, if these have one word per line; then
    the file may have the same columns, or the words alone. Raises InputError for a file that is
    missing, empty, damaged or of an unknown format.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; correct the path")
    suffix = data_suffix(path)
    if word_columns and _has_word_per_line(path, suffix, len(word_columns)):
        columns = (text_column,) if _count_cells(path) == 1 else tuple(word_columns)
        text_format = TextTableFormat(columns, "sentence")
        return InputFile(path, suffix, columns, text_format=text_format)
    if suffix not in FORMATS:
        raise InputError(f"{path}: its format is not known by its name; known: {KNOWN_FORMATS}")
    file = InputFile(path, suffix, (text_column,), csv_quoting)
    if suffix == ".txt":
        return file
    file.check([])  # before the names are read: the file may not be UTF-8
    if suffix in JSON_LINES:  # rows may differ in their keys
        names: dict[str, None] = {}
        for row in iter_json_rows(path, path.name):
            names.update(dict.fromkeys(row))
    else:
        mode = file.files.csv_quoting_mode
        names = dict.fromkeys(read_column_names(path, path.name, PLACE, quoting=mode))
    return replace(file, names=tuple(names))


def _has_word_per_line(path: Path, suffix: str, num_columns: int) -> bool:
    """Return whether a file looks like a task's files that have one word per line.

    A file whose name tells no format must be such a file.
    """
    if suffix not in FORMATS:
        return True
    if suffix not in (".txt", ".tsv"):
        return False
    found = find_conll_columns(path)
    return found is not None and len(found) == num_columns


def _count_cells(path: Path) -> int:
    """Return how many cells the first line with a word has; 0 if there is none."""
    no_words = (*COMMENT_PREFIXES, *DOCUMENT_BOUNDARIES)
    with open_decompressed(path) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace"):
            if line.strip() and not line.startswith(no_words):
                return len(line.split())
    return 0


class _Writer:
    """Writes chunks of rows to a draft of a file."""

    def __init__(
        self, draft: Path, path: Path, source: InputFile, new_fields: Mapping[str, pa.DataType]
    ) -> None:
        self.draft = draft
        self.path = path
        self.source = source
        self.new_fields = new_fields

    def write(self, columns: TableColumns) -> None:
        """Write some rows."""
        raise NotImplementedError(f"{type(self).__name__}.write")

    def close(self) -> None:
        """End the file; it may be called twice."""
        raise NotImplementedError(f"{type(self).__name__}.close")


@contextlib.contextmanager
def create_output(
    path: Path, source: InputFile, new_fields: Mapping[str, pa.DataType]
) -> Iterator[_Writer]:
    """Yield a writer of the columns of `source` and the new ones; the file appears when it is done.

    The suffix decides the format. Raises InputError for an unknown suffix, and where `source` is
    the same file or has a column of a new name.
    """
    check_output(path, source)
    for name in new_fields:
        if name in source.names:
            raise InputError(
                f"{source.place}: it has a column '{name}' already; rename that column"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    writers: dict[str, type[_Writer]] = {
        ".jsonl": _JsonWriter,
        ".parquet": _ParquetWriter,
        WORD_SUFFIX: _WordWriter,
    }
    writer = writers.get(path.suffix, _CsvWriter)(draft, path, source, new_fields)
    try:
        yield writer
        writer.close()
        os.replace(draft, path)
    finally:
        writer.close()
        draft.unlink(missing_ok=True)


def check_output(path: Path, source: InputFile) -> None:
    """Raise InputError if a file of this name cannot be written. It needs no reading."""
    suffixes: tuple[str, ...] = OUTPUT_SUFFIXES
    if source.text_format is not None:
        suffixes = (*suffixes, WORD_SUFFIX)
    if path.suffix not in suffixes:
        raise InputError(
            f"{path}: its name must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}"
        )
    if path.exists() and path.samefile(source.path):
        raise InputError(f"{path}: this is the input file; give the output another name")


class _CsvWriter(_Writer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stream = self.draft.open("w", encoding="utf-8", newline="")
        delimiter = DELIMITERS[self.path.suffix]
        if self.path.suffix == self.source.suffix:
            delimiter = find_delimiter(self.source.path)
        self.rows = csv.writer(self.stream, delimiter=delimiter, lineterminator="\n")
        self.rows.writerow(map(escape_cell, [*self.source.names, *self.new_fields]))

    def write(self, columns: TableColumns) -> None:
        cells = [[_cell_to_text(value) for value in values] for values in columns.values()]
        self.rows.writerows(zip(*cells, strict=True))

    def close(self) -> None:
        self.stream.close()


def _cell_to_text(value: Any) -> Any:
    """Write lists and mappings as JSON, and no formula; None becomes a blank cell."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return escape_cell(value)


class _JsonWriter(_Writer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stream = self.draft.open("w", encoding="utf-8")

    def write(self, columns: TableColumns) -> None:
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, map(_without_nan, values), strict=True))
            self.stream.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        self.stream.close()


def _without_nan(value: Any) -> Any:
    """Return None for a number that is missing, since JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


class _WordWriter(_Writer):
    """Writes one word per line with its cells and its tag, and a blank line after a sentence.

    The tags of a sentence are the last new column. Raises InputError for a word without a tag.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stream = self.draft.open("w", encoding="utf-8")

    def write(self, columns: TableColumns) -> None:
        *_, tag_column = self.new_fields
        tags = [(cell or "").split() for cell in columns[tag_column]]
        cells = [columns[name] for name in self.source.names]
        for sentence in zip(*cells, tags, strict=True):
            if len(sentence[0]) != len(sentence[-1]):
                raise InputError(
                    f"{self.source.place}: a sentence has a blank word, which gets no tag; write a "
                    ".jsonl instead"
                )
            for word in zip(*sentence, strict=True):
                self.stream.write("\t".join(word) + "\n")
            self.stream.write("\n")

    def close(self) -> None:
        self.stream.close()


class _ParquetWriter(_Writer):
    """Keeps the types of a parquet file. Those of other files are found in the first chunk."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.writer: pq.ParquetWriter | None = None

    def write(self, columns: TableColumns) -> None:
        try:
            if self.writer is None:
                schema = self._find_schema(columns)
                self.writer = pq.ParquetWriter(self.draft, schema, compression="zstd")
            table = pa.Table.from_pydict(columns, schema=self.writer.schema)
            self.writer.write_table(table)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            raise InputError(
                f"{self.path}: a column of {self.source.place} holds values of several types, "
                "which parquet cannot; write a .jsonl instead"
            ) from None

    def _find_schema(self, columns: TableColumns) -> pa.Schema:
        if self.source.suffix == ".parquet":
            fields = list(open_parquet(self.source.path).schema_arrow)
        elif self.source.suffix in JSON_LINES:
            given = {name: columns[name] for name in self.source.names}
            fields = list(pa.Table.from_pydict(given).schema)
        else:
            fields = [pa.field(name, pa.string()) for name in self.source.names]
        new = [pa.field(name, data_type) for name, data_type in self.new_fields.items()]
        return pa.schema([*fields, *new])

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
