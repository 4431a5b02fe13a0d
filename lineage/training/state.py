"""The state of a training run, which is saved and loaded whole so that resuming is exact."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lineage.artifacts import create_artifact, read_json, read_manifest, write_json
from lineage.errors import EvaluationError
from lineage.training.budget import TrainCounters

# How many losses and gradient norms are collected before one check that all are finite. Reading a
# value waits for the GPU, and no batch is prepared meanwhile.
FINITE_CHECK_INTERVAL = {"cpu": 1, "cuda": 64}

STATE_FILE = "train_state.json"

# The detached state from which the next BPTT batch continues: for each layer a tuple of tensors,
# such as (output, cell).
RecurrentState = tuple[tuple[torch.Tensor, ...], ...]


class RngState:
    """A separate random state for torch: dropout and sampled candidates."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def activate(self, device: torch.device) -> Iterator[None]:
        """Let torch use this state, and restore the global state afterwards.

        A GPU's generator is seeded from this state each time, so only one state has to be kept.
        """
        outer_state = torch.get_rng_state()
        outer_gpu_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        torch.set_rng_state(self.state)
        if outer_gpu_state is not None:
            gpu_generator = torch.cuda.default_generators[device.index or 0]
            gpu_generator.manual_seed(int(torch.randint(2**62, (1,))))
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(outer_state)
            if outer_gpu_state is not None:
                torch.cuda.set_rng_state(outer_gpu_state, device)


@dataclass(frozen=True)
class _FiniteCheck:
    """A value that must be finite, and the counters when it was computed."""

    name: str
    value: torch.Tensor
    counters: TrainCounters


@dataclass
class TrainState:
    """The complete state of a training run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rng_state: RngState
    counters: TrainCounters = field(default_factory=TrainCounters)
    epoch: int = 0
    batch_index: int = 0  # of the next batch in the epoch
    recurrent_state: RecurrentState | None = None
    pending_finite_checks: list[_FiniteCheck] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def check_finite(self, name: str, value: torch.Tensor) -> None:
        """Check a loss or a gradient norm, now or together with the next ones.

        Raises EvaluationError, as `run_finite_checks` does.
        """
        self.pending_finite_checks.append(_FiniteCheck(name, value.detach(), self.counters))
        if len(self.pending_finite_checks) >= FINITE_CHECK_INTERVAL[value.device.type]:
            self.run_finite_checks()

    def run_finite_checks(self) -> None:
        """Raise EvaluationError for the first pending value that is not finite."""
        pending = self.pending_finite_checks
        self.pending_finite_checks = []
        if not pending:
            return
        values = torch.stack([check.value.double() for check in pending]).tolist()
        for check, value in zip(pending, values, strict=True):
            if not math.isfinite(value):
                raise EvaluationError(
                    f"the {check.name} is {value} after {check.counters.steps} steps and "
                    f"{check.counters.text_bytes:,} bytes; lower the learning rate"
                )

    def save(self, folder: Path) -> None:
        """Write the state into `folder` in one move. Raises EvaluationError."""
        self.run_finite_checks()
        metadata = {
            "counters": dataclasses.asdict(self.counters),
            "epoch": self.epoch,
            "batch_index": self.batch_index,
        }
        with create_artifact(folder, "checkpoint") as draft:
            save_file(self._tensors_to_save(), draft / "state.safetensors")
            write_json(draft / STATE_FILE, metadata)

    def _tensors_to_save(self) -> dict[str, torch.Tensor]:
        tensors = {"rng_state": self.rng_state.state}
        for name, tensor in self.model.state_dict().items():
            tensors[f"model/{name}"] = tensor
        for index, values in self.optimizer.state_dict()["state"].items():
            for name, tensor in values.items():
                tensors[f"optimizer/{index}/{name}"] = tensor
        for layer, states in enumerate(self.recurrent_state or ()):
            for place, tensor in enumerate(states):
                tensors[f"recurrent_state/{layer}/{place}"] = tensor
        return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}

    def load(self, folder: Path) -> None:
        read_manifest(folder, "checkpoint")
        tensors = load_file(folder / "state.safetensors")
        metadata = read_json(folder / STATE_FILE)
        self.model.load_state_dict(_select_prefix(tensors, "model/"))
        parameter_states = _nest_by_index(_select_prefix(tensors, "optimizer/"))
        param_groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": parameter_states, "param_groups": param_groups})
        layers = _nest_by_index(_select_prefix(tensors, "recurrent_state/"))
        states = []
        for _, by_place in sorted(layers.items()):
            places = sorted(by_place, key=int)
            states.append(tuple(by_place[place].to(self.device) for place in places))
        self.recurrent_state = tuple(states) or None
        self.rng_state.state = tensors["rng_state"]
        self.counters = TrainCounters(**metadata["counters"])
        self.epoch = metadata["epoch"]
        self.batch_index = metadata["batch_index"]


def read_counters(folder: Path) -> TrainCounters:
    return TrainCounters(**read_json(folder / STATE_FILE)["counters"])


def _select_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _nest_by_index(tensors: Mapping[str, torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
    """Turn names such as 3/exp_avg into two levels."""
    nested: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split("/")
        nested.setdefault(int(index), {})[name] = tensor
    return nested
