"""The whole of params.yaml as frozen typed records.

Every number that changes a result is here, with its unit in the last word of its key. The blocks of
`models` stay plain trees: their keys depend on the family, and `lineage.study.models` checks them.
"""

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lineage.config.data import NAME_PATTERN, Corpus, Task
from lineage.config.records import (
    check_fraction,
    check_positive,
    check_seed,
    parse_record,
    read_yaml,
    suggest_nearest,
)
from lineage.config.resolve import resolve_tree, trained_family_names
from lineage.errors import shorten_value
from lineage.results import HELDOUT_TEST_SET, joined_system_name

PARAMS_FILE = Path("params.yaml")
# The copy that the sources stage makes: an edit of params.yaml during a run changes the next run.
RECORDED_PARAMS_FILE = Path("artifacts/sources/params.yaml")


@dataclass(frozen=True)
class ReportParams:
    """The split that is scored and reported, and if the report may print the text of examples."""

    split: Literal["validation", "test"] = "test"
    show_text: bool = False


@dataclass(frozen=True)
class Budget:
    """The pretraining budget of every system; `lineage.training.budget` says how it is counted."""

    corpus: str
    text_bytes: int  # total bytes of raw text at input positions of gradient steps
    max_epochs: int
    # Size of every body, within 5 %. null: each model gives its own widths, and sizes may differ.
    body_parameters: int | None

    def __post_init__(self) -> None:
        check_positive(self, "text_bytes", "max_epochs", "body_parameters")


@dataclass(frozen=True)
class AdaptationBudget:
    """The budget of adapting to a task's own text.

    Adaptation reads the text `max_epochs` times, or less if the loss on held-out text of the task
    stops falling. The weights with the lowest loss are kept.
    """

    text_bytes: int | None = None  # at most; None: as many as budget.text_bytes
    max_epochs: int = 3
    # Adaptation is validated ten times. It ends after this many validations without a lower loss.
    # None: it reads all its text.
    patience: int | None = 3
    heldout_share: float = 0.1  # of the text

    def __post_init__(self) -> None:
        check_positive(self, "text_bytes", "max_epochs", "patience", "heldout_share")
        check_fraction(self, "heldout_share")


@dataclass(frozen=True)
class Sweep:
    """The search for the recipes of `grid.sweep`, which is the same for each of these models.

    The learning rates are tried with all batch sizes, then the weight decays and the dropouts with
    the best of what was tried before. The loss on held-out text chooses.
    """

    text_share: float = 0.1  # of budget.text_bytes: what a trial reads
    learning_rate: tuple[float, ...] = (0.3, 1.0, 3.0)  # times the model's own
    batch_size: tuple[float, ...] = (0.5, 1.0, 2.0)  # times the model's own
    weight_decay: tuple[float, ...] = (0.0, 0.1, 1.0)
    dropout: tuple[float, ...] = (0.0, 0.1, 0.3)  # the greatest; others keep their proportions

    def __post_init__(self) -> None:
        check_positive(self, "text_share")
        check_fraction(self, "text_share")
        for name in ("learning_rate", "batch_size"):
            if not getattr(self, name) or min(getattr(self, name)) <= 0:
                raise ValueError(f"'{name}' needs factors above zero, such as [1.0]")
        if min(self.weight_decay, default=0.0) < 0:
            raise ValueError("'weight_decay' holds a number below zero; take it out")
        if not all(0 <= value < 1 for value in self.dropout):
            raise ValueError("'dropout' holds a number that is no share; use 0 to below 1")


