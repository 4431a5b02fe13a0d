"""A pronoun in its text, and which of several candidates it stands for: GAP (Webster et al. 2018).

A label is the name of a candidate's column, or the candidate itself, or neither.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from lineage.answers.pronoun import NEITHER, PronounAnswer
from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.language import WORD_CHARACTER, cell_to_text, is_blank, normalize_text, word_spans
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    Cell,
    TableColumns,
    parse_start,
    read_cells,
    read_label_column,
    read_text_column,
)
from lineage.tasks.recognition import (
    ColumnChoice,
    Recognition,
    SampleTable,
    fit_nearly_all,
    list_names,
)

PRONOUN_NAME = "pronoun"
START_NAME = re.compile(r"(.+)[_-](start|offset)", re.I)  # first characters of another column
# The files of GAP have one for each candidate, true or false, in place of a label.
COREFERENCE_NAME = re.compile(r"(.+)[_-]coref", re.I)


@dataclass(frozen=True)
class _Mention:
    """The pronoun or a candidate, with its characters in the clean text."""

    label: str  # the label that it stands for
    start: int
    end: int


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns text, starts, ends, mentions, firsts, lasts, predicate, label and truncated.

    `text` is a window of max_words words with all mentions, or of more if they are further apart.
    `starts` and `ends` are the characters of its words. `mentions` names the label of each mention,
    in the order of the text; `firsts` and `lasts` are their first and last words; `predicate` is
    the place of the pronoun among them.
    """
    _check_keys(task, where)
    assert task.text is not None
    texts = read_text_column(columns, task.text[0], where)
    names = ["text", "starts", "ends", "mentions", "firsts", "lasts", "predicate", "truncated"]
    rows = []
    for row, text in enumerate(texts):
        rows.append(_cut_window(text, _find_mentions(columns, text, row, task, where), task))
    items = pd.DataFrame(rows, columns=names)
    if task.label is not None:
        items["label"] = _read_labels(columns, task, where)
    return items


def _check_keys(task: Task, where: str) -> None:
    """Raise InputError unless there is one text, and a start for each candidate."""
    text = task.text or ()
    candidates = task.candidates or ()
    starts = task.candidate_starts or ()
    if len(text) != 1:
        raise InputError(
            f"{where}: text: {list(text)} names {len(text)} columns; {task.kind} reads one text, "
            "name one"
        )
    if len(candidates) != len(starts):
        raise InputError(
            f"{where}: candidates names {len(candidates)} columns and candidate_starts "
            f"{len(starts)}; name the column with the start of each candidate, in the same order"
        )


def _find_mentions(
    columns: TableColumns, text: str, row: int, task: Task, where: str
) -> list[_Mention]:
    """Return the pronoun and the candidates, in the order of the text. Raises InputError."""
    assert task.text and task.pronoun and task.pronoun_start
    raw_text = cell_to_text(columns[task.text[0]][row])
    named = [(NEITHER, task.pronoun, task.pronoun_start)]
    candidates = zip(task.candidates or (), task.candidate_starts or (), strict=True)
    named += [(column, column, start_column) for column, start_column in candidates]
    mentions: dict[tuple[int, int], _Mention] = {}
    for label, column, start_column in named:
        cell = Cell(columns[column][row], row, column, where)
        start_cell = Cell(columns[start_column][row], row, start_column, where)
        start, end = _locate(cell, start_cell, raw_text, text)
        if (start, end) in mentions:
            raise start_cell.error(
                f"'{shorten_value(text[start:end])}' at {start_cell.value} is named twice in the "
                "row; name different places"
            )
        mentions[start, end] = _Mention(label, start, end)
    return [mentions[characters] for characters in sorted(mentions)]


def _locate(cell: Cell, start_cell: Cell, raw_text: str, text: str) -> tuple[int, int]:
    """Return the characters of a mention in the clean text; its start counts those of the raw one.

    Raises InputError if the text has another string there, or goes on with the same word.
    """
    try:
        mention = normalize_text(cell_to_text(cell.value))
    except TypeError as error:
        raise cell.error(str(error)) from None
    if is_blank(mention):
        raise cell.error("it is blank")
    raw_start = parse_start(start_cell)
    # The stop keeps a space before the mention.
    start = len(normalize_text(raw_text[:raw_start] + ".")) - 1
    end = start + len(mention)
    if raw_start >= len(raw_text) or text[start:end] != mention:
        there = raw_text[raw_start : raw_start + len(mention)]
        found = f"where '{shorten_value(there)}' stands" if there else "behind its end"
        raise start_cell.error(
            f"'{shorten_value(mention)}' should begin at character {raw_start} of the text, "
            f"{found}; count characters from 0"
        )
    if _is_inside_word(text, start) or _is_inside_word(text, end):
        raise start_cell.error(
            f"'{shorten_value(mention)}' at {raw_start} is a part of a longer word; name whole words"
        )
    return start, end


def _is_inside_word(text: str, edge: int) -> bool:
    """Tell whether the characters before and after an edge belong to the same word."""
    around = text[max(0, edge - 1) : edge + 1]
    return len(around) == 2 and edge > 0 and all(map(WORD_CHARACTER.match, around))


