"""A sentence in words and a tag for each of them: named entities, phrases, parts of speech."""

from typing import Any

import pandas as pd

from lineage.data import Task
from lineage.kind import Columns, Kind, bad_row, group_column
from lineage.text import join, normalise


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns tokens, label (a tag for each of them), group and cut, which is never true: a word that is cut off could not be tagged."""
    assert task.tokens is not None and task.label is not None
    tokens = [_listed(value, row, task.tokens, where) for row, value in enumerate(columns[task.tokens])]
    tags = [_listed(value, row, task.label, where) for row, value in enumerate(columns[task.label])]
    for row, (own, said) in enumerate(zip(tokens, tags, strict=True)):
        if spaced := [tag for tag in said if len(tag.split()) > 1]:
            raise bad_row(row, where, f"column '{task.label}': the tag '{spaced[0][:20]}' has a space in it; write tags without spaces")
        if len(own) != len(said):
            raise bad_row(
                row, where, f"{len(own)} tokens in '{task.tokens}' and {len(said)} tags in '{task.label}'; there must be a tag for each token"
            )
    return pd.DataFrame({"tokens": tokens, "label": tags, "group": group_column(columns, task.group, where), "cut": False})


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The words as running text."""
    return [[join(list(tokens), language) for tokens in items["tokens"]]]


def _listed(value: Any, row: int, name: str, where: str) -> list[str]:
    """A list of words or tags, or a text with spaces between them (csv and txt have no lists)."""
    if value is not None and not isinstance(value, str) and not hasattr(value, "__len__"):
        raise bad_row(row, where, f"column '{name}' holds no list")
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        raise bad_row(row, where, f"column '{name}' holds a list written as text; write the words with spaces between them, or use jsonl or parquet")
    entries = value.split() if isinstance(value, str) else value if value is not None else []
    found = [normalise(str(one)) for one in entries if one is not None]
    if not found or not all(found) or len(found) < len(entries):
        raise bad_row(row, where, f"column '{name}': an entry is blank, or there are none")
    return found


KIND = Kind(
    name="tag",
    needs=("tokens", "label"),
    items=items,
    texts=texts,
    answer="tags",
    metrics=("span_f1", "token_accuracy"),
    reads=("tokens",),
)
