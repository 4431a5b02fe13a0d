"""Turn the predictions of a run into result rows: one for each metric, with notes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from lineage.answers.groups import split_by_group
from lineage.answers.words import LAYER_PREFIX
from lineage.data.task_data import truncated_answers_notes
from lineage.methods.base import (
    MEAN_METRICS,
    count_train_examples,
    find_method,
    parts_of_run,
    run_columns,
)
from lineage.methods.encoder import EvalContext, EvalRun, Init, TaskContext
from lineage.methods.run_predictions import RunPredictions
from lineage.methods.trials import TriedMethod
from lineage.results import (
    CURVE_COLUMNS,
    HELDOUT_TEST_SET,
    LAYER_TRIAL,
    SEED_COLUMNS,
    UNIGRAM_PREFIX,
    UNKNOWN_TOKEN_METRIC,
    Note,
    ResultRow,
)
from lineage.tasks.info import TaskInfo


@dataclass(frozen=True)
class _Scope:
    """The items that a row scores, the trial that answered them, and the layer it read."""

    split: str
    test_set: str
    group: str = "all"
    trial: str = "chosen"
    layer: str = "none"


def result_rows(
    context: TaskContext, run: EvalRun, predictions: RunPredictions
) -> Iterator[ResultRow]:
    """Yield a row for each metric, trial, split, test set and group, and for each failed trial."""
    method = find_method(context, run)
    for failed in predictions.failed_trials:
        assert isinstance(method, TriedMethod)
        scope = _Scope("validation", context.task.info.name, trial=str(failed.number))
        metric = context.task.info.ranking_metric
        yield _row(context, run, scope, metric, [method.describe_failed(failed)], status="failed")
    parts = predictions.table.groupby(["trial", "split", "test_set"], sort=True)
    for (trial, split, test_set), all_items in parts:
        notes = list(predictions.notes) if trial == "chosen" else []
        if predictions.chosen_trial is not None:
            assert isinstance(method, TriedMethod)
            number = predictions.chosen_trial if trial == "chosen" else int(str(trial))
            notes.append(method.describe_trial(number))
        groups = [("all", all_items)]
        if trial == "chosen":
            groups = split_by_group(all_items, fold=run.fold)
        undefined: set[str] = set()
        for group, items in groups:
            scope = _Scope(str(split), str(test_set), group=group, trial=str(trial))
            if scope.trial.startswith(LAYER_TRIAL):
                layer = scope.trial.removeprefix(LAYER_TRIAL)
                scope = replace(scope, trial="chosen", layer=layer)
            yield from _metric_rows(context, run, items, scope, notes, undefined)


def _metric_rows(
    context: TaskContext,
    run: EvalRun,
    items: pd.DataFrame,
    scope: _Scope,
    notes: list[Note],
    undefined: set[str],
) -> Iterator[ResultRow]:
    """Yield a row for each metric of some items, and for each layer that answered alone."""
    notes = [
        *notes,
        *find_method(context, run).describe_answers(context, items),
        *_reading_notes(context, run, scope),
    ]
    for metric in MEAN_METRICS:
        if metric in items and scope.trial == "chosen":
            value = float(items[metric].mean())
            yield _row(context, run, scope, metric, notes, value=value, num_examples=len(items))
    layer_columns = [str(name) for name in items if str(name).startswith(LAYER_PREFIX)]
    method = find_method(context, run)
    for metric in method.list_metrics(context):
        if method.is_baseline and metric in undefined:
            continue
        for column in ("prediction", *layer_columns):
            layer_scope = scope
            if column != "prediction":
                layer_scope = replace(scope, layer=column.removeprefix(LAYER_PREFIX))
            value = method.score(context, metric, items, column)
            if np.isfinite(value):
                yield _row(
                    context, run, layer_scope, metric, notes, value=value, num_examples=len(items)
                )
            else:
                if scope.group == "all":
                    undefined.add(metric)
                note = context.kind.answer.describe_undefined(metric, items, column)
                yield _row(context, run, layer_scope, metric, [note], status="not_applicable")


def rows_without_value(
    context: TaskContext,
    run: EvalRun,
    status: Literal["not_applicable", "failed"],
    notes: Sequence[Note],
    *,
    split: str,
) -> list[ResultRow]:
    """Return a row for each test set of a split on which a run has no value."""
    parts = parts_of_run(context, run)
    test_sets = [part.test_set for part in parts if part.split == split]
    if not test_sets:
        test_sets = [context.task.info.name]
    metric = context.task.info.ranking_metric
    return [
        _row(context, run, _Scope(split, test_set), metric, notes, status=status)
        for test_set in test_sets
    ]


def _row(
    context: TaskContext,
    run: EvalRun,
    scope: _Scope,
    metric: str,
    notes: Sequence[Note],
    *,
    value: float | None = None,
    num_examples: int = 0,
    status: Literal["ok", "not_applicable", "failed"] = "ok",
) -> ResultRow:
    return ResultRow(
        **run_columns(context, run) | vars(scope),
        kind=context.kind.name,
        metric=metric,
        value=value,
        num_examples=num_examples,
        train_examples=count_train_examples(context, run),
        text_bytes=context.text_bytes_read(run.init),
        status=status,
        reason=notes,
    )


def _reading_notes(context: TaskContext, run: EvalRun, scope: _Scope) -> list[Note]:
    tables = [
        part.table
        for part in parts_of_run(context, run)
        if part.split == scope.split and part.test_set == scope.test_set
    ]
    if not tables:
        return []
    table = tables[-1]
    is_zero_shot = find_method(context, run).transfer == "zero_shot"
    notes = [] if is_zero_shot else context.reading_notes(table)
    return notes + truncated_answers_notes(context.task.info, table)


def build_curves(context: TaskContext, run: EvalRun, curves: pd.DataFrame) -> pd.DataFrame:
    columns = run_columns(context, run)
    del columns["trial"]
    table = curves.assign(**columns, metric=context.task.info.ranking_metric)
    return table[list(CURVE_COLUMNS)].astype(dict.fromkeys(SEED_COLUMNS, "Int64"))


def empty_curves() -> pd.DataFrame:
    return pd.DataFrame(columns=list(CURVE_COLUMNS)).astype(dict.fromkeys(SEED_COLUMNS, "Int64"))


def mean_values(rows: list[ResultRow]) -> dict[str, float]:
    """Return the mean over seeds of each value over all items, by the name that MLflow shows."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.value is None or row.group != "all" or row.trial != "chosen":
            continue
        if row.layer == "none" and row.test_set in ("", row.task):
            values.setdefault(_mlflow_name(row), []).append(row.value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}


