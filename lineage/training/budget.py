"""One budget for every system: bytes of text read in training, and parameters of the body. What counts as body is decided here alone."""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lineage.batch import Batch
from lineage.errors import InputError
from lineage.family import Encoder, Family
from lineage.training.uncompiled import unmarked
from lineage.weights import outlined

TOLERANCE, NEAR = 0.05, 0.02
FILLS = ("uniform_", "normal_", "kaiming_uniform_", "trunc_normal_", "fill_", "zero_")


@dataclass(frozen=True)
class Spent:
    """What a training has used so far."""

    text_bytes: int = 0
    tokens: int = 0
    slots: int = 0  # positions with padding; tokens over slots is the share that was real
    steps: int = 0

    def plus(self, batch: Batch, *, steps: int) -> "Spent":
        """After one more batch."""
        slots = batch.tokens if batch.unpadded() else batch.ids_BT.numel()  # of windows of two ways, which have no padding, tokens are half the ids
        return Spent(self.text_bytes + batch.text_bytes, self.tokens + batch.tokens, self.slots + slots, self.steps + steps)


def parameters_by_part(model: Encoder) -> dict[str, int]:
    """Numbers of parameters by role. A tied softmax is counted once, with its embedding; `other` is what no part holds."""
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.parts().items()}
    total = sum(p.numel() for p in model.parameters())
    return counts | {"other": total - sum(counts.values()), "total": total}


def sized(family: Family, config: Any, *, vocabulary: int, parameters: int | None) -> Any:
    """The configuration whose body comes closest to `parameters`, within 5 %. Raises InputError where none does, or where one was to be given whole.

    Models are built on the meta device, so that this takes no memory and counts what will really be there. Static vectors have no body: their
    width is given; and what others trained is as large as it is.
    """
    if family.fit is not None or family.adopt is not None:
        return config
    if parameters is None:
        if left := family.left_open(config):
            raise InputError(
                f"models: budget.parameters is null, so every width has to be given, and {family.name}'s block `model` leaves {left[0]} open"
            )
        return config
    best, distance = None, float("inf")
    for proportion in config.candidates():
        found, off = _nearest(family, proportion, vocabulary=vocabulary, parameters=parameters)
        if off < distance:
            best, distance = found, off
        if distance <= NEAR * parameters:  # the papers' own proportions before others
            return best
    if best is None or distance > TOLERANCE * parameters:
        raise InputError(
            f"models: no width of {family.name} has a body of {parameters:,} parameters within {TOLERANCE:.0%} (nearest {distance / parameters:.0%} "
            "off); change budget.parameters, or the model's layers or heads"
        )
    return best


def _nearest(family: Family, candidates: Sequence[Any], *, vocabulary: int, parameters: int) -> tuple[Any, int]:
    """The candidate whose body comes closest to `parameters`, and how far off it is. Bodies grow along the list, about as the square of the place,
    so that few have to be built to find the two between which the number lies."""

    @functools.cache
    def body(place: int) -> int:
        with _Unfilled():
            model: Encoder = outlined(lambda: family.build(candidates[place], vocabulary=vocabulary), where=f"models: {family.name}")
        return parameters_by_part(model)["body"]

    low, high = 0, len(candidates) - 1
    while high - low > 1 and body(low) < parameters < body(high):
        below, above = math.sqrt(body(low)), math.sqrt(body(high))
        place = low + round((math.sqrt(parameters) - below) / (above - below) * (high - low))
        place = min(max(place, low + 1), high - 1)
        low, high = (place, high) if body(place) < parameters else (low, place)
    off, place = min((abs(body(place) - parameters), place) for place in (low, high))
    return candidates[place], off


class _Unfilled(TorchFunctionMode):
    """Leaves out what fills a new model with numbers: on the meta device there are none, and most of the time would go into it."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """The tensor as it is, for a function that would fill it."""
        given = kwargs or {}
        return (args or [*given.values()])[0] if func.__name__ in FILLS else func(*args, **given)


def train_flops(model: Encoder, family: Family, batch: Batch) -> int:
    """Floating-point operations of one training step on this batch, forward and backward, counted as it runs."""
    # what is fused is not counted: attention on a CPU, and whole LSTM layers
    with contextlib.ExitStack() as plain, FlopCounterMode(display=False) as counter:
        unmarked(type(counter.mode))
        plain.enter_context(warnings.catch_warnings(action="ignore"))
        plain.enter_context(sdpa_kernel(SDPBackend.MATH))
        for backend in (torch.backends.mkldnn, torch.backends.cudnn):
            plain.enter_context(backend.flags(enabled=False))
        assert family.objective is not None
        family.objective(model, batch, None).loss.backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
