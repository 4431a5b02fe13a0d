"""A method that trains a head on a task's labels, with the trials of its hyperparameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd

from lineage.answers.base import HeadAnswer, PredictionColumns, correct_column
from lineage.data.task_data import SplitItems
from lineage.errors import EvaluationError
from lineage.methods.base import (
    SWAP_CONSISTENCY,
    FittedSystem,
    RunItems,
    build_predictions,
    parts_of_run,
    select_train_rows,
)
from lineage.methods.early_stopping import EarlyStopping, ResumePoint, curve_frame
from lineage.methods.encoder import EncoderUnderTest, EvalRun, Subject, TaskContext
from lineage.methods.encoding import EncodedItem
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.methods.run_predictions import FailedTrial, RunPredictions
from lineage.methods.saved import AnswerItems, SavedSystem
from lineage.methods.trials import TriedMethod, count_trainings, fit_best_trial
from lineage.work import Stopwatch

# Items -> the outputs of a kept head.
PredictItems = Callable[[list[EncodedItem]], HeadOutput]


@dataclass(frozen=True, kw_only=True)
class HeadMethod(TriedMethod):
    """A method whose head gives the answers."""

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        """Build a head, ready to be trained. Raises EvaluationError if fitting fails."""
        raise NotImplementedError(f"{type(self).__name__}.start")

    def load_head(self, saved: SavedSystem) -> PredictItems:
        """Return the function that gives a kept head's outputs for items."""
        raise NotImplementedError(f"{type(self).__name__}.load_head")

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Fit a head and predict with it; if it chooses a trial, also with each on validation."""
        context = subject.task_context
        chosen_trial = subject.chosen_trials.get(run.selection_key)
        problem = build_problem(context, run)
        start = HeadStarter(subject, run, problem, resume_point)

        def predict_validation(head: FittedHead, trial: str) -> pd.DataFrame:
            return predict_part(context, run, head, problem, problem.validation, trial=trial)

        def score(predictions: pd.DataFrame) -> float:
            return context.kind.answer.score(context.task.info.ranking_metric, predictions)

        tables: list[pd.DataFrame] = []
        curves: list[pd.DataFrame] = []
        failed_trials: list[FailedTrial] = []
        if self.trials and chosen_trial is None:
            outcome = fit_best_trial(self, start, predict_validation, score)
            head = outcome.best.head
            chosen_trial = outcome.best.number
            tables += outcome.predictions
            curves += outcome.curves
            failed_trials = outcome.failed
        else:
            head = start(self._with_chosen(chosen_trial)).finish()
        stopwatch = Stopwatch()
        scored = parts_of_run(context, run)[1:]
        for part in scored:
            tables.append(predict_part(context, run, head, problem, part, trial="chosen"))
        seconds_per_item = stopwatch.seconds / sum(len(part.rows_N) for part in scored)
        if isinstance(subject, EncoderUnderTest) and self.reads_frozen_features:
            seconds_per_item += subject.feature_seconds_per_item
        curves.append(curve_frame(head.learning_curve).assign(trial="chosen"))
        predictions = RunPredictions(
            pd.concat(tables, ignore_index=True),
            failed_trials,
            pd.concat(curves, ignore_index=True),
            head.notes,
            chosen_trial,
            seconds=sum(start.earlier_seconds),
            items_per_second=1 / seconds_per_item,
        )
        method = self._with_chosen(chosen_trial)
        return FittedSystem(predictions, method, head.get_tensors, head.write_files, problem.answer)

    def _with_chosen(self, chosen_trial: int | None) -> Self:
        return self if chosen_trial is None else self.with_trial(chosen_trial)

    def load(self, saved: SavedSystem) -> AnswerItems:
        predict = self.load_head(saved)
        answer = saved.record.answer

        def answer_items(table: pd.DataFrame) -> PredictionColumns:
            outputs_MK, decoded_M = predict(saved.encode(table))
            if not np.isfinite(outputs_MK).all():
                raise EvaluationError("the predictions are not finite")
            return answer.answer_columns(table, answer.normalize(table, outputs_MK), decoded_M)

        return answer_items


@dataclass(frozen=True, kw_only=True)
class ValidatedHeadMethod(HeadMethod, EarlyStopping):
    """A method whose heads are trained until validation stops improving."""

    def count_fits(self, tried: Sequence[Self], items: RunItems) -> float:
        """Count the steps and validations of all trainings."""
        return count_trainings(self, tried, items)

    def shorten(self) -> Self:
        """Train the first trial for one epoch, with all label counts."""
        first = self.with_trial(0) if self.trials else self
        return replace(first, label_counts=(), epochs=1, min_steps=None, patience=None)


class HeadStarter:
    """Starts the heads of a run, or continues those that an earlier process has saved."""

    def __init__(
        self, subject: Subject, run: EvalRun, problem: HeadProblem, point: ResumePoint
    ) -> None:
        self.subject = subject
        self.run = run
        self.problem = problem
        self._point = point
        self.earlier_seconds: list[float] = []  # that earlier processes have spent, by training

    def __call__(self, method: HeadMethod) -> StartedHead:
        head = method.start(self.subject, self.problem, seed=self.run.finetune_seed or 0)
        share = self.subject.task_context.trained_share
        if head.training is not None and share is not None:
            head.training.end_after(share)
        if head.training is not None:
            # A process that repeats the run starts the same trainings in the same order.
            folder = self._point.folder / str(len(self.earlier_seconds))
            self.earlier_seconds.append(head.training.resume(replace(self._point, folder=folder)))
        return head


def build_problem(context: TaskContext, run: EvalRun) -> HeadProblem:
    """Return the items that the head of a run learns from, and how its validation is scored."""
    train_rows = select_train_rows(context, run)
    train_items = context.task.splits["train"].iloc[train_rows]
    answer_type = context.kind.answer
    assert issubclass(answer_type, HeadAnswer)
    answer = answer_type.fit(context.task.info.labels, train_items)
    validation = next(part for part in parts_of_run(context, run) if part.split == "validation")
    validation_items = context.task.select_items(validation)
    metric = context.task.info.ranking_metric

    def score_validation(outputs_MK: np.ndarray, decoded_M: np.ndarray | None) -> float:
        _check_finite(outputs_MK, "validation")
        outputs_MK = answer.normalize(validation_items, outputs_MK)
        columns = answer.prediction_columns(validation_items, outputs_MK, decoded_M)
        answers = pd.DataFrame({name: columns[name] for name in ("label", "prediction")})
        return answer.score(metric, answers)

    return HeadProblem(
        train_rows,
        answer.labels(train_items),
        answer,
        validation,
        answer.labels(validation_items),
        score_validation,
    )


def _check_finite(outputs_MK: np.ndarray, split: str) -> None:
    if not np.isfinite(outputs_MK).all():
        raise EvaluationError(
            f"the predictions for {split} are not finite; lower the learning_rate"
        )


def predict_part(
    context: TaskContext,
    run: EvalRun,
    head: FittedHead,
    problem: HeadProblem,
    part: SplitItems,
    *,
    trial: str,
) -> pd.DataFrame:
    """Return a head's predictions. Raises EvaluationError if one is not finite."""
    answer = problem.answer
    outputs_MK, decoded_M = head.predict(part)
    items = context.task.select_items(part)
    if not head.is_normalized:
        _check_finite(outputs_MK, part.split)
        outputs_MK = answer.normalize(items, outputs_MK)
    columns = answer.prediction_columns(items, outputs_MK, decoded_M)
    columns = correct_column(columns, context.task.info.ranking_metric)
    order_names = context.order_names(part.table)
    if trial == "chosen" and order_names:
        by_order = [head.predict(replace(part, table=name))[0] for name in order_names]
        columns[SWAP_CONSISTENCY] = answer.agrees(*by_order).astype(float)
    table = build_predictions(context, run, part.split, items, columns, part.test_set)
    return table.assign(trial=trial)
