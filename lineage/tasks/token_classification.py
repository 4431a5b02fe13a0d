"""A sentence in words and a tag for each of them: named entities, phrases, parts of speech."""

from itertools import compress
from typing import Any

import pandas as pd

from lineage.config.data import Task
from lineage.data.annotations import is_span_annotation, spans_to_iob2
from lineage.data.language import is_blank, is_spaceless, join_words, normalize_text
from lineage.errors import InputError, shorten_value
from lineage.tasks.base import (
    MAX_BLANK_SHARE,
    Kind,
    TableColumns,
    normalize_label,
    parse_list,
    read_group_column,
    row_error,
)

MIN_ROWS_FOR_CHECK = 24  # rows: of fewer nothing is concluded
MAX_SINGLE_TOKEN_SHARE = 0.9  # of the rows: sentences of one word are real, but not that many


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns tokens, label (a tag for each of them), blank (how many blank tokens were left out, with their tags), group and cut.

    The last is never true: a word that is cut off could not be tagged. Raises InputError, also where nearly every row has one token.
    """
    assert task.tokens is not None and task.label is not None
    columns, overlap = _convert_spans(columns, task, where)
    tokens = [
        parse_list(value, row, task.tokens, where, allow_blank=True)
        for row, value in enumerate(columns[task.tokens])
    ]
    tags = [
        [normalize_label(tag) for tag in parse_list(value, row, task.label, where)]
        for row, value in enumerate(columns[task.label])
    ]
    tokens = [
        _split_characters(*own, task)
        for own in zip(columns[task.tokens], tokens, tags, strict=True)
    ]
    single = sum(len(own) == len(said) == 1 for own, said in zip(tokens, tags, strict=True))
    if len(tokens) >= MIN_ROWS_FOR_CHECK and single > MAX_SINGLE_TOKEN_SHARE * len(tokens):
        raise InputError(
            f"{where}: {single:,} of {len(tokens):,} rows have one token: rows are words, not sentences; write a sentence a row, its "
            "tokens and tags as lists (jsonl or parquet), or with spaces between; a txt or tsv with a blank line after each sentence is "
            "read with 'columns', the names of what stands in a line"
        )
    for row, (own, said) in enumerate(zip(tokens, tags, strict=True)):
        if spaced := [tag for tag in said if len(tag.split()) > 1]:
            words = task.columns is not None and task.document_unit is None
            one_word = (
                "; 'columns' reads one word of a line: where it is a sentence, say document: line"
                if words
                else ""
            )
            raise row_error(
                row,
                where,
                f"column '{task.label}': the tag '{shorten_value(spaced[0])}' has a space in it; write tags without spaces{one_word}",
            )
        if len(own) != len(said):
            raise row_error(
                row,
                where,
                f"{len(own)} tokens in '{task.tokens}' and {len(said)} tags in '{task.label}'; there must be a tag for each token",
            )
    nonblank = [[not is_blank(token) for token in own] for own in tokens]
    has_words = [*map(any, nonblank)]
    if has_words.count(False) > MAX_BLANK_SHARE * len(has_words):
        raise row_error(
            has_words.index(False),
            where,
            f"column '{task.tokens}': every entry is blank",
            has_words.count(False) - 1,
        )
    tokens, tags = (
        [[*compress(*both)] for both in zip(column, nonblank, strict=True)]
        for column in (tokens, tags)
    )
    blanks = [own.count(False) for own in nonblank]
    group = read_group_column(columns, task.group, where)
    table = pd.DataFrame(
        {"tokens": tokens, "label": tags, "blank": blanks, "group": group, "cut": False}
        | ({"mended": overlap} if overlap else {})
    )
    return table[has_words]


def _split_characters(cell: Any, words: list[str], tags: list[str], task: Task) -> list[str]:
    """The words of a cell, or, of a text in a language without spaces that has as many characters as tags, these."""
    whole = (
        isinstance(cell, str)
        and is_spaceless(task.language)
        and len(words) != len(tags) == len(cell)
    )
    return [normalize_text(one) for one in cell] if whole else words


def _convert_spans(
    columns: TableColumns, task: Task, where: str
) -> tuple[TableColumns, list[bool]]:
    """The columns with words and tags where they hold texts and spans of characters; and then where spans overlap. Raises InputError."""
    assert task.tokens is not None and task.label is not None
    texts, cells = columns[task.tokens], columns[task.label]
    if not any(map(is_span_annotation, cells)):
        return columns, []
    found = []
    for row, (text, cell) in enumerate(zip(texts, cells, strict=True)):
        if not isinstance(text, str):
            raise row_error(
                row,
                where,
                f"column '{task.label}' holds spans of characters, and column '{task.tokens}' no text",
            )
        try:
            found.append(
                spans_to_iob2(text, cell if is_span_annotation(cell) else cell or {}, task.language)
            )
        except ValueError as error:
            raise row_error(row, where, f"column '{task.label}': {error}") from None
    words, tags, overlap = zip(*found, strict=True)
    return {**columns, task.tokens: list(words), task.label: list(tags)}, list(overlap)


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The words as running text."""
    return [[join_words(list(tokens), language) for tokens in items["tokens"]]]


KIND = Kind(
    name="token_classification",
    required_columns=("tokens", "label"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer_type="tags",
    metrics=("span_f1", "token_accuracy"),
    identity_columns=("tokens",),
)
