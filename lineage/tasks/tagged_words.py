"""Recognize a column of words and one with a tag for each, for `lineage init`."""

from itertools import chain
from operator import eq
from typing import Any

from lineage.answers.annotations import START_KEYS, is_span_annotation
from lineage.answers.label_names import MAX_LABELS
from lineage.tasks.columns import parse_integer
from lineage.tasks.recognition import Column, ColumnChoice, SampleTable, entries, fit_nearly_all

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
    if sum(tokens.num_entries) < 2 * len(tokens.values):  # a table of words, or of short names
        return False
    if not fit_nearly_all(list(map(eq, tokens.num_entries, tags.num_entries))):
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


def find_place(value: Any) -> int | None:
    """Return the place that a cell names; None for anything but a whole number from 0."""
    try:
        place = parse_integer(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return place if place >= 0 else None


def are_places(places: Column, tokens: Column) -> bool:
    """Return whether a column has in nearly each row the place of one of its words, from 0."""
    fits = []
    for value, num_words in zip(places.values, tokens.num_entries, strict=True):
        place = find_place(value)
        fits.append(place is not None and place < num_words)
    return fit_nearly_all(fits)


def _distinct_entries(column: Column) -> set[str]:
    return set(map(str, chain.from_iterable(map(entries, column.values))))
