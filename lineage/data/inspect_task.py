"""Inspect the files of a task: their format, the kind of task, its columns and lengths."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lineage.config.data import Task
from lineage.data.files import DataFiles, check_readable, join_pattern, open_decompressed
from lineage.data.infer_columns import (
    GUESSED_KINDS,
    ColumnChoice,
    RequestedColumns,
    choose_columns,
    list_names,
)
from lineage.data.inspection import (
    SAMPLE_BYTES,
    cell_text,
    count_blocks,
    find_csv_quoting,
    find_files,
    guess_language,
    list_columns,
    sample_rows,
)
from lineage.data.quoting import is_number
from lineage.data.sources import DataTable, open_task_tables
from lineage.data.tables import (
    COMMENT_PREFIXES,
    CONLLU_NUM_COLUMNS,
    DOCUMENT_BOUNDARIES,
    SPACES,
)
from lineage.errors import InputError
from lineage.language import split_words
from lineage.tasks.base import load_kind
from lineage.tasks.columns import TableColumns, normalize_label

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
    is_guessed: bool  # the user has not named text and label
    max_words: int | None  # None: texts are not truncated
    covered_share: float  # of the texts, which max_words leaves whole


def inspect_task(
    name: str, files: dict[str, str], root: Path, where: str, requested: RequestedColumns
) -> TaskFindings:
    """Inspect the files of a task, by split, and guess its kind and its columns.

    There is always a file for `train`. Raises InputError.
    """
    _check_kind(requested.kind, where)
    data_files, keys = _describe_training_file(files["train"], root, where)
    table = _open_split(files["train"], keys, "train", root, where)
    table.check([])
    columns = list_columns(data_files, table, where)
    num_rows, sample = sample_rows(table, columns)
    if num_rows == 0:
        raise InputError(f"{where}: {table.name} holds no rows; fill it, or name another file")
    choice = choose_columns(sample, _with_known_columns(requested, keys), name, where)
    _check_names_fit(sample, columns, choice, keys, data_files, where)
    texts = _choice_texts(sample, choice)
    language = guess_language(text for column in texts for text in column)
    max_words = None
    covered_share = 1.0
    if choice.text_columns:
        max_words, covered_share = guess_max_words(texts, language)
    counts = {"train": num_rows}
    for split in sorted(files.keys() - {"train"}):
        counts[split] = _count_rows(files[split], keys, choice, split, root, where)
    return TaskFindings(
        name,
        choice.kind,
        files,
        keys | choice.keys,
        language,
        counts,
        tuple(columns),
        choice,
        is_guessed=not (requested.text and requested.label),
        max_words=max_words,
        covered_share=covered_share,
    )


def _check_kind(kind: str | None, where: str) -> None:
    """Raise InputError for a kind that does not exist, or whose columns are not guessed."""
    if kind is None:
        return
    load_kind(kind, f"{where}: kind")
    if kind not in GUESSED_KINDS:
        raise InputError(
            f"{where}: kind={kind}: the columns of this kind are not guessed, only those of "
            f"{', '.join(GUESSED_KINDS)}; begin with another task, and add this one to params.yaml "
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
    choice: ColumnChoice,
    keys: dict[str, Any],
    files: DataFiles,
    where: str,
) -> None:
    """Raise InputError if names of columns do not fit the values below them."""
    if "columns" in keys:
        if not choice.has_tags:
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


def _count_rows(
    pattern: str, keys: dict[str, Any], choice: ColumnChoice, split: str, root: Path, where: str
) -> int:
    """Check the file of a further split, and count its rows. Raises InputError."""
    split_where = f"{where}: {split}"
    find_files(pattern, root, split_where, allow_unknown=True)
    table = _open_split(pattern, keys, split, root, split_where)
    wanted = list_column_keys(choice)
    if split == "unlabelled":
        first_text = choice.keys.get("text", ["text"])[0]
        wanted = ["text" if table.is_plain_text else choice.keys.get("tokens", first_text)]
    table.check(wanted)
    return sum(len(batch[wanted[0]]) for batch in table.iter_batches(wanted[:1]))


def list_column_keys(choice: ColumnChoice) -> list[str]:
    """Return the columns that a task reads."""
    names: list[str] = []
    for value in choice.keys.values():
        names += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(names))


def _choice_texts(sample: TableColumns, choice: ColumnChoice) -> list[list[str]]:
    """Return the texts of each column that a task reads."""
    names = choice.text_columns
    if not names:
        names = tuple(choice.keys[key] for key in ("tokens", "good") if key in choice.keys)
    return [[cell_text(value) for value in sample[name]] for name in names]


def guess_max_words(texts: list[list[str]], language: str) -> tuple[int, float]:
    """Return a length that covers nearly all texts, and the share that it covers.

    The texts of an item have it together.
    """
    lengths = [
        sum(len(split_words(text, language)) for text in item) for item in zip(*texts, strict=True)
    ]
    shares = {}
    for step in MAX_WORDS_STEPS:
        shares[step] = sum(length <= step for length in lengths) / len(lengths)
        if shares[step] >= COVERED_SHARE:
            break
    return step, shares[step]
