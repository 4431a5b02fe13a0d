"""Inspect the files of corpora and of tasks for `lineage init`, and infer how to read them.

Only a sample is kept in memory: the beginning of a corpus, and rows from a task's whole length,
since it may be sorted by label. Whatever is wrong with the files is an InputError.
"""

import contextlib
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from lineage.config.data import CorpusSource, Task
from lineage.data.files import (
    FORMATS,
    KNOWN_FORMATS,
    DataFiles,
    check_readable,
    data_suffix,
    find_data_files,
    join_pattern,
    open_decompressed,
    read_column_names,
)
from lineage.data.infer_columns import (
    choose_columns,
    choose_corpus_text,
    find_group_column,
    list_recognized_kinds,
)
from lineage.data.sources import DataTable, open_source_table, open_task_tables
from lineage.data.tables import COMMENT_PREFIXES, CONLLU_NUM_COLUMNS, DOCUMENT_BOUNDARIES, SPACES
from lineage.errors import MAX_NAME_WORDS, InputError, shorten_value
from lineage.language import cell_to_text, is_mostly_cjk, split_words
from lineage.tasks.base import Kind, load_kind
from lineage.tasks.columns import TableColumns, is_number, normalize_label
from lineage.tasks.recognition import ColumnChoice, RequestedColumns, list_names, note_others

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 1 << 20
BINARY_SAMPLE_BYTES = 1 << 13
DEFAULT_LANGUAGE = "en"
# The language that is inferred from the script of most letters; kana distinguish Japanese from
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
MIN_FILES = 10  # with fewer text files, a file is hardly one document
MIN_PARAGRAPHS = 20  # in a sample: then blank lines separate the documents
FORMAT_NAMES = {"parquet": "parquet", "json": "JSON", "text": "plain text"}
DOCUMENT_UNIT_NAMES: dict[Literal["file", "blank_line", "line"], str] = {
    "file": "file",
    "blank_line": "paragraph between blank lines",
    "line": "line",
}
MIN_SENTENCES = 3  # of a file with one word per line
MIN_COLUMNS_SHARE = 0.9  # of its lines, which have the same number of columns
MAX_WORDS_STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
COVERED_SHARE = 0.95  # of the texts, which are not longer than max_words
CONLL_COLUMNS = {
    2: ("tokens", "ner"),
    3: ("tokens", "pos", "chunk"),
    4: ("tokens", "pos", "chunk", "ner"),
    CONLLU_NUM_COLUMNS: (
        "id",
        "tokens",
        "lemma",
        "upos",
        "xpos",
        "feats",
        "head",
        "deprel",
        "deps",
        "misc",
    ),
}


def find_files(pattern: str, root: Path, where: str, *, allow_unknown: bool = False) -> DataFiles:
    """Return the files of a pattern. Raises InputError, also for a binary file."""
    files = find_data_files(pattern, root, where, unknown_as_txt=True)
    for path, name in zip(files.paths, files.names, strict=True):
        suffix = data_suffix(path)
        is_unknown = suffix not in FORMATS
        if is_unknown and (suffix in DOCUMENT_SUFFIXES or not allow_unknown):
            raise InputError(
                f"{where}: {name} has the format '{suffix or 'none'}', which is not read; save it "
                f"as one of {KNOWN_FORMATS}"
            )
        block = b""
        # Reading the file later will say what is wrong with it.
        with (
            contextlib.suppress(OSError, EOFError, zlib.error, pa.ArrowException),
            open_decompressed(path) as stream,
        ):
            block = stream.read(BINARY_SAMPLE_BYTES)
        has_bom = block.startswith((b"\xff\xfe", b"\xfe\xff"))
        if suffix != ".parquet" and b"\x00" in block and not has_bom:
            raise InputError(
                f"{where}: {name} is not a text file, since it holds NUL bytes; save a document as "
                "plain text or csv, and convert UTF-16 with iconv -f UTF-16LE -t UTF-8"
            )
    return files


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


def infer_language(texts: Iterable[str]) -> str:
    """Return the code of the likely language, by the script of most letters."""
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


@dataclass(frozen=True)
class CorpusFindings:
    """The findings about one source of a corpus."""

    keys: dict[str, Any]  # keys of CorpusSource
    language: str
    description: str  # for people: files, size, and what was inferred
    comment: str  # for params.yaml


