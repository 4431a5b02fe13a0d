"""The cost of evaluating a model on a task: counts, and the seconds and bytes of each count.

This is the whole cost model of the stages evaluate, evaluate_adapted and evaluate_joined:

    load the model and the task, and encode every item;
    for each init, compute frozen features of every item, if a probe reads them;
    for each run, fit its head (once for each trial, where it chooses one), predict, and score.
    If learning rates race, all but one are fitted for a few validations only.

The runs are those of `lineage.evaluation.evaluate`. `lineage.forecast.evaluation_probe` measures
the costs.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lineage.config.params import Params
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import list_runs
from lineage.forecast.measure import LinearCost
from lineage.methods.base import Method
from lineage.methods.early_stopping import EarlyStopping, count_max_steps, steps_between_validations
from lineage.methods.encoder import EvalRun, Init
from lineage.methods.feature_store import CHUNK_BYTES, MAX_MEMORY_BYTES, STORED_DTYPE
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings
from lineage.methods.trials import RACE_VALIDATIONS, TriedMethod, is_race
from lineage.tasks.base import load_kind

PRETRAINED: tuple[Init, ...] = ("pretrained",)
PRETRAINED_AND_RANDOM: tuple[Init, ...] = ("pretrained", "random")
ADAPTED: tuple[Init, ...] = ("adapted",)
TARGET_ONLY: tuple[Init, ...] = ("target_only",)
# The share of its highest number of steps after which a training stops early.
EARLY_STOPPING_SHARE = 0.7


@dataclass(frozen=True)
class HeadCosts:
    """Seconds of a head that is trained in steps."""

    first_seconds: float = 0.0  # extra time of the first fit in a process
    fit_seconds: float = 0.0  # of every fit, besides its steps
    step_seconds: float = 0.0
    predict_seconds: float = 0.0  # of an item


@dataclass(frozen=True)
class EvaluationCosts:
    """The cost of evaluating one model on one task: seconds and bytes per item."""

    load_seconds: float
    encode_seconds: float
    build_seconds: float = 0.0  # of an encoder
    feature_seconds: float = 0.0  # frozen features for a linear probe
    cache_seconds: float = 0.0  # frozen features for a BiLSTM probe
    # By answers: items, or the words of items.
    linear_fit: LinearCost = field(default_factory=LinearCost)
    bilstm: HeadCosts = field(default_factory=HeadCosts)
    # A translator has these too.
    finetune: HeadCosts = field(default_factory=HeadCosts)
    # A step on pairs counts once for each distinct text in it.
    setfit: HeadCosts = field(default_factory=HeadCosts)
    # For one init, by items.
    zero_shot: LinearCost = field(default_factory=LinearCost)
    answers_per_item: float = 1.0
    feature_bytes: float = 0.0
    cache_bytes: float = 0.0
    finetuned_bytes: int = 0  # of the weights that are kept

    def scaled(self, ratio: float) -> "EvaluationCosts":
        """Return the costs of a task whose items are `ratio` times as long."""

        def scale_head(head: HeadCosts) -> HeadCosts:
            return dataclasses.replace(
                head,
                step_seconds=ratio * head.step_seconds,
                predict_seconds=ratio * head.predict_seconds,
            )

        return dataclasses.replace(
            self,
            encode_seconds=ratio * self.encode_seconds,
            feature_seconds=ratio * self.feature_seconds,
            cache_seconds=ratio * self.cache_seconds,
            bilstm=scale_head(self.bilstm),
            finetune=scale_head(self.finetune),
            setfit=scale_head(self.setfit),
            zero_shot=dataclasses.replace(
                self.zero_shot, seconds_per_unit=ratio * self.zero_shot.seconds_per_unit
            ),
            cache_bytes=ratio * self.cache_bytes,
        )


@dataclass(frozen=True)
class RunCounts:
    """How often a run fits its head, and on how many items."""

    run: EvalRun
    train_items: int
    validation_items: int
    scored_items: int  # of all scored splits
    predicted_items: int  # the same, but symmetric items count for each order too
    num_parts: int  # tables of predictions
    fitted_settings: tuple[Any, ...]  # of each fit: one for each trial
    chooses_trial: bool
    is_race: bool  # all fits but one end early

    @property
    def num_fits(self) -> int:
        """The number of heads that are fitted."""
        return len(self.fitted_settings)

    @property
    def tuned_settings(self) -> list[Any]:
        """The settings of SetFit's fine-tunings, each of which serves the fits that follow it."""
        settings = [one.without_probe for one in self.fitted_settings]
        return [one for number, one in enumerate(settings) if one not in settings[:number][-1:]]

    @property
    def num_steps(self) -> int:
        """The expected gradient steps of all fits."""
        if self.run.transfer == "setfit":
            return sum(one.count_steps(self.train_items) for one in self.tuned_settings)
        steps = [count_steps(settings, self.train_items) for settings in self.fitted_settings]
        if not self.is_race:
            return sum(steps)
        # All trials of a race have the same steps.
        race_steps = count_race_steps(self.fitted_settings[0], self.train_items)
        return steps[0] + (self.num_fits - 1) * race_steps

    @property
    def num_validations(self) -> int:
        """The expected validations of all fits."""
        validations = [
            count_validations(settings, self.train_items) for settings in self.fitted_settings
        ]
        if not self.is_race:
            return sum(validations)
        return validations[0] + (self.num_fits - 1) * min(validations[0], RACE_VALIDATIONS)

    @property
    def num_tables(self) -> int:
        """The tables of predictions: of each scored part, and of each trial on validation."""
        return self.num_parts + (self.num_fits if self.chooses_trial else 0)

    @property
    def num_predictions(self) -> int:
        """The items of all tables."""
        trial_items = self.num_fits * self.validation_items if self.chooses_trial else 0
        return self.scored_items + trial_items


