"""A word in its sentence, and the sense that it has there, which only the context can tell."""

import re
from itertools import chain

import pandas as pd

from lineage.answers.sense import SenseAnswer
from lineage.config.data import Task
from lineage.language import is_blank
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    Cell,
    TableColumns,
    extract_sentences,
    list_cells,
    parse_list,
    parse_place,
    read_label_column,
)
from lineage.tasks.recognition import (
    ALIKE_LENGTH_RATIO,
    GROUP_NAME,
    LABEL_NAMES,
    MAX_LABEL_WORDS,
    METADATA_NAMES,
    Column,
    ColumnChoice,
    Recognition,
    SampleTable,
    note_others,
)
from lineage.tasks.tagged_words import TOKEN_NAMES, are_places

PLACE_NAME = re.compile(r"(target|word|token)[_-]?(index|idx|place|position)", re.I)
TARGET_NAME = "target"  # in other tables, a label
WORD_NAMES = ("word", "target_word", "lemma", "pos")  # they describe the word, whatever its sense
SENSE_NAMES = ("sense", "sense_id", "sense_key", "synset", "meaning")
MIN_ROWS_PER_SENSE = 2  # on average; with fewer, a column needs the name of a label


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns tokens (a window of max_words around the target), target, label, truncated."""
    assert task.tokens is not None and task.target is not None
    windows = [
        _cut_window(tokens, target, task.max_words)
        for tokens, target in zip(
            list_cells(columns, task.tokens, where),
            list_cells(columns, task.target, where),
            strict=True,
        )
    ]
    items = pd.DataFrame(windows, columns=["tokens", "target", "truncated"])
    if task.label is not None:
        items["label"] = read_label_column(columns, task.label, where)
    return items


def _cut_window(words: Cell, target: Cell, max_words: int) -> tuple[list[str], int, bool]:
    """Return max_words words around the target, its place among them, and whether there are more."""
    tokens = parse_list(words)
    place = parse_place(target, tokens, meaning="the index of a token")
    if is_blank(tokens[place]):
        raise words.error(f"the word at {place}, which '{target.column}' names, is blank")
    first = max(0, min(place - max_words // 2, len(tokens) - max_words))
    window = tokens[first : first + max_words]
    return window, place - first, len(tokens) > max_words


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of tokens, of the place of a word and of its sense, if there are."""
    names = table.requested.text or table.columns
    places = {name: _find_places(table, table.columns[name]) for name in names}
    found = [name for name in names if places[name]]
    named = [name for name in found if name.lower() in TOKEN_NAMES]
    lists = [name for name in found if table.columns[name].is_list]
    if not found:
        return None
    tokens = [*named, *lists, *found][0]
    target, *others = places[tokens]
    label = table.requested.label
    notes: dict[str, str] = {}
    if not label:
        senses = [one.name for one in table.columns.values() if _has_senses(table, one)]
        senses = [name for name in senses if name not in (tokens, target)]
        if not senses:
            return None
        label, notes = table.pick_label(senses)
    keys = {"tokens": tokens, "target": target, "label": label}
    notes = notes | {"target": note_others(others, "place of a word")}
    return ColumnChoice(keys, (tokens,), is_cut=True, notes=notes)


def _find_places(table: SampleTable, tokens: Column) -> list[str]:
    """Return the columns with the place of one of the tokens in nearly each row, the surest first.

    Small numbers beside a text, or beside another list, may be anything. There only its name tells
    that a column holds places, unless the user has named the kind.
    """
    if not (tokens.is_list or tokens.is_text):
        return []
    own = (tokens.name, table.requested.label)
    others = [column for column in table.columns.values() if column.name not in own]
    places = [column for column in others if are_places(column, tokens)]
    min_words = tokens.mean_words / ALIKE_LENGTH_RATIO
    has_more_words = any(
        one.is_list or (one.is_text and one.mean_words >= min_words) for one in others
    )
    is_clear = table.is_requested or not has_more_words
    found = [column.name for column in places if PLACE_NAME.fullmatch(column.name)]
    if tokens.is_list or tokens.name.lower() in TOKEN_NAMES:
        targets = [column for column in places if column.name.lower() == TARGET_NAME]
        found += [column.name for column in targets if is_clear or column.is_amount]
    if tokens.is_list and is_clear:
        no_places = {*map(str.lower, found), *chain.from_iterable(LABEL_NAMES)}
        rest = [one for one in places if one.name.lower() not in no_places]
        rest = [one for one in rest if not one.is_identifier]
        found += [one.name for one in sorted(rest, key=lambda one: -one.num_distinct)]
    return found


def _has_senses(table: SampleTable, column: Column) -> bool:
    """Return whether a column may hold the senses of words, of which there may be many."""
    name = column.name.lower()
    if column.is_list or column.holds_objects or column.has_fractions:
        return False
    if name in {table.task.lower(), *SENSE_NAMES, *chain.from_iterable(LABEL_NAMES)}:
        return column.num_distinct > 1
    if name in (*WORD_NAMES, *METADATA_NAMES) or GROUP_NAME.fullmatch(name):
        return False
    if column.is_identifier or column.is_amount or column.mean_words > MAX_LABEL_WORDS:
        return False
    return 2 <= column.num_distinct <= len(column.texts) / MIN_ROWS_PER_SENSE


KIND = Kind(
    name="word_sense",
    unit="word",
    required_columns=("tokens", "target", "label"),
    make_items=make_items,
    extract_texts=extract_sentences,
    answer=SenseAnswer,
    metrics=("accuracy", "macro_f1"),
    integer_columns=("target",),
    identity_columns=("tokens", "target"),
    recognition=Recognition(
        "tags",
        choose_columns,
        needs="a column of tokens, one with the place of a word among them, from 0, and one with "
        "its sense; call the place target, and name the others, as text=COLUMN,label=COLUMN",
    ),
)