def _mlflow_name(row: ResultRow) -> str:
    system: list[str] = [row.model] if row.init == "none" else [row.init, row.transfer]
    if row.init != "none" and row.head.startswith("bilstm"):
        system.append(row.head)
    return "/".join([*system, row.label_count, row.split, row.metric])


class CurvePoints(NamedTuple):
    """The values of all learning curves at one step, by the names that MLflow shows."""

    step: int
    values: dict[str, float]


def curve_points(curves: pd.DataFrame) -> Iterator[CurvePoints]:
    """Yield the training and validation curves of the chosen heads, step by step."""
    chosen = curves[curves["trial"] == "chosen"]
    for step in sorted(chosen["step"].unique()):
        values: dict[str, float] = {}
        for point in chosen[chosen["step"] == step].to_dict("records"):
            system = [point["init"], point["transfer"]]
            if point["head"] != "linear":
                system.append(point["head"])
            seed = f"seed {point['finetune_seed']}"
            if not pd.isna(point["fold"]):
                seed += f" fold {point['fold']}"
            name = "/".join(["curves", *system, point["label_count"], seed])
            values[f"{name}/train_loss"] = point["train_loss"]
            values[f"{name}/validation_loss"] = point["validation_loss"]
            values[f"{name}/validation_{point['metric']}"] = point["validation_score"]
        finite = {name: value for name, value in values.items() if np.isfinite(value)}
        yield CurvePoints(int(step), finite)


