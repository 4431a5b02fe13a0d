"""Evaluate one stage's systems on one task: every init, transfer, label count, seed and fold.

Finished runs are cached outside the stage's outputs, so that a killed evaluation repeats none.
Frozen features are computed once for each encoder and shared.
"""

import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lineage.artifacts import create_artifact, is_intact, text_digest
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.result_rows import (
    build_curves,
    empty_curves,
    result_rows,
    rows_without_value,
)
from lineage.methods.base import (
    EXTRA_COLUMNS,
    FittedSystem,
    Method,
    count_items,
    count_train_examples,
    empty_predictions,
    find_method,
    run_columns,
)
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import (
    BaselineContext,
    EvalRun,
    Init,
    LabelCount,
    Subject,
    TaskContext,
    features_part,
)
from lineage.methods.registry import Baselines
from lineage.methods.run_predictions import RunPredictions
from lineage.methods.saved import SystemRecord, save_system, system_name
from lineage.methods.trials import AllTrialsFailedError
from lineage.results import (
    INTERMEDIATE_TRIAL,
    PREDICTION_COLUMNS,
    RESULT_KEY_COLUMNS,
    SEED_COLUMNS,
    Note,
    ResultRow,
)
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo
from lineage.work import Stopwatch, Work, WorkLog

CACHED_RUN = "evaluated_run"  # the kind of artifact
SYSTEM_DIR = "system"  # in the folder of a cached run
TRAININGS_SUFFIX = ".trainings"  # of the folder of those that a run has not finished


class RunCost(NamedTuple):
    """The time of a run, and how fast its system answers."""

    seconds: float  # the first run of a model also computes its features
    items_per_second: float | None  # the encoder included; None if nothing was trained


class EvaluationOutput(NamedTuple):
    """The output of a stage: rows, predictions, and learning curves of the heads it trained."""

    rows: list[ResultRow]
    predictions: pd.DataFrame
    curves: pd.DataFrame
    costs: dict[EvalRun, RunCost]


def list_runs(
    info: TaskInfo,
    methods: Iterable[Method],
    inits: tuple[Init, ...],
    label_counts: tuple[LabelCount, ...],
    finetune_seeds: tuple[int, ...],
) -> Iterator[EvalRun]:
    """Yield the runs of the methods that suit a task (task.json), in order."""
    kind = load_kind(info.kind)
    suitable = [method for method in methods if method.suits(kind, info)]
    for init in inits:
        for method in suitable:
            if not (kind.has_train_split and method.is_fitted):
                yield EvalRun(init, method.name)
                continue
            for count, seed, fold in product(label_counts, finetune_seeds, info.fold_numbers):
                yield EvalRun(init, method.name, count, seed, fold)


def select_intermediate_runs(context: TaskContext, runs: Sequence[EvalRun]) -> list[EvalRun]:
    """Return the frozen runs with the most labels, or those without labels, of a pretrained model.

    They are repeated with its intermediate checkpoints.
    """
    runs = [
        run
        for run in runs
        if run.init == "pretrained"
        and find_method(context, run).transfer in ("frozen", "zero_shot")
    ]
    if not runs:
        return []
    most_labels = max((run.label_count for run in runs), key=_label_count_as_number)
    return [run for run in runs if run.label_count == most_labels]


def _label_count_as_number(label_count: LabelCount | None) -> float:
    if label_count is None:
        return 0.0
    return math.inf if label_count == "all" else float(label_count)


def intermediate_predictions(
    predictions: pd.DataFrame, *, split: str, text_share: float, text_bytes: int
) -> pd.DataFrame:
    """Return the predictions of an intermediate checkpoint for the scored split."""
    is_scored = (predictions["trial"] == "chosen") & (predictions["split"] == split)
    return predictions[is_scored].assign(
        trial=INTERMEDIATE_TRIAL, text_share=text_share, text_bytes=text_bytes
    )


