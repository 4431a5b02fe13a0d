"""What params.yaml says of data: corpora, and tasks. Where they come from, which columns hold what, and how much of them is used."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lineage.config.records import check_fraction, check_positive, parse_record
from lineage.errors import InputError, shorten_value
from lineage.results import HELDOUT_TEST_SET

NAME_PATTERN = re.compile(
    r"[a-z][a-z0-9_]*"
)  # of blocks and of second test sets, which are parts of file names and of questions
LANGUAGE_PATTERN = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")
SPLITS = ("train", "validation", "test", "unlabelled")
KEYS_BY_ORIGIN = {
    "generated": ("num_documents", "grammar_seed"),
    "files": ("document_unit",),
    "files or hub": ("csv_quoting",),
    "hub": ("config", "split", "splits", "revision"),
}
SHARED_TEST_SET_KEYS = (
    "language",
    "symmetric",
    "probes",
    "metric",
    "validation_share",
)  # keys that a second test set has from its task
FILE_ITEM_COLUMNS = (
    "folder",
    "text",
)  # of a file that is an item: the name of the folder that it lies in, and all that stands in it


@dataclass(frozen=True)
class CorpusSource:
    """One source of running text: exactly one of `generated`, `files` and `hub`."""

    generated: Literal["synthetic"] | None = None
    num_documents: int | None = None  # generated: how many
    grammar_seed: int | None = None  # generated: which language; by default the one of the demo
    files: str | None = None  # a path or a glob, relative to runtime.yaml's data_root
    document_unit: Literal["file", "blank_line", "line"] = (
        "file"  # what one document is in a .txt file
    )
    hub: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    text: str | None = None  # the column that holds the text
    csv_quoting: bool = (
        True  # whether quotation marks round a cell of a csv or tsv are none of its text
    )
    language: str | None = None  # by default that of the corpus
    mirror: dict[str, Any] | None = None  # keys to read with instead, where `mirror.files` exist

    def __post_init__(self) -> None:
        check_origin(self)
        check_language(self)
        check_positive(self, "num_documents")
        if self.generated and self.num_documents is None:
            raise ValueError("a generated source needs 'num_documents', how many to make")
        if self.hub and not (self.split and self.text):
            raise ValueError(
                "a hub source needs 'split' and 'text', the column that holds the text"
            )


@dataclass(frozen=True)
class Corpus:
    """The running text that pretraining reads."""

    language: str
    sources: tuple[CorpusSource, ...]
    min_characters: int = 20  # shorter documents are dropped, and counted
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
    """At most so many items of a split are used, chosen with the seed; `unlabelled` counts texts."""

    train: int | None = None
    validation: int | None = None
    test: int | None = None
    unlabelled: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, *SPLITS)


@dataclass(frozen=True)
class Task:
    """A task is data and a kind; which columns it names is checked by its kind (`lineage.tasks`)."""

    kind: str
    language: str = "en"  # in params.yaml by default that of the corpus
    generated: Literal["synthetic", "examples"] | None = (
        None  # examples: sentences with ambiguous words, which come with lineage
    )
    grammar_seed: int | None = None
    files: dict[Literal["train", "validation", "test", "unlabelled"], str] | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    splits: dict[Literal["train", "validation", "test", "unlabelled"], str] | None = (
        None  # hub: our split -> theirs
    )
    mirror: dict[str, Any] | None = None
    columns: tuple[str, ...] | str | None = (
        None  # files without names: those of all columns, or a pattern of a line, whose groups they are
    )
    document_unit: Literal["line", "file"] | None = (
        None  # what an item is; a file has the columns of WHOLE; none: a line, of words up to a blank line
    )
    csv_quoting: bool = (
        True  # whether quotation marks round a cell of a csv or tsv are none of its text
    )
    text: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = (
        None  # choose: a column for each choice, or one column that holds lists of them
    )
    symmetric: bool = False  # classify and regress, two texts: which stands first means nothing, so both orders are read
    label: str | None = None
    tokens: str | None = None
    source: str | None = None
    target: str | None = None
    context: str | None = None  # span: the text that the answer to a question is a part of
    question: str | None = None
    answers: str | None = (
        None  # a text, a list of them, or SQuAD's lists {text: [...], answer_start: [...]}
    )
    answer_starts: str | None = (
        None  # where each answer begins, in characters of the context from 0; none: where it stands first
    )
    good: str | None = None
    bad: str | None = None
    words: tuple[str, ...] | None = (
        None  # similarity: the columns of both words; analogy: those of a, b, c and d
    )
    group: str | None = (
        None  # by which scores are told apart too; what folds, and validation that is carved, keep on one side
    )
    label_map: dict[str, str | None] | dict[int, str | None] | tuple[str | None, ...] | None = (
        None  # a list: of 0, 1, ...; null: leaves such items out
    )
    folds: int | None = (
        None  # cross-validation, anew with each seed of the grid: for small data whose only split is train
    )
    extra_test_sets: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # further test sets: a name -> keys in place of the task's own
    metric: tuple[str, ...] | None = (
        None  # the first is what ways are compared by; none: what the kind has for it
    )
    probes: tuple[Literal["linear", "bilstm"], ...] = (
        "linear",
    )  # the readers of frozen features that it is given to
    limit: SplitLimits = field(default_factory=SplitLimits)
    max_per_group: int | None = None  # at most so many items of a group
    max_tokens: int = 128  # longer texts are cut, and counted (but for those of kind tag); of an item with two texts both together
    validation_share: float = 0.1  # carved from train with the seed where no validation is given
    benchmark: str | None = (
        None  # a benchmark of lineage/analysis/literature.csv, whose numbers the report may show beside ours
    )
    official_split: str | Literal[False] | None = (
        None  # which of that benchmark's own splits the test items are, all of them; or none
    )

    def __post_init__(self) -> None:
        check_origin(self)
        check_language(self)
        check_positive(self, "max_tokens", "max_per_group")
        if not self.probes or len(set(self.probes)) < len(self.probes):
            raise ValueError(
                f"probes is {list(self.probes)}; name linear, bilstm, or each of them once"
            )
        check_fraction(self, "validation_share")
        if empty := [key for key in ("text", "choices") if getattr(self, key) == ()]:
            raise ValueError(f"'{empty[0]}' is empty; name a column at least, or take it out")
        if self.mirror and {"benchmark", "official_split"} & {*self.mirror}:
            raise ValueError(
                "'mirror' is the same data elsewhere; give 'benchmark' and 'official_split' beside it, not in it"
            )
        if self.benchmark is not None and self.official_split is None:
            raise ValueError(
                "'benchmark' needs 'official_split': as which split, such as test, the test items are published, all of them; or false"
            )
        check_unnamed_columns(self)
        if self.label_map is not None and not self.label_map:
            raise ValueError(
                "'label_map' is empty; give the label's names, such as [O, B-PER, I-PER] for 0, 1 and 2, or take it out"
            )
        given = {
            "folds": self.folds,
            "limit.test": self.limit.test,
            "max_per_group": self.max_per_group,
        }
        if self.official_split and (
            parts := [key for key, value in given.items() if value is not None]
        ):
            raise ValueError(
                f"official_split is {self.official_split}, and with {parts[0]} no model is scored on the whole of it; take {parts[0]} "
                "out, or say official_split: false"
            )
        if self.hub and not self.splits:
            raise ValueError(
                "a hub task needs 'splits', such as {train: train, validation: validation}"
            )
        if self.folds is not None and self.folds < (3 if self.group else 2):
            raise ValueError(
                f"folds is {self.folds}; give 2 or more, of groups 3 or more, so that some are left to learn from and some to choose by"
            )

    @property
    def label_names_by_value(self) -> dict[str, str | None]:
        """What the data call a label -> its name in the task; none of those whose items are left out."""
        pairs: Iterable[tuple[object, str | None]] = (
            self.label_map.items()
            if isinstance(self.label_map, dict)
            else enumerate(self.label_map or ())
        )
        return {str(label): name for label, name in pairs}

    @property
    def is_text_pair(self) -> bool:
        """Whether an item is two texts that are read together."""
        return self.choices is not None or self.context is not None or len(self.text or ()) == 2


def extra_test_task(task: Task, name: str, where: str) -> Task:
    """The task whose test items are a second test set. Raises InputError."""
    if not NAME_PATTERN.fullmatch(name) or name == HELDOUT_TEST_SET or where.endswith(f".{name}"):
        raise InputError(
            f"{where}.extra_test_sets: the name '{name}' must match {NAME_PATTERN.pattern}, and be neither the task's own nor {HELDOUT_TEST_SET}"
        )
    own = (
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
    )
    tree = {
        f.name: getattr(task, f.name)
        for f in dataclasses.fields(task)
        if f.name not in own and getattr(task, f.name) is not None
    }
    if shared := [key for key in SHARED_TEST_SET_KEYS if key in task.extra_test_sets[name]]:
        raise InputError(
            f"{where}.extra_test_sets.{name}.{shared[0]}: its items are read and scored as the task's own are; remove the key"
        )
    found = parse_record(Task, tree | task.extra_test_sets[name], f"{where}.extra_test_sets.{name}")
    if (
        found.kind != task.kind
        or {*(found.files or found.splits or ())} != {"test"}
        or found.extra_test_sets
        or found.folds
    ):
        raise InputError(
            f"{where}.extra_test_sets.{name}: it is test items of kind {task.kind}, and nothing else; name a test split alone"
        )
    if found.choices is None and len(found.text or ()) != len(
        task.text or ()
    ):  # choices stand beside one text, of however many columns
        raise InputError(
            f"{where}.extra_test_sets.{name}.text: {len(found.text or ())} columns, and the task's own items have {len(task.text or ())}, by "
            "which they are read; name as many"
        )
    return found


def check_origin(record: CorpusSource | Task) -> None:
    """Exactly one origin, a pinned revision for the Hub, and no key of another origin, which would be taken for one that does something."""
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
        mine = given[0] in origin.split(" or ") or ("files" in origin and record.mirror is not None)
        set_here = [
            f.name
            for f in dataclasses.fields(record)
            if f.name in keys and getattr(record, f.name) != f.default
        ]
        if set_here and not mine:
            raise ValueError(
                f"'{set_here[0]}' is a key of '{origin}', and says nothing of '{given[0]}'; take '{set_here[0]}' out"
            )
    if record.mirror is not None and not record.mirror.get("files"):
        raise ValueError("'mirror' needs 'files', the paths to read instead where they exist")


def parse_column_names(columns: tuple[str, ...] | str) -> list[str]:
    """The names of a list, or of a pattern's groups, from left to right."""
    return list(re.compile(columns).groupindex) if isinstance(columns, str) else list(columns)


