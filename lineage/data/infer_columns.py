"""Guess the kind of task of a user's table, and its columns of text and label.

A column counts as a label if it has few distinct values, and as a text if its values differ and
have several words. Names decide between columns that look alike. If they cannot, InputError names
the columns and says how to choose.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import Any

from lineage.answers.annotations import START_KEYS, is_span_annotation
from lineage.answers.label_names import MAX_LABELS
from lineage.data.quoting import is_number
from lineage.errors import InputError, shorten_value
from lineage.language import CJK_CHARACTER
from lineage.tasks.columns import TableColumns, normalize_label

MIN_ROWS_PER_LABEL = 4  # on average; with fewer, the values are hardly labels
MAX_LABEL_WORDS = 4
MIN_TEXT_WORDS = 1.2  # on average; pairs of shorter texts with a number are pairs of words
MAX_NUMBERED_CLASSES = 20  # more distinct whole numbers are amounts
# A text column is alike if its mean length is within this factor of the longest.
ALIKE_LENGTH_RATIO = 1.5
MAX_LISTED_COLUMNS = 8
ID_NAME = re.compile(r"(.*[_-])?(id|ids|idx|index|uid|uuid|guid|url|email|unnamed: \d+)", re.I)
DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([T ].*)?|\d\d?[-/.]\d\d?[-/.]\d{2,4}([T ].*)?")
# The first group with a column decides.
LABEL_NAMES = (
    ("label", "labels", "gold_label", "gold", "target", "class", "y"),
    ("category", "sentiment", "topic", "intent", "emotion", "score", "rating", "stars"),
    ("ner", "tags", "ner_tags"),
)
SCORE_NAMES = ("score", "similarity", "relatedness")
TEXT_NAMES = ("text", "body", "content", "sentence", "document", "review", "message", "comment")
TOKEN_NAMES = ("tokens", "words")
# Columns that describe a row; they are labels only if nothing else is.
METADATA_NAMES = (
    *("author", "user", "username", "customer", "source", "domain", "doc", "document", "split"),
    *("fold", "group", "date", "time", "timestamp", "year", "month", "day", "lang", "language"),
    *("file", "filename", "title"),
)
PAIR_ENDINGS = (("1", "2"), ("0", "1"), ("a", "b"))
PAIR_NAMES = (
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "answer"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
)
CHOICE_NAME = re.compile(r"(choice|option|ending)_?(\d|[a-e])", re.I)
GUESSED_KINDS = (
    "text_classification",
    "text_regression",
    "token_classification",
    "multiple_choice",
    "extractive_qa",
    "minimal_pairs",
    "word_similarity",
)
# A guessed kind -> the comment on it in params.yaml.
ALTERNATIVE_KINDS = {
    "text_classification": "or text_regression, if the label is an amount",
    "text_regression": "or text_classification, if the numbers are names",
    "token_classification": "add probes: [linear, bilstm] for a BiLSTM-CRF too, which is slower",
}
NUMBER_KINDS = ("text_regression", "word_similarity")
# Kinds that the names of their columns tell. The last key is optional.
KINDS_BY_COLUMNS = (
    ("extractive_qa", ("question", "context", "answers"), "answer_starts"),
    ("minimal_pairs", ("good", "bad"), None),
)


@dataclass(frozen=True)
class Column:
    """A column of a sample of a user's table."""

    name: str
    values: list[Any]

    @cached_property
    def filled(self) -> list[Any]:
        """The values that are there."""
        return [value for value in self.values if value is not None and str(value).strip()]

    @cached_property
    def is_list(self) -> bool:
        """True if the values are lists."""
        return bool(self.filled) and all(isinstance(value, list | tuple) for value in self.filled)

    @cached_property
    def holds_objects(self) -> bool:
        """True if a value is an object, as metadata in a jsonl may be."""
        return any(isinstance(value, dict) for value in self.filled)

    @cached_property
    def texts(self) -> list[str]:
        """The values that are there, as texts; whole numbers without a decimal point."""
        return [normalize_label(str(value).strip()) for value in self.filled]

    @cached_property
    def num_distinct(self) -> int:
        """The number of distinct values."""
        return len(set(self.texts))

    @cached_property
    def mean_words(self) -> float:
        """The mean number of words; a Chinese or Japanese character is one."""
        counts = [len(text.split()) + len(CJK_CHARACTER.findall(text)) for text in self.texts]
        return sum(counts) / max(1, len(counts))

    @cached_property
    def is_numeric(self) -> bool:
        """True if all values are numbers."""
        return not self.is_list and bool(self.texts) and all(map(is_number, self.texts))

    @cached_property
    def is_amount(self) -> bool:
        """True if the values are numbers that are hardly names of classes."""
        if not self.is_numeric or ID_NAME.fullmatch(self.name):
            return False
        return self.has_fractions or self.num_distinct > MAX_NUMBERED_CLASSES

    @cached_property
    def has_fractions(self) -> bool:
        """True if some number is not whole."""
        return self.is_numeric and not all(float(text).is_integer() for text in self.texts)

    @cached_property
    def is_identifier(self) -> bool:
        """True if the values are names of rows, or dates."""
        if ID_NAME.fullmatch(self.name):
            return True
        return bool(self.texts) and all(map(DATE.fullmatch, self.texts))

    @cached_property
    def is_categorical(self) -> bool:
        """True if the values may be labels: few distinct ones, each of a few words."""
        if self.is_list or self.holds_objects or self.is_identifier or self.is_amount:
            return False
        most = min(MAX_LABELS, max(2, len(self.texts) // MIN_ROWS_PER_LABEL))
        are_short = self.mean_words <= MAX_LABEL_WORDS
        return are_short and 2 <= self.num_distinct <= most

    @cached_property
    def is_text(self) -> bool:
        """True if the values may be texts."""
        if self.is_list or self.holds_objects or self.is_numeric or self.is_identifier:
            return False
        if self.is_categorical:
            return False
        return self.num_distinct > 1


@dataclass(frozen=True)
class ColumnChoice:
    """The kind of task that a table holds, and the meaning of its columns."""

    kind: str
    keys: dict[str, Any]  # keys of the task that name columns
    text_columns: tuple[str, ...]  # their texts are truncated together; empty: texts stay whole
    is_kind_guessed: bool
    # By key: other columns that could have been chosen.
    alternatives: dict[str, tuple[str, ...]]

    @property
    def has_tags(self) -> bool:
        """True if each word has a label."""
        return self.kind == "token_classification"


@dataclass(frozen=True)
class RequestedColumns:
    """The keys of a task that the user gave; None and empty if they were left out."""

    kind: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None


def choose_columns(
    table: TableColumns, requested: RequestedColumns, task: str, where: str
) -> ColumnChoice:
    """Return the kind of task, and its columns. Raises InputError.

    `task` is the name of the task: a column of this name is its label.
    """
    columns = {name: Column(name, values) for name, values in table.items()}
    for name in (*requested.text, *filter(None, [requested.label])):
        if name not in columns:
            raise InputError(
                f"{where}: there is no column '{name}'; its columns are {list_names(columns)}"
            )
    for choose in (_choose_named_kind, _choose_multiple_choice, _choose_tags):
        choice = choose(columns, requested, task, where)
        if choice is not None:
            return choice
    return _choose_text_and_label(columns, requested, task, where)


def _choose_named_kind(
    columns: dict[str, Column], requested: RequestedColumns, task: str, where: str
) -> ColumnChoice | None:
    """Return a kind that the names of its columns tell."""
    for kind, names, optional in KINDS_BY_COLUMNS:
        if requested.kind not in (None, kind) or requested.label or requested.text:
            continue
        if not all(name in columns for name in names):
            if requested.kind == kind:
                raise InputError(
                    f"{where}: kind={kind} needs the columns {', '.join(names)}; rename the "
                    f"columns of the data; its columns are {list_names(columns)}"
                )
            continue
        keys = {name: name for name in names}
        if optional in columns:
            keys[optional] = optional
        texts = tuple(names[:2]) if kind == "extractive_qa" else ()
        return ColumnChoice(kind, keys, texts, requested.kind is None, {})
    return None


def _choose_multiple_choice(
    columns: dict[str, Column], requested: RequestedColumns, task: str, where: str
) -> ColumnChoice | None:
    """Return multiple_choice if there is a column for each choice."""
    choices = [name for name in columns if CHOICE_NAME.fullmatch(name)]
    if requested.kind not in (None, "multiple_choice"):
        return None
    if len(choices) < 2:
        if requested.kind is None:
            return None
        raise InputError(
            f"{where}: kind=multiple_choice needs a column for each choice, named choice1, choice2 "
            f"and so on; rename them; its columns are {list_names(columns)}"
        )
    others = {name: column for name, column in columns.items() if name not in choices}
    texts = requested.text or _choose_texts(others, {requested.label}, where)[0]
    label, alternatives = _choose_label(others, requested, {*texts}, task, where)
    keys = {"text": list(texts), "choices": choices, "label": label}
    return ColumnChoice(
        "multiple_choice",
        keys,
        (*texts, choices[0]),
        requested.kind is None,
        {} if requested.label else {"label": alternatives},
    )


def _choose_tags(
    columns: dict[str, Column], requested: RequestedColumns, task: str, where: str
) -> ColumnChoice | None:
    """Return token_classification if a column has a tag for each word of another."""
    kind = "token_classification"
    if requested.kind not in (None, kind):
        return None
    tokens = _choose_tokens(columns, requested)
    if tokens is None:
        if requested.kind == kind:
            raise InputError(
                f"{where}: kind={kind} needs a column of words and one with a tag for each; "
                f"name them, as text=COLUMN,label=COLUMN; its columns are {list_names(columns)}"
            )
        return None
    candidates = [name for name, column in columns.items() if _are_tags(column, tokens)]
    if requested.label:
        candidates = [requested.label]
    label, alternatives = _pick_label(candidates, task, where)
    keys = {"tokens": tokens.name, "label": label}
    guessed = {} if requested.label else {"label": alternatives}
    return ColumnChoice(kind, keys, (), requested.kind is None, guessed)


def _choose_tokens(columns: dict[str, Column], requested: RequestedColumns) -> Column | None:
    """Return the column of words whose tags another column has; None if there is none."""
    if requested.kind and requested.text:
        return columns[requested.text[0]]
    names = list(requested.text) or list(columns)
    tagged = [
        columns[name]
        for name in names
        if any(_are_tags(column, columns[name]) for column in columns.values())
    ]
    named = [column for column in tagged if column.name.lower() in TOKEN_NAMES]
    candidates = named or tagged
    return max(candidates, key=lambda column: len(_distinct_entries(column)), default=None)


def _are_tags(tags: Column, tokens: Column) -> bool:
    """Return whether a column has a tag for each word of another, or spans of its characters."""
    if tags is tokens or not tokens.filled or tokens.is_numeric:
        return False
    if _are_spans(tags.filled):
        return tokens.is_text
    num_entries = 0
    for words, row_tags in zip(tokens.values, tags.values, strict=True):
        if len(_entries(words)) != len(_entries(row_tags)):
            return False
        num_entries += len(_entries(words))
    if num_entries < 2 * len(tokens.values):  # a table of words, or of short names
        return False
    num_tags = len(_distinct_entries(tags))
    return num_tags <= MAX_LABELS and num_tags < len(_distinct_entries(tokens))


def _are_spans(values: list[Any]) -> bool:
    """Return whether cells are lists of spans; another list of objects may hold anything."""
    entries = list(chain.from_iterable(value for value in values if isinstance(value, list)))
    if not entries or not all(value == [] or is_span_annotation(value) for value in values):
        return False
    return all(_has_start(entry) for entry in entries)


def _has_start(span: Any) -> bool:
    if isinstance(span, dict):
        return not span.keys().isdisjoint(START_KEYS)
    return isinstance(span[0], int)


def _entries(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    return str(value).split() if value is not None else []


def _distinct_entries(column: Column) -> set[str]:
    return set(map(str, chain.from_iterable(map(_entries, column.values))))


def _choose_text_and_label(
    columns: dict[str, Column], requested: RequestedColumns, task: str, where: str
) -> ColumnChoice:
    """Return classification or regression of one text or two."""
    texts = requested.text
    alternatives: dict[str, tuple[str, ...]] = {}
    if not texts:
        texts, alternatives["text"] = _choose_texts(columns, {requested.label}, where)
    label, other_labels = _choose_label(columns, requested, {*texts}, task, where)
    if not requested.label:
        alternatives["label"] = other_labels
    kind = requested.kind
    if kind is None:
        is_score = columns[label].is_numeric and label.lower() in SCORE_NAMES
        is_number_label = columns[label].is_amount or (is_score and columns[label].num_distinct > 2)
        kind = "text_regression" if is_number_label else "text_classification"
    is_kind_guessed = requested.kind is None
    are_words = all(columns[name].mean_words < MIN_TEXT_WORDS for name in texts)
    if kind == "text_regression" and is_kind_guessed and len(texts) == 2 and are_words:
        kind = "word_similarity"
    if kind == "word_similarity":
        words = {"words": list(texts), "label": label}
        return ColumnChoice(kind, words, (), is_kind_guessed, alternatives)
    keys = {"text": list(texts), "label": label}
    return ColumnChoice(kind, keys, texts, is_kind_guessed, alternatives)


def _choose_label(
    columns: dict[str, Column],
    requested: RequestedColumns,
    texts: set[str],
    task: str,
    where: str,
) -> tuple[str, tuple[str, ...]]:
    """Return the label column, and others that could have been it. Raises InputError."""
    if requested.label:
        return requested.label, ()
    rest = [column for column in columns.values() if column.name not in texts]

    def is_label(column: Column) -> bool:
        if requested.kind in NUMBER_KINDS:
            return column.is_numeric and not column.is_identifier
        return column.is_categorical

    candidates = [column.name for column in rest if is_label(column)]
    if requested.kind is None:
        named = _names_in(LABEL_NAMES, task)
        candidates += [
            column.name
            for column in rest
            if column.is_amount and (column.has_fractions or column.name.lower() in named)
        ]
    if not candidates:
        _check_not_constant(rest, task, where)
        needed = "like a label (one with few distinct values)"
        if requested.kind in NUMBER_KINDS:
            needed = "like a score (one with numbers)"
        raise InputError(
            f"{where}: no column looks {needed}; "
            f"its columns are {list_names(columns)}; name it, as label=COLUMN, or use a table that has one"
        )
    return _pick_label(candidates, task, where)


def _check_not_constant(columns: Iterable[Column], task: str, where: str) -> None:
    """Raise InputError for a column with the name of a label and one value."""
    for column in columns:
        if column.num_distinct == 1 and column.name.lower() in _names_in(LABEL_NAMES, task):
            raise InputError(
                f"{where}: column '{column.name}' is named like a label, but has the same value in "
                "all rows, so there is nothing to learn; name another column, as label=COLUMN, or "
                "use a table with several labels"
            )


def _names_in(groups: Iterable[Iterable[str]], task: str) -> set[str]:
    return {task.lower(), *chain.from_iterable(groups)}


def _pick_label(candidates: list[str], task: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Return one of several label columns, by their names, and the others. Raises InputError."""
    found: list[str] = []
    for group in ((task.lower(),), *LABEL_NAMES):
        found = found or [name for name in candidates if name.lower() in group]
    found = found or [name for name in candidates if name.lower() not in METADATA_NAMES]
    found = found or candidates
    if len(found) > 1:
        shown = ", ".join(f"'{shorten_value(name)}'" for name in found)
        raise InputError(
            f"{where}: {len(found)} columns look like labels: {shown}; name the one to be "
            f"predicted, such as --task {task}=FILE,label={shorten_value(found[-1])}"
        )
    return found[0], tuple(name for name in candidates if name != found[0])


def _choose_texts(
    columns: dict[str, Column], excluded: set[str | None], where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the text column, or both of a pair, and the others. Raises InputError."""
    candidates = [
        column for column in columns.values() if column.is_text and column.name not in excluded
    ]
    if not candidates:
        raise InputError(
            f"{where}: no column looks like a text (one with different values of several words); "
            f"its columns are {list_names(columns)}; name it, as text=COLUMN"
        )
    pairs = [
        (first.name, second.name)
        for first, second in combinations(candidates, 2)
        if _are_pair(first.name.lower(), second.name.lower())
    ]
    if len(pairs) == 1:
        return pairs[0], ()
    longest = max(candidates, key=lambda column: column.mean_words)
    alike = [
        column
        for column in candidates
        if column.mean_words * ALIKE_LENGTH_RATIO >= longest.mean_words
    ]
    named = [column for column in alike if column.name.lower() in TEXT_NAMES]
    found = named if len(named) == 1 else alike
    if len(found) > 1:
        names = [shorten_value(column.name) for column in found]
        raise InputError(
            f"{where}: {len(found)} columns look like texts: {', '.join(names)}; name one, as "
            f"text={names[0]}, or both that belong together, as text={names[0]},text={names[1]}"
        )
    others = tuple(column.name for column in candidates if column is not found[0])
    return (found[0].name,), others


def choose_corpus_text(table: TableColumns, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the column with the texts of a corpus, and others. Raises InputError."""
    columns = {name: Column(name, values) for name, values in table.items()}
    if len(columns) == 1:
        return next(iter(columns)), ()
    texts, others = _choose_texts(columns, set(), where)
    if len(texts) > 1:
        raise InputError(
            f"{where}: 2 columns look like texts: {', '.join(map(shorten_value, texts))}; name "
            f"one, as text={shorten_value(texts[0])}"
        )
    return texts[0], others


def _are_pair(first: str, second: str) -> bool:
    """Return whether the names of two columns say that they belong together."""
    if (first, second) in PAIR_NAMES or (second, first) in PAIR_NAMES:
        return True
    same_stem = first[:-1] == second[:-1] and len(first) > 1
    return same_stem and (first[-1], second[-1]) in PAIR_ENDINGS


def list_names(names: Iterable[str]) -> str:
    """Return the names of some columns, shortened."""
    names = [shorten_value(name) for name in names]
    more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return f"{', '.join(names[:MAX_LISTED_COLUMNS])}{more}"


def note_others(names: Sequence[str], noun: str) -> str:
    """Return a note about other columns that could have been chosen."""
    return f"or {list_names(names)}" if names else f"no other column looks like a {noun}"
