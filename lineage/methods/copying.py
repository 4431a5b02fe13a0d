"""A copy of the source, instead of its translation."""

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.text import text_columns
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import EvalRun, Subject
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo


@dataclass(frozen=True, kw_only=True)
class CopyMethod(BaselineMethod):
    """The source itself."""

    name: ClassVar[str] = "copy"
    answered_by: ClassVar[AnsweredBy] = "translator"

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        is_written = kind.answer.answered_by == self.answered_by
        return is_written and not kind.answer.shortens_source

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        metric = subject.task_context.task.info.ranking_metric
        return text_columns(items, items["source"], metric)
