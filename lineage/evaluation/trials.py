"""The trials of an arm: each is learned and read on validation, and the best one is taken."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import EvaluationError
from lineage.evaluation.settings import HyperparameterTrials
from lineage.evaluation.systems import FittedHead

FAILED_TRIALS = "trials that failed"  # among the attrs of a cell's predictions, which a parquet file keeps: number -> reason


def fit_best_trial(
    settings: HyperparameterTrials,
    fit: Callable[[Any], FittedHead],
    predict_validation: Callable[..., pd.DataFrame],
) -> tuple[FittedHead, list[pd.DataFrame], dict[str, str]]:
    """The reader that did best on validation, the first of equals, what each said there, and why others failed. Raises CellError where all did."""
    best, failed = None, dict[str, str]()
    parts: list[pd.DataFrame] = []
    for number in range(len(settings.trials)):
        try:
            head = fit(settings.with_trial(number))
            predictions = predict_validation(head, trial=str(number))
        except EvaluationError as error:
            failed[str(number)] = str(error)
            continue
        parts.append(predictions)
        if best_trial(pd.concat(parts)) == number:
            best = head
    if best is None:
        raise EvaluationError(
            "; ".join(
                f"{settings.describe_trial(int(number))}: {reason}"
                for number, reason in failed.items()
            )
        )
    return best, parts, failed


def best_trial(predictions: pd.DataFrame) -> int:
    """The trial that did best on validation; of equals the first."""
    values = predictions[predictions["trial"] != "chosen"].groupby("trial")["correct"].mean()
    values = values.fillna(-np.inf)  # a score that does not exist is no reason to take a trial
    return min(
        (int(str(trial)) for trial in values.index),
        key=lambda number: (-values[str(number)], number),
    )
