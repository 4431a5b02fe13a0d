"""A sentence, one of its predicates, and the role of each word for it: who did what to whom.

A sentence with several predicates has a row for each. Its rows are a group, so that they stay
together in one split, and are one unit of the intervals.
"""

from dataclasses import replace

import pandas as pd

from lineage.answers.annotations import is_span_annotation
from lineage.answers.groups import name_unnamed_group
from lineage.answers.roles import PREDICATE_TYPES, VERB_TAGS, RolesAnswer
from lineage.config.data import Task
from lineage.errors import row_error
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    Cell,
    TableColumns,
    check_tags,
    extract_sentences,
    list_cells,
    normalize_label,
    parse_list,
    parse_place,
)
from lineage.tasks.recognition import (
    Column,
    ColumnChoice,
    Recognition,
    SampleTable,
    entries,
    fit_nearly_all,
)
from lineage.tasks.tagged_words import (
    BILSTM_HINT,
    NEEDS,
    are_places,
    are_spans,
    choose_tagged_words,
    find_place,
)

PLACE_MEANING = (
    "the place of a token; write that of the verb, counted from 0, and a row for each verb of a "
    "sentence"
)
PREDICATE_NAMES = (
    *("predicate", "predicate_index", "predicate_idx"),
    *("verb", "verb_index", "verb_idx"),
)
MAX_MISPLACED_SHARE = 0.5  # of the rows with a verb; with more, places do not count from 0


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns tokens, predicate (a place among them), label (a tag for each) and group."""
    assert task.tokens is not None and task.predicate is not None
    tokens = [parse_list(cell) for cell in list_cells(columns, task.tokens, where)]
    predicates = [
        parse_place(cell, words, meaning=PLACE_MEANING)
        for cell, words in zip(list_cells(columns, task.predicate, where), tokens, strict=True)
    ]
    items = pd.DataFrame({"tokens": tokens, "predicate": predicates})
    if task.label is not None:
        tags = list(map(_read_tags, list_cells(columns, task.label, where)))
        check_tags(tokens, tags, task, where)
        items["label"] = tags
        _check_places(items, task, where)
    return items.assign(group=list(map(name_unnamed_group, tokens)))


def _read_tags(cell: Cell) -> list[str]:
    if is_span_annotation(cell.value):
        raise row_error(
            cell.row,
            cell.where,
            f"column '{cell.column}' holds spans of characters, which are not read beside the "
            "place of a verb; write a tag for each token",
        )
    return [normalize_label(tag) for tag in parse_list(cell)]


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
    place = items["predicate"][row]
    raise Cell(place, row, task.predicate or "", where).error(
        f"it names the token at {place}, counted from 0, but the tag {PREDICATE_TYPES[0]} is on "
        f"the one at {verbs[row][0]}, and {len(misplaced) - 1:,} more rows differ; write the "
        "places from 0"
    )


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of tagged words with a column of places, those of each row's verb."""
    choice = choose_tagged_words(table)
    if choice is None:
        return None
    predicate = _find_predicate(table, choice)
    if predicate is None:
        if not table.is_requested:
            return None
        raise table.refusal(
            f"kind={table.requested.kind} needs a column with the place of the verb among the "
            f"words, from 0; call it {PREDICATE_NAMES[0]}, and give a row for each verb of a "
            "sentence"
        )
    tokens = choice.keys["tokens"]
    keys = {"tokens": tokens, "predicate": predicate, "label": choice.keys["label"]}
    return replace(choice, keys=keys)


def _find_predicate(table: SampleTable, choice: ColumnChoice) -> str | None:
    """Return the column with the place of each row's verb, by its tags or by its name."""
    tokens = table.columns[choice.keys["tokens"]]
    tags = table.columns[choice.keys["label"]]
    if are_spans(tags.filled) and not table.is_requested:
        return None
    places = [column for column in table.columns.values() if are_places(column, tokens)]
    found = [column.name for column in places if _are_verbs(column, tags)]
    found += [column.name for column in places if column.name.lower() in PREDICATE_NAMES]
    return found[0] if found else None


def _are_verbs(places: Column, tags: Column) -> bool:
    """Return whether the tags at these places are nearly all that of the verb."""
    fits = []
    for value, cell in zip(places.values, tags.values, strict=True):
        place = find_place(value)
        row_tags = dict(enumerate(map(str, entries(cell))))
        fits.append(place is not None and row_tags.get(place) in VERB_TAGS)
    return fit_nearly_all(fits)


KIND = Kind(
    name="semantic_roles",
    unit="word",
    required_columns=("tokens", "predicate", "label"),
    make_items=make_items,
    extract_texts=extract_sentences,
    answer=RolesAnswer,
    metrics=("span_f1",),
    may_truncate=False,
    integer_columns=("predicate",),
    identity_columns=("tokens", "predicate"),
    makes_groups=True,
    recognition=Recognition("tags", choose_columns, needs=NEEDS, comment=BILSTM_HINT),
)
