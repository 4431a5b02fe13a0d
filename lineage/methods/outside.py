"""An outside system: it is not trained here, and is known by its predictions alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lineage.answers.base import HeadAnswer, correct_column
from lineage.methods.base import FittedSystem, build_predictions, parts_of_run
from lineage.methods.baseline import BaselineMethod
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalRun, Subject
from lineage.methods.run_predictions import RunPredictions
from lineage.results import OUTSIDE_FAMILY


@dataclass(frozen=True, kw_only=True)
class OutsideMethod(BaselineMethod):
    """The predictions of a system for the scored items, the same for every number of labels."""

    name: str  # type: ignore[misc]  # every system has its own
    predictions: Mapping[str, str] = field(repr=False)  # by the id of an item

    @property
    def family(self) -> str:
        return OUTSIDE_FAMILY

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Return the predictions for the scored split; extra test sets have none."""
        context = subject.task_context
        info = context.task.info
        train = context.task.splits["train"]
        assert issubclass(context.kind.answer, HeadAnswer)
        answer = context.kind.answer.fit(info.labels, train)
        tables = []
        for part in parts_of_run(context, run):
            if part.split != context.task.scored_splits[-1] or part.test_set != info.name:
                continue
            items = context.task.select_items(part)
            # The labels as the results hold them; the answers are replaced.
            columns = answer.prediction_columns(items, answer.majority_outputs(train, items))
            columns = {
                "label": columns["label"],
                "prediction": np.array([self.predictions[one] for one in items["id"]], object),
                "score": np.full(len(items), np.nan),
            }
            columns = correct_column(columns, info.ranking_metric)
            tables.append(build_predictions(context, run, part.split, items, columns))
        return FittedSystem(RunPredictions(pd.concat(tables, ignore_index=True)), self)
