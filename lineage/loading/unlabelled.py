"""Text without labels of a task's own, which models may adapt to: read as the task's items are, and without those that are scored."""

import zlib
from typing import Any

import numpy as np
import pandas as pd

from lineage.data import Task
from lineage.errors import InputError
from lineage.kind import Columns, Kind, cells, filled_rows, label_name, listed
from lineage.loading.subsets import nested_choice
from lineage.text.language import blank, first_words, join


def column_of(task: Task) -> str:
    """The column that holds the text: of tasks of one text or two the first, of sentences in words the words, of others `text`."""
    return task.text[0] if task.text else task.tokens or "text"


def unlabelled(
    columns: Columns, where: str, task: Task, kind: Kind, splits: dict[str, pd.DataFrame], *, seed: int
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Columns id and text, and how many were left out, by the reason: what is blank, as in a corpus, and what one of the `splits` is scored on.

    Raises InputError where nothing is left.
    """
    if task.label in columns and kind.answer == "label":
        _check_labels(columns[task.label], splits["train"]["label"], task, where)
    dropped: dict[str, int] = {}
    texts = _texts(columns, task, where)
    table = pd.DataFrame([(f"unlabelled-{row}", text) for row, text in enumerate(texts, 1) if text], columns=["id", "text"], dtype="str")
    if table.empty:
        raise InputError(f"{where}: every row is blank; fill it, or take the split out")
    if left_out := len(texts) - len(table):
        dropped["blank"] = left_out
    scored = _scored(splits, task, kind)
    seen = table["text"].map(lambda text: _compared(text, task) in scored)
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
    found, names = [label_name(cell) for cell in cells_of if cell is not None], {*known, None}
    strange = [label for label in found if task.renamed.get(label, label) not in names]
    if 2 * len(strange) > len(found) and len({*strange}) > known.nunique():
        raise InputError(f"{where}: its lines are read as 'columns' says, and {len(strange):,} of {len(found):,} have a '{task.label}' that train "
                         f"lacks: texts alone are written as jsonl, with the key '{column_of(task)}'; or put the same sign before each")  # fmt: skip


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


def _scored(splits: dict[str, pd.DataFrame], task: Task, kind: Kind) -> set[str]:
    """Every text that validation or test holds, as it is compared, the bad ones of pairs too; in folds every item is scored."""
    found: set[str] = set()
    for split, table in splits.items():
        if split != "train" or task.folds:
            found = found.union(*kind.texts(table, task.language), table.get("bad", ()))
    return {_compared(text, task) for text in found}


def _compared(text: str, task: Task) -> str:
    """A text as two are compared: cut as items are (some kinds cut nothing), and without spaces, which words that are joined have elsewhere."""
    return "".join(first_words(text, task.max_tokens, task.language).split())
