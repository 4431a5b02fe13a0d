"""Recognize the kind of task of a user's table, and its columns, for `lineage init`.

A label has few distinct values; the values of a text differ and have several words. Names decide
between columns that look alike. If they cannot, InputError says how to choose.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any, Literal

from lineage.answers.label_names import MAX_LABELS
from lineage.errors import InputError, shorten_value
from lineage.language import CJK_CHARACTER
from lineage.tasks.columns import is_number, normalize_label

MIN_ROWS_PER_LABEL = 4  # on average; with fewer, the values are hardly labels
MAX_LABEL_WORDS = 4
MIN_TEXT_WORDS = 1.2  # on average; pairs of shorter texts with a number are pairs of words
MAX_NUMBERED_CLASSES = 20  # more distinct whole numbers are amounts
# A text column is alike if its mean length is within this factor of the longest.
ALIKE_LENGTH_RATIO = 1.5
MAX_LISTED_COLUMNS = 8
MAX_MISFIT_SHARE = 0.1  # of the rows; the checks of the data refuse these rows by their number
ID_NAME = re.compile(r"(.*[_-])?(id|ids|idx|index|uid|uuid|guid|url|email|unnamed: \d+)", re.I)
DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([T ].*)?|\d\d?[-/.]\d\d?[-/.]\d{2,4}([T ].*)?")
# The first group with a column decides.
LABEL_NAMES = (
    ("label", "labels", "gold_label", "gold", "target", "class", "y"),
    ("category", "sentiment", "topic", "intent", "emotion", "score", "rating", "stars"),
    ("ner", "tags", "ner_tags", "roles"),
)
SCORE_NAMES = ("score", "similarity", "relatedness")
TEXT_NAMES = ("text", "body", "content", "sentence", "document", "review", "message", "comment")
# Columns that say which rows belong together, with or without `_id`.
GROUP_NAME = re.compile(
    r"(\w+[_-])?(author|user|username|customer|patient|speaker|doc|document|book|novel|story|chapter|article"
    r"|page|file|filename|thread|conversation|dialogue|dialog|session)([_-]?id)?",
    re.I,
)
# Columns that describe a row; they are labels only if nothing else is.
METADATA_NAMES = (
    *("source", "domain", "split", "fold", "group", "date", "time", "timestamp", "year", "month"),
    *("day", "lang", "language", "title"),
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
# The signs of a kind, the surest first: the names of columns, a tag for each word or the place of
# one, two texts without a label, or a text and its label.
SIGNS = ("names", "tags", "texts", "label")


@dataclass(frozen=True)
class Column:
    """A column of a sample of a user's table."""

    name: str
    values: list[Any]

    @cached_property
    def filled(self) -> list[Any]:
        return [value for value in self.values if value is not None and str(value).strip()]

    @cached_property
    def is_list(self) -> bool:
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
    def num_entries(self) -> list[int]:
        """The number of words, or of entries of a list, in each cell."""
        return [len(entries(value)) for value in self.values]

    @cached_property
    def num_distinct(self) -> int:
        return len(set(self.texts))

    @cached_property
    def mean_words(self) -> float:
        """The mean number of words; a Chinese or Japanese character is one."""
        counts = [len(text.split()) + len(CJK_CHARACTER.findall(text)) for text in self.texts]
        return sum(counts) / max(1, len(counts))

    @cached_property
    def is_numeric(self) -> bool:
        return not self.is_list and bool(self.texts) and all(map(is_number, self.texts))

    @cached_property
    def is_amount(self) -> bool:
        """True if the values are numbers that are hardly names of classes."""
        if not self.is_numeric or ID_NAME.fullmatch(self.name):
            return False
        return self.has_fractions or self.num_distinct > MAX_NUMBERED_CLASSES

    @cached_property
    def has_fractions(self) -> bool:
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
        if self.is_list or self.holds_objects or self.is_numeric or self.is_identifier:
            return False
        if self.is_categorical:
            return False
        return self.num_distinct > 1


@dataclass(frozen=True)
class ColumnChoice:
    """The meaning of the columns of a table, for one kind of task."""

    keys: dict[str, Any]  # keys of the task that name columns
    text_columns: tuple[str, ...] = ()  # their texts show the language
    is_cut: bool = False  # texts are cut where they have more than max_words words together
    notes: dict[str, str] = field(default_factory=dict)  # by key: other columns that it could name


@dataclass(frozen=True)
class RequestedColumns:
    """The keys of a task that the user gave; None and empty if they were left out."""

    kind: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None


