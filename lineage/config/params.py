"""params.yaml -> frozen typed records. Every number that changes a result is here, with its unit in the last word of its key.

The blocks of `models` stay plain here: what they hold is a family's own affair, and `lineage.config.study` checks them.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lineage.config.data import NAME_PATTERN, Corpus, Task
from lineage.config.records import (
    check_fraction,
    check_positive,
    parse_record,
    read_yaml,
    suggest_nearest,
)
from lineage.config.resolve import resolve_tree
from lineage.results import HELDOUT_TEST_SET, joined_system_name

RESERVED_MODEL_NAMES = frozenset(
    {"majority", "chance", "tfidf", "copy", "ceiling"}
)  # of rows that are of no variant


@dataclass(frozen=True)
class ReportParams:
    """What the report shows: the split that is scored, and whether examples' text may be printed."""

    split: Literal["validation", "test"] = "test"
    show_text: bool = False


@dataclass(frozen=True)
class Budget:
    """What every system may spend on pretraining. See `lineage.training.budget` for how it is counted."""

    corpus: str
    text_bytes: int  # bytes of raw text at input positions of gradient steps, in all
    max_epochs: int
    body_parameters: (
        int | None
    )  # of the body, within 5 %; none: every model's widths are given, and bodies are as large as they are

    def __post_init__(self) -> None:
        check_positive(self, "text_bytes", "max_epochs", "body_parameters")


@dataclass(frozen=True)
class AdaptationBudget:
    """The budget of adaptation to a target's own text; a share of that text is held out to see whether it helped."""

    text_bytes: int = 400_000
    max_epochs: int = 4
    heldout_share: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "text_bytes", "max_epochs", "heldout_share")
        check_fraction(self, "heldout_share")