def evaluate_runs(
    context: TaskContext,
    runs: list[EvalRun],
    *,
    cache_dir: Path,
    report_progress: Callable[[float, str], None],
    work: WorkLog | None = None,
) -> EvaluationOutput:
    """Return the rows, predictions and learning curves of all runs.

    A run that fails gives a row with the reason. `cache_dir` holds finished runs and their systems.
    `work` logs the work of each run, and of the features that runs share.
    """
    rows: list[ResultRow] = []
    subject: Subject | None = None
    tables = [empty_predictions()]
    curves = [empty_curves()]
    costs: dict[EvalRun, RunCost] = {}
    counted = count_runs(context, runs)
    for number, run in enumerate(runs):
        method = find_method(context, run)
        note = f"{run.init} {method.transfer} {run.label_count or ''}"
        report = partial(report_progress, number / len(runs), note)
        report()
        unsupported = method.unsupported_note(context)
        if unsupported is not None:
            split = (context.task.scored_splits or ["test"])[-1]
            rows += rows_without_value(context, run, "not_applicable", [unsupported], split=split)
            continue
        if subject is None or run.init != subject.init:
            subject = None  # frees the features of the previous encoder
            subject = context.open(run.init, scratch_dir=cache_dir)
        missing = context.missing_note(run.init)
        if missing is not None:
            rows += _failed_rows(context, run, [missing])
            continue
        stopwatch = Stopwatch()
        try:
            predictions = _load_or_evaluate(
                subject, run, cache_dir, report, is_saved=_is_saved(run, runs, context)
            )
        except AllTrialsFailedError as error:
            rows += _failed_rows(context, run, error.notes)
            continue
        except EvaluationError as error:
            rows += _failed_rows(context, run, [Note("error", str(error))])
            continue
        if predictions.chosen_trial is not None:
            subject.chosen_trials[run.selection_key] = predictions.chosen_trial
        costs[run] = RunCost(predictions.seconds, predictions.items_per_second)
        if not method.scores_validation:
            predictions = _select_split(predictions, context.task.scored_splits[-1])
        is_extra = predictions.table.columns.str.startswith(EXTRA_COLUMNS)
        tables.append(predictions.table.loc[:, ~is_extra])
        curves.append(build_curves(context, run, predictions.curves))
        rows += result_rows(context, run, predictions)
        _log_run(work, counted[run], subject, stopwatch.seconds)
    return EvaluationOutput(rows, concatenate(tables), concatenate(curves), costs)


def count_runs(context: TaskContext, runs: Sequence[EvalRun]) -> dict[EvalRun, Work]:
    """Return the work of each run, which is known before it is done."""
    counted: dict[EvalRun, Work] = {}
    selected: set[EvalRun] = set()
    for run in runs:
        method = find_method(context, run)
        items = count_items(context, run, chooses_trial=run.selection_key not in selected)
        selected.add(run.selection_key)
        counted[run] = Work(f"{run.init} {method.name}", method.count_work(items))
    return counted


def count_features(context: TaskContext, runs: Sequence[EvalRun]) -> list[Work]:
    """Return the work of computing the frozen features that runs share."""
    tables = context.task.splits
    num_items = sum(map(len, tables.values()))
    if context.is_symmetric:  # scored items are read in each order too
        num_items += 2 * sum(len(table) for name, table in tables.items() if name != "train")
    parts = {
        features_part(run.init, find_method(context, run).name): None
        for run in runs
        if find_method(context, run).reads_frozen_features
    }
    return [Work(part, num_items) for part in parts]


def _log_run(work: WorkLog | None, counted: Work, subject: Subject, seconds: float) -> None:
    """Log a run, and apart from it the features that it was the first to need."""
    if work is None:
        return
    shared = subject.shared_work
    work.done += shared
    own_seconds = seconds - sum(one.seconds for one in shared)
    shared.clear()
    work.add(counted.part, counted.count, own_seconds)


def evaluate_untrained(
    task: TaskData,
    methods: Sequence[Method],
    label_counts: tuple[LabelCount, ...] = (),
    finetune_seeds: tuple[int, ...] = (0,),
) -> EvaluationOutput:
    context = BaselineContext(task, Baselines({method.name: method for method in methods}))
    runs = [*list_runs(task.info, methods, ("none",), label_counts, finetune_seeds)]
    with tempfile.TemporaryDirectory() as folder:
        return evaluate_runs(
            context, runs, cache_dir=Path(folder), report_progress=lambda done, note: None
        )


