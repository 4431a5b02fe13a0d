"""Guess the kind of task of a user's table, and its columns of text and label.

A label has few distinct values; the values of a text differ and have several words. Names decide
between columns that look alike. If they cannot, InputError says how to choose.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any

from lineage.answers.annotations import START_KEYS, is_span_annotation
from lineage.answers.label_names import MAX_LABELS
from lineage.answers.roles import VERB_TAGS
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
    ("ner", "tags", "ner_tags", "roles"),
)
SCORE_NAMES = ("score", "similarity", "relatedness")
TEXT_NAMES = ("text", "body", "content", "sentence", "document", "review", "message", "comment")
TOKEN_NAMES = ("tokens", "words")
PREDICATE_NAMES = (
    "predicate",
    "predicate_index",
    "predicate_idx",
    "verb",
    "verb_index",
    "verb_idx",
)
MIN_VERB_SHARE = 0.9  # of the rows, in which the predicate is a token, and has the tag of a verb
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
# With a number: one of several summaries.
SUMMARY_NAME = re.compile(r"(summary|summaries|abstract|headline|highlights|tl;?dr)_?\d*", re.I)
MIN_SHORTENING = 2.0  # a document has so many times the words of its summary, on average
PRONOUN_NAME = "pronoun"
START_NAME = re.compile(r"(.+)[_-](start|offset)", re.I)  # first characters of another column
# The files of GAP have one for each candidate, true or false, in place of a label.
COREFERENCE_NAME = re.compile(r"(.+)[_-]coref", re.I)
CHOICE_NAME = re.compile(r"(choice|option|ending)_?(\d|[a-e])", re.I)
GUESSED_KINDS = (
    "text_classification",
    "text_regression",
    "token_classification",
    "semantic_roles",
    "multiple_choice",
    "pronoun_choice",
    "extractive_qa",
    "minimal_pairs",
    "word_similarity",
    "summarization",
)
TAGGED_KINDS = ("token_classification", "semantic_roles")
BILSTM_HINT = "add probes: [linear, bilstm] for a BiLSTM-CRF too, which is slower"
# A guessed kind -> the comment on it in params.yaml.
ALTERNATIVE_KINDS = {
    "text_classification": "or text_regression, if the label is an amount",
    "text_regression": "or text_classification, if the numbers are names",
    "token_classification": BILSTM_HINT,
    "semantic_roles": BILSTM_HINT,
}
NUMBER_KINDS = ("text_regression", "word_similarity")
# Kinds that the names of their columns tell. The last key is optional.
KINDS_BY_COLUMNS = (
    ("extractive_qa", ("question", "context", "answers"), "answer_starts"),
    ("minimal_pairs", ("good", "bad"), None),
)


@dataclass(frozen=True)
class _Column:
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
    """The kind of task that a table holds, and the meaning of its columns."""

    kind: str
    keys: dict[str, Any]  # keys of the task that name columns
    text_columns: tuple[str, ...]  # their texts are truncated together; empty: texts stay whole
    # By key: other columns that could have been chosen.
    alternatives: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def has_tags(self) -> bool:
        """True if each word has a label."""
        return self.kind in TAGGED_KINDS


@dataclass(frozen=True)
class RequestedColumns:
    """The keys of a task that the user gave; None and empty if they were left out."""

    kind: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None


def choose_columns(
    table: TableColumns, requested: RequestedColumns, task: str, where: str
) -> ColumnChoice:
    """Return the kind of task, and its columns; one of the task's name is its label.

    Raises InputError.
    """
    columns = {name: _Column(name, values) for name, values in table.items()}
    chooser = _ColumnChooser(columns, requested, task, where)
    for name in (*requested.text, *filter(None, [requested.label])):
        if name not in columns:
            raise chooser.refusal(f"there is no column '{name}'")
    return (
        chooser.choose_named_kind()
        or chooser.choose_multiple_choice()
        or chooser.choose_pronoun()
        or chooser.choose_tags()
        or chooser.choose_summary()
        or chooser.choose_text_and_label()
    )


@dataclass(frozen=True)
class _ColumnChooser:
    """The columns of a table, what the user has said of them, and the place for messages."""

    columns: dict[str, _Column]
    requested: RequestedColumns
    task: str
    where: str

    def refusal(self, problem: str, advice: str = "") -> InputError:
        """Return an error that lists the columns."""
        names = list_names(self.columns)
        return InputError(f"{self.where}: {problem}; its columns are {names}{advice}")

    def choose_named_kind(self) -> ColumnChoice | None:
        """Return a kind that the names of its columns tell."""
        for kind, names, optional in KINDS_BY_COLUMNS:
            if self.requested.kind not in (None, kind):
                continue
            if self.requested.label or self.requested.text:
                continue
            if all(name in self.columns for name in names):
                keys = {name: name for name in (*names, optional) if name in self.columns}
                return ColumnChoice(kind, keys, names[:2] if kind == "extractive_qa" else ())
            if self.requested.kind == kind:
                raise self.refusal(
                    f"kind={kind} needs the columns {', '.join(names)}; rename the columns of the "
                    "data"
                )
        return None

    def choose_multiple_choice(self) -> ColumnChoice | None:
        """Return multiple_choice if there is a column for each choice."""
        kind = "multiple_choice"
        choices = [name for name in self.columns if CHOICE_NAME.fullmatch(name)]
        if self.requested.kind not in (None, kind):
            return None
        if len(choices) < 2:
            if self.requested.kind is None:
                return None
            raise self.refusal(
                f"kind={kind} needs a column for each choice, named choice1, choice2 and so on; "
                "rename them"
            )
        others = {name: column for name, column in self.columns.items() if name not in choices}
        chooser = replace(self, columns=others)
        texts = self.requested.text or chooser.choose_texts()[0]
        label, alternatives = chooser.choose_label(texts)
        keys = {"text": list(texts), "choices": choices, "label": label}
        return ColumnChoice(kind, keys, (*texts, choices[0]), alternatives)

    def choose_pronoun(self) -> ColumnChoice | None:
        """Return pronoun_choice if a pronoun and several other columns have columns of starts."""
        kind = "pronoun_choice"
        if self.requested.kind not in (None, kind):
            return None
        starts = self._find_starts()
        pronouns = [name for name in starts if name.lower() == PRONOUN_NAME]
        candidates = [name for name in starts if name not in pronouns]
        if not pronouns or len(candidates) < 2:
            if self.requested.kind is None:
                return None
            raise self.refusal(
                f"kind={kind} needs the columns pronoun and pronoun_start, and for each candidate "
                "two such as a and a_start; rename them"
            )
        used = {*starts, *starts.values()}
        others = {name: column for name, column in self.columns.items() if name not in used}
        chooser = replace(self, columns=others)
        texts = self.requested.text or chooser.choose_texts()[0]
        label, alternatives = chooser._choose_candidate_label(texts, candidates)
        keys = {
            "text": list(texts),
            "pronoun": pronouns[0],
            "pronoun_start": starts[pronouns[0]],
            "candidates": candidates,
            "candidate_starts": [starts[name] for name in candidates],
            "label": label,
        }
        return ColumnChoice(kind, keys, texts, alternatives)

    def _find_starts(self) -> dict[str, str]:
        """Return the columns whose first characters are in another column, and that column."""
        starts = {}
        for name, column in self.columns.items():
            found = START_NAME.fullmatch(name)
            if found and found[1] in self.columns and column.is_numeric:
                starts[found[1]] = name
        return starts

    def _choose_candidate_label(
        self, texts: Sequence[str], candidates: Sequence[str]
    ) -> tuple[str, dict[str, tuple[str, ...]]]:
        flags = [name for name in self.columns if COREFERENCE_NAME.fullmatch(name)]
        if flags and not self.requested.label and "label" not in self.columns:
            raise self.refusal(
                f"{' and '.join(flags)} say of each candidate whether it is right",
                f"; write one column label instead, with {', '.join(candidates)} or neither",
            )
        return self.choose_label(texts)

    def choose_tags(self) -> ColumnChoice | None:
        """Return token_classification if a column has a tag for each word of another.

        With a column of places too, those of each row's verb, it is semantic_roles.
        """
        kind = self.requested.kind
        if kind not in (None, *TAGGED_KINDS):
            return None
        tokens = self._choose_tokens()
        if tokens is None:
            if kind is None:
                return None
            raise self.refusal(
                f"kind={kind} needs a column of words and one with a tag for each; name them, as "
                "text=COLUMN,label=COLUMN"
            )
        label = self.requested.label
        alternatives: dict[str, tuple[str, ...]] = {}
        if not label:
            tags = [name for name, column in self.columns.items() if _are_tags(column, tokens)]
            label, alternatives = self._pick_label(tags)
        predicate = None
        if kind != "token_classification":
            predicate = self._find_predicate(tokens, self.columns[label])
        if predicate is not None:
            keys = {"tokens": tokens.name, "predicate": predicate, "label": label}
            return ColumnChoice("semantic_roles", keys, (), alternatives)
        if kind == "semantic_roles":
            raise self.refusal(
                f"kind={kind} needs a column with the place of the verb among the words, from 0; "
                f"call it {PREDICATE_NAMES[0]}, and give a row for each verb of a sentence"
            )
        keys = {"tokens": tokens.name, "label": label}
        return ColumnChoice("token_classification", keys, (), alternatives)

    def _find_predicate(self, tokens: _Column, tags: _Column) -> str | None:
        """Return the column with the place of each row's verb, by its tags or by its name."""
        places = [column for column in self.columns.values() if _are_places(column, tokens)]
        found = [column.name for column in places if _are_verbs(column, tags)]
        found += [column.name for column in places if column.name.lower() in PREDICATE_NAMES]
        return found[0] if found else None

    def _choose_tokens(self) -> _Column | None:
        """Return the column of words whose tags another column has; None if there is none."""
        if self.requested.kind and self.requested.text:
            return self.columns[self.requested.text[0]]
        tagged = [
            self.columns[name]
            for name in self.requested.text or self.columns
            if any(_are_tags(column, self.columns[name]) for column in self.columns.values())
        ]
        named = [column for column in tagged if column.name.lower() in TOKEN_NAMES]
        return max(named or tagged, key=lambda column: len(_distinct_entries(column)), default=None)

    def choose_summary(self) -> ColumnChoice | None:
        """Return summarization if a column of texts has the name of a summary, and none is a label.

        The document is the longest other text.
        """
        kind = "summarization"
        if self.requested.kind not in (None, kind):
            return None
        others = {
            name: column
            for name, column in self.columns.items()
            if not SUMMARY_NAME.fullmatch(name) and name != self.requested.label
        }
        summaries = [name for name in self.columns if name not in others]
        if self.requested.label:
            summaries = [self.requested.label]
        if self.requested.kind is None and not self._are_summaries(summaries, others):
            return None
        texts = self.requested.text or replace(self, columns=others).choose_texts()[0]
        if not summaries or len(texts) > 1:
            raise self.refusal(
                f"kind={kind} needs a column of documents and one of their summaries; name them, as "
                "text=COLUMN,label=COLUMN"
            )
        keys = {"source": texts[0], "target": summaries[0]}
        return ColumnChoice(kind, keys, texts, {"target": tuple(summaries[1:])})

    def _are_summaries(self, names: Sequence[str], others: Mapping[str, _Column]) -> bool:
        """Return whether columns hold shorter texts than another one, in a table without labels."""
        summaries = [self.columns[name] for name in names]
        if not summaries or not all(SUMMARY_NAME.fullmatch(name) for name in names):
            return False
        if not all(column.is_text for column in summaries):
            return False
        if any(one.is_categorical and name not in METADATA_NAMES for name, one in others.items()):
            return False
        longest = max((one.mean_words for one in others.values() if one.is_text), default=0.0)
        return longest >= MIN_SHORTENING * summaries[0].mean_words

    def choose_text_and_label(self) -> ColumnChoice:
        """Return classification or regression of one text or two."""
        texts = self.requested.text
        alternatives: dict[str, tuple[str, ...]] = {}
        if not texts:
            texts, alternatives["text"] = self.choose_texts()
        label_name, label_alternatives = self.choose_label(texts)
        alternatives |= label_alternatives
        label = self.columns[label_name]
        kind = self.requested.kind
        if kind is None:
            is_score = label.is_numeric and label_name.lower() in SCORE_NAMES
            is_number = label.is_amount or (is_score and label.num_distinct > 2)
            are_words = all(self.columns[name].mean_words < MIN_TEXT_WORDS for name in texts)
            kind = "text_classification"
            if is_number:
                kind = "word_similarity" if len(texts) == 2 and are_words else "text_regression"
        if kind == "word_similarity":
            return ColumnChoice(kind, {"words": list(texts), "label": label_name}, (), alternatives)
        keys = {"text": list(texts), "label": label_name}
        return ColumnChoice(kind, keys, texts, alternatives)

    def choose_label(self, texts: Sequence[str]) -> tuple[str, dict[str, tuple[str, ...]]]:
        """Return the label column, and others that could have been it. Raises InputError."""
        if self.requested.label:
            return self.requested.label, {}
        rest = [column for column in self.columns.values() if column.name not in texts]
        named = {self.task.lower(), *chain.from_iterable(LABEL_NAMES)}
        if self.requested.kind in NUMBER_KINDS:
            candidates = [one.name for one in rest if one.is_numeric and not one.is_identifier]
        else:
            candidates = [column.name for column in rest if column.is_categorical]
        if self.requested.kind is None:
            candidates += [
                column.name
                for column in rest
                if column.is_amount and (column.has_fractions or column.name.lower() in named)
            ]
        if candidates:
            return self._pick_label(candidates)
        for column in rest:
            if column.num_distinct == 1 and column.name.lower() in named:
                raise InputError(
                    f"{self.where}: column '{column.name}' is named like a label, but has the same "
                    "value in all rows, so there is nothing to learn; name another column, as "
                    "label=COLUMN, or use a table with several labels"
                )
        needed = "like a label (one with few distinct values)"
        if self.requested.kind in NUMBER_KINDS:
            needed = "like a score (one with numbers)"
        raise self.refusal(
            f"no column looks {needed}", "; name it, as label=COLUMN, or use a table that has one"
        )

    def _pick_label(self, candidates: list[str]) -> tuple[str, dict[str, tuple[str, ...]]]:
        """Return one of several label columns, by their names, and the others."""
        found: list[str] = []
        for group in ((self.task.lower(),), *LABEL_NAMES):
            found = found or [name for name in candidates if name.lower() in group]
        found = found or [name for name in candidates if name.lower() not in METADATA_NAMES]
        found = found or candidates
        if len(found) > 1:
            shown = ", ".join(f"'{shorten_value(name)}'" for name in found)
            raise InputError(
                f"{self.where}: {len(found)} columns look like labels: {shown}; name the one to be "
                f"predicted, such as --task {self.task}=FILE,label={shorten_value(found[-1])}"
            )
        return found[0], {"label": tuple(name for name in candidates if name != found[0])}

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


