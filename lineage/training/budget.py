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

from lineage.errors import InputError
from lineage.models.base import Encoder, Family
from lineage.models.batch import Batch
from lineage.models.weights import build_on_meta
from lineage.training.uncompiled import mark_methods_uncompiled

SIZE_TOLERANCE, CLOSE_SIZE_TOLERANCE = 0.05, 0.02
INIT_FUNCTIONS = ("uniform_", "normal_", "kaiming_uniform_", "trunc_normal_", "fill_", "zero_")


@dataclass(frozen=True)
class TrainCounters:
    """What a training has used so far."""

    text_bytes: int = 0
    tokens: int = 0
    tokens_with_padding: int = (
        0  # positions with padding; tokens over slots is the share that was real
    )
    steps: int = 0

    def add_batch(self, batch: Batch, *, steps: int) -> "TrainCounters":
        """After one more batch."""
        tokens_with_padding = (
            batch.num_tokens if batch.has_no_padding() else batch.ids_BT.numel()
        )  # of windows of two ways, which have no padding, tokens are half the ids
        return TrainCounters(
            self.text_bytes + batch.text_bytes,
            self.tokens + batch.num_tokens,
            self.tokens_with_padding + tokens_with_padding,
            self.steps + steps,
        )


def count_parameters_by_role(model: Encoder) -> dict[str, int]:
    """Numbers of parameters by role. A tied softmax is counted once, with its embedding; `other` is what no part holds."""
    counts = {
        name: sum(p.numel() for p in part.parameters())
        for name, part in model.modules_by_role().items()
    }
    total = sum(p.numel() for p in model.parameters())
    return counts | {"other": total - sum(counts.values()), "total": total}


def match_parameter_budget(
    family: Family, config: Any, *, vocab_size: int, body_parameters: int | None
) -> Any:
    """The configuration whose body comes closest to `parameters`, within 5 %. Raises InputError where none does, or where one was to be given whole.

    Models are built on the meta device, so that this takes no memory and counts what will really be there. Static vectors have no body: their
    width is given; and what others trained is as large as it is.
    """
    if family.fit_static is not None or family.load_pretrained is not None:
        return config
    if body_parameters is None:
        if left := family.missing_keys(config):
            raise InputError(
                f"models: budget.parameters is null, so every width has to be given, and {family.name}'s block `model` leaves {left[0]} open"
            )
        return config
    best, distance = None, float("inf")
    for candidates in config.candidates():
        found, size_difference = _closest_candidate(
            family, candidates, vocab_size=vocab_size, body_parameters=body_parameters
        )
        if size_difference < distance:
            best, distance = found, size_difference
        if (
            distance <= CLOSE_SIZE_TOLERANCE * body_parameters
        ):  # the papers' own proportions before others
            return best
    if best is None or distance > SIZE_TOLERANCE * body_parameters:
        raise InputError(
            f"models: no width of {family.name} has a body of {body_parameters:,} parameters within {SIZE_TOLERANCE:.0%} (nearest {distance / body_parameters:.0%} "
            "off); change budget.parameters, or the model's layers or heads"
        )
    return best


def _closest_candidate(
    family: Family, candidates: Sequence[Any], *, vocab_size: int, body_parameters: int
) -> tuple[Any, int]:
    """The candidate whose body comes closest to `parameters`, and how far off it is. Bodies grow along the list, about as the square of the place,
    so that few have to be built to find the two between which the number lies."""

    @functools.cache
    def body(place: int) -> int:
        with _SkipInit():
            model: Encoder = build_on_meta(
                lambda: family.build(candidates[place], vocabulary=vocab_size),
                where=f"models: {family.name}",
            )
        return count_parameters_by_role(model)["body"]

    low, high = 0, len(candidates) - 1
    while high - low > 1 and body(low) < body_parameters < body(high):
        below, above = math.sqrt(body(low)), math.sqrt(body(high))
        index = low + round((math.sqrt(body_parameters) - below) / (above - below) * (high - low))
        index = min(max(index, low + 1), high - 1)
        low, high = (index, high) if body(index) < body_parameters else (low, index)
    size_difference, index = min(
        (abs(body(index) - body_parameters), index) for index in (low, high)
    )
    return candidates[index], size_difference


class _SkipInit(TorchFunctionMode):
    """Leaves out what fills a new model with numbers: on the meta device there are none, and most of the time would go into it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The tensor as it is, for a function that would fill it."""
        given = kwargs or {}
        return (
            (args or [*given.values()])[0]
            if func.__name__ in INIT_FUNCTIONS
            else func(*args, **given)
        )


def count_train_flops(model: Encoder, family: Family, batch: Batch) -> int:
    """Floating-point operations of one training step on this batch, forward and backward, counted as it runs."""
    # what is fused is not counted: attention on a CPU, and whole LSTM layers
    with contextlib.ExitStack() as plain, FlopCounterMode(display=False) as counter:
        mark_methods_uncompiled(type(counter.mode))
        plain.enter_context(warnings.catch_warnings(action="ignore"))
        plain.enter_context(sdpa_kernel(SDPBackend.MATH))
        for backend in (torch.backends.mkldnn, torch.backends.cudnn):
            plain.enter_context(backend.flags(enabled=False))
        assert family.objective is not None
        family.objective(model, batch, None).loss.backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
