"""params.yaml -> frozen typed records. Every number that changes a result is here, with its unit in the last word of its key.

The blocks of `models` stay plain here: what they hold is a family's own affair, and `lineage.study` checks them.
"""

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lineage.errors import InputError
from lineage.records import load, nearest, positive, read_yaml, share

RESERVED = frozenset({"majority", "tfidf", "copy", "ceiling", "data"})  # of rows that are of no variant
NAME = re.compile(r"[a-z][a-z0-9_]*")
SPLITS = ("train", "validation", "test", "unlabelled")


@dataclass(frozen=True)
class Report:
    """What the report shows: the split that is scored, and whether examples' text may be printed."""

    split: Literal["validation", "test"] = "test"
    show_text: bool = False


@dataclass(frozen=True)
class Source:
    """One source of running text: exactly one of `generated`, `files` and `hub`."""

    generated: Literal["microworld"] | None = None
    documents: int | None = None  # generated: how many
    grammar_seed: int | None = None  # generated: which language; by default the one of the demo
    files: str | None = None  # a path or a glob, relative to runtime.yaml's data_root
    document: Literal["file", "blank_line", "line"] = "file"  # what one document is in a .txt file
    hub: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    text: str | None = None  # the column that holds the text
    language: str | None = None  # by default that of the corpus
    mirror: dict[str, Any] | None = None  # keys to read with instead, where `mirror.files` exist

    def __post_init__(self) -> None:
        check_origin(self)
        positive(self, "documents")
        if self.generated and self.documents is None:
            raise ValueError("a generated source needs 'documents', how many to make")
        if self.hub and not (self.split and self.text):
            raise ValueError("a hub source needs 'split' and 'text', the column that holds the text")


@dataclass(frozen=True)
class Corpus:
    """The running text that pretraining reads."""

    language: str
    sources: tuple[Source, ...]
    minimum_characters: int = 20  # shorter documents are dropped, and counted
    validation_share: float = 0.05
    test_share: float = 0.05

    def __post_init__(self) -> None:
        share(self, "validation_share", "test_share")
        if not self.sources:
            raise ValueError("'sources' is empty; name at least one source of text")
        if self.validation_share + self.test_share > 0.5 or self.validation_share == 0:
            raise ValueError("validation_share must be above zero, and with test_share at most 0.5")


@dataclass(frozen=True)
class Limit:
    """At most so many items of a split are used, chosen with the seed; `unlabelled` counts texts."""

    train: int | None = None
    validation: int | None = None
    test: int | None = None
    unlabelled: int | None = None

    def __post_init__(self) -> None:
        positive(self, *SPLITS)


@dataclass(frozen=True)
class Task:
    """A task is data and a kind; which columns it names is checked by its kind (`lineage.tasks`)."""

    kind: str
    language: str = "en"
    generated: Literal["microworld"] | None = None
    grammar_seed: int | None = None
    files: dict[Literal["train", "validation", "test", "unlabelled"], str] | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    splits: dict[Literal["train", "validation", "test", "unlabelled"], str] | None = None  # hub: our split -> theirs
    mirror: dict[str, Any] | None = None
    text: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None  # choose: a column for each choice, or one column that holds lists of them
    symmetric: bool = False  # classify and regress, two texts: which stands first means nothing, so both orders are read
    label: str | None = None
    tokens: str | None = None
    source: str | None = None
    target: str | None = None
    good: str | None = None
    bad: str | None = None
    words: tuple[str, ...] | None = None  # similarity: the columns of both words; analogy: those of a, b, c and d
    group: str | None = None
    metric: tuple[str, ...] | None = None
    heads: tuple[Literal["linear", "bilstm"], ...] = ("linear",)  # the readers of frozen features that it is given to
    limit: Limit = field(default_factory=Limit)
    per_group: int | None = None  # at most so many items of a group
    max_tokens: int = 128  # longer texts are cut, and counted (but for those of kind tag); of an item with two texts both together
    validation_share: float = 0.1  # carved from train with the seed where no validation is given
    published: str | None = None  # a benchmark of lineage/report/literature.csv, whose numbers the report may show beside ours
    official_split: bool | None = None  # whether what is scored is that benchmark's own split

    def __post_init__(self) -> None:
        check_origin(self)
        positive(self, "max_tokens", "per_group")
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(f"heads is {list(self.heads)}; name linear, bilstm, or each of them once")
        share(self, "validation_share")
        if self.mirror and {"published", "official_split"} & {*self.mirror}:
            raise ValueError("'mirror' is the same data elsewhere; give 'published' and 'official_split' beside it, not in it")
        if self.published is not None and self.official_split is None:
            raise ValueError("'published' needs 'official_split', true or false: whether the items scored here are those of the published numbers")
        if self.hub and not self.splits:
            raise ValueError("a hub task needs 'splits', such as {train: train, validation: validation}")

    @property
    def paired(self) -> bool:
        """Whether an item is two texts that are read together."""
        return self.choices is not None or len(self.text or ()) == 2


