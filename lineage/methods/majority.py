"""The most frequent answer of the training items; for two answers that are compared, a tie."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import HeadAnswer, PredictionColumns
from lineage.answers.pair import pair_columns
from lineage.data.task_data import SplitItems
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import EvalRun, Subject, TaskContext
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.results import Note


@dataclass(frozen=True, kw_only=True)
class MajorityMethod(BaselineMethod):
    """The most frequent answer."""

    name: ClassVar[str] = "majority"

    def unsupported_note(self, context: TaskContext) -> Note | None:
        answer = context.kind.answer
        if issubclass(answer, HeadAnswer) or answer.has_ties:
            return None
        return Note("no_majority", answer.reason_key(answer.answered_by))

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        return StartedHead(fit_majority(subject.task_context, problem))

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        return pair_columns(np.zeros(len(items)))  # a tie


def fit_majority(context: TaskContext, problem: HeadProblem) -> FittedHead:
    """Return a head that gives the items the most frequent answer."""
    train = context.task.splits["train"].iloc[problem.train_rows]

    def predict(part: SplitItems) -> HeadOutput:
        return problem.answer.majority_outputs(train, context.task.select_items(part)), None

    return FittedHead(predict, None, is_normalized=True)
