"""The training loop: a generator that yields steps. The caller logs, validates and saves."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lineage.errors import EvaluationError
from lineage.networks.base import Objective
from lineage.networks.batch import Batch, BatchSampler
from lineage.training.budget import TrainCounters
from lineage.training.devices import autocast
from lineage.training.objectives import LossSums
from lineage.training.optimizers import clip_gradients, densify_gradients, set_learning_rates
from lineage.training.samplers import iterate_batches
from lineage.training.schedules import LrSchedule
from lineage.training.state import TrainState


@dataclass(frozen=True)
class TrainPlan:
    """The stopping rule and the hyperparameters of a training run."""

    progress: Callable[[TrainCounters], float]  # share of the budget used; at 1 training ends
    # Factor of `learning_rate`, given the progress at the start of a step, as in the released code.
    lr_schedule: LrSchedule
    learning_rate: float  # the highest
    max_grad_norm: float
    precision: str
    grad_accum_steps: int = 1  # batches per optimizer step
    max_epochs: int | None = None  # None: as many as it takes
    loss_scale: float = 1.0  # scales the loss whose gradient is taken, but not the reported loss
    # Sets of parameters whose gradients are clipped separately; None: all together.
    clip_groups: Sequence[Sequence[nn.Parameter]] | None = None
    end_progress: float = 1.0  # where to stop if another phase follows


@dataclass(frozen=True)
class StepOutput:
    """One optimizer step, as the caller sees it."""

    step: int
    progress: float  # share of the budget, 0 to 1
    loss: torch.Tensor  # a scalar on the model's device: reading it waits for a GPU
    learning_rate: float
    counters: TrainCounters


def train(
    state: TrainState, objective: Objective, sampler: BatchSampler, plan: TrainPlan
) -> Iterator[StepOutput]:
    """Train until `plan.end_progress` or `plan.max_epochs`; yield after each optimizer step.

    Raises EvaluationError if a loss or a gradient is not finite, or if an epoch makes no progress.
    """
    step = _AccumulatedStep(state.device)
    last_epoch_progress = -1.0  # progress at the start of the last epoch
    for epoch, batch_index, batch in iterate_batches(
        sampler, start_epoch=state.epoch, start_index=state.batch_index, max_epochs=plan.max_epochs
    ):
        if step.num_batches == 0:
            step.start_progress = plan.progress(state.counters)
            if step.start_progress >= plan.end_progress:
                break
            if batch_index == 0:
                if step.start_progress == last_epoch_progress:  # training would never end
                    raise EvaluationError("a whole epoch reads no text; add text")
                last_epoch_progress = step.start_progress
        if batch_index == 0 or not sampler.carries_state:
            state.recurrent_state = None

        loss = _forward_backward(state, objective, batch, plan)
        step.add(loss, batch)
        is_complete = step.num_batches == plan.grad_accum_steps
        state.counters = state.counters.add_batch(batch, steps=int(is_complete))

        if is_complete:
            state.epoch = epoch
            state.batch_index = batch_index + 1
            learning_rate = step.learning_rate(plan)
            _update_parameters(state, plan, learning_rate)
            yield StepOutput(
                step=state.counters.steps,
                progress=min(1.0, plan.progress(state.counters)),
                loss=step.loss_sum / plan.grad_accum_steps,
                learning_rate=learning_rate,
                counters=state.counters,
            )
            step = _AccumulatedStep(state.device)
    state.run_finite_checks()


class _AccumulatedStep:
    """The batches since the last optimizer step."""

    def __init__(self, device: torch.device) -> None:
        self.num_batches = 0
        self.start_progress = 0.0
        self.loss_sum = torch.zeros((), dtype=torch.double, device=device)
        self.lr_scale_sum = 0.0

    def add(self, loss: torch.Tensor, batch: Batch) -> None:
        self.num_batches += 1
        self.loss_sum = self.loss_sum + loss
        self.lr_scale_sum += batch.learning_rate_scale

    def learning_rate(self, plan: TrainPlan) -> float:
        scheduled = plan.learning_rate * plan.lr_schedule(self.start_progress)
        return scheduled * self.lr_scale_sum / self.num_batches


def _forward_backward(
    state: TrainState, objective: Objective, batch: Batch, plan: TrainPlan
) -> torch.Tensor:
    state.model.train()
    with state.rng_state.activate(state.device), autocast(state.device, plan.precision):
        output = objective(state.model, batch.to(state.device), state.recurrent_state)
    state.check_finite("loss", output.loss)
    (output.loss * (plan.loss_scale / plan.grad_accum_steps)).backward()
    state.recurrent_state = output.recurrent_state
    return output.loss.detach()


def _update_parameters(state: TrainState, plan: TrainPlan, learning_rate: float) -> None:
    set_learning_rates(state.optimizer, learning_rate)
    for clip_group in plan.clip_groups or [[*state.model.parameters()]]:
        # Without gradients torch returns a norm on the CPU, which the checks of a GPU cannot take.
        if any(parameter.grad is not None for parameter in clip_group):
            norm = clip_gradients(clip_group, plan.max_grad_norm)
            state.check_finite("gradient", norm)
    densify_gradients(state.optimizer)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def validate(
    model: nn.Module,
    objective: Objective,
    sampler: BatchSampler,
    *,
    max_batches: int,
    precision: str,
) -> LossSums:
    """Sum losses over at most `max_batches`: always the same batches, without dropout."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    recurrent_state = None
    nats: dict[str, torch.Tensor] = {}
    target_counts: dict[str, int] = {}
    text_bytes = 0
    for _, index, batch in iterate_batches(sampler):
        if index >= max_batches:
            break
        with autocast(device, precision):
            output = objective(model, batch.to(device), recurrent_state)
        recurrent_state = output.recurrent_state if sampler.carries_state else None
        for name, value in output.nats.items():
            nats[name] = nats.get(name, 0.0) + value.double()
            target_counts[name] = target_counts.get(name, 0) + output.target_counts[name]
        text_bytes += batch.text_bytes
    model.train(was_training)
    return LossSums({name: float(total) for name, total in nats.items()}, target_counts, text_bytes)
