"""A sentence in words and a tag for each of them: named entities, phrases, parts of speech."""

from itertools import compress

import pandas as pd

from lineage.data import Task
from lineage.errors import shown
from lineage.kind import Columns, Kind, bad_row, group_column, label_name, listed
from lineage.text import blank, join


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns tokens, label (a tag for each of them), blank (how many blank tokens were left out, with their tags), group and cut.

    The last is never true: a word that is cut off could not be tagged.
    """
    assert task.tokens is not None and task.label is not None
    tokens = [listed(value, row, task.tokens, where, blanks=True) for row, value in enumerate(columns[task.tokens])]
    tags = [[label_name(tag) for tag in listed(value, row, task.label, where)] for row, value in enumerate(columns[task.label])]
    for row, (own, said) in enumerate(zip(tokens, tags, strict=True)):
        if spaced := [tag for tag in said if len(tag.split()) > 1]:
            raise bad_row(row, where, f"column '{task.label}': the tag '{shown(spaced[0])}' has a space in it; write tags without spaces")
        if len(own) != len(said):
            raise bad_row(
                row, where, f"{len(own)} tokens in '{task.tokens}' and {len(said)} tags in '{task.label}'; there must be a tag for each token"
            )
    there = [[not blank(token) for token in own] for own in tokens]
    if not all(map(any, there)):
        raise bad_row([*map(any, there)].index(False), where, f"column '{task.tokens}': every entry is blank")
    tokens, tags = ([[*compress(*both)] for both in zip(column, there, strict=True)] for column in (tokens, tags))
    blanks = [own.count(False) for own in there]
    return pd.DataFrame({"tokens": tokens, "label": tags, "blank": blanks, "group": group_column(columns, task.group, where), "cut": False})


def texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The words as running text."""
    return [[join(list(tokens), language) for tokens in items["tokens"]]]


KIND = Kind(
    name="tag",
    needs=("tokens", "label"),
    items=items,
    texts=texts,
    answer="tags",
    metrics=("span_f1", "token_accuracy"),
    reads=("tokens",),
)
