"""A sentence, one of its predicates, and the role of each word for it: who did what to whom.

A sentence with several predicates has a row for each. Its rows are a group, so that they stay
together in one split, and are one unit of the intervals.
"""

from typing import Any

import pandas as pd

from lineage.answers.annotations import is_span_annotation
from lineage.answers.groups import name_unnamed_group
from lineage.answers.roles import PREDICATE_TYPES, VERB_TAGS, RolesAnswer
from lineage.config.data import Task
from lineage.errors import row_error, shorten_value
from lineage.language import join_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import TableColumns, normalize_label, parse_integer, parse_list

MAX_MISPLACED_SHARE = 0.5  # of the rows with a verb; with more, places do not count from 0


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns tokens, predicate (a place among them), label (a tag for each) and group."""
    assert task.tokens is not None and task.predicate is not None
    tokens = [
        parse_list(cell, row, task.tokens, where) for row, cell in enumerate(columns[task.tokens])
    ]
    predicates = [
        _read_place(cell, tokens[row], row, task, where)
        for row, cell in enumerate(columns[task.predicate])
    ]
    items = pd.DataFrame({"tokens": tokens, "predicate": predicates})
    if task.label is not None:
        items["label"] = [
            _read_tags(cell, tokens[row], row, task.label, where)
            for row, cell in enumerate(columns[task.label])
        ]
        _check_places(items, task, where)
    return items.assign(group=list(map(name_unnamed_group, tokens)))


def _read_place(cell: Any, tokens: list[str], row: int, task: Task, where: str) -> int:
    try:
        place = parse_integer(cell)
    except (TypeError, ValueError, OverflowError):
        raise row_error(
            row,
            where,
            f"column '{task.predicate}': {shorten_value(cell)} is not the place of a token; write "
            "that of the verb, counted from 0, and a row for each verb of a sentence",
        ) from None
    if not 0 <= place < len(tokens):
        raise row_error(
            row,
            where,
            f"column '{task.predicate}': {place} is outside the {len(tokens)} tokens, which count "
            "from 0",
        )
    return place


def _read_tags(cell: Any, tokens: list[str], row: int, name: str, where: str) -> list[str]:
    if is_span_annotation(cell):
        raise row_error(
            row,
            where,
            f"column '{name}' holds spans of characters, which are not read beside the place of a "
            "verb; write a tag for each token",
        )
    tags = [normalize_label(tag) for tag in parse_list(cell, row, name, where)]
    if len(tags) != len(tokens):
        raise row_error(
            row,
            where,
            f"there are {len(tokens)} tokens and {len(tags)} tags in '{name}'; there must be a tag "
            "for each token",
        )
    for tag in tags:
        if len(tag.split()) > 1:
            raise row_error(
                row,
                where,
                f"column '{name}': the tag '{shorten_value(tag)}' has a space in it; write tags "
                "without spaces",
            )
    return tags


def _check_places(items: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError if most verbs that the tags name are elsewhere, as if places began at 1."""
    verbs = [
        [place for place, tag in enumerate(tags) if tag in VERB_TAGS] for tags in items["label"]
    ]
    num_verbs = sum(map(bool, verbs))
    misplaced = [
        row
        for row, (places, predicate) in enumerate(zip(verbs, items["predicate"], strict=True))
        if places and predicate not in places
    ]
    if len(misplaced) <= MAX_MISPLACED_SHARE * num_verbs:
        return
    row = misplaced[0]
    raise row_error(
        row,
        where,
        f"column '{task.predicate}': it names the token at {items['predicate'][row]}, counted from "
        f"0, but the tag {PREDICATE_TYPES[0]} is on the one at {verbs[row][0]}, and "
        f"{len(misplaced) - 1:,} more rows differ; write the places from 0",
    )


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    return [[join_words(list(tokens), language) for tokens in items["tokens"]]]


KIND = Kind(
    name="semantic_roles",
    unit="word",
    required_columns=("tokens", "predicate", "label"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=RolesAnswer,
    metrics=("span_f1",),
    may_truncate=False,
    integer_columns=("predicate",),
    identity_columns=("tokens", "predicate"),
    makes_groups=True,
)
