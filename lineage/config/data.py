"""The blocks `corpora` and `tasks` of params.yaml: origin, columns and amount of the data."""

import dataclasses
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lineage.config.records import check_fraction, check_non_negative, check_positive, parse_record
from lineage.errors import InputError, shorten_value
from lineage.results import HELDOUT_TEST_SET

# Names of blocks and of extra test sets, which are parts of file names.
# File names are made of names, so their length is limited.
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,59}")
LANGUAGE_PATTERN = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")
SPLITS = ("train", "validation", "test", "unlabelled")
KEYS_BY_ORIGIN = {
    "generated": ("num_documents", "grammar_seed"),
    "files": ("document_unit",),
    "files or hub": ("csv_quoting",),
    "hub": ("config", "split", "splits", "revision"),
}
HUB_KEYS = ("hub", "config", "split", "splits", "revision", "mirror")
# Keys that an extra test set always takes from its task.
SHARED_TEST_SET_KEYS = ("language", "symmetric", "probes", "metric", "validation_share")
# Keys that an extra test set never takes from its task.
OWN_TEST_SET_KEYS = (
    "files",
    "columns",
    "document_unit",
    "csv_quoting",
    "hub",
    "config",
    "splits",
    "revision",
    "mirror",
    "generated",
    "grammar_seed",
    "extra_test_sets",
    "folds",
    "limit",
    "max_per_group",
    "label_map",
    "group",
    "benchmark",
    "official_split",
    "outside_systems",
)
# With `document_unit: file`, the columns are the name of the file's folder and its whole text.
FILE_ITEM_COLUMNS = ("folder", "text")


@dataclass(frozen=True)
class CorpusSource:
    """One source of running text: exactly one of `generated`, `files` and `hub`."""

    generated: Literal["synthetic"] | None = None
    num_documents: int | None = None  # for `generated`
    # For `generated`: selects the language; the default is the language of the demo.
    grammar_seed: int | None = None
    files: str | None = None  # a path or a glob, relative to the study or to data_root
    # The unit of a .txt file that is one document; blank_line: documents end at blank lines.
    document_unit: Literal["file", "blank_line", "line"] = "file"
    hub: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    text: str | None = None  # the column that holds the text
    # True: quotation marks around a cell of a csv or tsv are not part of its text.
    csv_quoting: bool = True
    language: str | None = None  # default: the language of the corpus
    # Keys that replace the Hub keys on machines where `mirror.files` exist.
    mirror: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_origin(self)
        check_language(self)
        check_positive(self, "num_documents")
        if self.generated and self.num_documents is None:
            raise ValueError("a generated source needs 'num_documents'; add it")
        if self.hub and not (self.split and self.text):
            raise ValueError(
                "a hub source needs 'split' and 'text', the column that holds the text"
            )


@dataclass(frozen=True)
class Corpus:
    """The text for pretraining."""

    language: str
    sources: tuple[CorpusSource, ...]
    min_characters: int = 20  # shorter documents are dropped and counted
    validation_share: float = 0.05
    test_share: float = 0.05

    def __post_init__(self) -> None:
        check_fraction(self, "validation_share", "test_share")
        check_language(self)
        if not self.sources:
            raise ValueError("'sources' is empty; name at least one source of text")
        if self.validation_share + self.test_share > 0.5 or self.validation_share == 0:
            raise ValueError("validation_share must be above zero, and with test_share at most 0.5")


@dataclass(frozen=True)
class SplitLimits:
    """The maximum number of items of each split, drawn with the seed; `unlabelled` counts texts."""

    train: int | None = None
    validation: int | None = None
    test: int | None = None
    unlabelled: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, *SPLITS)


@dataclass(frozen=True)
class OutsideSystem:
    """A system that is not trained here: a prompted model, a rule, last year's model."""

    # A csv, tsv, json, jsonl or parquet file with the columns that the task reads, and `column`.
    predictions: str
    # The column of its predictions, which are written as the labels of the task are.
    column: str = "prediction"
    price_per_1000_items: float | None = None  # of its answers, in your currency

    def __post_init__(self) -> None:
        check_non_negative(self, "price_per_1000_items")


