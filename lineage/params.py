"""params.yaml -> frozen typed records. Every number that changes a result is here, with its unit in the last word of its key.

The blocks of `models` stay plain here: what they hold is a family's own affair, and `lineage.study` checks them.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lineage.data import NAME, Corpus, Task
from lineage.records import load, nearest, positive, read_yaml, share
from lineage.rows import HELD_TEXT, joined_name

RESERVED = frozenset({"majority", "chance", "tfidf", "copy", "ceiling", "data"})  # of rows that are of no variant


@dataclass(frozen=True)
class Report:
    """What the report shows: the split that is scored, and whether examples' text may be printed."""

    split: Literal["validation", "test"] = "test"
    show_text: bool = False


@dataclass(frozen=True)
class Budget:
    """What every system may spend on pretraining. See `lineage.training.budget` for how it is counted."""

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
    join_families: tuple[str, ...] = ()  # variants beside whose frozen features the static vectors of another stand
    join_tasks: tuple[str, ...] = ()
    join_static: str = "word2vec"  # the variant whose static vectors they are

    def __post_init__(self) -> None:
        for name in ("families", "tasks", "pretrain_seeds", "seeds", "labels", "tfidf"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"'{name}' is empty; name at least one")
        for item in dataclasses.fields(self):
            values = () if item.name == "join_static" else tuple(getattr(self, item.name))
            twice = sorted({str(v) for v in values if values.count(v) > 1})
            if twice:
                raise ValueError(f"'{item.name}' names {', '.join(twice)} twice")
        for name in ("pretrain_seeds", "seeds"):
            if min(getattr(self, name)) < 0:
                raise ValueError(f"'{name}' holds {min(getattr(self, name))}; a seed is zero or more")
        for count in (*self.labels, *self.tfidf):
            if count != "all" and count <= 0:
                raise ValueError(f"'labels' or 'tfidf' holds {count}; it is above zero, or, of labels, all")
        for one, other in (("join_families", "join_tasks"), ("adapt_families", "adapt_tasks")):
            for there, lacking in ((one, other), (other, one)):
                if getattr(self, there) and not getattr(self, lacking):
                    raise ValueError(f"'{there}' is given and '{lacking}' is empty; give both, or none")

    @property
    def two_budgets(self) -> dict[str, tuple[str, ...]]:
        """What has used the budgets of two variants, by the name of its rows: ensembles, and variants joined with static vectors."""
        return self.ensembles | {joined_name(name, self.join_static): (name, self.join_static) for name in self.join_families}

    @property
    def cells(self) -> dict[str, list[str]]:
        """The stages that this grid has of each verb, by what follows the `@` in their names."""
        models = [f"{variant}-{seed}" for variant in self.families for seed in self.pretrain_seeds]
        adapted = [f"{v}-{s}-{task}" for task in self.adapt_tasks for v in self.adapt_families for s in self.pretrain_seeds]
        evaluated = [f"{model}-{task}" for task in self.tasks for model in models]
        joined = [f"{v}-{s}-{task}" for task in self.join_tasks for v in self.join_families for s in self.pretrain_seeds]
        tasks, families = list(self.tasks), list(self.families)
        return {"task": tasks, "overlap": tasks, "tokenizer": families, "pretrain": models, "adapt": adapted, "evaluate": evaluated,
                "evaluate_adapted": adapted, "evaluate_joined": joined, "control": tasks}  # fmt: skip


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
        if HELD_TEXT in self.tasks:
            raise ValueError(f"tasks: the name '{HELD_TEXT}' is that of rows of language models; choose another")
        self._check_pairs()
        for block in ("corpora", "tasks", "models"):
            for name in getattr(self, block):
                if not NAME.fullmatch(name):
                    raise ValueError(f"{block}: the name '{name}' must match {NAME.pattern} (no hyphen, which joins stage names)")
        families, tasks = ("grid.families", self.grid.families), ("grid.tasks", self.grid.tasks)
        known: dict[str, tuple[str, Collection[str]]] = {
            "budget.corpus": ("corpora", self.corpora),
            "grid.families": ("models", self.models),
            "grid.tasks": ("tasks", self.tasks),
            "grid.adapt_families": families,
            "grid.adapt_tasks": tasks,
            "grid.join_families": families,
            "grid.join_tasks": tasks,
        }
        if self.grid.join_families:
            known["grid.join_static"] = families
        for key, (home, entries) in known.items():
            record, name = key.split(".")
            values = getattr(getattr(self, record), name)
            for value in (values,) if isinstance(values, str) else values:
                if value not in entries:
                    raise ValueError(f"{key}: '{value}' has no entry in {home}{nearest(value, entries)}")

    def _check_pairs(self) -> None:
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
    return load(Params, _in_the_corpus_language(read_yaml(path)), path.name)


def _in_the_corpus_language(tree: Any) -> Any:
    """The same with a language for each task that names none: that of the corpus. What is misshapen stays as it is, for `load` to say."""
    try:
        language = tree["corpora"][tree["budget"]["corpus"]]["language"]
        tasks = {name: {"language": language, **task} for name, task in tree["tasks"].items()}
    except (TypeError, KeyError, AttributeError):
        return tree
    return tree | {"tasks": tasks}
