"""Train until validation stops improving, and keep the best weights.

Small data need many steps (Mosbach et al. 2021; Zhang et al. 2021), and too many overfit.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import pandas as pd
import torch
from torch import nn

from lineage.artifacts import (
    create_artifact,
    is_intact,
    read_json,
    read_table,
    write_json,
    write_table,
)
from lineage.config.records import Checked, check_positive
from lineage.networks.base import Objective
from lineage.networks.batch import BatchSampler
from lineage.networks.weights import read_tensors, save_tensors
from lineage.training.loop import TrainPlan, train
from lineage.training.schedules import LrSchedule
from lineage.training.state import TrainState

NUM_VALIDATIONS = 20  # in a training that does not stop early
MAX_STEPS_BETWEEN_VALIDATIONS = 1000
# The share of its highest number of steps that a training takes: 0.7 where it may be long, more
# where it is short, as in the demo (0.93).
EARLY_STOPPING_SHARE = 0.8
MIN_LOSS_DROP = 0.05  # of the training loss before the first validation
RESUME_POINT = "started_head"  # the kind of artifact
MAX_SAVE_SHARE = 0.05  # of the time of a training, for saving it
ModelT = TypeVar("ModelT", bound=nn.Module)


class Validation(NamedTuple):
    """How well a model answers the validation items."""

    score: float  # the task's first metric; NaN if it is undefined
    loss: float  # nats per item, or per word

    @property
    def rank(self) -> tuple[float, float]:
        """Higher is better: the score decides, then the lower loss. NaN is the lowest score."""
        return -math.inf if math.isnan(self.score) else self.score, -self.loss


WORST = Validation(-math.inf, math.inf)
NOT_VALIDATED = Validation(math.nan, math.nan)


@dataclass(frozen=True)
class CurvePoint:
    """One validation during a training."""

    step: int
    epoch: float
    train_loss: float  # the mean since the previous point
    validation_loss: float  # this and the score are NaN where nothing was validated
    validation_score: float
    is_kept: bool = False  # the model has the weights of this point


def curve_frame(curve: Sequence[CurvePoint]) -> pd.DataFrame:
    """Return a learning curve as a table with the columns of CurvePoint."""
    names = [column.name for column in fields(CurvePoint)]
    return pd.DataFrame([asdict(point) for point in curve], columns=names)


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Checked):
    """The keys that `bilstm_probe` and `finetune` share: how long to train.

    Training is validated at 20 equal distances, or every 1,000 steps where that is more often, and
    the best weights are kept. It ends when neither the metric nor the loss of the validation items
    has improved for `patience` validations, though not before the training loss has fallen by 5 %.
    """

    epochs: int = 20  # at most
    # With few labels, allow more epochs to reach this many steps (Mosbach et al. 2021, section 6).
    # None: never.
    min_steps: int | None = 300
    # None: training takes all its epochs, and the last weights are kept.
    patience: int | None = 6
    batch_size: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "epochs", "min_steps", "patience", "batch_size")


def count_max_steps(settings: EarlyStopping, steps_per_epoch: int) -> int:
    """Return the steps of a training that does not stop early: whole epochs."""
    epochs_needed = -(-(settings.min_steps or 0) // steps_per_epoch)  # rounded up
    return max(settings.epochs, epochs_needed) * steps_per_epoch


def steps_between_validations(num_steps: int) -> int:
    """Return the number of steps between two validations of a training."""
    return min(-(-num_steps // NUM_VALIDATIONS), MAX_STEPS_BETWEEN_VALIDATIONS)


def count_training(
    settings: EarlyStopping, num_items: int, *, max_validations: int | None = None
) -> tuple[int, int]:
    """Count the steps and validations of a training; a loser of a race has `max_validations`."""
    if num_items == 0:
        return 0, 0
    max_steps = count_max_steps(settings, -(-num_items // settings.batch_size))  # rounded up
    interval = steps_between_validations(max_steps)
    share = 1.0 if settings.patience is None else EARLY_STOPPING_SHARE
    steps = round(share * max_steps)
    if max_validations is not None:
        steps = min(steps, max_validations * interval)
    return steps, -(-steps // interval)


@dataclass
class EarlyStopper:
    """Tells which validation was the best, and when a training is over.

    The best has the highest score; equal scores are decided by the loss. A training is over when
    neither has improved for `patience` validations, but not before the training loss has fallen by
    MIN_LOSS_DROP: large networks with random weights may learn nothing for several epochs.
    """

    patience: int
    num_validations: int = 0
    best_index: int = 0
    best: Validation = WORST
    lowest_loss: float = math.inf
    first_train_loss: float = math.inf
    has_begun: bool = False
    num_since_improvement: int = 0

    def update(self, validation: Validation, train_loss: float) -> bool:
        """Add a validation, and return whether it is the best so far."""
        if self.num_validations == 0:
            self.first_train_loss = train_loss
        if train_loss < (1 - MIN_LOSS_DROP) * self.first_train_loss:
            self.has_begun = True
        score, _ = validation.rank
        has_improved = score > self.best.score or validation.loss < self.lowest_loss
        is_waiting = has_improved or not self.has_begun
        self.num_since_improvement = 0 if is_waiting else self.num_since_improvement + 1
        self.lowest_loss = min(self.lowest_loss, validation.loss)
        if validation.rank > self.best.rank or self.num_validations == 0:
            self.best_index = self.num_validations
            self.best = Validation(score, validation.loss)
        self.num_validations += 1
        return self.best_index == self.num_validations - 1

    @property
    def is_over(self) -> bool:
        return self.num_since_improvement >= self.patience


@dataclass(frozen=True)
class ResumePoint:
    """Where a training is saved, so that a process that ends loses little of it."""

    folder: Path
    interval_seconds: float  # between two saves
    on_save: Callable[[], None]


class ValidatedTraining(Generic[ModelT]):
    """A training that ends when validation stops improving, and keeps the best weights.

    It can pause after any validation, and has its own random state. Without patience it takes all
    its steps, and the last weights stay.
    """

    def __init__(
        self,
        state: TrainState,
        model: ModelT,
        objective: Objective,
        sampler: BatchSampler,
        settings: EarlyStopping,
        *,
        learning_rate: float,
        lr_schedule: Callable[[int], LrSchedule],  # of a training of this many steps
        max_grad_norm: float,
        precision: str,
        validate: Callable[[ModelT], Validation],
        after_step: Callable[[int, int], None] | None = None,
    ) -> None:
        """Prepare a training; `after_step` gets the number of steps done and that of all steps."""
        assert model is state.model
        self.state = state
        self.model = model
        self.curve: list[CurvePoint] = []
        self.steps_per_epoch = sampler.set_epoch(0)
        self.num_steps = num_steps = count_max_steps(settings, self.steps_per_epoch)
        self._last_step: int | None = None  # if the end is known beforehand
        self.stopper: EarlyStopper | None = None
        if settings.patience is not None:
            self.stopper = EarlyStopper(settings.patience)
        self._validate = validate
        self._after_step = after_step
        self._best_weights: dict[str, torch.Tensor] = {}
        self._resume_point: ResumePoint | None = None
        self._saved_curve: list[CurvePoint] = []  # points to be replayed
        self._seconds = 0.0  # of training, also in earlier processes
        self._next_save = math.inf  # in these seconds
        # The plan must not refer to `self`: the cycle would keep a dropped model in memory.
        plan = TrainPlan(
            progress=lambda counters: counters.steps / num_steps,
            lr_schedule=lr_schedule(num_steps),
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            precision=precision,
            max_epochs=num_steps // self.steps_per_epoch,
        )
        self._steps = train(state, objective, sampler, plan)

    @property
    def is_over(self) -> bool:
        has_stopped = self.stopper is not None and self.stopper.is_over
        return has_stopped or self.state.counters.steps == self.last_step

    @property
    def last_step(self) -> int:
        """The number of steps, without early stopping."""
        return self.num_steps if self._last_step is None else self._last_step

    def end_after(self, share: float) -> None:
        """End after this share of all steps, and validate and keep the last weights alone.

        The learning rates are those of all steps. Call it before the first step.
        """
        self._last_step = max(1, round(share * self.num_steps))
        self.stopper = None

    def resume(self, point: ResumePoint) -> float:
        """Continue from what an earlier process has saved there, if anything, and save there too.

        Saved validations are replayed one by one, so that decisions between them are the same
        again. Return the seconds of the earlier process. Call it before the first step.
        """
        self._resume_point = point
        if is_intact(point.folder, RESUME_POINT):
            curve = read_table(point.folder / "curve.parquet")
            self._saved_curve = [CurvePoint(*row) for row in curve.itertuples(index=False)]
            self._seconds = float(read_json(point.folder / "clock.json")["seconds"])
        self._next_save = self._seconds + point.interval_seconds
        return self._seconds

    def advance(self, num_validations: int) -> None:
        """Train for this many more validations, or to the end. Raises EvaluationError."""
        for _ in range(num_validations):
            if not self.is_over:
                self._train_to_next_validation()

    def train_to_end(self) -> None:
        """Train until it is over. Raises EvaluationError."""
        while not self.is_over:
            self._train_to_next_validation()

    def keep_best(self) -> None:
        """Load the best weights so far, and flag their point of the curve. Call it last."""
        # On a GPU, a race that is run again may drop this training earlier than before.
        while self._saved_curve:
            self._replay_validation()
        kept = len(self.curve) - 1
        if self.stopper is not None:
            kept = self.stopper.best_index
            self.model.load_state_dict(self._best_weights)
        self.curve[kept] = replace(self.curve[kept], is_kept=True)

    def _train_to_next_validation(self) -> None:
        if self._saved_curve:
            self._replay_validation()
            return
        start_time = time.monotonic()
        interval = steps_between_validations(self.num_steps)
        steps_left = self.last_step - self.state.counters.steps
        losses: list[torch.Tensor] = []
        for step in islice(self._steps, min(interval, steps_left)):
            if self._after_step is not None:
                self._after_step(step.step, self.num_steps)
            losses.append(step.loss)
        self.state.run_finite_checks()
        validation = NOT_VALIDATED
        if self._last_step is None or self.is_over:
            validation = self._validate(self.model)
        self._add_point(validation, float(torch.stack(losses).mean()))
        self._seconds += time.monotonic() - start_time
        if self._seconds >= self._next_save:
            self._save()

    def _replay_validation(self) -> None:
        """Replay a saved validation; after the last one, load the saved training."""
        point = self._saved_curve.pop(0)
        self.curve.append(point)
        if self.stopper is not None:
            validation = Validation(point.validation_score, point.validation_loss)
            self.stopper.update(validation, point.train_loss)
        if self._saved_curve:
            return
        assert self._resume_point is not None
        folder = self._resume_point.folder
        self.state.load(folder / "run")
        tensors = read_tensors(folder / "best.safetensors")
        device = self.state.device
        self._best_weights = {name: tensor.to(device) for name, tensor in tensors.items()}
        if self._after_step is not None:
            self._after_step(self.state.counters.steps, self.num_steps)

    def _save(self) -> None:
        assert self._resume_point is not None
        start_time = time.monotonic()
        with create_artifact(self._resume_point.folder, RESUME_POINT) as draft:
            self.state.save(draft / "run")
            save_tensors(self._best_weights, draft / "best.safetensors")
            write_table(draft / "curve.parquet", curve_frame(self.curve))
            write_json(draft / "clock.json", {"seconds": self._seconds})
        self._resume_point.on_save()
        # Large models take seconds to save.
        pause = (time.monotonic() - start_time) / MAX_SAVE_SHARE
        self._next_save = self._seconds + max(self._resume_point.interval_seconds, pause)

    def _add_point(self, validation: Validation, train_loss: float) -> None:
        """Add a point to the curve, and copy the weights if they are the best so far."""
        step = self.state.counters.steps
        epoch = step / self.steps_per_epoch
        self.curve.append(CurvePoint(step, epoch, train_loss, validation.loss, validation.score))
        if self.stopper is not None and self.stopper.update(validation, train_loss):
            tensors = self.model.state_dict().items()
            self._best_weights = {name: tensor.detach().clone() for name, tensor in tensors}