def _cut_window(text: str, mentions: list[_Mention], task: Task) -> tuple[Any, ...]:
    """Return the item of a row: max_words words around its mentions, or more if they need more."""
    words = _split_words(text, mentions, task.language)
    ends = [end for _, end in words]
    starts = [start for start, _ in words]
    firsts = [starts.index(mention.start) for mention in mentions]
    lasts = [ends.index(mention.end) for mention in mentions]
    first = min(firsts)
    num_needed = max(lasts) + 1 - first
    num_kept = max(task.max_words, num_needed)
    room_before = (num_kept - num_needed) // 2
    begin = max(0, min(first - room_before, len(words) - num_kept))
    kept = slice(begin, begin + num_kept)
    labels = [mention.label for mention in mentions]
    shift = starts[begin]
    return (
        text[shift : ends[kept][-1]],
        [start - shift for start in starts[kept]],
        [end - shift for end in ends[kept]],
        labels,
        [place - begin for place in firsts],
        [place - begin for place in lasts],
        labels.index(NEITHER),
        len(words) > num_kept,
    )


def _split_words(text: str, mentions: list[_Mention], language: str) -> list[tuple[int, int]]:
    """Return where words start and end; the edges of mentions are edges of words (d'|Anna)."""
    edges = sorted({edge for mention in mentions for edge in (mention.start, mention.end)})
    words: list[tuple[int, int]] = []
    for start, end in word_spans(text, language):
        inside = [edge for edge in edges if start < edge < end]
        words += pairwise([start, *inside, end])
    return words


def _read_labels(columns: TableColumns, task: Task, where: str) -> list[str]:
    """Return the label of each row: the name of a candidate's column, or neither."""
    assert task.label is not None and task.candidates is not None
    candidates = {name: read_cells(columns, name, where) for name in task.candidates}
    by_lowercase = {name.lower(): name for name in (*task.candidates, NEITHER)}
    labels = []
    for row, label in enumerate(read_label_column(columns, task.label, where)):
        written = [name for name, cells in candidates.items() if cells[row] == label]
        if label.lower() in by_lowercase:
            labels.append(by_lowercase[label.lower()])
        elif len(written) == 1:
            labels.append(written[0])
        else:
            raise Cell(label, row, task.label, where).error(
                f"'{shorten_value(label)}' is no candidate of the row; write the name of its "
                f"column ({', '.join(task.candidates)}), or {NEITHER}"
            )
    return labels


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    return [list(items["text"])]


def make_example(task: Task) -> dict[str, Any]:
    """Return the cells of a row that can be read, by column: a list of words."""
    assert task.text and task.pronoun and task.pronoun_start
    names = [task.pronoun, *(task.candidates or ())]
    start_names = [task.pronoun_start, *(task.candidate_starts or ())]
    words = [f"word{number}" for number in range(len(names))]
    text = " ".join(words)
    starts = [text.index(word) for word in words]
    return {
        task.text[0]: text,
        **dict(zip(names, words, strict=True)),
        **dict(zip(start_names, starts, strict=True)),
    }


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of a pronoun, of its candidates and of their starts, if there are.

    Raises InputError, also for a table like GAP's, which has no label.
    """
    starts = _find_start_columns(table)
    pronouns = [name for name in starts if name.lower() == PRONOUN_NAME]
    candidates = [name for name in starts if name not in pronouns]
    if not pronouns or not candidates:
        return None
    others = table.without([*starts, *starts.values()])
    texts = table.requested.text or others.choose_texts()[0]
    label, notes = _choose_label(table, others, candidates)
    keys = {
        "text": list(texts),
        "pronoun": pronouns[0],
        "pronoun_start": starts[pronouns[0]],
        "candidates": candidates,
        "candidate_starts": [starts[name] for name in candidates],
        "label": label,
    }
    return ColumnChoice(keys, texts, is_cut=True, notes=notes)


def _choose_label(
    table: SampleTable, others: SampleTable, candidates: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """Return the column of others that names a candidate, or neither, in nearly each row.

    Raises InputError.
    """
    if table.requested.label:
        return table.requested.label, {}
    names = {name.lower() for name in (*candidates, NEITHER)}
    answers = [
        {str(value).strip() for value in row}
        for row in zip(*(table.columns[name].values for name in candidates), strict=True)
    ]
    labels = []
    for column in others.columns.values():
        written = [str(value).strip() for value in column.values]
        pairs = zip(written, answers, strict=True)
        if fit_nearly_all([one.lower() in names or one in own for one, own in pairs]):
            labels.append(column.name)
    if labels:
        return others.pick_label(labels)
    shown = list_names(candidates)
    if flags := [name for name in others.columns if COREFERENCE_NAME.fullmatch(name)]:
        raise others.refusal(
            f"{' and '.join(flags)} say of each candidate whether it is right",
            f"; write one column label instead, with {shown} or {NEITHER}",
        )
    raise others.refusal(
        f"no column holds the label, which is in each row the name of a candidate's column "
        f"({shown}), the candidate itself, or {NEITHER}",
        "; write such a column, or name it, as label=COLUMN",
    )


def _find_start_columns(table: SampleTable) -> dict[str, str]:
    """Return the columns whose first characters are in another column, and that column."""
    starts = {}
    for name, column in table.columns.items():
        found = START_NAME.fullmatch(name)
        if found and found[1] in table.columns and column.is_numeric:
            starts[found[1]] = name
    return starts


KIND = Kind(
    name="pronoun_choice",
    unit="word",
    required_columns=(
        "text",
        "pronoun",
        "pronoun_start",
        "candidates",
        "candidate_starts",
        "label",
    ),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=PronounAnswer,
    metrics=("accuracy", "macro_f1"),
    integer_columns=("pronoun_start", "candidate_starts"),
    identity_columns=("text", "firsts", "lasts"),
    make_example=make_example,
    recognition=Recognition(
        "names",
        choose_columns,
        needs="the columns pronoun and pronoun_start, and for each candidate two such as a and "
        "a_start; rename them",
    ),
)