@dataclass(frozen=True)
class EvaluationCounts:
    """The numbers of items and runs of one evaluation."""

    inits: tuple[Init, ...]
    encoded_items: int
    table_items: tuple[int, ...]  # of each table; symmetric items have tables of each order too
    scored_items: int
    runs: tuple[RunCounts, ...]

    @property
    def feature_items(self) -> int:
        """The items that have frozen features."""
        return sum(self.table_items)

    def num_steps(self, transfer: str, head: str = "linear") -> int:
        """Return the number of gradient steps of all runs with this transfer and head."""
        return sum(
            counts.num_steps
            for counts in self.runs
            if (counts.run.transfer, counts.run.head) == (transfer, head)
        )


def count_evaluation(
    task: TaskData,
    settings: EvaluateSettings,
    params: Params,
    *,
    inits: tuple[Init, ...],
    finetuned: bool = True,
    setfit: bool = False,
) -> EvaluationCounts:
    """Count the items, runs and fits of one stage; `finetuned` and `setfit` as in `list_runs`."""
    orders = 2 if task.info.get("symmetric") else 0
    scored_tables = [name for name in task.splits if name != "train" or task.info.get("folds")]
    num_items = {name: len(table) for name, table in task.splits.items()}
    scored_items = sum(num_items[name] for name in scored_tables)
    runs: list[RunCounts] = []
    selected: set[EvalRun] = set()  # runs that have chosen a trial, by selection key
    grid = params.grid
    methods = [
        method
        for method in settings.methods.values()
        if (finetuned or method.reads_frozen_features) and (setfit or method.name != "setfit")
    ]
    names = {(method.transfer, method.head, method.answered_by): method for method in methods}
    answered_by = load_kind(task.info["kind"]).answer.answered_by
    for run in list_runs(task.info, methods, inits, grid.label_counts, grid.finetune_seeds):
        method = names[run.transfer, run.head, answered_by]
        label_counts = method.requested_label_counts
        is_excluded = label_counts and run.label_count not in label_counts
        if run.label_count is not None and is_excluded:
            continue
        runs.append(_count_run(run, task, method, orders=orders, selected=selected))
    return EvaluationCounts(
        inits=inits,
        encoded_items=sum(num_items.values()),
        table_items=(
            *num_items.values(),
            *(num_items[name] for name in scored_tables for _ in range(orders)),
        ),
        scored_items=scored_items,
        runs=tuple(runs),
    )


