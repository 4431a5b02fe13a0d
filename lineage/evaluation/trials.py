"""The trials of an arm: each is learned and read on validation, and the best one is taken."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import CellError
from lineage.evaluation.subject import Learned
from lineage.transfer.settings import Tried

WHY = "trials that failed"  # among the attrs of a cell's predictions, which a parquet file keeps: number -> reason


def best_of(how: Tried, learned: Callable[[Any], Learned], told: Callable[..., pd.DataFrame]) -> tuple[Learned, list[pd.DataFrame], dict[str, str]]:
    """The reader that did best on validation, the first of equals, what each said there, and why others failed. Raises CellError where all did."""
    best, failed = None, dict[str, str]()
    parts: list[pd.DataFrame] = []
    for number in range(len(how.trials)):
        try:
            reader = learned(how.tried(number))
            said = told(reader, trial=str(number))
        except CellError as error:
            failed[str(number)] = str(error)
            continue
        parts.append(said)
        if winner(pd.concat(parts)) == number:
            best = reader
    if best is None:
        raise CellError("; ".join(f"{how.trial_words(int(number))}: {reason}" for number, reason in failed.items()))
    return best, parts, failed


def winner(found: pd.DataFrame) -> int:
    """The trial that did best on validation; of equals the first."""
    values = found[found["trial"] != "chosen"].groupby("trial")["correct"].mean()
    values = values.fillna(-np.inf)  # a score that does not exist is no reason to take a trial
    return min((int(str(trial)) for trial in values.index), key=lambda number: (-values[str(number)], number))
