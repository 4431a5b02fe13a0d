"""The one training loop: a generator that yields steps; the caller logs, validates and saves.

It alone touches torch's global random state (dropout draws from it), keeps a state of its own for it, and gives the old one back between
steps, so that validating, logging or saving can disturb nothing.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lineage.artifacts import create_artifact, read_json, read_manifest, write_json
from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.errors import EvaluationError, InputError
from lineage.models.base import LossOutput
from lineage.training.budget import TrainCounters
from lineage.training.optimizers import (
    LrSchedule,
    LrScheduleName,
    NonMonotonicTrigger,
    clip_gradients,
    densify_gradients,
    set_learning_rates,
)
from lineage.training.samplers import BatchSampler, iterate_batches

Objective = Callable[..., LossOutput]  # (model, batch, carry)
# Losses and gradient norms between two looks at whether they are finite: a look waits for a GPU, and no batch is made meanwhile.
FINITE_CHECK_INTERVAL = {"cpu": 1, "cuda": 64}


@dataclass(frozen=True)
class PretrainSettings:
    """The block `pretrain` of a family that has no more to say."""

    batch_size: int  # sequences
    seq_len: int  # tokens of a sequence
    learning_rate: float  # the highest
    warmup_ratio: float
    weight_decay: float
    betas: tuple[float, ...]
    epsilon: float
    max_grad_norm: float
    grad_accum_steps: int  # batches a step
    schedule: LrScheduleName  # of the rate
    bias_correction: bool  # of Adam; the released BERT has none
    nt_asgd: NonMonotonicTrigger | None = field(
        default=None, kw_only=True
    )  # SGD whose weights are averaged, in Adam's place

    def __post_init__(self) -> None:
        if self.nt_asgd and self.schedule != "constant":
            raise ValueError(
                f"nt_asgd averages where other rates fall, and schedule is {self.schedule}; set it to constant"
            )
        if self.nt_asgd and not self.bias_correction:
            raise ValueError(
                "bias_correction is false, and nt_asgd is no Adam: it has none; take the key out, or one of the two"
            )
        check_positive(
            self,
            "batch_size",
            "seq_len",
            "learning_rate",
            "epsilon",
            "max_grad_norm",
            "grad_accum_steps",
        )
        check_fraction(self, "warmup_ratio")
        check_non_negative(self, "weight_decay")
        if len(self.betas) != 2:
            raise ValueError("betas is a list of two numbers")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are at least 0 and below 1, found {list(self.betas)}")

    @property
    def phases(self) -> list[tuple[float, "PretrainSettings"]]:
        """The parts of the training, one after another: the progress at which each ends, and how its batches are made."""
        return [(1.0, self)]

    def schedule_progress(self, progress: float) -> float:
        """Of a schedule's steps, those that are done when this share of the text is read: the same, where all batches hold as much."""
        return progress


@dataclass(frozen=True)
class BilmPretrainSettings(PretrainSettings):
    """The block `pretrain` of the models that read lanes both ways, with what ELMo's released trainer does differently as switches."""

    optimizer: Literal["adam", "adagrad"]
    initial_accumulator_value: float  # of AdaGrad's squares
    scale_loss_by_seq_len: bool  # the loss times `length` before it is clipped: AdaGrad's steps depend on its scale while the squares are small
    carry_state: bool  # recurrent state goes on from window to window; else each window starts cold

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "initial_accumulator_value")
        if self.optimizer == "adagrad" and (self.nt_asgd or not self.bias_correction):
            raise ValueError(
                "optimizer is adagrad, which has no bias correction and averages nothing; set bias_correction to true and nt_asgd to null"
            )


@dataclass(frozen=True)
class StepOutput:
    """One optimizer step, as the caller sees it."""

    step: int
    progress: float  # of the budget, 0 to 1
    loss: torch.Tensor  # one number, where the model is: to read it is to wait for a GPU
    learning_rate: float
    counters: TrainCounters


class RngState:
    """A random state of one's own for what torch draws itself (dropout, sampled candidates)."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def activate(self, device: torch.device) -> Iterator[None]:
        """Within, torch draws from this state; the world's is as it was afterwards."""
        outer_state, outer_gpu_state = (
            torch.get_rng_state(),
            torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        )
        torch.set_rng_state(self.state)
        if (
            outer_gpu_state is not None
        ):  # a GPU's generator is seeded anew each time, so that only one state has to be kept
            torch.cuda.default_generators[device.index or 0].manual_seed(
                int(torch.randint(2**62, (1,)))
            )
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(outer_state)
            if outer_gpu_state is not None:
                torch.cuda.set_rng_state(outer_gpu_state, device)