def check_origin(record: Source | Task) -> None:
    """Exactly one origin, and a pinned revision for the Hub."""
    given = [name for name in ("generated", "files", "hub") if getattr(record, name)]
    if len(given) != 1:
        raise ValueError(f"give exactly one of generated, files and hub; found {', '.join(given) or 'none'}")
    if record.hub and not re.fullmatch(r"[0-9a-f]{40}", record.revision or ""):
        raise ValueError("a hub source needs 'revision', a commit of 40 hex digits, so that it never changes")
    if record.mirror is not None and not record.mirror.get("files"):
        raise ValueError("'mirror' needs 'files', the paths to read instead where they exist")


@dataclass(frozen=True)
class Budget:
    """What every system may spend on pretraining. See `lineage.budget` for how it is counted."""

    corpus: str
    text_bytes: int  # bytes of raw text at input positions of gradient steps, in all
    max_passes: int
    parameters: int | None  # of the body, within 5 %; none: every model's widths are given, and bodies are as large as they are

    def __post_init__(self) -> None:
        positive(self, "text_bytes", "max_passes", "parameters")


@dataclass(frozen=True)
class Adapt:
    """The budget of adaptation to a target's own text; a share of that text is held out to see whether it helped."""

    text_bytes: int
    max_passes: int = 4
    held_share: float = 0.1

    def __post_init__(self) -> None:
        positive(self, "text_bytes", "max_passes", "held_share")
        share(self, "held_share")


@dataclass(frozen=True)
class Grid:
    """The cells of the comparison: every combination is run."""

    families: tuple[str, ...]
    tasks: tuple[str, ...]
    pretrain_seeds: tuple[int, ...]
    adapt_families: tuple[str, ...]
    adapt_tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    labels: tuple[int | Literal["all"], ...]
    ensembles: dict[str, tuple[str, ...]] = field(default_factory=dict)  # a name -> two variants whose class probabilities are averaged
    tfidf: tuple[float, ...] = (10.0,)  # inverse L2 penalties of the control; of several, its trials, validation chooses
    against: dict[str, str] = field(default_factory=dict)  # an ablation -> the variant it is but for one switch, and is compared with alone

    def __post_init__(self) -> None:
        for name in ("families", "tasks", "pretrain_seeds", "seeds", "labels", "tfidf"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"'{name}' is empty; name at least one")
        for item in dataclasses.fields(self):
            values = tuple(getattr(self, item.name))
            twice = sorted({str(v) for v in values if values.count(v) > 1})
            if twice:
                raise ValueError(f"'{item.name}' names {', '.join(twice)} twice")
        for name in ("pretrain_seeds", "seeds"):
            if min(getattr(self, name)) < 0:
                raise ValueError(f"'{name}' holds {min(getattr(self, name))}; a seed is zero or more")
        for count in (*self.labels, *self.tfidf):
            if count != "all" and count <= 0:
                raise ValueError(f"'labels' or 'tfidf' holds {count}; it is above zero, or, of labels, all")

    @property
    def cells(self) -> dict[str, list[str]]:
        """The stages that this grid has of each verb, by what follows the `@` in their names."""
        models = [f"{variant}-{seed}" for variant in self.families for seed in self.pretrain_seeds]
        adapted = [f"{v}-{s}-{task}" for task in self.adapt_tasks for v in self.adapt_families for s in self.pretrain_seeds]
        evaluated = [f"{model}-{task}" for task in self.tasks for model in models]
        return {"task": list(self.tasks), "tokenizer": list(self.families), "pretrain": models, "adapt": adapted, "evaluate": evaluated,
                "evaluate_adapted": adapted, "control": list(self.tasks)}  # fmt: skip


