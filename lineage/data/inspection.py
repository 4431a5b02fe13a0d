"""Find files, sample rows and guess languages, for the inspection of corpora and of tasks.

Only a sample is kept in memory: of a corpus the beginning, of a task rows from its whole length,
since a table may be sorted by label. Whatever is wrong with the files is an InputError.
"""

import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from lineage.data.files import (
    FORMATS,
    KNOWN_FORMATS,
    DataFiles,
    data_suffix,
    find_data_files,
    open_decompressed,
    read_column_names,
)
from lineage.data.sources import DataTable
from lineage.errors import InputError
from lineage.language import cell_to_text, is_mostly_cjk
from lineage.tasks.columns import TableColumns

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 1 << 20
BINARY_SAMPLE_BYTES = 1 << 13
DEFAULT_LANGUAGE = "en"
# The language that is guessed from the script of most letters; kana distinguish Japanese from
# Chinese.
LANGUAGE_BY_SCRIPT = {
    "HANGUL": "ko",
    "THAI": "th",
    "CYRILLIC": "ru",
    "GREEK": "el",
    "ARABIC": "ar",
    "HEBREW": "he",
    "DEVANAGARI": "hi",
}
KANA = ("HIRAGANA", "KATAKANA")
MIN_KANA_SHARE = 0.1  # of the Chinese and Japanese characters
SCRIPT_SAMPLE_CHARACTERS = 50_000
DOCUMENT_SUFFIXES = (".docx", ".doc", ".pdf", ".xlsx", ".xls", ".odt", ".html", ".md")


def find_files(pattern: str, root: Path, where: str, *, allow_unknown: bool = False) -> DataFiles:
    """Return the files of a pattern. Raises InputError, also for a binary file.

    With `allow_unknown` a file of unknown suffix is taken for text, unless it is a document.
    """
    files = find_data_files(pattern, root, where, unknown_as_txt=True)
    for path, name in zip(files.paths, files.names, strict=True):
        suffix = data_suffix(path)
        is_unknown = suffix not in FORMATS
        if is_unknown and (suffix in DOCUMENT_SUFFIXES or not allow_unknown):
            raise InputError(
                f"{where}: {name} has the format '{suffix or 'none'}', which is not read; save it "
                f"as one of {KNOWN_FORMATS}"
            )
        if suffix != ".parquet" and _is_binary(path):
            raise InputError(
                f"{where}: {name} is not a text file, since it holds NUL bytes; save a document as "
                "plain text or csv, and convert UTF-16 with iconv -f UTF-16LE -t UTF-8"
            )
    return files


def _is_binary(path: Path) -> bool:
    try:
        with open_decompressed(path) as stream:
            block = stream.read(BINARY_SAMPLE_BYTES)
    except (OSError, EOFError, zlib.error, pa.ArrowException):
        return False  # reading the file later will say what is wrong
    has_bom = block.startswith((b"\xff\xfe", b"\xfe\xff"))
    return b"\x00" in block and not has_bom


def find_csv_quoting(files: DataFiles, where: str) -> dict[str, Any]:
    """Return `csv_quoting: false` if a csv can only be read with it. Raises InputError."""
    try:
        DataTable(files, where).check([])
    except InputError as error:
        if files.format != "csv":
            raise
        try:
            DataTable(replace(files, csv_quoting=False), where).check([])
        except InputError:
            raise error from None
        return {"csv_quoting": False}
    return {}


def list_columns(files: DataFiles, table: DataTable, where: str) -> list[str]:
    """Return the names of the columns; a column without a name cannot be used."""
    if table.text_format is not None:
        return table.text_format.column_names
    assert isinstance(table.data, DataFiles)
    names = read_column_names(
        files.paths[0], files.names[0], where, quoting=table.data.csv_quoting_mode
    )
    return [name for name in names if name.strip()]


def read_first_rows(table: DataTable, columns: Sequence[str]) -> TableColumns:
    """Return the first rows of a table, at most SAMPLE_ROWS."""
    sample: TableColumns = {name: [] for name in columns}
    for batch in table.iter_batches(columns):
        for name in columns:
            sample[name] += batch[name]
        if len(sample[columns[0]]) >= SAMPLE_ROWS:
            break
    return sample


def sample_rows(table: DataTable, columns: Sequence[str]) -> tuple[int, TableColumns]:
    """Return the number of rows, and every n-th one: at most twice SAMPLE_ROWS."""
    rows: list[tuple[Any, ...]] = []
    step = 1
    num_rows = 0
    for batch in table.iter_batches(columns):
        for row in zip(*(batch[name] for name in columns), strict=True):
            if num_rows % step == 0:
                rows.append(row)
            num_rows += 1
            if len(rows) == 2 * SAMPLE_ROWS:
                rows = rows[::2]
                step *= 2
    sample = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    return num_rows, sample


def cell_text(value: Any) -> str:
    """Return a cell as text: words of a list with spaces; nothing for other objects."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    try:
        return cell_to_text(value)
    except TypeError:
        return ""


def count_blocks(lines: Iterable[str]) -> int:
    """Return the number of blocks between blank lines."""
    return sum(is_filled for is_filled, _ in groupby(lines, lambda line: bool(line.strip())))


def guess_language(texts: Iterable[str]) -> str:
    """Return the code of the likely language, by the script of most letters.

    Languages that share a script are not distinguished: Latin letters count as English.
    """
    sample = "\n".join(texts)[:SCRIPT_SAMPLE_CHARACTERS]
    scripts = Counter(
        unicodedata.name(character, "UNKNOWN").split()[0]
        for character in sample
        if character.isalpha()
    )
    if is_mostly_cjk([sample], DEFAULT_LANGUAGE):
        num_kana = sum(scripts[name] for name in KANA)
        return "ja" if num_kana > MIN_KANA_SHARE * (num_kana + scripts["CJK"]) else "zh"
    most_common = max(scripts, key=scripts.__getitem__, default="")
    return LANGUAGE_BY_SCRIPT.get(most_common, DEFAULT_LANGUAGE)