@dataclass(frozen=True)
class SampleTable:
    """The columns of a table, what the user has said of them, and the place for messages."""

    columns: dict[str, Column]
    requested: RequestedColumns
    task: str
    where: str

    @property
    def is_requested(self) -> bool:
        """True if the user has named the kind of task."""
        return self.requested.kind is not None

    def without(self, names: Iterable[str]) -> "SampleTable":
        """Return the table without some of its columns."""
        dropped = {*names}
        kept = {name: one for name, one in self.columns.items() if name not in dropped}
        return replace(self, columns=kept)

    def refusal(self, problem: str, advice: str = "") -> InputError:
        """Return an error that lists the columns."""
        names = list_names(self.columns)
        return InputError(f"{self.where}: {problem}; its columns are {names}{advice}")

    def choose_label(
        self, texts: Sequence[str], *, are_numbers: bool = False
    ) -> tuple[str, dict[str, str]]:
        """Return the label column, and a note on others that could have been it.

        `are_numbers` says what the labels of the requested kind are; without one, they may be both.
        Raises InputError.
        """
        are_numbers = are_numbers and self.is_requested
        if self.requested.label:
            return self.requested.label, {}
        rest = [column for column in self.columns.values() if column.name not in texts]
        named = {self.task.lower(), *chain.from_iterable(LABEL_NAMES)}
        if are_numbers:
            candidates = [one.name for one in rest if one.is_numeric and not one.is_identifier]
        else:
            candidates = [column.name for column in rest if column.is_categorical]
        if not self.is_requested:
            candidates += [
                column.name
                for column in rest
                if column.is_amount and (column.has_fractions or column.name.lower() in named)
            ]
        if candidates:
            return self.pick_label(candidates)
        for column in rest:
            if column.num_distinct == 1 and column.name.lower() in named:
                raise InputError(
                    f"{self.where}: column '{column.name}' is named like a label, but has the same "
                    "value in all rows, so there is nothing to learn; name another column, as "
                    "label=COLUMN, or use a table with several labels"
                )
        needed = "like a label (one with few distinct values)"
        if are_numbers:
            needed = "like a score (one with numbers)"
        raise self.refusal(
            f"no column looks {needed}", "; name it, as label=COLUMN, or use a table that has one"
        )

    def pick_label(self, candidates: list[str]) -> tuple[str, dict[str, str]]:
        """Return one of several label columns, by their names, and a note on the others."""
        found: list[str] = []
        for group in ((self.task.lower(),), *LABEL_NAMES):
            found = found or [name for name in candidates if name.lower() in group]
        found = found or [name for name in candidates if not _is_metadata(name)]
        found = found or candidates
        if len(found) > 1:
            shown = ", ".join(f"'{shorten_value(name)}'" for name in found)
            raise InputError(
                f"{self.where}: {len(found)} columns look like labels: {shown}; name the one to be "
                f"predicted, such as --task {self.task}=FILE,label={shorten_value(found[-1])}"
            )
        others = [name for name in candidates if name != found[0] and not _is_metadata(name)]
        return found[0], {"label": note_others(others, "label")}

    def choose_texts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the text column, or both of a pair, and the others. Raises InputError."""
        candidates = [
            column
            for column in self.columns.values()
            if column.is_text and column.name != self.requested.label
        ]
        if not candidates:
            raise self.refusal(
                "no column looks like a text (one with different values of several words)",
                "; name it, as text=COLUMN",
            )
        pairs = [
            (first.name, second.name)
            for first, second in combinations(candidates, 2)
            if _are_pair(first.name.lower(), second.name.lower())
        ]
        if len(pairs) == 1:
            return pairs[0], ()
        most_words = max(column.mean_words for column in candidates)
        alike = [one for one in candidates if one.mean_words * ALIKE_LENGTH_RATIO >= most_words]
        named = [column for column in alike if column.name.lower() in TEXT_NAMES]
        found = named if len(named) == 1 else alike
        if len(found) > 1:
            names = [shorten_value(column.name) for column in found]
            raise InputError(
                f"{self.where}: {len(found)} columns look like texts: {', '.join(names)}; name "
                f"one, as text={names[0]}, or both that belong together, as "
                f"text={names[0]},text={names[1]}"
            )
        others = tuple(column.name for column in candidates if column is not found[0])
        return (found[0].name,), others

    def has_numbers(self, label: str) -> bool:
        """Return whether labels are amounts rather than names of classes."""
        column = self.columns[label]
        is_score = column.is_numeric and label.lower() in SCORE_NAMES
        return column.is_amount or (is_score and column.num_distinct > 2)

    def has_word_pairs(self, texts: Sequence[str]) -> bool:
        """Return whether an item is two single words."""
        are_words = all(self.columns[name].mean_words < MIN_TEXT_WORDS for name in texts)
        return len(texts) == 2 and are_words


@dataclass(frozen=True)
class Recognition:
    """The columns by which `lineage init` recognizes a kind of task, and proposes it."""

    sign: Literal["names", "tags", "texts", "label"]  # one of SIGNS
    # (table) -> the columns of the kind; None if the table is of another one. Raises InputError.
    choose: Callable[[SampleTable], ColumnChoice | None]
    # The columns that a table lacks which the user says is of this kind, and what to do.
    needs: str = ""
    comment: str = ""  # on the kind in the params.yaml that is written
    lists_metrics: bool = False  # params.yaml names all metrics of the kind
    # (choice, columns of test) -> the choice, if test has other columns than train.
    read_test_columns: Callable[[ColumnChoice, Sequence[str]], ColumnChoice] | None = None


def recognize_by_names(*names: str, optional: Sequence[str] = (), num_cut: int = 0) -> Recognition:
    """Return the recognition of a kind whose columns have the names of its keys.

    num_cut: the first so many hold texts that are cut to max_words.
    """

    def choose(table: SampleTable) -> ColumnChoice | None:
        has_own_names = table.requested.label or table.requested.text
        if has_own_names or not all(name in table.columns for name in names):
            return None
        keys = {name: name for name in (*names, *optional) if name in table.columns}
        return ColumnChoice(keys, names[: num_cut or 1], is_cut=num_cut > 0)

    return Recognition(
        "names", choose, needs=f"the columns {', '.join(names)}; rename the columns of the data"
    )


def recognize_labelled_texts(
    key: Literal["text", "words"], *, are_numbers: bool, comment: str = ""
) -> Recognition:
    """Return the recognition of a kind with one text or two, or a pair of words, and a label.

    key: the key of the task that names the columns of texts or of words.
    are_numbers: the labels are amounts rather than names of classes.
    """

    def choose(table: SampleTable) -> ColumnChoice | None:
        texts = table.requested.text
        notes = {}
        if not texts:
            texts, others = table.choose_texts()
            notes["text"] = note_others(others, "text")
        label, label_notes = table.choose_label(texts, are_numbers=are_numbers)
        has_number = table.has_numbers(label)
        has_word_pairs = has_number and table.has_word_pairs(texts)
        is_own = has_number == are_numbers and has_word_pairs == (key == "words")
        if not is_own and not table.is_requested:
            return None
        keys = {key: list(texts), "label": label}
        notes |= label_notes
        if key == "words":
            return ColumnChoice(keys, notes=notes)
        return ColumnChoice(keys, texts, is_cut=True, notes=notes)

    return Recognition("label", choose, comment=comment)


def _is_metadata(name: str) -> bool:
    return name.lower() in METADATA_NAMES or GROUP_NAME.fullmatch(name) is not None


def _are_pair(first: str, second: str) -> bool:
    """Return whether the names of two columns say that they belong together."""
    if (first, second) in PAIR_NAMES or (second, first) in PAIR_NAMES:
        return True
    same_stem = first[:-1] == second[:-1] and len(first) > 1
    return same_stem and (first[-1], second[-1]) in PAIR_ENDINGS


def entries(value: Any) -> Sequence[Any]:
    """Return the words or tags of a cell."""
    if isinstance(value, list | tuple):
        return value
    return str(value).split() if value is not None else []


def fit_nearly_all(fits: Sequence[bool]) -> bool:
    """Return whether rows fit, apart from a few, at least one, that may have mistakes."""
    num_misfits = fits.count(False)
    return num_misfits <= max(1, MAX_MISFIT_SHARE * len(fits)) and 2 * num_misfits < len(fits)


def list_names(names: Iterable[str]) -> str:
    """Return the names of some columns, shortened."""
    names = [shorten_value(name) for name in names]
    more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return f"{', '.join(names[:MAX_LISTED_COLUMNS])}{more}"


def note_others(names: Sequence[str], noun: str) -> str:
    """Return a note about other columns that could have been chosen."""
    return f"or {list_names(names)}" if names else f"no other column looks like a {noun}"