def _count_run(
    run: EvalRun,
    task: TaskData,
    method: Method,
    *,
    orders: int,
    selected: set[EvalRun],
) -> RunCounts:
    parts = task.split_items(seed=run.finetune_seed or 0, fold=run.fold)
    sizes = [(part.split, len(part.rows_N)) for part in parts]
    num_train = sum(size for split, size in sizes if split == "train")
    if run.label_count not in (None, "all"):
        num_train = min(num_train, int(run.label_count or 0))
    scored = [size for split, size in sizes if split != "train"]
    fitted_settings: tuple[Any, ...] = (method,)
    trials = method.trials if isinstance(method, TriedMethod) else ()
    chooses_trial = bool(trials) and run.selection_key not in selected
    if isinstance(method, TriedMethod) and trials:
        selected.add(run.selection_key)
        # The chosen trial is not known before the run, so the first represents it.
        fitted_settings = (method.with_trial(0),)
    if chooses_trial and isinstance(method, TriedMethod):
        fitted_settings = tuple(method.with_trial(i) for i in range(len(trials)))
    return RunCounts(
        run=run,
        train_items=num_train,
        validation_items=sum(size for split, size in sizes if split == "validation"),
        scored_items=sum(scored),
        predicted_items=(1 + orders) * sum(scored),
        num_parts=len(scored),
        fitted_settings=fitted_settings,
        chooses_trial=chooses_trial,
        is_race=isinstance(method, TriedMethod) and is_race(method),
    )


