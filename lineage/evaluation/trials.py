"""Hyperparameter trials of a head: fit each, score it on validation, choose the best."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from lineage.artifacts import read_json, read_table, write_json, write_table
from lineage.errors import EvaluationError
from lineage.evaluation.early_stopping import curve_frame
from lineage.evaluation.settings import HyperparameterTrials
from lineage.evaluation.systems import FittedHead
from lineage.results import Note


@dataclass(frozen=True)
class FailedTrial:
    """A trial that could not be fitted, and why."""

    number: int
    error: str

    def note(self, settings: HyperparameterTrials) -> Note:
        """Return the note on this trial of some settings."""
        value = trial_note(settings, self.number).value
        return Note("failed_trial", {**value, "error": self.error})


class AllTrialsFailedError(EvaluationError):
    """No trial could be fitted."""

    def __init__(self, failed_trials: Sequence[FailedTrial]) -> None:
        super().__init__("; ".join(trial.error for trial in failed_trials))
        self.failed_trials = failed_trials


def trial_note(settings: HyperparameterTrials, number: int) -> Note:
    """Return a note on the hyperparameters of one trial."""
    overrides = settings.trials[number].overrides
    return Note("trial", {"number": number, "of": len(settings.trials), "settings": overrides})


@dataclass(frozen=True)
class RunPredictions:
    """The predictions of one run: of each fitted trial on validation, and of the chosen head."""

    table: pd.DataFrame
    failed_trials: Sequence[FailedTrial] = ()
    # The learning curves of the trials and of the chosen head, by the column `trial`.
    curves: pd.DataFrame = field(default_factory=lambda: curve_frame([]).assign(trial=""))
    notes: Sequence[Note] = ()  # on the fit of the chosen head

    def save(self, path: Path) -> None:
        """Write two parquet files and a JSON file. The table is written last."""
        facts = {
            "failed_trials": [asdict(trial) for trial in self.failed_trials],
            "notes": [asdict(note) for note in self.notes],
        }
        write_json(path.with_suffix(".json"), facts)
        write_table(path.with_suffix(".curves"), self.curves)
        write_table(path, self.table)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        facts = read_json(path.with_suffix(".json"))
        return cls(
            read_table(path),
            [FailedTrial(**trial) for trial in facts["failed_trials"]],
            read_table(path.with_suffix(".curves")),
            [Note(**note) for note in facts["notes"]],
        )


@dataclass(frozen=True)
class TrialsOutcome:
    """The best head, and what all trials did on validation."""

    head: FittedHead
    predictions: list[pd.DataFrame]  # one table for each trial that was fitted
    curves: list[pd.DataFrame]  # likewise
    failed: list[FailedTrial]


def fit_best_trial(
    settings: HyperparameterTrials,
    fit: Callable[[Any], FittedHead],
    predict_validation: Callable[[FittedHead, str], pd.DataFrame],
) -> TrialsOutcome:
    """Fit every trial and return the head that is best on validation; ties go to the first.

    `predict_validation` takes a head and the number of its trial as a text. Raises
    AllTrialsFailedError.
    """
    best_head = None
    predictions: list[pd.DataFrame] = []
    curves: list[pd.DataFrame] = []
    failed: list[FailedTrial] = []
    for number in range(len(settings.trials)):
        try:
            head = fit(settings.with_trial(number))
            predictions_of_trial = predict_validation(head, str(number))
        except EvaluationError as error:
            failed.append(FailedTrial(number, str(error)))
            continue
        predictions.append(predictions_of_trial)
        curves.append(curve_frame(head.learning_curve).assign(trial=str(number)))
        if best_trial(pd.concat(predictions)) == number:
            best_head = head
    if best_head is None:
        raise AllTrialsFailedError(failed)
    return TrialsOutcome(best_head, predictions, curves, failed)


def best_trial(predictions: pd.DataFrame) -> int:
    """Return the number of the trial that is best on validation; ties go to the first."""
    trials = predictions[predictions["trial"] != "chosen"]
    scores = trials.groupby("trial")["correct"].mean()
    scores = scores.fillna(-np.inf)  # a trial without a score is the worst
    numbers = [int(str(trial)) for trial in scores.index]
    return min(numbers, key=lambda number: (-scores[str(number)], number))
