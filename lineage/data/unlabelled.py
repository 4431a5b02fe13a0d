"""Read a task's unlabelled text, to which models may adapt, without the texts that are scored."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.data.splits import nested_random_subset
from lineage.errors import InputError
from lineage.language import cell_to_text, is_blank, join_words, normalize_text, truncate_to_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    Cell,
    TableColumns,
    find_filled_rows,
    is_number,
    normalize_label,
    parse_list,
    read_cells,
)

MAX_PLACEHOLDER_LABELS = 2  # a benchmark that holds labels back writes at most so many instead


class UserTable(NamedTuple):
    """The columns of a user's table, and the place that messages name."""

    columns: TableColumns
    place: str
    task: Task  # how it is read; an extra test set has its own keys


def text_column_name(task: Task) -> str:
    """Return the column of unlabelled text: the first text, the words, or `text`."""
    return task.text[0] if task.text else task.tokens or "text"


def collect_unlabelled(
    tables: Mapping[str, UserTable], kind: Kind, splits: dict[str, pd.DataFrame], *, seed: int
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return columns id and text, and how many rows were dropped, by reason.

    Blank texts and those of scored items are dropped. Raises InputError if nothing is left.
    """
    columns, where, task = tables["unlabelled"]
    if task.label in columns:
        _check_unlabelled_lines(columns[task.label], splits["train"]["label"], task, where)
    texts = _row_texts(columns, task, where)
    rows = [(f"unlabelled-{row}", text) for row, text in enumerate(texts, 1) if text]
    table = pd.DataFrame(rows, columns=["id", "text"], dtype="str")
    if table.empty:
        raise InputError(f"{where}: every row is blank; fill it, or remove the split")
    dropped: dict[str, int] = {}
    if num_blank := len(texts) - len(table):
        dropped["blank"] = num_blank
    scored = _scored_texts(tables, kind, splits)

    def is_scored_text(text: str) -> bool:
        cut_text = truncate_to_words(text, task.max_words, task.language)  # as most items are
        return _remove_spaces(text) in scored or _remove_spaces(cut_text) in scored

    is_scored = table["text"].map(is_scored_text)
    if is_scored.any():
        dropped["scored"] = int(is_scored.sum())
        table = table[~is_scored]
    if table.empty:
        raise InputError(
            f"{where}: every text is one of validation or test; give others, or remove the split"
        )
    rng = np.random.default_rng([seed, zlib.crc32(b"unlabelled")])
    chosen = nested_random_subset(len(table), task.limit.unlabelled, rng=rng)
    if len(chosen) < len(table):
        dropped["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True), dropped


def _check_unlabelled_lines(
    cells: list[Any], train_labels: "pd.Series[Any]", task: Task, where: str
) -> None:
    """Raise InputError if lines of text alone would be read as lines with a label."""
    labels = [normalize_label(normalize_text(cell)) for cell in cells if cell is not None]
    is_numeric = pd.api.types.is_numeric_dtype(train_labels)
    if is_numeric:
        strange = [label for label in labels if not is_number(label)]
    else:
        known = {*train_labels, None}
        label_map = task.label_names_by_value
        strange = [label for label in labels if label_map.get(label, label) not in known]
    if 2 * len(strange) > len(labels) and len(set(strange)) > MAX_PLACEHOLDER_LABELS:
        problem = "no number" if is_numeric else "a value that train lacks"
        raise InputError(
            f"{where}: its lines are read by 'columns', and {len(strange):,} of "
            f"{len(labels):,} have {problem} as '{task.label}'; write texts without labels as "
            f"jsonl, with the key '{text_column_name(task)}', or begin each line with the same "
            "placeholder"
        )


def _row_texts(columns: TableColumns, task: Task, where: str) -> list[str]:
    """Return the text of each row, words joined to running text; empty if there is none."""
    name = text_column_name(task)
    if name not in columns:
        name = "text"  # of lines of text, and of generated ones
    if name != task.tokens:
        return read_cells(columns, name, where)
    texts = [""] * len(columns[name])
    for row in find_filled_rows({name: columns[name]}):
        words = parse_list(Cell(columns[name][row], row, name, where), allow_blank=True)
        texts[row] = join_words([word for word in words if not is_blank(word)], task.language)
    return texts


def _scored_texts(
    tables: Mapping[str, UserTable], kind: Kind, splits: dict[str, pd.DataFrame]
) -> set[str]:
    """Return every scored text, without spaces: cut as items have it, and whole as in the row."""
    scored: set[str] = set()
    task = tables["unlabelled"].task
    for split, table in splits.items():
        if split == "train" and not task.folds:
            continue
        for texts in kind.extract_texts(table, task.language):
            scored.update(texts)
        for item_id in table["id"]:
            origin, _, row = str(item_id).rpartition("-")
            scored.update(_full_row_texts(tables[origin], kind, int(row) - 1))
    return set(map(_remove_spaces, scored))


def _full_row_texts(table: UserTable, kind: Kind, row: int) -> Iterator[str]:
    for key in kind.input_columns:
        if key in kind.integer_columns:
            continue
        for name in table.task.list_columns([key]):
            cell = table.columns[name][row]
            is_list = hasattr(cell, "__len__") and not isinstance(cell, str)
            entries = cell if is_list else [cell]
            words = [normalize_text(cell_to_text(entry)) for entry in entries]
            if key in kind.text_list_columns:
                yield from words
            else:
                yield " ".join(words)


def _remove_spaces(text: str) -> str:
    """Return the key by which texts are compared: joined words may have spaces elsewhere."""
    return "".join(text.split())