def _are_tags(tags: _Column, tokens: _Column) -> bool:
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


def _are_places(places: _Column, tokens: _Column) -> bool:
    """Return whether a column has in nearly each row the place of one of its words, from 0.

    Reading the data will refuse the other rows.
    """
    if not places.is_numeric or places.has_fractions or len(places.filled) < len(places.values):
        return False
    pairs = zip(places.values, tokens.values, strict=True)
    num_inside = sum(0 <= float(place) < len(_entries(words)) for place, words in pairs)
    return num_inside >= MIN_VERB_SHARE * len(places.values)


def _are_verbs(places: _Column, tags: _Column) -> bool:
    """Return whether the tags at these places are nearly all that of the verb."""
    num_verbs = 0
    for place, cell in zip(places.values, tags.values, strict=True):
        row_tags = dict(enumerate(_entries(cell)))
        num_verbs += row_tags.get(int(float(place))) in VERB_TAGS
    return num_verbs >= MIN_VERB_SHARE * len(places.values)


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


def _distinct_entries(column: _Column) -> set[str]:
    return set(map(str, chain.from_iterable(map(_entries, column.values))))


def find_references(choice: ColumnChoice, test_columns: Sequence[str]) -> ColumnChoice:
    """Return the choice with the numbered columns that test has in place of one summary."""
    target = choice.keys.get("target")
    if target is None or target in test_columns:
        return choice
    numbered = re.compile(rf"{re.escape(target)}_?\d+", re.I)
    names = [name for name in test_columns if numbered.fullmatch(name)]
    if not names:
        return choice
    return replace(choice, keys=choice.keys | {"references": names})


def choose_corpus_text(table: TableColumns, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the column with the texts of a corpus, and others. Raises InputError."""
    columns = {name: _Column(name, values) for name, values in table.items()}
    if len(columns) == 1:
        return next(iter(columns)), ()
    texts, others = _ColumnChooser(columns, RequestedColumns(), "", where).choose_texts()
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