@dataclass(frozen=True)
class Task:
    """A task: its data and its kind. The kind checks which columns are named (`lineage.tasks`)."""

    kind: str
    language: str = "en"  # in params.yaml the default is the language of the corpus
    # synthetic: a task of the synthetic language, by its name: sentiment, sense, entities, agreement,
    # order or roles. examples: sentences with ambiguous words, which come with lineage.
    generated: Literal["synthetic", "examples"] | None = None
    grammar_seed: int | None = None
    files: dict[Literal["train", "validation", "test", "unlabelled"], str] | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    # For `hub`: our split -> the data set's own.
    splits: dict[Literal["train", "validation", "test", "unlabelled"], str] | None = None
    mirror: dict[str, Any] | None = None
    # For files without column names: the names of all columns, or a regular expression for a line,
    # whose named groups are the columns.
    columns: tuple[str, ...] | str | None = None
    # file: each file is an item, with the columns `folder` and `text`. line: each line is an item.
    # Default: each line is an item, but with `tokens` a line is a word and a blank line ends the
    # item.
    document_unit: Literal["line", "file"] | None = None
    # True: quotation marks around a cell of a csv or tsv are not part of its text.
    csv_quoting: bool = True
    text: tuple[str, ...] | None = None
    # For multiple_choice: a column for each choice, or one column with lists of choices.
    choices: tuple[str, ...] | None = None
    # For classification and regression of two texts: their order means nothing, so both orders
    # are read.
    symmetric: bool = False
    label: str | None = None
    tokens: str | None = None
    predicate: str | None = None  # for semantic_roles: the place of the verb in the tokens, from 0
    heads: str | None = None  # for tree_depth: the place of each word's head, from 1; 0: the root
    # For pronoun_choice: the pronoun and its candidates, which have a column each. A start is the
    # first character in the text, from 0.
    pronoun: str | None = None
    pronoun_start: str | None = None
    candidates: tuple[str, ...] | None = None
    candidate_starts: tuple[str, ...] | None = None
    source: str | None = None
    target: str | None = None
    # For summarization: the columns of several summaries that test has in place of `target`.
    references: tuple[str, ...] | None = None
    context: str | None = None  # for extractive_qa: the text that contains the answer
    question: str | None = None
    # A text, a list of texts, or SQuAD's {text: [...], answer_start: [...]}.
    answers: str | None = None
    # The start of each answer in characters of the context, from 0. Without this key, the first
    # place where the answer occurs.
    answer_starts: str | None = None
    good: str | None = None
    bad: str | None = None
    # For word_similarity: the columns of both words; for word_analogy: those of a, b, c and d.
    words: tuple[str, ...] | None = None
    # Scores are also reported per group. Folds, and validation split off train, keep a group whole.
    group: str | None = None
    # The data's labels -> the task's. A list names 0, 1, ...; null leaves such items out.
    label_map: dict[str, str | None] | dict[int, str | None] | tuple[str | None, ...] | None = None
    # Cross-validation, split again with each fine-tuning seed: for small data that has only train.
    folds: int | None = None
    # Further test sets: a name -> the keys that differ from the task's own.
    extra_test_sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Systems are compared by the first metric. The default is chosen by the kind.
    metric: tuple[str, ...] | None = None
    probes: tuple[Literal["linear", "bilstm"], ...] = ("linear",)  # over frozen features
    limit: SplitLimits = field(default_factory=SplitLimits)
    max_per_group: int | None = None  # maximum number of items of a group
    # Longer texts are truncated, the same for every model, and counted, except in
    # token_classification. In words, or characters of Chinese and Japanese; two texts of an item
    # have this limit together.
    max_words: int = 128
    # Split off train with the seed where no validation split is given.
    validation_share: float = 0.1
    # A benchmark of lineage/analysis/literature.csv, whose published numbers the report may show.
    benchmark: str | None = None
    # The split of that benchmark that the test items are, in full; false: none.
    official_split: str | Literal[False] | None = None
    # Systems that are not trained here, by the name of their rows. They are compared with the
    # trained ones on the scored items, by their predictions.
    outside_systems: dict[str, OutsideSystem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_origin(self)
        check_language(self)
        check_positive(self, "max_words", "max_per_group")
        check_fraction(self, "validation_share")
        if not self.probes or len(set(self.probes)) < len(self.probes):
            raise ValueError(
                f"probes is {list(self.probes)}; name linear, bilstm, or each of them once"
            )
        check_unnamed_columns(self)
        if self.label_map is not None and not self.label_map:
            raise ValueError(
                "'label_map' is empty; give the names of the labels, such as [O, B-PER, I-PER] "
                "for 0, 1 and 2, or remove the key"
            )
        self._check_benchmark()
        if self.hub and not self.splits:
            raise ValueError(
                "a hub task needs 'splits', such as {train: train, validation: validation}"
            )
        min_folds = 3 if self.group else 2
        if self.folds is not None and self.folds < min_folds:
            raise ValueError(
                f"folds is {self.folds}; set it to 2 or more, with groups to 3 or more, so that "
                "items are left for training and for validation"
            )

    def _check_benchmark(self) -> None:
        """Raise ValueError unless models are scored on all of the official split that is named."""
        if self.mirror:
            for key in ("benchmark", "official_split"):
                if key in self.mirror:
                    raise ValueError(
                        f"'mirror' is a copy of the same data; move '{key}' out of it, beside it"
                    )
        if self.benchmark is not None and self.official_split is None:
            raise ValueError(
                "'benchmark' needs 'official_split': the published split, such as test, that the "
                "test items are, in full; or false"
            )
        if not self.official_split:
            return
        reducing = {
            "folds": self.folds,
            "limit.test": self.limit.test,
            "max_per_group": self.max_per_group,
        }
        for key, value in reducing.items():
            if value is not None:
                raise ValueError(
                    f"official_split is {self.official_split}, but with {key} no model is scored "
                    f"on all of it; remove {key}, or set official_split: false"
                )

    @property
    def label_names_by_value(self) -> dict[str, str | None]:
        """The task's name of each label in the data; None leaves its items out."""
        pairs: Iterable[tuple[object, str | None]]
        if isinstance(self.label_map, dict):
            pairs = self.label_map.items()
        else:
            pairs = enumerate(self.label_map or ())
        return {str(label): name for label, name in pairs}

    def list_columns(self, keys: Iterable[str]) -> list[str]:
        """Return the names of the columns that some keys name."""
        columns: list[str] = []
        for key in keys:
            names = getattr(self, key)
            columns += names if isinstance(names, tuple) else [names]
        return columns

    @property
    def data_keys(self) -> dict[str, Any]:
        """All keys as a tree, but the outside systems, which change no item."""
        tree = dataclasses.asdict(self)
        del tree["outside_systems"]
        return tree


def extra_test_task(task: Task, name: str, where: str) -> Task:
    """Return the task whose test items are an extra test set. Raises InputError."""
    if not NAME_PATTERN.fullmatch(name) or name == HELDOUT_TEST_SET or where.endswith(f".{name}"):
        raise InputError(
            f"{where}.extra_test_sets: the name '{name}' must match {NAME_PATTERN.pattern} and "
            f"differ from the task's own name and from {HELDOUT_TEST_SET}; choose another"
        )
    inner = f"{where}.extra_test_sets.{name}"
    own_keys = task.extra_test_sets[name]
    for key in SHARED_TEST_SET_KEYS:
        if key in own_keys:
            raise InputError(
                f"{inner}.{key}: its items are read and scored as the task's own; remove the key"
            )
    found = parse_record(Task, _given_keys(task, OWN_TEST_SET_KEYS) | own_keys, inner)
    splits = set(found.files or found.splits or ())
    has_more = found.extra_test_sets or found.folds or found.outside_systems
    if found.kind != task.kind or splits != {"test"} or has_more:
        raise InputError(
            f"{inner}: an extra test set holds test items of kind {task.kind} and nothing else; "
            "name only a test split"
        )
    return found


def check_origin(record: CorpusSource | Task) -> None:
    """Raise ValueError unless there is one origin, pinned if on the Hub, and no key of another."""
    given = [name for name in ("generated", "files", "hub") if getattr(record, name)]
    if len(given) != 1:
        raise ValueError(
            f"give exactly one of generated, files and hub; found {', '.join(given) or 'none'}"
        )
    if record.hub and not re.fullmatch(r"[0-9a-f]{40}", record.revision or ""):
        raise ValueError(
            "a hub source needs 'revision', a commit of 40 hex digits, so that it never changes"
        )
    for origin, keys in KEYS_BY_ORIGIN.items():
        has_mirror = "files" in origin and record.mirror is not None
        if given[0] in origin.split(" or ") or has_mirror:
            continue
        for item in dataclasses.fields(record):
            if item.name in keys and getattr(record, item.name) != item.default:
                raise ValueError(
                    f"'{item.name}' is a key of '{origin}' and does not apply to '{given[0]}'; "
                    f"remove '{item.name}'"
                )
    if record.mirror is not None and not record.mirror.get("files"):
        raise ValueError("'mirror' needs 'files', the paths to read instead where they exist")


def parse_column_names(columns: tuple[str, ...] | str) -> list[str]:
    """Return the names of a list, or of a pattern's groups, from left to right.

    Raises ValueError if the pattern is not a regular expression.
    """
    if not isinstance(columns, str):
        return list(columns)
    # Imported here: machines that only train lack it.
    import regex

    try:
        return list(regex.compile(columns).groupindex)
    except regex.error as error:
        raise ValueError(
            f"columns is '{columns}', which is not a regular expression: {error}; correct it, or "
            "give a list of names"
        ) from error


def check_unnamed_columns(record: Task) -> None:
    """Raise ValueError unless `columns` names the columns of files that do not name them."""
    if record.document_unit == "file" and (record.columns is not None or not record.files):
        key = "columns" if record.files else "document_unit"
        raise ValueError(
            "document_unit: file makes each of 'files' an item with the columns "
            f"{' and '.join(FILE_ITEM_COLUMNS)}; remove '{key}'"
        )
    if record.columns is None:
        return
    if not record.files:
        raise ValueError("'columns' is only for files without column names; remove it")
    names = parse_column_names(record.columns)
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "columns must be a list with a name for each column, or a pattern for a line, such as "
            "'(?P<label>[^:]*):(?P<text>.*)'"
        )


def check_language(record: CorpusSource | Corpus | Task) -> None:
    """Raise ValueError unless the language is a code; a name would silently mean no language."""
    if record.language is not None and not LANGUAGE_PATTERN.fullmatch(record.language):
        shown = shorten_value(record.language)
        raise ValueError(f"language is '{shown}'; give its code (ISO 639), such as en or zh")


def apply_mirror(record: CorpusSource | Task, where: str) -> CorpusSource | Task:
    """Return the record with the keys of its `mirror` in place of its Hub keys.

    For machines that keep a copy of the data. Raises InputError.
    """
    assert record.mirror is not None
    tree = _given_keys(record, HUB_KEYS) | record.mirror
    return parse_record(type(record), tree, f"{where}.mirror")


def _given_keys(record: CorpusSource | Task, excluded: Collection[str]) -> dict[str, Any]:
    """Return the keys of a record that are not null, but the excluded ones."""
    tree = dataclasses.asdict(record)
    return {key: value for key, value in tree.items() if value is not None and key not in excluded}
