"""A method is a way of using a pretrained model on a task: one file of this package.

The file holds the keys of its block in `evaluate`, its trials, how it is fitted and resumed, what
it predicts, and what is kept of it. Its class is the record of its block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import AnsweredBy, HeadAnswer, PredictionColumns
from lineage.answers.words import KNOWN_COLUMN, LAYER_PREFIX
from lineage.config.params import Grid
from lineage.config.records import Checked
from lineage.data.splits import nested_stratified_subset, stratification_labels
from lineage.data.task_data import SplitItems
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalContext, EvalRun, LabelCount, Subject, TaskContext, Transfer
from lineage.methods.run_predictions import RunPredictions
from lineage.methods.saved import AnswerItems, SavedSystem
from lineage.results import (
    NEIGHBOUR_PREFIX,
    PREDICTION_COLUMNS,
    PROBABILITY_PREFIX,
    SEED_COLUMNS,
    Note,
)
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo

# Metrics that are the mean of a column of the same name.
SWAP_CONSISTENCY = "swap_consistency"  # either order of two texts gives the same answer
# Minimal pairs by the mean over tokens; the sum favors the sentence with fewer tokens.
LENGTH_NORMALIZED_ACCURACY = "accuracy_per_piece"
# From `lineage.methods.layer_probe`.
SELECTIVITY = "selectivity"
MIX_WEIGHT = "mix_weight"
MEAN_METRICS = (SWAP_CONSISTENCY, LENGTH_NORMALIZED_ACCURACY, SELECTIVITY, MIX_WEIGHT)
# Further columns of cached predictions, by the beginning of their names.
EXTRA_COLUMNS = (KNOWN_COLUMN, LAYER_PREFIX, *MEAN_METRICS)


@dataclass(frozen=True)
class FittedSystem:
    """The result of one run of a method: predictions, and the parts that are kept for later use."""

    predictions: RunPredictions
    method: "Method"  # with the hyperparameters that were chosen
    # The weights that are kept; None: nothing was trained.
    get_tensors: Callable[[], dict[str, torch.Tensor]] | None = None
    write_files: Callable[[Path], None] | None = None  # writes all that is no tensor into a folder
    answer: HeadAnswer | None = None  # of a head, fitted to the training items


@dataclass(frozen=True)
class RunItems:
    """The numbers of items of a run."""

    train: int
    validation: int
    scored: int  # of all scored splits; symmetric items count for each order too
    chooses_trial: bool = False  # no earlier run has chosen a trial


@dataclass(frozen=True, kw_only=True)
class Method(Checked):
    """A way of using a model. The fields of a subclass are the keys of its block in `evaluate`."""

    name: ClassVar[str]  # of the block
    transfer: ClassVar[Transfer]  # this and `head` are columns of the results
    head: ClassVar[str] = "linear"
    # How the report calls a model that is used so, by the values of the column `head`.
    titles: ClassVar[Mapping[str, str]] = {}
    # The meaning of these titles, for readers who do not know the field.
    meanings: ClassVar[Mapping[str, str]] = {}
    group_title: ClassVar[str] = ""  # of several heads together
    # The description of a kept system, by the values of the column `head`.
    descriptions: ClassVar[Mapping[str, str]] = {}
    noun: ClassVar[str] = ""  # for a list of trials: `a linear probe`
    answered_by: ClassVar[AnsweredBy] = "head"
    is_baseline: ClassVar[bool] = False  # it uses no model, and is named in its place
    reads_frozen_features: ClassVar[bool] = False
    is_fitted: ClassVar[bool] = True  # False: it learns from no label, so one run is enough
    # The chosen system is scored on validation too, for comparison with others.
    scores_validation: ClassVar[bool] = True
    # A kept system is as large as the encoder, so it is kept only if no other system of as many
    # labels is better on validation.
    keeps_network: ClassVar[bool] = True

    @property
    def family(self) -> str:
        """The column `family` of the results of a method without a model."""
        return self.name

    def unsupported_note(self, context: TaskContext) -> Note | None:
        """Return why no system of the method can be evaluated on the task; None if it can."""
        if not context.task.scored_splits:
            return Note("no_split", "validation")
        assert isinstance(context, EvalContext)
        family = context.checkpoint.family
        if not family.can_answer(self.answered_by, context.checkpoint.architecture):
            return Note("unsupported", context.kind.answer.reason_key(self.answered_by))
        return None

    def is_in_grid(self, model: str, grid: Grid) -> bool:
        """Return whether the study uses the method with a model."""
        return True

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        """Return whether the method can be used on a task of this kind (task.json)."""
        return self.answered_by in kind.answer.list_answered_by()

    def complete(self, finetune: "Method") -> Self:
        """Fill in the keys that a block leaves to the block `finetune`."""
        return self

    @property
    def requested_label_counts(self) -> tuple[LabelCount, ...]:
        """The label counts of the grid to use the method with; empty: all of them."""
        return ()

    def features_name(self, context: TaskContext) -> str:
        """Return the column `features` of the results: the layers that a head reads."""
        return "none"

    def head_name(self, context: TaskContext) -> str:
        """Return the column `head` of the results."""
        return self.head

    def recipe_name(self, context: TaskContext) -> str:
        """Return the column `recipe` of the results: the techniques that are on."""
        return "none"

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Fit a run's system, and answer every scored split with it. Raises EvaluationError."""
        return FittedSystem(
            answer_scored_splits(subject, run, partial(self.answer, subject, run)), self
        )

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        """Answer some items, if nothing is fitted. Raises EvaluationError."""
        raise NotImplementedError(f"{type(self).__name__}.answer")

    def count_work(self, items: RunItems) -> float:
        """Return how many items a run reads; a gradient step counts each TRAINING_PASSES times."""
        return items.scored

    def shorten(self) -> Self:
        """Return the method with less training, for a rehearsal: its work must take little time."""
        return self

    def load(self, saved: SavedSystem) -> AnswerItems:
        """Return the function that answers items as a kept system does."""
        raise NotImplementedError(f"{type(self).__name__}.load")

    def describe_answers(self, context: TaskContext, predictions: pd.DataFrame) -> list[Note]:
        """Return notes on how some items were answered."""
        return context.kind.answer.describe_answers(predictions)

    def list_metrics(self, context: TaskContext) -> Sequence[str]:
        """Return the metrics of its results: those of the task."""
        return context.task.info.metric

    def score(
        self, context: TaskContext, metric: str, predictions: pd.DataFrame, answer_column: str
    ) -> float:
        """Return the metric of some predictions; NaN if it is undefined."""
        return context.kind.answer.score(metric, predictions, answer_column=answer_column)