def unknown_token_rows(context: EvalContext, init: Init) -> Iterator[ResultRow]:
    """Yield the share of unknown tokens on each test set; nothing for public tokenizers."""
    checkpoint = context.checkpoint
    if not checkpoint.family.can_answer(context.kind.answer.answered_by, checkpoint.architecture):
        return
    if checkpoint.tokenizer.tokenizer_type == "pretrained":
        return
    last_split = context.task.scored_splits[-1:]
    for part in context.task.split_items(seed=0, fold=context.task.info.fold_numbers[0]):
        if part.split in last_split:
            row = _model_row(
                context, init, UNKNOWN_TOKEN_METRIC, context.unknown_token_share(part.table)
            )
            yield replace(
                row,
                num_examples=len(context.task.splits[part.table]),
                test_set=part.test_set,
                split=part.split,
                text_bytes=context.text_bytes_read(init),
            )


def unigram_row(
    context: EvalContext, run: EvalRun, value: float, *, num_examples: int
) -> ResultRow:
    """Return the row of a run's score by `lineage.evaluation.unigram_control`."""
    info = context.task.info
    metric = UNIGRAM_PREFIX + info.ranking_metric
    scope = _Scope(context.task.scored_splits[-1], info.name)
    return _row(context, run, scope, metric, (), value=value, num_examples=num_examples)


def heldout_rows(
    context: EvalContext, heldout: dict[str, dict[str, float]], *, adapted_bytes: int
) -> Iterator[ResultRow]:
    """Yield the language model's metrics on held-out target text, before and after adaptation."""
    heldout_columns: dict[str, Any] = {"test_set": HELDOUT_TEST_SET, "split": "validation"}
    bytes_after = context.text_bytes
    bytes_before = None if bytes_after is None else bytes_after - adapted_bytes
    for metric, value in heldout["before"].items():
        notes = _lossless_notes(context, metric)
        row = _model_row(context, "pretrained", metric, value)
        yield replace(row, **heldout_columns, text_bytes=bytes_before, reason=notes)
    for metric, value in heldout["after"].items():
        notes = _lossless_notes(context, metric)
        has_improved = value < heldout["before"].get(metric, float("inf"))
        if not has_improved and not metric.endswith("_accuracy"):
            notes.insert(0, Note("no_improvement"))
        row = _model_row(context, "adapted", metric, value)
        yield replace(row, **heldout_columns, text_bytes=bytes_after, reason=notes)


def _lossless_notes(context: EvalContext, metric: str) -> list[Note]:
    if context.checkpoint.tokenizer.lossless or not metric.startswith("bits_per_byte"):
        return []
    return [Note("not_lossless")]


def _model_row(context: EvalContext, init: Init, metric: str, value: float) -> ResultRow:
    """Return the row of a value of the language model itself."""
    return ResultRow(
        model=context.model_columns["model"],
        family=context.model_columns["family"],
        task=context.task.info.name,
        kind=context.kind.name,
        metric=metric,
        value=value,
        num_examples=1,
        init=init,
        adapt_text=context.adapt_text(init),
        pretrain_seed=context.pretrain_seed,
    )


def ceiling_rows(info: TaskInfo, num_examples: int) -> list[ResultRow]:
    """Return the best possible scores on a generated task, over all items and by group."""
    if not info.ceilings:
        return []
    groups = {"all": info.ceilings, **info.ceiling_groups}
    return [
        ResultRow(
            model="ceiling",
            family="ceiling",
            task=info.name,
            kind=info.kind,
            metric=info.ranking_metric,
            value=value,
            num_examples=num_examples,
            features=window,
            group=group,
        )
        for group, ceilings in groups.items()
        for window, value in ceilings.items()
    ]