@dataclass(frozen=True)
class Grid:
    """The cells of the comparison: every combination is run."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    pretrain_seeds: tuple[int, ...]
    adapt_models: tuple[str, ...]
    adapt_tasks: tuple[str, ...]
    finetune_seeds: tuple[int, ...]
    label_counts: tuple[int | Literal["all"], ...]
    ensembles: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # a name -> two variants whose class probabilities are averaged
    tfidf_C: tuple[float, ...] = (
        10.0,
    )  # inverse L2 penalties of the control; of several, its trials, validation chooses
    ablation_of: dict[str, str] = field(
        default_factory=dict
    )  # an ablation -> the variant it is but for one switch, and is compared with alone
    join_models: tuple[
        str, ...
    ] = ()  # variants beside whose frozen features the static vectors of another stand
    join_tasks: tuple[str, ...] = ()
    join_static_model: str = "word2vec"  # the variant whose static vectors they are

    def __post_init__(self) -> None:
        for name in (
            "models",
            "tasks",
            "pretrain_seeds",
            "finetune_seeds",
            "label_counts",
            "tfidf_C",
        ):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"'{name}' is empty; name at least one")
        for item in dataclasses.fields(self):
            values = () if item.name == "join_static_model" else tuple(getattr(self, item.name))
            twice = sorted({str(v) for v in values if values.count(v) > 1})
            if twice:
                raise ValueError(f"'{item.name}' names {', '.join(twice)} twice")
        for name in ("pretrain_seeds", "finetune_seeds"):
            if min(getattr(self, name)) < 0:
                raise ValueError(
                    f"'{name}' holds {min(getattr(self, name))}; a seed is zero or more"
                )
        for count in (*self.label_counts, *self.tfidf_C):
            if count != "all" and count <= 0:
                raise ValueError(
                    f"'label_counts' or 'tfidf_C' holds {count}; each is above zero, or, for label counts, all"
                )
        for one, other in (("join_models", "join_tasks"), ("adapt_models", "adapt_tasks")):
            for there, lacking in ((one, other), (other, one)):
                if getattr(self, there) and not getattr(self, lacking):
                    raise ValueError(
                        f"'{there}' is given and '{lacking}' is empty; give both, or none"
                    )

    @property
    def two_budget_systems(self) -> dict[str, tuple[str, ...]]:
        """What has used the budgets of two variants, by the name of its rows: ensembles, and variants joined with static vectors."""
        return self.ensembles | {
            joined_system_name(name, self.join_static_model): (name, self.join_static_model)
            for name in self.join_models
        }

    @property
    def stage_instances(self) -> dict[str, list[str]]:
        """The stages that this grid has of each verb, by what follows the `@` in their names."""
        models = [f"{variant}-{seed}" for variant in self.models for seed in self.pretrain_seeds]
        adapted = [
            f"{v}-{s}-{task}"
            for task in self.adapt_tasks
            for v in self.adapt_models
            for s in self.pretrain_seeds
        ]
        evaluated = [f"{model}-{task}" for task in self.tasks for model in models]
        joined = [
            f"{v}-{s}-{task}"
            for task in self.join_tasks
            for v in self.join_models
            for s in self.pretrain_seeds
        ]
        tasks, families = list(self.tasks), list(self.models)
        return {
            "task": tasks,
            "contamination": tasks,
            "tokenizer": families,
            "pretrain": models,
            "adapt": adapted,
            "evaluate": evaluated,
            "evaluate_adapted": adapted,
            "evaluate_joined": joined,
            "baselines": tasks,
        }


@dataclass(frozen=True)
class Params:
    """The whole of params.yaml."""

    corpora: dict[str, Corpus]
    budget: Budget
    tasks: dict[str, Task]
    grid: Grid
    models: dict[str, dict[str, Any]]  # resolved, as plain trees; lineage.config.study checks them
    adapt: AdaptationBudget = field(default_factory=AdaptationBudget)
    report: ReportParams = field(default_factory=ReportParams)
    seed: int = 7  # of every random generator, with what it is for
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: int = 1  # of torch, in each stage
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        check_positive(self, "threads")
        if self.seed < 0:
            raise ValueError(f"'seed' is {self.seed}; a seed is zero or more")
        if taken := sorted(RESERVED_MODEL_NAMES & {*self.models}):
            raise ValueError(f"models: the name '{taken[0]}' is that of a control; choose another")
        if HELDOUT_TEST_SET in self.tasks:
            raise ValueError(
                f"tasks: the name '{HELDOUT_TEST_SET}' is that of rows of language models; choose another"
            )
        self._check_ablations_and_ensembles()
        for block in ("corpora", "tasks", "models"):
            for name in getattr(self, block):
                if not NAME_PATTERN.fullmatch(name):
                    raise ValueError(
                        f"{block}: the name '{name}' must match {NAME_PATTERN.pattern} (no hyphen, which joins stage names)"
                    )
        models, tasks = ("grid.models", self.grid.models), ("grid.tasks", self.grid.tasks)
        known: dict[str, tuple[str, Collection[str]]] = {
            "budget.corpus": ("corpora", self.corpora),
            "grid.models": ("models", self.models),
            "grid.tasks": ("tasks", self.tasks),
            "grid.adapt_models": models,
            "grid.adapt_tasks": tasks,
            "grid.join_models": models,
            "grid.join_tasks": tasks,
        }
        if self.grid.join_models:
            known["grid.join_static_model"] = models
        for key, (home, entries) in known.items():
            record, name = key.split(".")
            values = getattr(getattr(self, record), name)
            for value in (values,) if isinstance(values, str) else values:
                if value not in entries:
                    raise ValueError(
                        f"{key}: '{value}' has no entry in {home}{suggest_nearest(value, entries)}"
                    )

    def _check_ablations_and_ensembles(self) -> None:
        for name, other in self.grid.ablation_of.items():
            for value in (name, other):
                if value not in self.grid.models:
                    raise ValueError(
                        f"grid.ablation_of: '{value}' has no entry in grid.models{suggest_nearest(value, self.grid.models)}"
                    )
            if name == other:
                raise ValueError(
                    f"grid.ablation_of: '{name}' is compared with itself; name the variant that it differs from"
                )
        for name, members in self.grid.ensembles.items():
            if not NAME_PATTERN.fullmatch(name) or name in RESERVED_MODEL_NAMES | {*self.models}:
                raise ValueError(
                    f"grid.ensembles: the name '{name}' must match {NAME_PATTERN.pattern}, and be that of no model and no control"
                )
            for member in members:
                if member not in self.grid.models:
                    raise ValueError(
                        f"grid.ensembles.{name}: '{member}' has no entry in grid.models{suggest_nearest(member, self.grid.models)}"
                    )
            if len({*members}) != 2 or len(members) != 2:
                raise ValueError(
                    f"grid.ensembles.{name}: {', '.join(members) or 'nothing'} is no pair; an ensemble is of two variants"
                )
            if len({*members} & {*self.grid.adapt_models}) == 1:
                raise ValueError(
                    f"grid.ensembles.{name}: only one of its members is in grid.adapt_models; name both there, or none"
                )

    @property
    def compute_settings(self) -> dict[str, Any]:
        """What changes bytes in every stage that trains."""
        return {
            "seed": self.seed,
            "precision": self.precision,
            "threads": self.threads,
            "device": self.device,
        }


def read_params(path: Path = Path("params.yaml")) -> Params:
    """Read, resolve and check one params.yaml. Raises InputError."""
    return parse_params(read_yaml(path), path.name)


def parse_params(tree: dict[str, Any], where: str = "params.yaml") -> Params:
    """Resolve and check the tree of a params.yaml. Raises InputError."""
    return parse_record(Params, _fill_in_task_languages(resolve_tree(tree, where)), where)


def _fill_in_task_languages(tree: Any) -> Any:
    """The same with a language for each task that names none: that of the corpus. What is misshapen stays as it is, for `load` to say."""
    try:
        language = tree["corpora"][tree["budget"]["corpus"]]["language"]
        tasks = {name: {"language": language, **task} for name, task in tree["tasks"].items()}
    except (TypeError, KeyError, AttributeError):
        return tree
    return tree | {"tasks": tasks}
