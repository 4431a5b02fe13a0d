"""Train until validation stops improving, and keep the best weights.

Small data need many steps (Mosbach et al. 2021; Zhang et al. 2021), and too many steps overfit, so
validation decides, for every system alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import NamedTuple

import pandas as pd
import torch

from lineage.evaluation.settings import BilstmProbeSettings, EarlyStopping, FinetuneSettings
from lineage.training.loop import Objective, TrainPlan, train
from lineage.training.samplers import BatchSampler
from lineage.training.state import TrainState

NUM_VALIDATIONS = 20  # in a training that does not stop early
MAX_STEPS_BETWEEN_VALIDATIONS = 1000
MIN_LOSS_DROP = 0.05  # of the training loss before the first validation


class Validation(NamedTuple):
    """How well a model answers the validation items."""

    score: float  # the task's first metric; NaN where it is undefined
    loss: float  # nats per item, or per word


WORST = Validation(-math.inf, math.inf)


@dataclass(frozen=True)
class CurvePoint:
    """One validation during a training."""

    step: int
    epoch: float
    train_loss: float  # the mean since the previous point
    validation_loss: float  # this and the score are NaN without validation
    validation_score: float
    is_kept: bool = False  # the model has the weights of this point


def curve_frame(curve: Sequence[CurvePoint]) -> pd.DataFrame:
    """Return a learning curve as a table with the columns of CurvePoint."""
    names = [column.name for column in fields(CurvePoint)]
    return pd.DataFrame([asdict(point) for point in curve], columns=names)


def count_max_steps(settings: EarlyStopping, steps_per_epoch: int) -> int:
    """Return the steps of a training that does not stop early: whole epochs."""
    epochs_needed = -(-(settings.min_steps or 0) // steps_per_epoch)  # rounded up
    return max(settings.epochs, epochs_needed) * steps_per_epoch


def steps_between_validations(num_steps: int) -> int:
    """Return the number of steps between two validations of a training."""
    return min(-(-num_steps // NUM_VALIDATIONS), MAX_STEPS_BETWEEN_VALIDATIONS)


@dataclass
class EarlyStopper:
    """Tells which validation was the best, and when a training is over.

    The best has the highest score; equal scores are decided by the loss. A training is over when
    neither the score nor the loss has improved for `patience` validations: a model that grows too
    certain has a rising loss and a rising score. It is not over before it has begun, which is when
    the training loss has fallen by MIN_LOSS_DROP: large networks with random weights may learn
    nothing for several epochs.
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
        score = -math.inf if math.isnan(validation.score) else validation.score
        has_improved = score > self.best.score or validation.loss < self.lowest_loss
        is_waiting = has_improved or not self.has_begun
        self.num_since_improvement = 0 if is_waiting else self.num_since_improvement + 1
        self.lowest_loss = min(self.lowest_loss, validation.loss)
        is_best = (score, -validation.loss) > (self.best.score, -self.best.loss)
        if is_best or self.num_validations == 0:
            self.best_index = self.num_validations
            self.best = Validation(score, validation.loss)
        self.num_validations += 1
        return self.best_index == self.num_validations - 1

    @property
    def is_over(self) -> bool:
        """The patience is used up."""
        return self.num_since_improvement >= self.patience


def train_and_validate(
    state: TrainState,
    objective: Objective,
    sampler: BatchSampler,
    settings: BilstmProbeSettings | FinetuneSettings,
    *,
    precision: str,
    validate: Callable[[], Validation] | None,
    after_step: Callable[[int, int], None] | None = None,
) -> list[CurvePoint]:
    """Train the model of a state, leave it with its best weights, and return its learning curve.

    Without patience, or with nothing to validate, the training takes all its steps, and the last
    weights stay. `after_step` gets the steps done and their highest number. Raises EvaluationError
    where the training fails.
    """
    steps_per_epoch = sampler.set_epoch(0)
    num_steps = count_max_steps(settings, steps_per_epoch)
    interval = steps_between_validations(num_steps)
    plan = TrainPlan(
        progress=lambda counters: counters.steps / num_steps,
        lr_schedule=settings.lr_schedule(num_steps),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=precision,
        max_epochs=num_steps // steps_per_epoch,
    )
    stopper = None
    if validate is not None and settings.patience is not None:
        stopper = EarlyStopper(settings.patience)
    best_weights: dict[str, torch.Tensor] = {}
    curve: list[CurvePoint] = []
    losses: list[torch.Tensor] = []
    for step in train(state, objective, sampler, plan):
        if after_step is not None:
            after_step(step.step, num_steps)
        losses.append(step.loss)
        if step.step % interval and step.step != num_steps:
            continue
        state.run_finite_checks()
        validation = validate() if validate is not None else Validation(math.nan, math.nan)
        train_loss = float(torch.stack(losses).mean())
        losses = []
        epoch = step.step / steps_per_epoch
        curve.append(CurvePoint(step.step, epoch, train_loss, validation.loss, validation.score))
        if stopper is not None:
            if stopper.update(validation, train_loss):
                tensors = state.model.state_dict().items()
                best_weights = {name: tensor.detach().clone() for name, tensor in tensors}
            if stopper.is_over:
                break
    kept = len(curve) - 1
    if stopper is not None:
        kept = stopper.best_index
        state.model.load_state_dict(best_weights)
    curve[kept] = replace(curve[kept], is_kept=True)
    return curve
