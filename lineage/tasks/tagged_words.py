"""Recognize a column of words and one with a tag for each, for `lineage init`."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from lineage.answers.annotations import START_KEYS, is_span_annotation
from lineage.answers.label_names import MAX_LABELS
from lineage.tasks.recognition import Column, ColumnChoice, SampleTable

TOKEN_NAMES = ("tokens", "words")
NEEDS = "a column of words and one with a tag for each; name them, as text=COLUMN,label=COLUMN"
BILSTM_HINT = "add probes: [linear, bilstm] for a BiLSTM-CRF too, which is slower"


def choose_tagged_words(table: SampleTable) -> ColumnChoice | None:
    """Return a column of words, and one with a tag for each; None if there are none."""
    tokens = _choose_tokens(table)
    if tokens is None:
        return None
    label = table.requested.label
    notes: dict[str, str] = {}
    if not label:
        tags = [name for name, column in table.columns.items() if _are_tags(column, tokens)]
        if not tags:
            return None
        label, notes = table.pick_label(tags)
    return ColumnChoice({"tokens": tokens.name, "label": label}, (tokens.name,), notes=notes)


def _choose_tokens(table: SampleTable) -> Column | None:
    if table.is_requested and table.requested.text:
        return table.columns[table.requested.text[0]]
    tagged = [
        table.columns[name]
        for name in table.requested.text or table.columns
        if any(_are_tags(column, table.columns[name]) for column in table.columns.values())
    ]
    named = [column for column in tagged if column.name.lower() in TOKEN_NAMES]
    return max(named or tagged, key=lambda column: len(_distinct_entries(column)), default=None)


def _are_tags(tags: Column, tokens: Column) -> bool:
    """Return whether a column has a tag for each word of another, or spans of its characters."""
    if tags is tokens or not tokens.filled or tokens.is_numeric:
        return False
    if are_spans(tags.filled):
        return tokens.is_text
    num_entries = 0
    for words, row_tags in zip(tokens.values, tags.values, strict=True):
        if len(entries(words)) != len(entries(row_tags)):
            return False
        num_entries += len(entries(words))
    if num_entries < 2 * len(tokens.values):  # a table of words, or of short names
        return False
    num_tags = len(_distinct_entries(tags))
    return num_tags <= MAX_LABELS and num_tags < len(_distinct_entries(tokens))


def are_spans(values: list[Any]) -> bool:
    """Return whether cells are lists of spans; another list of objects may hold anything."""
    spans = list(chain.from_iterable(value for value in values if isinstance(value, list)))
    if not spans or not all(value == [] or is_span_annotation(value) for value in values):
        return False
    return all(map(_has_start, spans))


def _has_start(span: Any) -> bool:
    if isinstance(span, dict):
        return not span.keys().isdisjoint(START_KEYS)
    return isinstance(span[0], int)


def entries(value: Any) -> Sequence[Any]:
    """Return the words or tags of a cell."""
    if isinstance(value, list | tuple):
        return value
    return str(value).split() if value is not None else []


def _distinct_entries(column: Column) -> set[str]:
    return set(map(str, chain.from_iterable(map(entries, column.values))))