def check_unnamed_columns(record: Task) -> None:
    """Columns that the task itself names are of files, have a name each, and stand in a pattern, if it is one, as its groups."""
    if record.document_unit == "file" and (record.columns is not None or not record.files):
        what = "columns" if record.files else "document_unit"
        raise ValueError(
            f"document_unit is file, an item each, of 'files' alone, whose columns are {' and '.join(FILE_ITEM_COLUMNS)}; take '{what}' out"
        )
    if record.columns is None:
        return
    if not record.files:
        raise ValueError("'columns' is of files that do not name theirs; take it out")
    try:
        names = parse_column_names(record.columns)
    except re.error as error:
        raise ValueError(
            f"columns is '{record.columns}', and no regular expression: {error}; correct it, or give a list of names"
        ) from error
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "columns is a list with a name for each column, or a pattern of a line, such as '(?P<label>[^:]*):(?P<text>.*)'"
        )


def check_language(record: CorpusSource | Corpus | Task) -> None:
    """A code, since what it decides would silently be another thing for a language's name."""
    if record.language is not None and not LANGUAGE_PATTERN.fullmatch(record.language):
        raise ValueError(
            f"language is '{shorten_value(record.language)}'; give its code (ISO 639), such as en or zh"
        )


def apply_mirror(record: CorpusSource | Task, where: str) -> CorpusSource | Task:
    """The record with the keys of its `mirror` in place of its Hub keys: for machines that keep a copy of the data."""
    assert record.mirror is not None
    tree = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    tree = {
        k: v
        for k, v in tree.items()
        if v is not None and k not in ("hub", "config", "split", "splits", "revision", "mirror")
    }
    if "limit" in tree:
        tree["limit"] = dataclasses.asdict(tree["limit"])
    return parse_record(type(record), tree | record.mirror, f"{where}.mirror")