def concatenate(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of the same columns; empty ones, of which pandas warns, are left out."""
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


def _failed_rows(context: TaskContext, run: EvalRun, notes: Sequence[Note]) -> list[ResultRow]:
    split = context.task.scored_splits[-1]
    return rows_without_value(context, run, "failed", notes, split=split)


def _is_saved(run: EvalRun, runs: Sequence[EvalRun], context: TaskContext) -> bool:
    """Tell whether a run's system can be used afterwards: one that the report may recommend.

    It is that of the first seed and fold, and neither random-init nor joined with static vectors.
    """
    is_first = run.finetune_seed == runs[0].finetune_seed and not run.fold
    return is_first and run.init == runs[0].init and context.keeps_systems


def list_kept_systems(
    context: TaskContext, runs: Sequence[EvalRun], rows: Sequence[ResultRow], cache_dir: Path
) -> list[Path]:
    """Return the folders in `cache_dir` of the systems that a stage keeps, after `evaluate_runs`."""
    saved = {
        run: _run_dir(cache_dir, run) / SYSTEM_DIR for run in runs if _is_saved(run, runs, context)
    }
    saved = {run: folder for run, folder in saved.items() if folder.is_dir()}
    metric = context.task.info.ranking_metric
    values: dict[tuple[str, str], list[float]] = {}  # by label count and system
    for row in rows:
        is_whole = row.group == "all" and row.layer == "none"
        is_counted = row.split == "validation" and row.trial == "chosen" and is_whole
        if is_counted and row.metric == metric and row.value is not None:
            name = system_name(row.model, row.init, row.transfer, row.head)
            values.setdefault((row.label_count, name), []).append(row.value)
    keys = {}
    for run in saved:
        columns = run_columns(context, run)
        name = system_name(*(columns[key] for key in ("model", "init", "transfer", "head")))
        keys[run] = (columns["label_count"], name)
    means = {run: np.mean(values.get(key, [-math.inf])) for run, key in keys.items()}
    kept = []
    for run, folder in saved.items():
        rivals = [means[other] for other in saved if other.label_count == run.label_count]
        if not find_method(context, run).keeps_network or means[run] >= max(rivals):
            kept.append(folder)
    return kept


def _run_dir(cache_dir: Path, run: EvalRun) -> Path:
    return cache_dir / text_digest(json.dumps(vars(run)))[:16]


def _load_or_evaluate(
    subject: Subject, run: EvalRun, cache_dir: Path, on_save: Callable[[], None], *, is_saved: bool
) -> RunPredictions:
    """Evaluate a run unless its predictions are cached. Raises EvaluationError if it fails."""
    folder = _run_dir(cache_dir, run)
    resume_point = ResumePoint(
        folder.with_suffix(TRAININGS_SUFFIX), subject.task_context.checkpoint_seconds, on_save
    )
    if folder.exists() and not is_intact(folder, CACHED_RUN):
        print(f"{folder}: this finished run is damaged, so it is repeated", file=sys.stderr)
        shutil.rmtree(folder)
    if not folder.exists():
        stopwatch = Stopwatch()
        with create_artifact(folder, CACHED_RUN) as draft:
            method = find_method(subject.task_context, run)
            fitted = method.fit(subject, run, resume_point)
            if is_saved and fitted.get_tensors is not None:
                record = _describe_system(subject.task_context, run, fitted)
                save_system(draft / SYSTEM_DIR, record, fitted.get_tensors())
                if fitted.write_files is not None:
                    fitted.write_files(draft / SYSTEM_DIR)
            seconds = fitted.predictions.seconds + stopwatch.seconds
            replace(fitted.predictions, seconds=seconds).save(draft)
    shutil.rmtree(resume_point.folder, ignore_errors=True)
    return RunPredictions.load(folder)


def _describe_system(context: TaskContext, run: EvalRun, fitted: FittedSystem) -> SystemRecord:
    """Return the record of a run's system; its score is that of its predictions for validation."""
    predictions = fitted.predictions.table
    answer = fitted.answer
    info = context.task.info
    columns = run_columns(context, run)
    is_scored = (predictions["split"] == "validation") & (predictions["trial"] == "chosen")
    score = context.kind.answer.score(info.ranking_metric, predictions[is_scored])
    scale: tuple[float | None, float | None] = (None, None)
    if answer is not None and answer.are_numbers:
        scale = (answer.mean, answer.std)
    return SystemRecord(
        **{key: value for key, value in columns.items() if key != "trial"},
        kind=context.kind.name,
        train_examples=count_train_examples(context, run),
        metric=info.ranking_metric,
        validation_score=score if math.isfinite(score) else None,
        language=context.language,
        symmetric=context.is_symmetric,
        character_spans=info.character_spans,
        labels=tuple(info.labels),
        label_mean=scale[0],
        label_std=scale[1],
        settings_block=fitted.method.name,
        settings=asdict(fitted.method),
        **context.system_columns,
    )


def _select_split(predictions: RunPredictions, split: str) -> RunPredictions:
    """Keep how the chosen system answers one split, and how all trials answer validation."""
    table = predictions.table
    is_kept = (table["split"] == split) | (table["trial"] != "chosen")
    return replace(predictions, table=table[is_kept])


def sort_predictions(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the predictions of baselines, in a fixed order and with fixed types."""
    if not tables:
        tables = [pd.DataFrame(columns=list(PREDICTION_COLUMNS))]
    types = dict.fromkeys(PREDICTION_COLUMNS, "str")
    types |= dict.fromkeys(SEED_COLUMNS, "Int64")
    types |= dict.fromkeys(("score", "correct"), "float64")
    predictions = pd.concat(tables)[list(PREDICTION_COLUMNS)].astype(types)
    return predictions.sort_values([*RESULT_KEY_COLUMNS, "id"], ignore_index=True)
