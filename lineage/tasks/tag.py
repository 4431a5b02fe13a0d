"""A sentence in words and a tag for each of them: named entities, phrases, parts of speech."""

from itertools import compress
from typing import Any

import pandas as pd

from lineage.data import Task
from lineage.errors import InputError, shown
from lineage.kind import FEW, Columns, Kind, bad_row, group_column, label_name, listed
from lineage.text.language import blank, join, normalise, spaceless
from lineage.text.mentions import given_as_spans, tagged

SOME = 24  # rows: of fewer nothing is concluded
MOST = 0.9  # of the rows: sentences of one word are real, but not that many


def items(columns: Columns, task: Task, where: str) -> pd.DataFrame:
    """Columns tokens, label (a tag for each of them), blank (how many blank tokens were left out, with their tags), group and cut.

    The last is never true: a word that is cut off could not be tagged. Raises InputError, also where nearly every row has one token.
    """
    assert task.tokens is not None and task.label is not None
    columns, overlap = _of_spans(columns, task, where)
    tokens = [listed(value, row, task.tokens, where, blanks=True) for row, value in enumerate(columns[task.tokens])]
    tags = [[label_name(tag) for tag in listed(value, row, task.label, where)] for row, value in enumerate(columns[task.label])]
    tokens = [_characters(*own, task) for own in zip(columns[task.tokens], tokens, tags, strict=True)]
    single = sum(len(own) == len(said) == 1 for own, said in zip(tokens, tags, strict=True))
    if len(tokens) >= SOME and single > MOST * len(tokens):
        raise InputError(f"{where}: {single:,} of {len(tokens):,} rows have one token: rows are words, not sentences; write a sentence a row, its "
                         "tokens and tags as lists (jsonl or parquet), or with spaces between; a txt or tsv with a blank line after each sentence is "
                         "read with 'columns', the names of what stands in a line")  # fmt: skip
    for row, (own, said) in enumerate(zip(tokens, tags, strict=True)):
        if spaced := [tag for tag in said if len(tag.split()) > 1]:
            words = task.columns is not None and task.document is None
            one_word = "; 'columns' reads one word of a line: where it is a sentence, say document: line" if words else ""
            raise bad_row(row, where, f"column '{task.label}': the tag '{shown(spaced[0])}' has a space in it; write tags without spaces{one_word}")
        if len(own) != len(said):
            raise bad_row(
                row, where, f"{len(own)} tokens in '{task.tokens}' and {len(said)} tags in '{task.label}'; there must be a tag for each token"
            )
    there = [[not blank(token) for token in own] for own in tokens]
    seen = [*map(any, there)]
    if seen.count(False) > FEW * len(seen):
        raise bad_row(seen.index(False), where, f"column '{task.tokens}': every entry is blank", seen.count(False) - 1)
    tokens, tags = ([[*compress(*both)] for both in zip(column, there, strict=True)] for column in (tokens, tags))
    blanks = [own.count(False) for own in there]
    group = group_column(columns, task.group, where)
    table = pd.DataFrame({"tokens": tokens, "label": tags, "blank": blanks, "group": group, "cut": False} | ({"mended": overlap} if overlap else {}))
    return table[seen]


def _characters(cell: Any, words: list[str], tags: list[str], task: Task) -> list[str]:
    """The words of a cell, or, of a text in a language without spaces that has as many characters as tags, these."""
    whole = isinstance(cell, str) and spaceless(task.language) and len(words) != len(tags) == len(cell)
    return [normalise(one) for one in cell] if whole else words


def _of_spans(columns: Columns, task: Task, where: str) -> tuple[Columns, list[bool]]:
    """The columns with words and tags where they hold texts and spans of characters; and then where spans overlap. Raises InputError."""
    assert task.tokens is not None and task.label is not None
    texts, cells = columns[task.tokens], columns[task.label]
    if not any(map(given_as_spans, cells)):
        return columns, []
    found = []
    for row, (text, cell) in enumerate(zip(texts, cells, strict=True)):
        if not isinstance(text, str):
            raise bad_row(row, where, f"column '{task.label}' holds spans of characters, and column '{task.tokens}' no text")
        try:
            found.append(tagged(text, cell if given_as_spans(cell) else cell or {}, task.language))
        except ValueError as error:
            raise bad_row(row, where, f"column '{task.label}': {error}") from None
    words, tags, overlap = zip(*found, strict=True)
    return {**columns, task.tokens: list(words), task.label: list(tags)}, list(overlap)


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