@dataclass
class TrainState:
    """All that a training is at one moment; saved and loaded whole, it goes on to the same bytes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rng_state: RngState
    counters: TrainCounters = field(default_factory=TrainCounters)
    epoch: int = 0
    batch_index: int = 0  # of the next batch of the pass
    carry: Any = None
    pending_finite_checks: list[tuple[str, torch.Tensor, TrainCounters]] = field(
        default_factory=list
    )  # what must be finite and was not looked at yet, and when it was

    def check_finite(self, name: str, value: torch.Tensor) -> None:
        """Look at a loss or a gradient norm, at once or with the next ones. Raises CellError, as `look` does."""
        self.pending_finite_checks.append((name, value.detach(), self.counters))
        if len(self.pending_finite_checks) >= FINITE_CHECK_INTERVAL[value.device.type]:
            self.run_finite_checks()

    def run_finite_checks(self) -> None:
        """Raise CellError for the first value that is not finite: always before something is saved, measured, or said to be done."""
        pending, self.pending_finite_checks = self.pending_finite_checks, []
        values = (
            torch.stack([value.double() for _, value, _ in pending]).tolist() if pending else []
        )
        for (name, _, counters), value in zip(pending, values, strict=True):
            if not math.isfinite(value):
                raise EvaluationError(
                    f"the {name} is {value} after {counters.steps} steps and {counters.text_bytes:,} bytes; lower the rate"
                )

    def save(self, folder: Path) -> None:
        """Write the run into `folder` in one move. Raises CellError where it is not worth it: see `look`."""
        self.run_finite_checks()
        tensors = {f"model/{k}": v for k, v in self.model.state_dict().items()} | {
            "random": self.rng_state.state
        }
        optimizer_steps = {}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if k != "step"}
            optimizer_steps[str(index)] = float(state["step"])
        tensors |= {
            f"carry/{i}/{j}": t
            for i, layer in enumerate(self.carry or ())
            for j, t in enumerate(layer)
        }  # LossOut.carry
        metadata = {
            "spent": dataclasses.asdict(self.counters),
            "passed": self.epoch,
            "index": self.batch_index,
            "steps": optimizer_steps,
        }
        with create_artifact(folder, "checkpoint") as draft:
            save_file(
                {k: v.detach().contiguous().clone() for k, v in tensors.items()},
                draft / "state.safetensors",
            )
            write_json(draft / "facts.json", metadata)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        read_manifest(folder, "checkpoint")
        tensors, metadata = (
            load_file(folder / "state.safetensors"),
            read_json(folder / "facts.json"),
        )
        self.model.load_state_dict(
            {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        )
        state: dict[int, dict[str, Any]] = {
            int(i): {"step": torch.tensor(s)} for i, s in metadata["steps"].items()
        }
        for key, tensor in tensors.items():
            if key.startswith("optimizer/"):
                _, index, name = key.split("/")
                state[int(index)][name] = tensor
        self.optimizer.load_state_dict(
            {"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        layers: dict[int, dict[int, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith("carry/"):
                _, layer, place = key.split("/")
                layers.setdefault(int(layer), {})[int(place)] = tensor.to(
                    next(self.model.parameters()).device
                )
        self.carry = (
            tuple(tuple(layers[i][j] for j in sorted(layers[i])) for i in sorted(layers)) or None
        )
        self.rng_state.state, self.counters = tensors["random"], TrainCounters(**metadata["spent"])
        self.epoch, self.batch_index = metadata["passed"], metadata["index"]


@dataclass(frozen=True)
class TrainPlan:
    """How far and how fast a training goes."""

    progress: Callable[[TrainCounters], float]  # of what was spent; at 1 the whole training ends
    lr_schedule: LrSchedule  # a function of progress, in shares of `highest`; a step takes the rate of where it begins, as in the released codes
    learning_rate: float
    max_grad_norm: float
    precision: str
    grad_accum_steps: int = 1  # batches a step
    max_epochs: int | None = None  # over the stream; none: as many as it takes
    loss_scale: float = 1.0  # the gradient of so many times the loss is clipped and taken; what is reported is the loss
    clip_groups: Sequence[Sequence[nn.Parameter]] | None = (
        None  # parameters whose gradients are clipped each set on its own; none: all as one
    )
    end_progress: float = (
        1.0  # the progress at which this stream is left, where another one follows
    )


def train(
    state: TrainState, objective: Objective, sampler: BatchSampler, plan: TrainPlan
) -> Iterator[StepOutput]:
    """Steps to the end of the course. Raises CellError on a loss or a gradient that is not finite, and where the end would never come."""
    device = next(state.model.parameters()).device
    pending_batches, lr_scale_sum, loss_sum, start_progress, epoch_start_progress = (
        0,
        0.0,
        torch.zeros((), dtype=torch.double, device=device),
        0.0,
        -1.0,
    )
    for epoch, batch_index, batch in iterate_batches(
        sampler, start_epoch=state.epoch, start_index=state.batch_index, max_epochs=plan.max_epochs
    ):
        if pending_batches == 0:
            start_progress = plan.progress(state.counters)
            if start_progress >= plan.end_progress:
                break
            if (
                batch_index == 0 and start_progress == epoch_start_progress
            ):  # of a text of one piece, which is there to be predicted
                raise EvaluationError("a whole pass over the text reads none of it; add text")
            epoch_start_progress = start_progress if batch_index == 0 else epoch_start_progress
        if batch_index == 0 or not sampler.carries_state:
            state.carry = None
        state.model.train()
        with state.rng_state.activate(device), autocast(device, plan.precision):
            out = objective(state.model, batch.to(device), state.carry)
        state.check_finite("loss", out.loss)
        (out.loss * (plan.loss_scale / plan.grad_accum_steps)).backward()
        state.carry, pending_batches, loss_sum, lr_scale_sum = (
            out.recurrent_state,
            pending_batches + 1,
            loss_sum + out.loss.detach(),
            lr_scale_sum + batch.learning_rate_scale,
        )
        state.counters = state.counters.add_batch(
            batch, steps=int(pending_batches == plan.grad_accum_steps)
        )
        if pending_batches == plan.grad_accum_steps:
            progress = min(1.0, plan.progress(state.counters))
            state.epoch, state.batch_index = epoch, batch_index + 1
            learning_rate = (
                plan.learning_rate
                * plan.lr_schedule(start_progress)
                * lr_scale_sum
                / pending_batches
            )
            set_learning_rates(state.optimizer, learning_rate)
            for clip_group in plan.clip_groups or [[*state.model.parameters()]]:
                if any(
                    parameter.grad is not None for parameter in clip_group
                ):  # else torch's norm is a number of the CPU
                    state.check_finite("gradient", clip_gradients(clip_group, plan.max_grad_norm))
            densify_gradients(state.optimizer)
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            yield StepOutput(
                state.counters.steps,
                progress,
                loss_sum / plan.grad_accum_steps,
                learning_rate,
                state.counters,
            )
            pending_batches, lr_scale_sum, loss_sum = 0, 0.0, torch.zeros_like(loss_sum)
    state.run_finite_checks()


@torch.no_grad()
def validate(
    model: nn.Module,
    objective: Objective,
    sampler: BatchSampler,
    *,
    max_batches: int,
    precision: str,
) -> tuple[dict[str, float], dict[str, int], int]:
    """Sums of nats and targets, and the bytes read, over at most `most` batches: always the same ones, without dropout."""
    device = next(model.parameters()).device
    was_training, carry = model.training, None
    model.eval()
    nats: dict[str, torch.Tensor] = {}
    targets: dict[str, int] = {}
    text_bytes = 0
    for _, index, batch in iterate_batches(sampler):
        if index >= max_batches:
            break
        with autocast(device, precision):
            out = objective(model, batch.to(device), carry)
        carry = out.recurrent_state if sampler.carries_state else None
        for name in out.nats:
            nats[name] = nats.get(name, 0.0) + out.nats[name].double()
            targets[name] = targets.get(name, 0) + out.target_counts[name]
        text_bytes += batch.text_bytes
    model.train(was_training)
    return {name: float(value) for name, value in nats.items()}, targets, text_bytes


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """bf16 where the parameters ask for it; weights stay fp32."""
    return (
        torch.autocast(device.type, torch.bfloat16)
        if precision == "bf16"
        else contextlib.nullcontext()
    )


def select_device(device: str, device_index: int = 0) -> torch.device:
    """The device that the parameters ask for. Raises InputError where it is not there."""
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            "params.yaml: device_class is cuda, and no GPU is here; run on a worker that has one, or set device_class: cpu"
        )
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # without it cuBLAS may sum in another order each time
    torch.use_deterministic_algorithms(
        True
    )  # strictly: else attention's backward sums in another order each time, and warns
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it would write all new memory once more
    torch.cuda.set_device(device_index)
    return torch.device("cuda", device_index)


def measure_bf16_speedup() -> float:
    """How many times as fast this CPU multiplies matrices in bf16 as in fp32; below 1 it is slower.

    It is measured, in a tenth of a second: of two processors with avx512_bf16 one gained by it and one took nearly twice the time.
    """
    min_seconds = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    for _ in range(12):
        for dtype in min_seconds:
            matrix = torch.ones(512, 512, dtype=dtype)
            start_time = time.process_time()
            matrix @ matrix
            min_seconds[dtype] = min(min_seconds[dtype], time.process_time() - start_time)
    return min_seconds[torch.float32] / min_seconds[torch.bfloat16]


def configure_torch(threads: int) -> None:
    """Threads on purpose, and denormals flushed: a peaky softmax in fp32 is many times slower with them. Sparse gradients are not checked."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.sparse.check_sparse_tensor_invariants.disable()  # as torch has it unasked, with a warning
