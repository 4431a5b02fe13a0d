"""Text without labels of a task's own, which models may adapt to: read as the task's items are, and without those that are scored."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.data.language import (
    cell_to_text,
    is_blank,
    join_words,
    normalize_text,
    truncate_to_words,
)
from lineage.data.quoting import is_number
from lineage.data.subsets import nested_random_subset
from lineage.errors import InputError
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    TableColumns,
    find_filled_rows,
    normalize_label,
    parse_list,
    read_cells,
)

MAX_PLACEHOLDER_LABELS = 2  # so many may stand where labels are held back
TEXT_KEYS = (
    "text",
    "choices",
    "tokens",
    "context",
    "question",
    "good",
    "bad",
    "source",
)  # keys of a task whose columns hold what is read


def text_column_name(task: Task) -> str:
    """The column that holds the text: of tasks of one text or two the first, of sentences in words the words, of others `text`."""
    return task.text[0] if task.text else task.tokens or "text"


def collect_unlabelled(
    found: Mapping[str, tuple[TableColumns, str]],
    tasks: Mapping[str, Task],
    kind: Kind,
    splits: dict[str, pd.DataFrame],
    *,
    seed: int,
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Columns id and text, and how many were left out, by the reason: what is blank, as in a corpus, and what one of the `splits` is scored on.

    `found` are the user's columns of each split with the place for messages, `tasks` how each is read. Raises InputError where nothing is left.
    """
    (columns, where), task = found["unlabelled"], tasks["unlabelled"]
    if task.label in columns:
        _check_unlabelled_lines(columns[task.label], splits["train"]["label"], task, where)
    dropped: dict[str, int] = {}
    texts = _row_texts(columns, task, where)
    table = pd.DataFrame(
        [(f"unlabelled-{row}", text) for row, text in enumerate(texts, 1) if text],
        columns=["id", "text"],
        dtype="str",
    )
    if table.empty:
        raise InputError(f"{where}: every row is blank; fill it, or take the split out")
    if left_out := len(texts) - len(table):
        dropped["blank"] = left_out
    scored = _scored_texts(found, tasks, kind, splits)
    seen = table["text"].map(
        lambda text: _remove_spaces(text) in scored or _truncated_key(text, task) in scored
    )
    if seen.any():
        dropped["scored"], table = int(seen.sum()), table[~seen]
    if table.empty:
        raise InputError(
            f"{where}: every text is one of validation or test; give others, or take the split out"
        )
    chosen = nested_random_subset(
        len(table),
        task.limit.unlabelled,
        rng=np.random.default_rng([seed, zlib.crc32(b"unlabelled")]),
    )
    if len(chosen) < len(table):
        dropped["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True), dropped


def _check_unlabelled_lines(
    cells_of: list[Any], known: "pd.Series[Any]", task: Task, where: str
) -> None:
    """Raise InputError where lines without a label seem to be read as lines with one, and would lose their first word in silence."""
    found = [
        normalize_label(normalize_text(cell)) for cell in cells_of if cell is not None
    ]  # as train's labels are read
    numbers, names, renamed = (
        pd.api.types.is_numeric_dtype(known),
        {*known, None},
        task.label_names_by_value,
    )
    strange = [
        label
        for label in found
        if (not is_number(label) if numbers else renamed.get(label, label) not in names)
    ]
    if 2 * len(strange) > len(found) and len({*strange}) > MAX_PLACEHOLDER_LABELS:
        like = "no number" if numbers else "one that train lacks"
        raise InputError(
            f"{where}: its lines are read as 'columns' says, and {len(strange):,} of {len(found):,} have, as '{task.label}', {like}: "
            f"texts alone are written as jsonl, with the key '{text_column_name(task)}'; or put the same sign before each"
        )


def _row_texts(columns: TableColumns, task: Task, where: str) -> list[str]:
    """The text of each row, words as running text; nothing where there is none."""
    name = text_column_name(task)
    name = name if name in columns else "text"  # of lines of text, and of generated ones
    if name != task.tokens:
        return read_cells(columns, name, where)
    texts = [""] * len(columns[name])
    for row in find_filled_rows({name: columns[name]}):
        found = parse_list(columns[name][row], row, name, where, allow_blank=True)
        texts[row] = join_words([word for word in found if not is_blank(word)], task.language)
    return texts


def _scored_texts(
    found: Mapping[str, tuple[TableColumns, str]],
    tasks: Mapping[str, Task],
    kind: Kind,
    splits: dict[str, pd.DataFrame],
) -> set[str]:
    """Every text that validation or test holds, as two are compared; in folds every item is scored.

    Once as items have it, cut, and once whole, as the user's row has it: of two texts that are read together, of a question's context and of a
    word's sentence each item keeps another part.
    """
    seen: set[str] = set()
    for split, table in splits.items():
        if split != "train" or tasks["unlabelled"].folds:
            seen = seen.union(*kind.extract_texts(table, tasks["unlabelled"].language))
            for name in table["id"]:
                origin, _, row = str(name).rpartition("-")
                seen.update(_full_row_texts(found[origin][0], tasks[origin], int(row) - 1))
    return {_remove_spaces(text) for text in seen}


def _full_row_texts(columns: TableColumns, task: Task, row: int) -> Iterator[str]:
    """The texts of a user's row."""
    for key in TEXT_KEYS:
        named = getattr(task, key) or ()
        for value in (
            columns[name][row] for name in ((named,) if isinstance(named, str) else named)
        ):
            words = [
                normalize_text(cell_to_text(one))
                for one in (
                    [value] if isinstance(value, str) or not hasattr(value, "__len__") else value
                )
            ]
            yield from words if key == "choices" else [" ".join(words)]


def _truncated_key(text: str, task: Task) -> str:
    """A text as two are compared, cut as most items are."""
    return _remove_spaces(truncate_to_words(text, task.max_tokens, task.language))


def _remove_spaces(text: str) -> str:
    """Words that are joined have other spaces elsewhere, or none."""
    return "".join(text.split())
