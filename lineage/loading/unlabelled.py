"""Text without labels of a task's own, which models may adapt to: read as the task's items are, and without those that are scored."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lineage.data import Task
from lineage.errors import InputError
from lineage.kind import Columns, Kind, cells, filled_rows, label_name, listed
from lineage.loading.quoting import is_number
from lineage.loading.subsets import nested_choice
from lineage.text.language import blank, cell_text, first_words, join, normalise

SIGNS = 2  # so many may stand where labels are held back
TEXTS = ("text", "choices", "tokens", "context", "question", "good", "bad", "source")  # keys of a task whose columns hold what is read


def column_of(task: Task) -> str:
    """The column that holds the text: of tasks of one text or two the first, of sentences in words the words, of others `text`."""
    return task.text[0] if task.text else task.tokens or "text"


def unlabelled(
    found: Mapping[str, tuple[Columns, str]], tasks: Mapping[str, Task], kind: Kind, splits: dict[str, pd.DataFrame], *, seed: int
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Columns id and text, and how many were left out, by the reason: what is blank, as in a corpus, and what one of the `splits` is scored on.

    `found` are the user's columns of each split with the place for messages, `tasks` how each is read. Raises InputError where nothing is left.
    """
    (columns, where), task = found["unlabelled"], tasks["unlabelled"]
    if task.label in columns:
        _check_labels(columns[task.label], splits["train"]["label"], task, where)
    dropped: dict[str, int] = {}
    texts = _texts(columns, task, where)
    table = pd.DataFrame([(f"unlabelled-{row}", text) for row, text in enumerate(texts, 1) if text], columns=["id", "text"], dtype="str")
    if table.empty:
        raise InputError(f"{where}: every row is blank; fill it, or take the split out")
    if left_out := len(texts) - len(table):
        dropped["blank"] = left_out
    scored = _scored(found, tasks, kind, splits)
    seen = table["text"].map(lambda text: _without_spaces(text) in scored or _cut(text, task) in scored)
    if seen.any():
        dropped["scored"], table = int(seen.sum()), table[~seen]
    if table.empty:
        raise InputError(f"{where}: every text is one of validation or test; give others, or take the split out")
    chosen = nested_choice(len(table), task.limit.unlabelled, rng=np.random.default_rng([seed, zlib.crc32(b"unlabelled")]))
    if len(chosen) < len(table):
        dropped["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True), dropped


def _check_labels(cells_of: list[Any], known: "pd.Series[Any]", task: Task, where: str) -> None:
    """Raise InputError where lines without a label seem to be read as lines with one, and would lose their first word in silence."""
    found = [label_name(normalise(cell)) for cell in cells_of if cell is not None]  # as train's labels are read
    numbers, names, renamed = pd.api.types.is_numeric_dtype(known), {*known, None}, task.renamed
    strange = [label for label in found if (not is_number(label) if numbers else renamed.get(label, label) not in names)]
    if 2 * len(strange) > len(found) and len({*strange}) > SIGNS:
        like = "no number" if numbers else "one that train lacks"
        raise InputError(f"{where}: its lines are read as 'columns' says, and {len(strange):,} of {len(found):,} have, as '{task.label}', {like}: "
                         f"texts alone are written as jsonl, with the key '{column_of(task)}'; or put the same sign before each")  # fmt: skip


def _texts(columns: Columns, task: Task, where: str) -> list[str]:
    """The text of each row, words as running text; nothing where there is none."""
    name = column_of(task)
    name = name if name in columns else "text"  # of lines of text, and of generated ones
    if name != task.tokens:
        return cells(columns, name, where)
    texts = [""] * len(columns[name])
    for row in filled_rows({name: columns[name]}):
        found = listed(columns[name][row], row, name, where, blanks=True)
        texts[row] = join([word for word in found if not blank(word)], task.language)
    return texts


def _scored(found: Mapping[str, tuple[Columns, str]], tasks: Mapping[str, Task], kind: Kind, splits: dict[str, pd.DataFrame]) -> set[str]:
    """Every text that validation or test holds, as two are compared; in folds every item is scored.

    Once as items have it, cut, and once whole, as the user's row has it: of two texts that are read together, of a question's context and of a
    word's sentence each item keeps another part.
    """
    seen: set[str] = set()
    for split, table in splits.items():
        if split != "train" or tasks["unlabelled"].folds:
            seen = seen.union(*kind.texts(table, tasks["unlabelled"].language))
            for name in table["id"]:
                origin, _, row = str(name).rpartition("-")
                seen.update(_whole(found[origin][0], tasks[origin], int(row) - 1))
    return {_without_spaces(text) for text in seen}


def _whole(columns: Columns, task: Task, row: int) -> Iterator[str]:
    """The texts of a user's row."""
    for key in TEXTS:
        named = getattr(task, key) or ()
        for value in (columns[name][row] for name in ((named,) if isinstance(named, str) else named)):
            words = [normalise(cell_text(one)) for one in ([value] if isinstance(value, str) or not hasattr(value, "__len__") else value)]
            yield from words if key == "choices" else [" ".join(words)]


def _cut(text: str, task: Task) -> str:
    """A text as two are compared, cut as most items are."""
    return _without_spaces(first_words(text, task.max_tokens, task.language))


def _without_spaces(text: str) -> str:
    """Words that are joined have other spaces elsewhere, or none."""
    return "".join(text.split())
