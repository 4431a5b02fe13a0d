"""A method without a model, which pretraining has to beat.

Its rows and predictions have the method as their model. Those of a floor, such as the majority
class, are of the reported split alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from lineage.answers.base import HeadAnswer
from lineage.methods.base import FittedSystem, Method, RunItems
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalRun, Subject, TaskContext, Transfer
from lineage.methods.head_method import HeadMethod
from lineage.results import Note
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo
from lineage.work import TRAINING_PASSES


@dataclass(frozen=True, kw_only=True)
class BaselineMethod(HeadMethod):
    """A method that answers as a head does, or whatever else a task asks for by `answer`."""

    is_baseline: ClassVar[bool] = True
    transfer: ClassVar[Transfer] = "none"
    head: ClassVar[str] = "none"
    keeps_network: ClassVar[bool] = False
    scores_validation: ClassVar[bool] = False

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return True  # a row says so if a baseline has no answer

    def unsupported_note(self, context: TaskContext) -> Note | None:
        return None

    def count_fits(self, tried: Sequence[Self], items: RunItems) -> float:
        """Count the training items, which a linear model reads about as often as it must."""
        return len(tried) * TRAINING_PASSES * items.train

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Fit the baseline, if its answers are those of a head, and answer the scored splits."""
        if issubclass(subject.task_context.kind.answer, HeadAnswer):
            return super().fit(subject, run, resume_point)
        return Method.fit(self, subject, run, resume_point)