def count_steps(settings: Any, num_items: int) -> int:
    """Return the expected gradient steps of one fit on this many items; 0 for L-BFGS."""
    if isinstance(settings, LinearProbeMethod) or num_items == 0:
        return 0
    steps_per_epoch = -(-num_items // settings.batch_size)  # rounded up
    if isinstance(settings, EarlyStopping):
        share = 1.0 if settings.patience is None else EARLY_STOPPING_SHARE
        return round(share * count_max_steps(settings, steps_per_epoch))
    epochs: int = settings.epochs
    return epochs * steps_per_epoch


def count_validations(settings: Any, num_items: int) -> int:
    """Return the expected validations of one fit on this many items."""
    if not isinstance(settings, EarlyStopping) or num_items == 0:
        return 0
    steps_per_epoch = -(-num_items // settings.batch_size)
    interval = steps_between_validations(count_max_steps(settings, steps_per_epoch))
    return count_steps(settings, num_items) // interval


def count_race_steps(settings: Any, num_items: int) -> int:
    """Return the expected gradient steps of a trial that loses a race."""
    if num_items == 0:
        return 0
    steps_per_epoch = -(-num_items // settings.batch_size)
    interval = steps_between_validations(count_max_steps(settings, steps_per_epoch))
    return min(RACE_VALIDATIONS * interval, count_steps(settings, num_items))


def evaluation_seconds(
    counts: EvaluationCounts,
    costs: EvaluationCosts,
    settings: EvaluateSettings,
    *,
    answered_by: str,
    scoring_seconds: float,
) -> float:
    """Return the seconds of one stage. `scoring_seconds` is for one table of predictions."""
    # Items are encoded once, and their tokens are counted once more for the unknown ones.
    seconds = costs.load_seconds + 2 * counts.encoded_items * costs.encode_seconds
    if answered_by in ("sentence_probability", "word_vectors"):
        return seconds + len(counts.inits) * costs.zero_shot.seconds(counts.scored_items)
    seconds += costs.bilstm.first_seconds + costs.finetune.first_seconds
    seconds += costs.setfit.first_seconds
    seconds += len(counts.inits) * _frozen_seconds(counts, costs)
    for run_counts in counts.runs:
        seconds += _run_seconds(run_counts, costs, settings, answered_by=answered_by)
        seconds += run_counts.num_tables * scoring_seconds
    return seconds


def _frozen_seconds(counts: EvaluationCounts, costs: EvaluationCosts) -> float:
    """Return the seconds of the frozen features of one init."""
    heads = {counts.run.head for counts in counts.runs if counts.run.transfer == "frozen"}
    seconds = 0.0
    if "linear" in heads:
        seconds += costs.build_seconds + counts.feature_items * costs.feature_seconds
    if "bilstm" in heads:
        seconds += costs.build_seconds + counts.feature_items * costs.cache_seconds
    return seconds


def _run_seconds(
    counts: RunCounts, costs: EvaluationCosts, settings: EvaluateSettings, *, answered_by: str
) -> float:
    """Return the seconds of a run's fits and predictions."""
    run = counts.run
    trial_items = counts.num_fits * counts.validation_items if counts.chooses_trial else 0
    predicted_items = counts.predicted_items + trial_items
    if answered_by == "translator":
        steps = count_steps(settings.translation, counts.train_items)
        return _head_seconds(costs.finetune, 1, steps, predicted_items)
    if run.transfer == "frozen" and run.head == "linear":
        num_answers = counts.train_items * costs.answers_per_item
        return counts.num_fits * costs.linear_fit.seconds(num_answers)
    if run.transfer == "setfit":
        return _setfit_seconds(counts, costs)
    steps = counts.num_steps
    predicted_items += counts.num_validations * counts.validation_items
    if run.transfer == "frozen":
        return _head_seconds(costs.bilstm, counts.num_fits, steps, predicted_items)
    seconds = _head_seconds(costs.finetune, counts.num_fits, steps, predicted_items)
    return seconds + counts.num_fits * costs.build_seconds


def _setfit_seconds(counts: RunCounts, costs: EvaluationCosts) -> float:
    """Return the seconds of fine-tunings on pairs, and of the probes that read each of them.

    The probes of one fine-tuning share the vectors of the items.
    """
    num_tuned = len(counts.tuned_settings)
    # The scored items include those that validate the chosen probe.
    other_items = (num_tuned - 1) * counts.validation_items
    encoded_items = counts.scored_items + num_tuned * counts.train_items + other_items
    read_texts = sum(
        one.count_steps(counts.train_items) * one.count_distinct_texts(counts.train_items)
        for one in counts.tuned_settings
    )
    seconds = _head_seconds(costs.setfit, num_tuned, round(read_texts), encoded_items)
    seconds += num_tuned * costs.build_seconds
    return seconds + counts.num_fits * costs.linear_fit.seconds(counts.train_items)


def _head_seconds(costs: HeadCosts, num_fits: int, num_steps: int, predicted_items: int) -> float:
    return (
        num_fits * costs.fit_seconds
        + num_steps * costs.step_seconds
        + predicted_items * costs.predict_seconds
    )


def evaluation_memory(
    counts: EvaluationCounts, costs: EvaluationCosts, *, probe_memory_bytes: int
) -> int:
    """Return the memory of a stage in bytes: that of the probe, and the features of all items."""
    heads = {run.run.head for run in counts.runs if run.run.transfer == "frozen"}
    num_bytes = 0.0
    if "linear" in heads:
        num_bytes += _stored_bytes(counts, costs.feature_bytes)
    if "bilstm" in heads:
        num_bytes += _stored_bytes(counts, costs.cache_bytes)
    return probe_memory_bytes + round(num_bytes)


def _stored_bytes(counts: EvaluationCounts, item_bytes: float) -> float:
    """Return the most memory that the stored features of all tables take.

    Features are computed in parts. A part is in memory twice, in float32, before it is stored. A
    table in a file counts as the limit above which it is kept there, since the system may keep as
    much of the file in memory as is free.
    """
    tables = [number * item_bytes for number in counts.table_items]
    float32_bytes = max(tables) * np.dtype(np.float32).itemsize / STORED_DTYPE.itemsize
    part_bytes = 2 * min(CHUNK_BYTES, float32_bytes)
    return part_bytes + sum(min(table_bytes, MAX_MEMORY_BYTES) for table_bytes in tables)


def count_prediction_tables(counts: EvaluationCounts) -> int:
    """Return the tables of predictions of a stage: of each scored part, and of each trial."""
    return sum(run.num_tables for run in counts.runs)


def evaluation_disk(
    counts: EvaluationCounts, costs: EvaluationCosts, *, prediction_bytes: float
) -> int:
    """Return at most the bytes of fine-tuned networks and predictions that a stage keeps.

    `prediction_bytes` is of an item.
    """
    networks = {
        (run.run.transfer, run.run.label_count)
        for run in counts.runs
        if run.run.transfer in ("finetuned", "setfit")
    }
    weights_bytes = costs.finetuned_bytes * len(networks)
    num_predictions = sum(run.num_predictions for run in counts.runs)
    return weights_bytes + round(prediction_bytes * num_predictions)