@dataclass(frozen=True)
class Grid:
    """The grid of the comparison: every combination is run."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    pretrain_seeds: tuple[int, ...]
    adapt_models: tuple[str, ...]
    adapt_tasks: tuple[str, ...]
    # Those of adapt_models that are also pretrained on the text of each of adapt_tasks alone.
    target_only_models: tuple[str, ...]
    finetune_seeds: tuple[int, ...]
    label_counts: tuple[int | Literal["all"], ...]
    # A name -> two models whose class probabilities are averaged.
    ensembles: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Inverse L2 penalties of the TF-IDF baseline; validation selects one of several.
    tfidf_C: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    # An ablation -> the model from which it differs in one switch; it is compared only with that.
    ablation_of: dict[str, str] = field(default_factory=dict)
    # Models whose frozen features are concatenated with static vectors, on `join_tasks`.
    join_models: tuple[str, ...] = ()
    join_tasks: tuple[str, ...] = ()
    join_static_model: str = "word2vec"  # the model that provides the static vectors
    # Models that are also fine-tuned on pairs of labelled texts (SetFit, for few labels), on the
    # tasks that classify single texts.
    setfit_models: tuple[str, ...] = ()
    # Models that are trained on the corpus are also evaluated, frozen and with the most labels, as
    # they were after these shares of the budget, such as [0.125, 0.25, 0.5]: would more text help?
    # Static vectors and public checkpoints as they are have no such curve.
    text_shares: tuple[float, ...] = ()
    # Models whose learning rate, batch size, weight decay and dropout are searched for with a part
    # of the budget (see the block `sweep`), before they are pretrained with the best.
    sweep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        never_empty = ("models", "tasks", "pretrain_seeds", "finetune_seeds", "label_counts")
        for name in (*never_empty, "tfidf_C"):
            if not getattr(self, name):
                raise ValueError(f"'{name}' is empty; name at least one")
        for item in dataclasses.fields(self):
            if item.name == "join_static_model":
                continue
            values = tuple(getattr(self, item.name))
            repeated = sorted({str(value) for value in values if values.count(value) > 1})
            if repeated:
                raise ValueError(f"'{item.name}' names {', '.join(repeated)} twice")
        for name in ("pretrain_seeds", "finetune_seeds"):
            for seed in getattr(self, name):
                check_seed(name, seed)
        for count in (*self.label_counts, *self.tfidf_C):
            if count != "all" and count <= 0:
                raise ValueError(
                    f"'label_counts' or 'tfidf_C' holds {count}; use numbers above zero, "
                    "or, for label_counts, all"
                )
        for share in self.text_shares:
            if not 0 < share < 1:
                raise ValueError(
                    f"'text_shares' holds {share:g}; use shares of the budget between 0 and 1, "
                    "such as 0.5"
                )
        self._check_used_together("join_models", "join_tasks")
        self._check_used_together("adapt_models", "adapt_tasks")

    def _check_used_together(self, *keys: str) -> None:
        """Raise ValueError if only one of two keys is given."""
        given = [key for key in keys if getattr(self, key)]
        if len(given) == 1:
            (empty,) = set(keys) - set(given)
            raise ValueError(
                f"'{given[0]}' is given and '{empty}' is empty; give both, or [] for both"
            )

    @property
    def two_budget_systems(self) -> dict[str, tuple[str, ...]]:
        """The two models of each system that has used two budgets, by the name of its rows.

        These are ensembles, and models joined with static vectors.
        """
        systems = dict(self.ensembles)
        for name in self.join_models:
            system = joined_system_name(name, self.join_static_model)
            systems[system] = (name, self.join_static_model)
        return systems

    @property
    def stage_instances(self) -> dict[str, list[str]]:
        """The stages of each verb in this grid: what follows the `@` in their names."""

        def checkpoints(models: tuple[str, ...]) -> list[str]:
            return [f"{model}-{seed}" for model in models for seed in self.pretrain_seeds]

        def evaluations(models: tuple[str, ...], tasks: tuple[str, ...]) -> list[str]:
            return [f"{one}-{task}" for task in tasks for one in checkpoints(models)]

        adapted = evaluations(self.adapt_models, self.adapt_tasks)
        target_only = evaluations(self.target_only_models, self.adapt_tasks)
        return {
            "task": list(self.tasks),
            "contamination": list(self.tasks),
            "tokenizer": list(self.models),
            "recipe": list(self.models),
            "pretrain": checkpoints(self.models),
            "adapt": adapted,
            "evaluate": evaluations(self.models, self.tasks),
            "evaluate_adapted": adapted,
            "target_only": target_only,
            "evaluate_target_only": target_only,
            "evaluate_joined": evaluations(self.join_models, self.join_tasks),
            "baselines": list(self.tasks),
            "refit": list(self.tasks),
        }


def _check_entries(key: str, names: Iterable[str], home: str, entries: Collection[str]) -> None:
    """Raise ValueError unless every name under `key` is an entry of the block `home`."""
    for name in names:
        if name not in entries:
            # A family in grid.models needs no entry.
            known = {*entries, *trained_family_names()} if home == "models" else entries
            nearest = suggest_nearest(name, known)
            raise ValueError(f"{key}: '{name}' has no entry in {home}{nearest}")


@dataclass(frozen=True)
class Params:
    """The whole of params.yaml."""

    corpora: dict[str, Corpus]
    budget: Budget
    tasks: dict[str, Task]
    grid: Grid
    models: dict[str, dict[str, Any]]  # the keys of a block depend on its family
    adapt: AdaptationBudget = field(default_factory=AdaptationBudget)
    report: ReportParams = field(default_factory=ReportParams)
    sweep: Sweep = field(default_factory=Sweep)
    seed: int = 7  # every random generator is seeded with it and a name for its purpose
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: int = 1  # torch threads of each stage
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        check_positive(self, "threads")
        check_seed("seed", self.seed)
        if HELDOUT_TEST_SET in self.tasks:
            raise ValueError(
                f"tasks: the name '{HELDOUT_TEST_SET}' is reserved for rows of language models; "
                "choose another"
            )
        for name, other in self.grid.ablation_of.items():
            _check_entries("grid.ablation_of", (name, other), "grid.models", self.grid.models)
            if name == other:
                raise ValueError(
                    f"grid.ablation_of: '{name}' is compared with itself; name the model from "
                    "which it differs"
                )
        self._check_ensembles()
        self._check_outside_systems()
        for block in ("corpora", "tasks", "models"):
            for name in getattr(self, block):
                if not NAME_PATTERN.fullmatch(name):
                    raise ValueError(
                        f"{block}: the name {shorten_value(name)!r} must match {NAME_PATTERN.pattern} "
                        "(no hyphen, which joins stage names)"
                    )
        _check_entries("budget.corpus", [self.budget.corpus], "corpora", self.corpora)
        grid = self.grid
        _check_entries("grid.models", grid.models, "models", self.models)
        _check_entries("grid.tasks", grid.tasks, "tasks", self.tasks)
        for key in ("adapt_models", "join_models", "setfit_models", "sweep"):
            _check_entries(f"grid.{key}", getattr(grid, key), "grid.models", grid.models)
        for key in ("adapt_tasks", "join_tasks"):
            _check_entries(f"grid.{key}", getattr(grid, key), "grid.tasks", grid.tasks)
        target_only = grid.target_only_models
        _check_entries(
            "grid.target_only_models", target_only, "grid.adapt_models", grid.adapt_models
        )
        if grid.join_models:
            static_model = [grid.join_static_model]
            _check_entries("grid.join_static_model", static_model, "grid.models", grid.models)

    def _check_ensembles(self) -> None:
        for name, members in self.grid.ensembles.items():
            key = f"grid.ensembles.{name}"
            if not NAME_PATTERN.fullmatch(name) or name in self.models:
                raise ValueError(
                    f"grid.ensembles: the name '{name}' must match {NAME_PATTERN.pattern} and "
                    "differ from the names of models and baselines; choose another"
                )
            _check_entries(key, members, "grid.models", self.grid.models)
            if len(set(members)) != 2 or len(members) != 2:
                shown = ", ".join(members) or "nothing"
                raise ValueError(f"{key}: found {shown}; name two different models")
            if len(set(members) & set(self.grid.adapt_models)) == 1:
                raise ValueError(
                    f"{key}: only one of its members is in grid.adapt_models; name both there, "
                    "or neither"
                )

    def _check_outside_systems(self) -> None:
        taken = {*self.models, *self.grid.ensembles}
        for task_name, task in self.tasks.items():
            for name in task.outside_systems:
                if not NAME_PATTERN.fullmatch(name) or name in taken:
                    raise ValueError(
                        f"tasks.{task_name}.outside_systems: the name {shorten_value(name)!r} must "
                        f"match {NAME_PATTERN.pattern} and differ from the names of models and "
                        "baselines; choose another"
                    )

    @property
    def max_adaptation_bytes(self) -> int:
        """The most bytes that an adaptation reads, whatever the size of its text."""
        return self.adapt.text_bytes or self.budget.text_bytes

    @property
    def continued_models(self) -> dict[str, str]:
        """The public checkpoints that continue on the corpus -> the same one as it is."""
        as_it_is: dict[tuple[Any, Any], str] = {}
        continued: dict[str, tuple[Any, Any]] = {}
        for name in self.grid.models:
            block = self.models[name]
            if "from" not in block:
                continue
            source = (block["from"], block.get("revision"))
            if (block.get("pretrain") or {}).get("continue_on_corpus"):
                continued[name] = source
            else:
                as_it_is[source] = name
        return {name: as_it_is[source] for name, source in continued.items() if source in as_it_is}

    @property
    def compute_settings(self) -> dict[str, Any]:
        """The settings that change the bytes of every stage that trains."""
        return {
            "seed": self.seed,
            "precision": self.precision,
            "threads": self.threads,
            "device": self.device,
        }


def read_params(path: Path = PARAMS_FILE) -> Params:
    """Read, resolve and check one params.yaml. Raises InputError."""
    return parse_params(read_yaml(path), path.name)


def read_recorded_params() -> Params:
    """Read the parameters that the sources stage has recorded for this run. Raises InputError."""
    return read_params(recorded_params_file())


def recorded_params_file() -> Path:
    """Return the file of `read_recorded_params`."""
    return RECORDED_PARAMS_FILE if RECORDED_PARAMS_FILE.is_file() else PARAMS_FILE


def parse_params(tree: dict[str, Any], where: str = "params.yaml") -> Params:
    """Resolve and check the tree of a params.yaml. Raises InputError."""
    resolved = resolve_tree(tree, where)
    return parse_record(Params, _fill_in_task_languages(resolved), where)


def _fill_in_task_languages(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with the language of the corpus in each task that names none."""
    try:
        language = tree["corpora"][tree["budget"]["corpus"]]["language"]
        tasks = {name: {"language": language, **task} for name, task in tree["tasks"].items()}
    except (TypeError, KeyError, AttributeError):
        return tree
    return tree | {"tasks": tasks}