@dataclass(frozen=True)
class Params:
    """The whole of params.yaml."""

    seed: int
    precision: Literal["fp32", "bf16"]
    threads: int
    device_class: Literal["cpu", "cuda"]
    report: Report
    corpora: dict[str, Corpus]
    budget: Budget
    adapt: Adapt
    tasks: dict[str, Task]
    grid: Grid
    models: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        positive(self, "threads")
        if self.seed < 0:
            raise ValueError(f"'seed' is {self.seed}; a seed is zero or more")
        if taken := sorted(RESERVED & {*self.models}):
            raise ValueError(f"models: the name '{taken[0]}' is that of a control; choose another")
        self._check_ensembles()
        for block in ("corpora", "tasks", "models"):
            for name in getattr(self, block):
                if not NAME.fullmatch(name):
                    raise ValueError(f"{block}: the name '{name}' must match {NAME.pattern} (no hyphen, which joins stage names)")
        known: dict[str, Collection[str]] = {
            "budget.corpus": self.corpora,
            "grid.families": self.models,
            "grid.tasks": self.tasks,
            "grid.adapt_families": self.grid.families,
            "grid.adapt_tasks": self.grid.tasks,
        }
        for key, entries in known.items():
            record, name = key.split(".")
            values = getattr(getattr(self, record), name)
            for value in (values,) if isinstance(values, str) else values:
                if value not in entries:
                    home = {"corpus": "corpora", "families": "models", "tasks": "tasks"}.get(name, f"grid.{name[6:]}")
                    raise ValueError(f"{key}: '{value}' has no entry in {home}{nearest(value, entries)}")

    def _check_ensembles(self) -> None:
        for name, other in self.grid.against.items():
            for value in (name, other):
                if value not in self.grid.families:
                    raise ValueError(f"grid.against: '{value}' has no entry in grid.families{nearest(value, self.grid.families)}")
            if name == other:
                raise ValueError(f"grid.against: '{name}' is compared with itself; name the variant that it differs from")
        for name, members in self.grid.ensembles.items():
            if not NAME.fullmatch(name) or name in RESERVED | {*self.models}:
                raise ValueError(f"grid.ensembles: the name '{name}' must match {NAME.pattern}, and be that of no model and no control")
            for member in members:
                if member not in self.grid.families:
                    raise ValueError(f"grid.ensembles.{name}: '{member}' has no entry in grid.families{nearest(member, self.grid.families)}")
            if len({*members}) != 2 or len(members) != 2:
                raise ValueError(f"grid.ensembles.{name}: {', '.join(members) or 'nothing'} is no pair; an ensemble is of two variants")
            if len({*members} & {*self.grid.adapt_families}) == 1:
                raise ValueError(f"grid.ensembles.{name}: only one of its members is in grid.adapt_families; name both there, or none")

    @property
    def computing(self) -> dict[str, Any]:
        """What changes bytes in every stage that trains."""
        return {"seed": self.seed, "precision": self.precision, "threads": self.threads, "device_class": self.device_class}


def read_params(path: Path = Path("params.yaml")) -> Params:
    """The checked records of one params.yaml. Raises InputError."""
    try:
        return load(Params, read_yaml(path), path.name)
    except InputError as error:
        raise InputError(str(error)) from None


def mirrored(record: Source | Task, where: str) -> Source | Task:
    """The record with the keys of its `mirror` in place of its Hub keys: for machines that keep a copy of the data."""
    assert record.mirror is not None
    tree = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    tree = {k: v for k, v in tree.items() if v is not None and k not in ("hub", "config", "split", "splits", "revision", "mirror")}
    if "limit" in tree:
        tree["limit"] = dataclasses.asdict(tree["limit"])
    return load(type(record), tree | record.mirror, f"{where}.mirror")
