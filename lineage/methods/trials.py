"""Hyperparameter trials of a head: validation chooses the best, early if that is safe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import pandas as pd

from lineage.errors import EvaluationError
from lineage.methods.base import Method, RunItems
from lineage.methods.early_stopping import (
    EarlyStopper,
    EarlyStopping,
    ValidatedTraining,
    Validation,
    count_training,
    curve_frame,
)
from lineage.methods.encoder import LabelCount
from lineage.methods.heads import FittedHead, StartedHead
from lineage.methods.run_predictions import FailedTrial
from lineage.results import Note
from lineage.work import TRAINING_PASSES

# After this many of 20 validations the best of several learning rates was the best to the end, or
# as good: see docs/decisions/0026.
RACE_VALIDATIONS = 5


@dataclass(frozen=True)
class Trial:
    """Hyperparameters that replace those of a block."""

    learning_rate: float | None = None
    epochs: int | None = None
    l2: float | None = None
    pooling: Literal["model_default", "mean"] | None = None
    layer_lr_decay: float | None = None
    gradual_unfreezing: float | None = None
    word_layer_norm: bool | None = None
    body_dropout: float | None = None

    @property
    def overrides(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TriedMethod(Method):
    """A method whose hyperparameters are tried: the best on validation are used."""

    # Validation with the first seed chooses one. Of trials that differ in their learning rates
    # alone, only the one that is best after 5 validations is trained to its end, unless patience is
    # null.
    # Empty: the block's own hyperparameters are used. A block that sets learning_rate or l2 without
    # trials has none.
    trials: tuple[Trial, ...] = ()
    # The label counts of the grid to use this method with. Empty: all of them.
    label_counts: tuple[LabelCount, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for trial in self.trials:
            unknown = [key for key in trial.overrides if not hasattr(self, key)]
            if unknown:
                raise ValueError(f"trials: '{unknown[0]}' is not a key of this block; remove it")
            if not trial.overrides:
                raise ValueError(
                    "trials: one of them is empty; give it a key, such as {learning_rate: 0.001}"
                )
            self._with_overrides(trial)  # raises ValueError for values out of range

    def _with_overrides(self, trial: Trial) -> Self:
        return replace(self, trials=(), **trial.overrides)

    def with_trial(self, number: int) -> Self:
        return self._with_overrides(self.trials[number])

    def count_work(self, items: RunItems) -> float:
        """Count every trial if the run chooses one, and the predictions of each."""
        if not self.trials:
            return self.count_fits([self], items) + items.scored
        if not items.chooses_trial:  # the first trial represents the one that was chosen
            return self.count_fits([self.with_trial(0)], items) + items.scored
        tried = [self.with_trial(number) for number in range(len(self.trials))]
        predicted = items.scored + len(tried) * items.validation
        return self.count_fits(tried, items) + predicted

    def count_fits(self, tried: Sequence[Self], items: RunItems) -> float:
        """Count how many items the fits of some trials read; here each training item once a fit."""
        return len(tried) * items.train

    @property
    def requested_label_counts(self) -> tuple[LabelCount, ...]:
        return self.label_counts

    def describe_trial(self, number: int) -> Note:
        overrides = self.trials[number].overrides
        value = {"number": number, "of": len(self.trials), "settings": overrides}
        return Note("trial", {**value, "is_at_end": self._is_at_end(number)})

    def _is_at_end(self, number: int) -> bool:
        """Tell if a better value may lie beyond: of three or more it is the first or the last.

        Values are those of the trial's first key, in trials whose other keys are the same.
        """
        overrides = self.trials[number].overrides
        varied = next(iter(overrides))
        peers = [
            peer
            for peer, trial in enumerate(self.trials)
            if {**trial.overrides, varied: None} == {**overrides, varied: None}
        ]
        return len(peers) > 2 and number in (peers[0], peers[-1])

    def describe_failed(self, failed: FailedTrial) -> Note:
        value = self.describe_trial(failed.number).value
        return Note("failed_trial", {**value, "error": failed.error})


# The values of L2 from which validation chooses, unless a study names others. A hundred labels need
# more of it than a hundred thousand tagged words.
DEFAULT_L2_TRIALS = tuple(Trial(l2=value) for value in (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0))


class AllTrialsFailedError(EvaluationError):
    """No trial could be fitted."""

    def __init__(self, method: TriedMethod, failed_trials: Sequence[FailedTrial]) -> None:
        super().__init__("; ".join(trial.error for trial in failed_trials))
        self.notes = [method.describe_failed(trial) for trial in failed_trials]


@dataclass(frozen=True)
class FittedTrial:
    """A trial, its head, and how well it answers the validation items."""

    number: int
    head: FittedHead
    validation: Validation


@dataclass(frozen=True)
class TrialsOutcome:
    """The best trial, and the validation predictions and curves of all."""

    best: FittedTrial
    predictions: list[pd.DataFrame]  # one table for each trial that did not fail
    curves: list[pd.DataFrame]  # likewise
    failed: list[FailedTrial]


def group_races(settings: TriedMethod) -> list[list[int]]:
    """Return the numbers of the trials that race with each other: their learning rates differ.

    A trial has a race of its own if nothing else has its other keys, or if it does not stop early.
    """
    numbers = range(len(settings.trials))
    if not isinstance(settings, EarlyStopping) or settings.patience is None:
        return [[number] for number in numbers]
    races: list[tuple[dict[str, Any], list[int]]] = []
    for number in numbers:
        others = {**vars(settings.with_trial(number)), "learning_rate": None}
        own = next((race for keys, race in races if keys == others), None)
        if own is None:
            races.append((others, [number]))
        else:
            own.append(number)
    return [race for _, race in races]


def count_trainings(
    method: TriedMethod, trainings: Sequence[EarlyStopping], items: RunItems
) -> float:
    """Return the work of a method's trainings, of which all but one end early in a race."""
    counts = [count_training(one, items.train) for one in trainings]
    for _, *losers in group_races(method) if len(trainings) > 1 else []:
        for number in losers:
            counts[number] = count_training(
                trainings[number], items.train, max_validations=RACE_VALIDATIONS
            )
    num_steps = sum(steps for steps, _ in counts)
    num_validations = sum(validations for _, validations in counts)
    items_per_step = items.train / max(1, -(-items.train // trainings[0].batch_size))
    return TRAINING_PASSES * items_per_step * num_steps + num_validations * items.validation


def fit_best_trial(
    settings: TriedMethod,
    start: Callable[[Any], StartedHead],
    predict_validation: Callable[[FittedHead, str], pd.DataFrame],
    score: Callable[[pd.DataFrame], float],
) -> TrialsOutcome:
    """Return the trial that is best on validation; equal ones are decided by the loss.

    `predict_validation` takes a head and the number of its trial as a text, and `score` gives the
    task's first metric. Raises AllTrialsFailedError.
    """
    trials = _Trials(settings, start, predict_validation, score)
    best = trials.fit()
    failed = [FailedTrial(number, error) for number, error in sorted(trials.failed.items())]
    if best is None:
        raise AllTrialsFailedError(settings, failed)
    predictions = [table for _, table in sorted(trials.predictions.items())]
    curves = [table for _, table in sorted(trials.curves.items())]
    return TrialsOutcome(best, predictions, curves, failed)


@dataclass
class _Trials:
    """The trials of a head by their numbers; only `running` and `best` hold models."""

    settings: TriedMethod
    start: Callable[[Any], StartedHead]
    predict_validation: Callable[[FittedHead, str], pd.DataFrame]
    score: Callable[[pd.DataFrame], float]
    best: FittedTrial | None = None
    running: dict[int, StartedHead] = field(default_factory=dict)
    predictions: dict[int, pd.DataFrame] = field(default_factory=dict)
    curves: dict[int, pd.DataFrame] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def fit(self) -> FittedTrial | None:
        """Fit the best trial of each race and return the best of them; None if all fail."""
        for numbers in group_races(self.settings):
            if len(numbers) == 1:
                self._attempt(numbers[0], self._finish_alone)
            else:
                self._race_until_one_finishes(numbers)
        return self.best

    def _race_until_one_finishes(self, numbers: Sequence[int]) -> None:
        """Train every trial for RACE_VALIDATIONS, then only the best one to its end.

        A leader that has not begun to learn may lead by chance: all trials that are left then go
        on. If a trial fails after it has beaten others, the race is run again without it.
        """
        while numbers and not self._race(numbers):
            numbers = [number for number in numbers if number not in self.failed]

    def _race(self, numbers: Sequence[int]) -> bool:
        """Run one race; False if a trial fails after the first RACE_VALIDATIONS, or all fail."""
        self.running.clear()
        for number in numbers:
            self.predictions.pop(number, None)
            self.curves.pop(number, None)
        for number in numbers:
            self._attempt(number, self._start)
            self._drop_losers()
        num_failed = len(self.failed)
        while not self._is_decided and len(self.failed) == num_failed:
            for number in [*self.running]:
                self._attempt(number, self._advance)
            self._drop_losers()
        if not self.running or len(self.failed) > num_failed:
            return False
        leader = self._leader([*self.running])
        for number in [number for number in self.running if number != leader]:
            self._attempt(number, self._drop)
        self._attempt(leader, self._finish)
        return leader not in self.failed

    @property
    def _is_decided(self) -> bool:
        """The leader has begun to learn, or there is nothing left to train."""
        if all(self._training(number).is_over for number in self.running):
            return True
        return self._stopper(self._leader([*self.running])).has_begun

    def _leader(self, numbers: Sequence[int]) -> int:
        """Return the running trial with the best validation so far; ties go to the first."""
        return max(numbers, key=lambda number: self._stopper(number).best.rank)

    def _drop_losers(self) -> None:
        """Drop the trials that have begun to learn, except for the best of them."""
        begun = [number for number in self.running if self._stopper(number).has_begun]
        losers = [number for number in begun if number != self._leader(begun)]
        for number in losers:
            self._attempt(number, self._drop)

    def _training(self, number: int) -> ValidatedTraining[Any]:
        training = self.running[number].training
        assert training is not None
        return training

    def _stopper(self, number: int) -> EarlyStopper:
        stopper = self._training(number).stopper
        assert stopper is not None
        return stopper

    def _attempt(self, number: int, action: Callable[[int], None]) -> None:
        """Do something with a trial; it fails and is dropped if that raises EvaluationError."""
        try:
            action(number)
        except EvaluationError as error:
            self.failed[number] = str(error)
            self.running.pop(number, None)

    def _finish_alone(self, number: int) -> None:
        self.running[number] = self.start(self.settings.with_trial(number))
        self._finish(number)

    def _start(self, number: int) -> None:
        self.running[number] = self.start(self.settings.with_trial(number))
        self._training(number).advance(RACE_VALIDATIONS)

    def _advance(self, number: int) -> None:
        self._training(number).advance(1)

    def _drop(self, number: int) -> None:
        self._record(number, self.running.pop(number).stop())

    def _finish(self, number: int) -> None:
        trial = self._record(number, self.running.pop(number).finish())
        if self.best is None or trial.validation.rank > self.best.validation.rank:
            self.best = trial

    def _record(self, number: int, head: FittedHead) -> FittedTrial:
        predictions = self.predict_validation(head, str(number))
        kept_losses = [point.validation_loss for point in head.learning_curve if point.is_kept]
        # A linear probe has no curve, and its score alone decides.
        validation = Validation(self.score(predictions), sum(kept_losses))
        self.predictions[number] = predictions
        self.curves[number] = curve_frame(head.learning_curve).assign(trial=str(number))
        return FittedTrial(number, head, validation)
