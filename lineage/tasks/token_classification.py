"""A sentence in words, and a tag for each word: named entities, phrases, parts of speech."""

from itertools import compress

import pandas as pd

from lineage.answers.annotations import is_span_annotation, spans_to_iob2
from lineage.answers.tags import TagsAnswer
from lineage.config.data import Task
from lineage.errors import InputError, check_rows, row_error
from lineage.language import is_blank, is_spaceless, normalize_text
from lineage.tasks.base import Kind
from lineage.tasks.columns import (
    MAX_BLANK_SHARE,
    NO_ENTRIES,
    Cell,
    Sequences,
    TableColumns,
    check_tags,
    extract_sentences,
    is_empty_cell,
    list_cells,
    normalize_label,
    parse_list,
)
from lineage.tasks.recognition import Recognition
from lineage.tasks.tagged_words import (
    BILSTM_HINT,
    NEEDS,
    choose_tagged_words,
)

MIN_ROWS_FOR_CHECK = 24  # fewer rows allow no conclusion
MAX_SINGLE_TOKEN_SHARE = 0.9  # of the rows; sentences of one word exist, but not that many


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns tokens, label (a tag for each), blank and has_invalid_tags.

    `blank` counts the blank tokens that were left out. `has_invalid_tags` is there if the data has
    spans of characters, and says whether some overlapped. No item is truncated. New items have no
    label. Raises InputError, also where nearly every row has one token.
    """
    assert task.tokens is not None
    if task.label is None:
        return _make_new_items(columns, task, where)
    columns, has_overlap = _convert_spans(columns, task, where)
    for name in (task.tokens, task.label):
        is_filled = [not is_empty_cell(value) for value in columns[name]]
        check_rows(is_filled, where, f"column '{name}': {NO_ENTRIES}")
    tokens = [
        parse_list(cell, allow_blank=True) for cell in list_cells(columns, task.tokens, where)
    ]
    tags = [
        list(map(normalize_label, parse_list(cell, allow_blank=True)))
        for cell in list_cells(columns, task.label, where)
    ]
    check_rows([all(row_tags) for row_tags in tags], where, f"column '{task.label}': {NO_ENTRIES}")
    tokens = [
        _split_characters(*parts, task)
        for parts in zip(columns[task.tokens], tokens, tags, strict=True)
    ]
    _check_sentences(tokens, tags, where)
    check_tags(tokens, tags, task, where)
    is_word = [[not is_blank(token) for token in words] for words in tokens]
    has_words = [any(flags) for flags in is_word]
    if has_words.count(False) > MAX_BLANK_SHARE * len(has_words):
        check_rows(has_words, where, f"column '{task.tokens}': every entry is blank")
    items = pd.DataFrame(
        {
            "tokens": _select(tokens, is_word),
            "label": _select(tags, is_word),
            "blank": [flags.count(False) for flags in is_word],
        }
    )
    if has_overlap:
        items["has_invalid_tags"] = has_overlap
    return items[has_words]


def _make_new_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    assert task.tokens is not None
    tokens = []
    for cell in list_cells(columns, task.tokens, where):
        words = parse_list(cell, allow_blank=True)
        if isinstance(cell.value, str) and is_spaceless(task.language) and len(words) == 1:
            words = list(words[0])
        tokens.append([word for word in words if not is_blank(word)])
    return pd.DataFrame({"tokens": tokens})[[bool(words) for words in tokens]]


def _select(sequences: Sequences, flags: list[list[bool]]) -> Sequences:
    return [list(compress(*parts)) for parts in zip(sequences, flags, strict=True)]


def _check_sentences(tokens: Sequences, tags: Sequences, where: str) -> None:
    pairs = zip(tokens, tags, strict=True)
    num_single = sum(len(words) == len(word_tags) == 1 for words, word_tags in pairs)
    if len(tokens) < MIN_ROWS_FOR_CHECK or num_single <= MAX_SINGLE_TOKEN_SHARE * len(tokens):
        return
    raise InputError(
        f"{where}: {num_single:,} of {len(tokens):,} rows have one token: rows are words, not "
        "sentences; write one sentence per row, its tokens and tags as lists (jsonl or parquet), or "
        "with spaces between; a txt or tsv with a blank line after each sentence is read with "
        "'columns', the names of what stands in a line"
    )


def _split_characters(cell: object, words: list[str], tags: list[str], task: Task) -> list[str]:
    """Return the words of a cell; without spaces they may be one character for each tag."""
    if not isinstance(cell, str) or not is_spaceless(task.language) or len(words) == len(tags):
        return words
    return [normalize_text(character) for character in cell] if len(cell) == len(tags) else words


def _convert_spans(
    columns: TableColumns, task: Task, where: str
) -> tuple[TableColumns, list[bool]]:
    """Replace texts and spans of characters by words and tags; also tell where spans overlap.

    Return columns of words unchanged, with an empty list. Raises InputError.
    """
    assert task.tokens is not None and task.label is not None
    texts = columns[task.tokens]
    cells = columns[task.label]
    if not any(map(is_span_annotation, cells)):
        return columns, []
    all_words = []
    all_tags = []
    has_overlap = []
    for row, (text, cell) in enumerate(zip(texts, cells, strict=True)):
        if not isinstance(text, str):
            raise row_error(
                row,
                where,
                f"column '{task.label}' holds spans of characters, but column '{task.tokens}' "
                "does not hold a text",
            )
        spans = cell if is_span_annotation(cell) else cell or {}
        try:
            words, tags, overlaps = spans_to_iob2(text, spans, task.language)
        except ValueError as error:
            raise Cell(cell, row, task.label, where).error(str(error)) from None
        all_words.append(words)
        all_tags.append(tags)
        has_overlap.append(overlaps)
    return {**columns, task.tokens: all_words, task.label: all_tags}, has_overlap


KIND = Kind(
    name="token_classification",
    unit="word",
    required_columns=("tokens", "label"),
    make_items=make_items,
    extract_texts=extract_sentences,
    answer=TagsAnswer,
    metrics=("span_f1", "token_accuracy"),
    may_truncate=False,
    identity_columns=("tokens",),
    recognition=Recognition("tags", choose_tagged_words, needs=NEEDS, comment=BILSTM_HINT),
)
