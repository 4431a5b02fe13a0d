"""Fit a system of a finished study again, with its validation items among the training items.

It is an ordinary run of its method on a task with more training items. A training ends at the share
of its steps at which the trainings before it were best on validation. See docs/decisions/0042.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low
from typing import cast

import pandas as pd

from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.evaluate import evaluate_runs, list_kept_systems
from lineage.methods.base import Method, parts_of_run, select_train_rows
from lineage.methods.early_stopping import EarlyStopping, count_max_steps
from lineage.methods.encoder import BaselineContext, EvalContext, EvalRun, Init, LabelCount
from lineage.methods.registry import Baselines
from lineage.methods.saved import SystemRecord, read_record
from lineage.methods.trials import TriedMethod
from lineage.results import notes_from_json
from lineage.work import WorkLog

SYSTEM_COLUMNS = ("model", "init", "transfer", "head", "label_count")


@dataclass(frozen=True)
class ChosenTraining:
    """The choice of validation for a system: its hyperparameters, and when its training ends."""

    method: Method
    trained_share: float | None  # of all steps; None: the method has no early stopping


def choose_training(
    method: Method, record: SystemRecord, rows: pd.DataFrame, curves: pd.DataFrame
) -> ChosenTraining:
    """Return what the seeds and folds of a system have chosen: the medians.

    `rows` and `curves` are the results of the stage that evaluated it.
    """
    chosen = _select_chosen(rows, record)
    numbers = [
        note.value["number"]
        for reason in chosen.drop_duplicates(["finetune_seed", "fold"])["reason"]
        for note in notes_from_json(reason)
        if note.kind == "trial"
    ]
    if numbers:
        assert isinstance(method, TriedMethod)
        method = method.with_trial(median_low(numbers))
    if not isinstance(method, EarlyStopping):
        return ChosenTraining(method, None)
    kept = _select_chosen(curves, record)
    kept = kept[kept["is_kept"].astype(bool)]
    shares = []
    for step, epoch in zip(kept["step"], kept["epoch"], strict=True):
        shares.append(step / count_max_steps(method, round(step / epoch)))
    return ChosenTraining(method, median(shares))


def _select_chosen(table: pd.DataFrame, record: SystemRecord) -> pd.DataFrame:
    """Return the lines of a system's chosen trials."""
    is_own = table["trial"] == "chosen"
    for column in SYSTEM_COLUMNS:
        is_own &= table[column] == getattr(record, column)
    return table[is_own]


def join_items(context: EvalContext | BaselineContext, run: EvalRun) -> TaskData:
    """Return a task whose training items are those of a run and those that validated it.

    With all labels of a cross-validated task, they are the items of all folds. The validation items
    remain, to see that they were learned. Test items are not in the task.
    """
    task = context.task
    table = task.splits["train"]
    train = table.iloc[select_train_rows(context, run)]
    validation = next(part for part in parts_of_run(context, run) if part.split == "validation")
    validation_items = task.select_items(validation)
    added = validation_items
    if run.label_count == "all" and run.fold is not None:
        added = table.drop(index=train.index)
    added = added[context.kind.answer.can_be_learned(added)]
    splits = {
        "train": pd.concat([train, added], ignore_index=True),
        "validation": validation_items.reset_index(drop=True),
    }
    return TaskData(replace(task.info, folds=None), splits, include_test=False)


def refit_system(
    context: EvalContext | BaselineContext,
    record: SystemRecord,
    chosen: ChosenTraining,
    *,
    cache_dir: Path,
    report_progress: Callable[[float, str], None],
    work: WorkLog,
) -> tuple[Path, SystemRecord]:
    """Fit a kept system again; return its folder in `cache_dir`, and its record.

    The record's score on validation is the earlier one. Raises EvaluationError if the fit fails, or
    if the new system answers the validation items, which it has learned, worse than the earlier one
    did.
    """
    label_count = record.label_count
    count: LabelCount = "all" if label_count == "all" else int(label_count)
    method = chosen.method
    run = EvalRun(cast(Init, record.init), method.name, count, record.finetune_seed, record.fold)
    task = join_items(context, run)
    settings = Baselines({method.name: method})
    if isinstance(context, EvalContext):
        context = replace(context, task=task, settings=settings, trained_share=chosen.trained_share)
    else:
        context = replace(context, task=task, settings=settings)
    run = replace(run, label_count="all", fold=None)
    output = evaluate_runs(
        context, [run], cache_dir=cache_dir, report_progress=report_progress, work=work
    )
    folders = list_kept_systems(context, [run], output.rows, cache_dir)
    if not folders:
        reasons = [str(note.value) for row in output.rows for note in row.reason]
        raise EvaluationError(f"it could not be fitted again: {'; '.join(reasons)}")
    (folder,) = folders
    refitted = read_record(folder)
    before = record.validation_score
    after = refitted.validation_score
    if before is not None and (after is None or after < before):
        raise EvaluationError(
            f"fitted again, it answers validation worse ({after} {record.metric}) than before it "
            f"learned from it ({before})"
        )
    return folder, replace(refitted, label_count=label_count, validation_score=before)
