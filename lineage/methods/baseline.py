"""A method without a model, which pretraining has to beat.

Its rows and predictions are those of the reported split alone, with the method as their model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import pandas as pd

from lineage.answers.base import HeadAnswer, PredictionColumns
from lineage.methods.base import FittedSystem, RunItems, answer_scored_splits, select_train_rows
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalRun, Subject, TaskContext, Transfer
from lineage.methods.head_method import HeadMethod
from lineage.methods.run_predictions import RunPredictions
from lineage.results import Note
from lineage.tasks.base import Kind
from lineage.work import TRAINING_PASSES


@dataclass(frozen=True, kw_only=True)
class BaselineMethod(HeadMethod):
    """A method that answers as a head does, or whatever else a task asks for by `answer`."""

    is_baseline: ClassVar[bool] = True
    transfer: ClassVar[Transfer] = "none"
    head: ClassVar[str] = "none"
    keeps_network: ClassVar[bool] = False
    scores_validation: ClassVar[bool] = False

    def suits(self, kind: Kind, info: dict[str, object]) -> bool:
        """Return True: a row says so if a baseline has no answer."""
        return True

    def unsupported_note(self, context: TaskContext) -> Note | None:
        """Return a note if the baseline has no answer."""
        return None

    def answer(
        self, train: pd.DataFrame | None, items: pd.DataFrame, context: TaskContext
    ) -> PredictionColumns:
        """Return the answers to tasks without a head."""
        raise NotImplementedError(f"{type(self).__name__}.answer")

    def count_fits(self, tried: Sequence[Self], items: RunItems) -> float:
        """Count the training items, which a linear model reads about as often as it must."""
        return len(tried) * TRAINING_PASSES * items.train

    def fit(
        self,
        subject: Subject,
        run: EvalRun,
        chosen_trial: int | None,
        resume_point: ResumePoint,
    ) -> FittedSystem:
        """Fit the baseline, if its answers are those of a head, and answer the scored splits."""
        context = subject.task_context
        if issubclass(context.kind.answer, HeadAnswer):
            return super().fit(subject, run, chosen_trial, resume_point)
        train = None
        if run.label_count is not None:
            train = context.task.splits["train"].iloc[select_train_rows(context, run)]

        def answer_items(items: pd.DataFrame) -> PredictionColumns:
            return self.answer(train, items, context)

        return FittedSystem(RunPredictions(answer_scored_splits(context, run, answer_items)), self)