def inspect_corpus(
    pattern: str, root: Path, where: str, *, text: str | None = None
) -> CorpusFindings:
    """Inspect the files of a source of running text. `text` names its column. Raises InputError."""
    files = find_files(pattern, root, where)
    size = sum(path.stat().st_size for path in files.paths)
    noun = "file" if len(files.paths) == 1 else "files"
    format_name = FORMAT_NAMES.get(files.format, files.suffix.removeprefix("."))
    description = f"{len(files.paths):,} {noun} of {format_name}, {format_bytes(size)}"
    if files.format != "text":
        return _inspect_table(pattern, files, description, root, where, text)
    if text is not None:
        raise InputError(f"{where}: {files.names[0]} has no columns; remove text={text}")
    check_readable(files, where)
    beginnings = [
        _read_beginning(path) for path in files.paths[:: max(1, len(files.paths) // MIN_FILES)]
    ]
    unit: Literal["file", "blank_line", "line"] = "file"
    if len(files.paths) < MIN_FILES:
        num_paragraphs = count_blocks(_read_beginning(files.paths[0], SAMPLE_BYTES).splitlines())
        unit = "blank_line" if num_paragraphs >= MIN_PARAGRAPHS else "line"
    others = ", ".join(name for name in DOCUMENT_UNIT_NAMES if name != unit)
    return CorpusFindings(
        {"files": pattern, "document_unit": unit},
        infer_language(beginnings),
        f"{description}, one document per {DOCUMENT_UNIT_NAMES[unit]} (guessed)",
        f"document_unit is guessed: what a document of a file is; or {others}",
    )


def _read_beginning(path: Path, num_bytes: int = SAMPLE_BYTES // MIN_FILES) -> str:
    with open_decompressed(path) as stream:
        return stream.read(num_bytes).decode("utf-8", errors="ignore")


def _inspect_table(
    pattern: str, files: DataFiles, description: str, root: Path, where: str, text: str | None
) -> CorpusFindings:
    """Infer which column of a table holds the texts, unless `text` names it. Raises InputError."""
    keys = find_csv_quoting(files, where)
    table = open_source_table(CorpusSource(files=pattern, **keys), root, where)
    columns = list_columns(files, table, where)
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
    origin = ""
    comment = ""
    wanted = columns if text is None else [text]
    sample: TableColumns = {name: [] for name in wanted}
    for batch in table.iter_batches(wanted):
        for name in wanted:
            sample[name] += batch[name]
        if len(sample[wanted[0]]) >= SAMPLE_ROWS:
            break
    if text is None:
        text, others = choose_corpus_text(sample, where)
        origin = f" (guessed from the columns {list_names(columns)})"
        comment = f"text is guessed: the longest texts; {note_others(others, 'text')}"
    return CorpusFindings(
        {"files": pattern, **keys, "text": text},
        infer_language(map(cell_text, sample[text])),
        f"{description}, text = {shorten_value(text)}{origin}",
        comment,
    )


def format_bytes(size: int) -> str:
    """Return a size as people write it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


@dataclass(frozen=True)
class TaskFindings:
    """The findings about a task."""

    name: str
    kind: str
    files: dict[str, str]  # by split
    keys: dict[str, Any]  # keys of Task that say how files are read, and name their columns
    language: str
    num_rows: dict[str, int]  # by split
    columns: tuple[str, ...]  # of the data
    choice: ColumnChoice
    is_kind_guessed: bool
    is_guessed: bool  # the user has not named text and label
    max_words: int | None  # None: texts are not truncated
    covered_share: float  # of the texts, which max_words leaves whole


def inspect_task(
    name: str, files: dict[str, str], root: Path, where: str, requested: RequestedColumns
) -> TaskFindings:
    """Inspect the files of a task by split, with `train`, and infer its kind and columns.

    Raises InputError.
    """
    _check_kind(requested.kind, where)
    data_files, keys = _describe_training_file(files["train"], root, where)
    table = _open_split(files["train"], keys, "train", root, where)
    table.check([])
    columns = list_columns(data_files, table, where)
    num_rows, sample = sample_rows(table, columns)
    if num_rows == 0:
        raise InputError(f"{where}: {table.name} holds no rows; fill it, or name another file")
    kind, choice = choose_columns(sample, _with_known_columns(requested, keys), name, where)
    _check_names_fit(sample, columns, kind, choice, keys, data_files, where)
    read_test_columns = kind.recognition and kind.recognition.read_test_columns
    if read_test_columns and "test" in files:
        choice = read_test_columns(choice, _list_columns(files["test"], keys, "test", root, where))
    group = find_group_column(sample, choice) if kind.has_train_split else None
    labelled = files.keys() & {"train", "validation", "test"}
    if group and all(
        group in _list_columns(files[split], keys, split, root, where) for split in labelled
    ):
        choice = replace(choice, keys=choice.keys | {"group": group})
    texts = [list(map(cell_text, sample[text_name])) for text_name in choice.text_columns]
    language = infer_language(text for column in texts for text in column)
    max_words = None
    covered_share = 1.0
    if choice.is_cut:
        max_words, covered_share = infer_max_words(texts, language)
    counts = {"train": num_rows}
    for split in sorted(files.keys() - {"train"}):
        counts[split] = _count_rows(files[split], keys, kind, choice, split, root, where)
    return TaskFindings(
        name,
        kind.name,
        files,
        keys | choice.keys,
        language,
        counts,
        tuple(columns),
        choice,
        is_kind_guessed=requested.kind is None,
        is_guessed=not (requested.text and requested.label),
        max_words=max_words,
        covered_share=covered_share,
    )


def _check_kind(name: str | None, where: str) -> None:
    """Raise InputError if a kind that the user has named is not proposed."""
    if name is not None and load_kind(name, f"{where}: kind").recognition is None:
        known = ", ".join(kind.name for kind in list_recognized_kinds())
        raise InputError(
            f"{where}: kind={name}: the columns of this kind are not guessed, only those of "
            f"{known}; begin with another task, and add this one to params.yaml "
            "(docs/how-to/data-and-tasks.md)"
        )


def _describe_training_file(
    pattern: str, root: Path, where: str
) -> tuple[DataFiles, dict[str, Any]]:
    """Return the files of a task, and the keys that say how they are read. Raises InputError."""
    files = find_files(pattern, root, where, allow_unknown=True)
    if join_pattern(root, pattern).is_dir() and files.suffix != ".txt":
        raise InputError(
            f"{where}: the folder holds {len(files.paths)} files of type {files.suffix}; name the "
            "file of each split, as train.csv,test=test.csv"
        )
    check_readable(files, where)
    if files.suffix == ".txt" and len(files.paths) > 1:
        _check_label_folders(files, where)
        return files, {"document_unit": "file"}
    if files.suffix in (".txt", ".tsv"):
        columns = find_conll_columns(files.paths[0])
        if columns is not None:
            return files, {"columns": columns}
    if files.suffix == ".txt":
        raise InputError(
            f"{where}: {files.names[0]} has no columns of words and tags (one word per line, a "
            "blank line after each sentence); give a csv with a first line of names, or a folder "
            "of .txt files with one folder per label"
        )
    return files, find_csv_quoting(files, where)


def _check_label_folders(files: DataFiles, where: str) -> None:
    """Raise InputError unless each text file is in a folder that may be its label."""
    folders = {path.parent for path in files.paths}
    parents = {folder.parent for folder in folders}
    if len(parents) > 1:
        names = list_names(sorted(parent.name for parent in parents))
        raise InputError(
            f"{where}: folders with texts lie in several folders ({names}); name the "
            "folder whose sub-folders are the labels, as reviews/train,test=reviews/test"
        )
    if len(folders) < 2:
        raise InputError(
            f"{where}: all {len(files.paths):,} texts lie in one folder; put those of each label "
            "into a sub-folder with its name"
        )


def _with_known_columns(requested: RequestedColumns, keys: dict[str, Any]) -> RequestedColumns:
    """Return the request with the columns that a format without names always has."""
    if keys.get("document_unit") == "file":
        return replace(requested, text=("text",), label="folder")
    if "columns" in keys:
        columns = keys["columns"]
        usual = "upos" if "upos" in columns else columns[-1]
        label = requested.label or usual
        return replace(requested, text=requested.text or ("tokens",), label=label)
    return requested


def _check_names_fit(
    sample: TableColumns,
    columns: Sequence[str],
    kind: Kind,
    choice: ColumnChoice,
    keys: dict[str, Any],
    files: DataFiles,
    where: str,
) -> None:
    """Raise InputError if names of columns do not fit the values below them."""
    if "columns" in keys:
        if not kind.answer.are_words:
            raise InputError(
                f"{where}: {files.names[0]} has one word per line, but no column has few distinct "
                "tags; give a csv with a first line of names, or name the column of tags, as "
                f"label={columns[-1]} (its columns are called {', '.join(columns)})"
            )
        return
    if files.format != "csv":
        return
    label = choice.keys.get("label")
    labels = {normalize_label(str(value).strip()) for value in sample.get(label or "", [])}
    if label in labels or any(map(is_number, columns)):
        raise InputError(
            f"{where}: the first line of {files.names[0]} looks like a row, not like the names of "
            "the columns; add a line of names, such as text,label"
        )


def _open_split(
    pattern: str, keys: dict[str, Any], split: str, root: Path, where: str
) -> DataTable:
    """Open the file of a split, before the kind of its task is known."""
    files: Any = {split: pattern}
    tokens = "tokens" if "columns" in keys else None  # then a line is a word
    task = Task(kind="", files=files, tokens=tokens, **keys)
    return replace(open_task_tables(task, root, where)[split], where=where)


def find_conll_columns(path: Path) -> tuple[str, ...] | None:
    """Return the names of the columns of a file with one word per line; None for another file."""
    with open_decompressed(path) as stream:
        block = stream.read(SAMPLE_BYTES)
    lines = block.decode("utf-8-sig", errors="ignore").replace("\r\n", "\n").split("\n")
    if len(block) == SAMPLE_BYTES:
        lines.pop()  # it may be cut
    no_words = (*COMMENT_PREFIXES, *DOCUMENT_BOUNDARIES)
    lines = [line for line in lines if not line.startswith(no_words)]
    has_tabs = any("\t" in line for line in lines)
    rows = [
        line.split("\t") if has_tabs else SPACES.split(line.strip(" "))
        for line in lines
        if line.strip()
    ]
    if not rows or count_blocks(lines) < MIN_SENTENCES:
        return None
    size, count = Counter(map(len, rows)).most_common(1)[0]
    # Some lines may lack a tag: reading the file names them.
    if size < 2 or count < MIN_COLUMNS_SHARE * len(rows):
        return None
    others = tuple(f"column{place}" for place in range(2, size))
    return CONLL_COLUMNS.get(size, ("tokens", *others, "ner"))


def _list_columns(
    pattern: str, keys: dict[str, Any], split: str, root: Path, where: str
) -> list[str]:
    split_where = f"{where}: {split}"
    files = find_files(pattern, root, split_where, allow_unknown=True)
    table = _open_split(pattern, keys, split, root, split_where)
    table.check([])
    return list_columns(files, table, split_where)


def _count_rows(
    pattern: str,
    keys: dict[str, Any],
    kind: Kind,
    choice: ColumnChoice,
    split: str,
    root: Path,
    where: str,
) -> int:
    """Check the file of a further split, and count its rows. Raises InputError."""
    split_where = f"{where}: {split}"
    find_files(pattern, root, split_where, allow_unknown=True)
    table = _open_split(pattern, keys, split, root, split_where)
    names = [choice.keys[key] for key in kind.keys_of_split(split, choice.keys)]
    wanted = list(chain.from_iterable([one] if isinstance(one, str) else one for one in names))
    if split == "unlabelled":
        first_text = choice.keys.get("text", ["text"])[0]
        wanted = ["text" if table.is_plain_text else choice.keys.get("tokens", first_text)]
    table.check(wanted)
    return sum(len(batch[wanted[0]]) for batch in table.iter_batches(wanted[:1]))


def infer_max_words(texts: list[list[str]], language: str) -> tuple[int, float]:
    """Return a length that covers nearly all texts, and the share that it covers."""
    lengths = [
        sum(len(split_words(text, language)) for text in item) for item in zip(*texts, strict=True)
    ]
    for step in MAX_WORDS_STEPS:
        share = sum(length <= step for length in lengths) / len(lengths)
        if share >= COVERED_SHARE:
            break
    return step, share
