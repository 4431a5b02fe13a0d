"""Inspect the files of a corpus: their format, the column of texts, documents and language."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage.config.data import CorpusSource
from lineage.data.files import DataFiles, check_readable, open_decompressed
from lineage.data.infer_columns import choose_corpus_text, list_names, note_others
from lineage.data.inspection import (
    SAMPLE_BYTES,
    cell_text,
    count_blocks,
    find_csv_quoting,
    find_files,
    guess_language,
    list_columns,
    read_first_rows,
)
from lineage.data.sources import open_source_table
from lineage.errors import MAX_NAME_WORDS, InputError, shorten_value

MIN_FILES = 10  # with fewer text files, a file is hardly one document
MIN_PARAGRAPHS = 20  # in a sample: then blank lines separate the documents
FORMAT_NAMES = {"parquet": "parquet", "json": "JSON", "text": "plain text"}
DOCUMENT_UNIT_NAMES: dict[Literal["file", "blank_line", "line"], str] = {
    "file": "file",
    "blank_line": "paragraph between blank lines",
    "line": "line",
}


@dataclass(frozen=True)
class CorpusFindings:
    """The findings about one source of a corpus."""

    keys: dict[str, Any]  # keys of CorpusSource
    language: str
    description: str  # for people: files, size, and the guesses
    comment: str  # for params.yaml


@dataclass(frozen=True)
class _SourceGuess:
    """The guesses about a source, in words."""

    keys: dict[str, Any]  # keys of CorpusSource, besides `files`
    note: str  # for people
    comment: str  # for params.yaml
    texts: list[str]  # a sample


def inspect_corpus(
    pattern: str, root: Path, where: str, *, text: str | None = None
) -> CorpusFindings:
    """Inspect the files of a source of running text. `text` names its column. Raises InputError."""
    files = find_files(pattern, root, where)
    if files.format == "text":
        if text is not None:
            raise InputError(f"{where}: {files.names[0]} has no columns; remove text={text}")
        guess = _inspect_text_files(files, where)
    else:
        guess = _inspect_table(pattern, files, root, where, text)
    size = sum(path.stat().st_size for path in files.paths)
    noun = "file" if len(files.paths) == 1 else "files"
    format_name = FORMAT_NAMES.get(files.format, files.suffix.removeprefix("."))
    description = f"{len(files.paths):,} {noun} of {format_name}, {format_bytes(size)}"
    return CorpusFindings(
        {"files": pattern, **guess.keys},
        guess_language(guess.texts),
        f"{description}, {guess.note}",
        guess.comment,
    )


def _inspect_text_files(files: DataFiles, where: str) -> _SourceGuess:
    """Guess what a document of text files is. Raises InputError."""
    check_readable(files, where)
    unit = guess_document_unit(files)
    others = ", ".join(name for name in DOCUMENT_UNIT_NAMES if name != unit)
    return _SourceGuess(
        {"document_unit": unit},
        f"one document per {DOCUMENT_UNIT_NAMES[unit]} (guessed)",
        f"document_unit is guessed: what a document of a file is; or {others}",
        _sample_texts(files),
    )


def _inspect_table(
    pattern: str, files: DataFiles, root: Path, where: str, text: str | None
) -> _SourceGuess:
    """Guess which column of a table holds the texts, unless `text` names it. Raises InputError."""
    keys = find_csv_quoting(files, where)
    table = open_source_table(CorpusSource(files=pattern, **keys), root, where)
    columns = list_columns(files, table, where)
    _check_columns(columns, files, text, where)
    if text is not None:
        sample = read_first_rows(table, [text])
        note = f"text = {shorten_value(text)}"
        comment = ""
    else:
        sample = read_first_rows(table, columns)
        text, others = choose_corpus_text(sample, where)
        note = f"text = {shorten_value(text)} (guessed from the columns {list_names(columns)})"
        comment = f"text is guessed: the longest texts; {note_others(others, 'text')}"
    texts = [cell_text(value) for value in sample[text]]
    return _SourceGuess(keys | {"text": text}, note, comment, texts)


def _check_columns(columns: Sequence[str], files: DataFiles, text: str | None, where: str) -> None:
    """Raise InputError if the text column is not there, or the first line holds a text."""
    if text is not None and text not in columns:
        raise InputError(
            f"{where}: {files.names[0]} has no column '{text}'; its columns are "
            f"{list_names(columns)}"
        )
    if files.format == "csv" and len(columns) == 1 and len(columns[0].split()) > MAX_NAME_WORDS:
        raise InputError(
            f"{where}: the first line of {files.names[0]} looks like a text, not like the name of "
            "a column; add a line with a name, such as text"
        )


def guess_document_unit(files: DataFiles) -> Literal["file", "blank_line", "line"]:
    """Return what is likely one document of text files."""
    if len(files.paths) >= MIN_FILES:
        return "file"
    with open_decompressed(files.paths[0]) as stream:
        lines = stream.read(SAMPLE_BYTES).decode("utf-8", errors="ignore").splitlines()
    return "blank_line" if count_blocks(lines) >= MIN_PARAGRAPHS else "line"


def _sample_texts(files: DataFiles) -> list[str]:
    """Return the beginnings of some text files."""
    step = max(1, len(files.paths) // MIN_FILES)
    return [_read_beginning(path) for path in files.paths[::step]]


def _read_beginning(path: Path) -> str:
    with open_decompressed(path) as stream:
        return stream.read(SAMPLE_BYTES // MIN_FILES).decode("utf-8", errors="ignore")


def format_bytes(size: int) -> str:
    """Return a size as people write it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
