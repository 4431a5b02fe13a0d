"""The chance level of a classification: every label is guessed equally often."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import PredictionColumns
from lineage.answers.metrics import CONTRIBUTIONS
from lineage.methods.base import FittedSystem, build_predictions, parts_of_run
from lineage.methods.baseline import BaselineMethod
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalRun, Subject, TaskContext
from lineage.methods.run_predictions import RunPredictions
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo


@dataclass(frozen=True, kw_only=True)
class ChanceMethod(BaselineMethod):
    """Random guessing, scored on a table that has each item once with every label as answer."""

    name: ClassVar[str] = "chance"

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return kind.answer.are_classes

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Answer every reported item with a tie."""
        context = subject.task_context
        tables = []
        for part in parts_of_run(context, run):
            if part.split == context.task.scored_splits[-1]:
                items = context.task.select_items(part)
                columns = _answer(items, context.task.info.labels, context.task.info.metric)
                table = build_predictions(context, run, part.split, items, columns, part.test_set)
                tables.append(table.assign(trial="chosen"))
        return FittedSystem(RunPredictions(pd.concat(tables, ignore_index=True)), self)

    def score(
        self, context: TaskContext, metric: str, predictions: pd.DataFrame, answer_column: str
    ) -> float:
        pairs = _pair_with_all(predictions["label"], context.task.info.labels)
        return context.kind.answer.score(metric, pairs)


def _answer(items: pd.DataFrame, names: Sequence[str], metrics: Sequence[str]) -> PredictionColumns:
    labels = np.asarray(names, object)[items["label"]]
    pairs = _pair_with_all(pd.Series(labels), names)
    contributions = CONTRIBUTIONS[metrics[0]](
        pairs["label"].to_numpy(object), pairs["prediction"].to_numpy(object)
    )
    return {
        "label": labels,
        "prediction": np.full(len(items), "tie", object),
        "score": np.full(len(items), 1 / len(names)),
        "correct": contributions.reshape(-1, len(names)).mean(1),
    }


def _pair_with_all(labels: "pd.Series[str]", names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "label": labels.to_numpy(object).repeat(len(names)),
            "prediction": np.tile(np.asarray(names, object), len(labels)),
        }
    )
