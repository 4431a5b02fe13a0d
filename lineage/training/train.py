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

from lineage.artifacts import create, manifest, read_json, write_json
from lineage.errors import CellError, InputError
from lineage.family import LossOut
from lineage.records import not_negative, positive, share
from lineage.training.budget import Spent
from lineage.training.optim import NonMonotone, Rate, Schedule, clip, fill_gradients, set_rates
from lineage.training.streams import Stream, batches

Objective = Callable[..., LossOut]  # (model, batch, carry)
# Losses and gradient norms between two looks at whether they are finite: a look waits for a GPU, and no batch is made meanwhile.
LOOKS = {"cpu": 1, "cuda": 64}


@dataclass(frozen=True)
class Training:
    """The block `pretrain` of a family that has no more to say."""

    batch: int  # sequences
    length: int  # tokens of a sequence
    rate: float  # the highest
    warmup_share: float
    weight_decay: float
    betas: tuple[float, ...]
    epsilon: float
    clip_norm: float
    accumulation: int  # batches a step
    schedule: Schedule  # of the rate
    bias_correction: bool  # of Adam; the released BERT has none
    nt_asgd: NonMonotone | None = field(default=None, kw_only=True)  # SGD whose weights are averaged, in Adam's place

    def __post_init__(self) -> None:
        if self.nt_asgd and self.schedule != "constant":
            raise ValueError(f"nt_asgd averages where other rates fall, and schedule is {self.schedule}; set it to constant")
        if self.nt_asgd and not self.bias_correction:
            raise ValueError("bias_correction is false, and nt_asgd is no Adam: it has none; take the key out, or one of the two")
        positive(self, "batch", "length", "rate", "epsilon", "clip_norm", "accumulation")
        share(self, "warmup_share")
        not_negative(self, "weight_decay")
        if len(self.betas) != 2:
            raise ValueError("betas is a list of two numbers")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are at least 0 and below 1, found {list(self.betas)}")

    @property
    def parts(self) -> list[tuple[float, "Training"]]:
        """The parts of the training, one after another: the progress at which each ends, and how its batches are made."""
        return [(1.0, self)]

    def share_of_steps(self, progress: float) -> float:
        """Of a schedule's steps, those that are done when this share of the text is read: the same, where all batches hold as much."""
        return progress


@dataclass(frozen=True)
class LanesTraining(Training):
    """The block `pretrain` of the models that read lanes both ways, with what ELMo's released trainer does differently as switches."""

    optimizer: Literal["adam", "adagrad"]
    initial_accumulator: float  # of AdaGrad's squares
    loss_by_length: bool  # the loss times `length` before it is clipped: AdaGrad's steps depend on its scale while the squares are small
    stateful: bool  # recurrent state goes on from window to window; else each window starts cold

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "initial_accumulator")
        if self.optimizer == "adagrad" and (self.nt_asgd or not self.bias_correction):
            raise ValueError(
                "optimizer is adagrad, which has no bias correction and averages nothing; set bias_correction to true and nt_asgd to null"
            )


@dataclass(frozen=True)
class Step:
    """One optimizer step, as the caller sees it."""

    index: int
    progress: float  # of the budget, 0 to 1
    loss: torch.Tensor  # one number, where the model is: to read it is to wait for a GPU
    rate: float
    spent: Spent


class Draws:
    """A random state of one's own for what torch draws itself (dropout, sampled candidates)."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Within, torch draws from this state; the world's is as it was afterwards."""
        outside, on_gpu = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        torch.set_rng_state(self.state)
        if on_gpu is not None:  # a GPU's generator is seeded anew each time, so that only one state has to be kept
            torch.cuda.default_generators[device.index or 0].manual_seed(int(torch.randint(2**62, (1,))))
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(outside)
            if on_gpu is not None:
                torch.cuda.set_rng_state(on_gpu, device)