def find_method(context: TaskContext, run: EvalRun) -> Method:
    method = context.settings.methods[run.method]
    assert isinstance(method, Method)
    return method


def is_requested(context: TaskContext, run: EvalRun) -> bool:
    """Return whether a run's method is used with as many labels."""
    label_counts = find_method(context, run).requested_label_counts
    return run.label_count is None or not label_counts or run.label_count in label_counts


def select_train_rows(context: TaskContext, run: EvalRun) -> np.ndarray:
    """Return the rows of the table train that the run learns from, nested by label count."""
    assert run.label_count is not None and run.finetune_seed is not None
    train = context.task.split_items(seed=run.finetune_seed, fold=run.fold)[0]
    labels = stratification_labels(context.task.select_items(train))
    subset = nested_stratified_subset(labels, run.label_count, seed=run.finetune_seed)
    return train.rows_N[subset]


def count_train_examples(context: TaskContext, run: EvalRun) -> int:
    """Return the number of training items of a run."""
    if run.label_count is None:
        return 0
    for part in parts_of_run(context, run):
        if part.split == "train":
            num_items = len(part.rows_N)
            return num_items if run.label_count == "all" else min(run.label_count, num_items)
    return 0


def parts_of_run(context: TaskContext, run: EvalRun) -> list[SplitItems]:
    """Return the items of each split and test set, as a run uses them."""
    return context.task.split_items(seed=run.finetune_seed or 0, fold=run.fold)


def count_items(context: TaskContext, run: EvalRun, *, chooses_trial: bool) -> RunItems:
    sizes = [(part.split, len(part.rows_N)) for part in parts_of_run(context, run)]
    num_orders = 3 if context.is_symmetric else 1
    return RunItems(
        train=count_train_examples(context, run),
        validation=sum(size for split, size in sizes if split == "validation"),
        scored=num_orders * sum(size for split, size in sizes if split != "train"),
        chooses_trial=chooses_trial,
    )


def run_columns(context: TaskContext, run: EvalRun) -> dict[str, Any]:
    """Return the columns of rows and predictions that name the run."""
    method = find_method(context, run)
    return {
        **context.name_model(run),
        "init": run.init,
        "adapt_text": context.adapt_text(run.init),
        "transfer": method.transfer,
        "features": method.features_name(context),
        "head": method.head_name(context),
        "recipe": method.recipe_name(context),
        "pretrain_seed": context.pretrain_seed,
        "finetune_seed": run.finetune_seed,
        "fold": run.fold,
        "trial": "chosen",
        "label_count": "none" if run.label_count is None else str(run.label_count),
        "task": context.task.info.name,
    }


def build_predictions(
    context: TaskContext,
    run: EvalRun,
    split: str,
    items: pd.DataFrame,
    columns: PredictionColumns,
    test_set: str = "",
) -> pd.DataFrame:
    """Return a table of predictions with the columns of the run."""
    table = pd.DataFrame(
        {"id": items["id"].astype(str), "group": items["group"].astype(str), **columns}
    )
    for name, value in run_columns(context, run).items():
        table[name] = value
    table["split"] = split
    table["test_set"] = test_set or context.task.info.name
    return _with_column_types(table)


def empty_predictions() -> pd.DataFrame:
    return _with_column_types(pd.DataFrame(columns=list(PREDICTION_COLUMNS)))


def _with_column_types(table: pd.DataFrame) -> pd.DataFrame:
    prefixes = (PROBABILITY_PREFIX, NEIGHBOUR_PREFIX, *EXTRA_COLUMNS)
    extra = [name for name in table if str(name).startswith(prefixes)]
    return table[[*PREDICTION_COLUMNS, *extra]].astype(dict.fromkeys(SEED_COLUMNS, "Int64"))


def answer_scored_splits(
    subject: Subject, run: EvalRun, answer: Callable[[pd.DataFrame], PredictionColumns]
) -> RunPredictions:
    """Return the predictions for every scored split, from a function of its items."""
    context = subject.task_context
    scored_splits = context.task.scored_splits
    parts = [part for part in parts_of_run(context, run) if part.split in scored_splits]
    tables = []
    for part in sorted(parts, key=lambda part: scored_splits.index(part.split)):
        items = context.task.select_items(part)
        columns = answer(items)
        tables.append(build_predictions(context, run, part.split, items, columns, part.test_set))
    return RunPredictions(pd.concat(tables, ignore_index=True))