@dataclass
class Run:
    """All that a training is at one moment; saved and loaded whole, it goes on to the same bytes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    draws: Draws
    spent: Spent = field(default_factory=Spent)
    passed: int = 0
    index: int = 0  # of the next batch of the pass
    carry: Any = None
    unread: list[tuple[str, torch.Tensor, Spent]] = field(default_factory=list)  # what must be finite and was not looked at yet, and when it was

    def expect_finite(self, what: str, value: torch.Tensor) -> None:
        """Look at a loss or a gradient norm, at once or with the next ones. Raises CellError, as `look` does."""
        self.unread.append((what, value.detach(), self.spent))
        if len(self.unread) >= LOOKS[value.device.type]:
            self.look()

    def look(self) -> None:
        """Raise CellError for the first value that is not finite: always before something is saved, measured, or said to be done."""
        unread, self.unread = self.unread, []
        values = torch.stack([value.double() for _, value, _ in unread]).tolist() if unread else []
        for (what, _, spent), value in zip(unread, values, strict=True):
            if not math.isfinite(value):
                raise CellError(f"the {what} is {value} after {spent.steps} steps and {spent.text_bytes:,} bytes; lower the rate")

    def save(self, folder: Path) -> None:
        """Write the run into `folder` in one move. Raises CellError where it is not worth it: see `look`."""
        self.look()
        tensors = {f"model/{k}": v for k, v in self.model.state_dict().items()} | {"random": self.draws.state}
        steps = {}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if k != "step"}
            steps[str(index)] = float(state["step"])
        tensors |= {f"carry/{i}/{j}": t for i, layer in enumerate(self.carry or ()) for j, t in enumerate(layer)}  # LossOut.carry
        facts = {"spent": dataclasses.asdict(self.spent), "passed": self.passed, "index": self.index, "steps": steps}
        with create(folder, "checkpoint") as draft:
            save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, draft / "state.safetensors")
            write_json(draft / "facts.json", facts)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        manifest(folder, "checkpoint")
        tensors, facts = load_file(folder / "state.safetensors"), read_json(folder / "facts.json")
        self.model.load_state_dict({k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")})
        state: dict[int, dict[str, Any]] = {int(i): {"step": torch.tensor(s)} for i, s in facts["steps"].items()}
        for key, tensor in tensors.items():
            if key.startswith("optimizer/"):
                _, index, name = key.split("/")
                state[int(index)][name] = tensor
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        layers: dict[int, dict[int, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith("carry/"):
                _, layer, place = key.split("/")
                layers.setdefault(int(layer), {})[int(place)] = tensor.to(next(self.model.parameters()).device)
        self.carry = tuple(tuple(layers[i][j] for j in sorted(layers[i])) for i in sorted(layers)) or None
        self.draws.state, self.spent = tensors["random"], Spent(**facts["spent"])
        self.passed, self.index = facts["passed"], facts["index"]


@dataclass(frozen=True)
class Course:
    """How far and how fast a training goes."""

    progress: Callable[[Spent], float]  # of what was spent; at 1 the whole training ends
    rate: Rate  # a function of progress, in shares of `highest`; a step takes the rate of where it begins, as in the released codes
    highest: float
    clip_norm: float
    precision: str
    accumulation: int = 1  # batches a step
    passes: int | None = None  # over the stream; none: as many as it takes
    loss_factor: float = 1.0  # the gradient of so many times the loss is clipped and taken; what is reported is the loss
    clipped: Sequence[Sequence[nn.Parameter]] | None = None  # parameters whose gradients are clipped each set on its own; none: all as one
    end: float = 1.0  # the progress at which this stream is left, where another one follows


def train(run: Run, objective: Objective, stream: Stream, course: Course) -> Iterator[Step]:
    """Steps to the end of the course. Raises CellError on a loss or a gradient that is not finite, and where the end would never come."""
    device = next(run.model.parameters()).device
    pending, shares, total, begun, entered = 0, 0.0, torch.zeros((), dtype=torch.double, device=device), 0.0, -1.0
    for passed, index, batch in batches(stream, passed=run.passed, index=run.index, passes=course.passes):
        if pending == 0:
            begun = course.progress(run.spent)
            if begun >= course.end:
                break
            if index == 0 and begun == entered:  # of a text of one piece, which is there to be predicted
                raise CellError("a whole pass over the text reads none of it; add text")
            entered = begun if index == 0 else entered
        if index == 0 or not stream.carries:
            run.carry = None
        run.model.train()
        with run.draws.on(device), autocast(device, course.precision):
            out = objective(run.model, batch.to(device), run.carry)
        run.expect_finite("loss", out.loss)
        (out.loss * (course.loss_factor / course.accumulation)).backward()
        run.carry, pending, total, shares = out.carry, pending + 1, total + out.loss.detach(), shares + batch.rate_share
        run.spent = run.spent.plus(batch, steps=int(pending == course.accumulation))
        if pending == course.accumulation:
            done = min(1.0, course.progress(run.spent))
            run.passed, run.index = passed, index + 1
            rate = course.highest * course.rate(begun) * shares / pending
            set_rates(run.optimizer, rate)
            for some in course.clipped or [[*run.model.parameters()]]:
                if any(parameter.grad is not None for parameter in some):  # else torch's norm is a number of the CPU
                    run.expect_finite("gradient", clip(some, course.clip_norm))
            fill_gradients(run.optimizer)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)
            yield Step(run.spent.steps, done, total / course.accumulation, rate, run.spent)
            pending, shares, total = 0, 0.0, torch.zeros_like(total)
    run.look()


@torch.no_grad()
def validate(model: nn.Module, objective: Objective, stream: Stream, *, most: int, precision: str) -> tuple[dict[str, float], dict[str, int], int]:
    """Sums of nats and targets, and the bytes read, over at most `most` batches: always the same ones, without dropout."""
    device = next(model.parameters()).device
    was, carry = model.training, None
    model.eval()
    nats: dict[str, torch.Tensor] = {}
    targets: dict[str, int] = {}
    size = 0
    for _, index, batch in batches(stream):
        if index >= most:
            break
        with autocast(device, precision):
            out = objective(model, batch.to(device), carry)
        carry = out.carry if stream.carries else None
        for name in out.nats:
            nats[name] = nats.get(name, 0.0) + out.nats[name].double()
            targets[name] = targets.get(name, 0) + out.targets[name]
        size += batch.text_bytes
    model.train(was)
    return {name: float(value) for name, value in nats.items()}, targets, size


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """bf16 where the parameters ask for it; weights stay fp32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def compute_device(device_class: str, device_index: int = 0) -> torch.device:
    """The device that the parameters ask for. Raises InputError where it is not there."""
    if device_class == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("params.yaml: device_class is cuda, and no GPU is here; run on a worker that has one, or set device_class: cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may sum in another order each time
    torch.use_deterministic_algorithms(True)  # strictly: else attention's backward sums in another order each time, and warns
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it would write all new memory once more
    torch.cuda.set_device(device_index)
    return torch.device("cuda", device_index)


def bf16_gain() -> float:
    """How many times as fast this CPU multiplies matrices in bf16 as in fp32; below 1 it is slower.

    It is measured, in a tenth of a second: of two processors with avx512_bf16 one gained by it and one took nearly twice the time.
    """
    least = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    for _ in range(12):
        for dtype in least:
            one = torch.ones(512, 512, dtype=dtype)
            began = time.process_time()
            one @ one
            least[dtype] = min(least[dtype], time.process_time() - began)
    return least[torch.float32] / least[torch.bfloat16]


def prepare_torch(threads: int) -> None:
    """Threads on purpose, and denormals flushed: a peaky softmax in fp32 is many times slower with them. Sparse gradients are not checked."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.sparse.check_sparse_tensor_invariants.disable()  # as torch has it unasked, with a warning
