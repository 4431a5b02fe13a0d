"""One budget for every system: bytes of training text, and parameters of the body.

`modules_by_role` of a model decides which parameters belong to the body.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lineage.errors import InputError
from lineage.networks.base import Encoder, Family, LanguageModelFamily, Trained
from lineage.networks.batch import Batch
from lineage.networks.weights import build_on_meta
from lineage.training.uncompiled import mark_methods_uncompiled

SIZE_TOLERANCE = 0.05
CLOSE_SIZE_TOLERANCE = 0.02  # close enough to keep the paper's proportions


@dataclass(frozen=True)
class TrainCounters:
    """The text, tokens and steps that a training run has used so far."""

    text_bytes: int = 0
    tokens: int = 0
    tokens_with_padding: int = 0
    steps: int = 0

    def add_batch(self, batch: Batch, *, steps: int) -> "TrainCounters":
        tokens_with_padding = batch.ids_BT.numel()
        if batch.has_no_padding():  # in a bidirectional batch, tokens are half of the ids
            tokens_with_padding = batch.num_tokens
        return TrainCounters(
            self.text_bytes + batch.text_bytes,
            self.tokens + batch.num_tokens,
            self.tokens_with_padding + tokens_with_padding,
            self.steps + steps,
        )


def count_parameters_by_role(model: Encoder) -> dict[str, int]:
    """Count parameters by role, plus `other` (in no module with a role) and `total`.

    A tied softmax is counted once, with its embedding.
    """
    counts = {
        name: sum(p.numel() for p in module.parameters())
        for name, module in model.modules_by_role().items()
    }
    total = sum(p.numel() for p in model.parameters())
    return counts | {"other": total - sum(counts.values()), "total": total}


def match_parameter_budget(
    family: Family, config: Any, *, vocab_size: int, body_parameters: int | None
) -> Any:
    """Return the configuration whose body is closest to `body_parameters`, within 5 %.

    Models are built on the meta device. Static vectors have no body, and public models have a fixed
    size: both are returned as they are. Raises InputError if no configuration is close enough, or
    if there is no budget and a width is missing.
    """
    if not isinstance(family, Trained):
        return config
    if body_parameters is None:
        missing = family.missing_keys(config)
        if missing:
            raise InputError(
                "models: budget.body_parameters is null, so every width has to be given; "
                f"add {missing[0]} to the block `architecture` of {family.name}"
            )
        return config
    best = None
    for candidates in config.candidates():
        closest = _closest_candidate(
            family, candidates, vocab_size=vocab_size, body_parameters=body_parameters
        )
        if best is None or closest.size_difference < best.size_difference:
            best = closest
        # The candidates with the paper's own proportions come first.
        if best.size_difference <= CLOSE_SIZE_TOLERANCE * body_parameters:
            return best.config
    assert best is not None, "every family has candidates"
    if best.size_difference > SIZE_TOLERANCE * body_parameters:
        raise InputError(
            f"models: no width of {family.name} has a body of {body_parameters:,} parameters "
            f"within {SIZE_TOLERANCE:.0%} (nearest {best.size_difference / body_parameters:.0%} "
            "off); change budget.body_parameters, or the model's num_layers or num_heads"
        )
    return best.config


class _Candidate(NamedTuple):
    """A configuration, and how many parameters its body differs from the budget."""

    config: Any
    size_difference: int


def _closest_candidate(
    family: Family, candidates: Sequence[Any], *, vocab_size: int, body_parameters: int
) -> _Candidate:
    """Find the candidate whose body is closest to `body_parameters`.

    Bodies grow along the list, about as the square of the index: interpolating the square root
    finds the neighbours of the budget with few models built.
    """

    def body_size(index: int) -> int:
        return _count_body_parameters(family, candidates[index], vocab_size)

    low = 0
    high = len(candidates) - 1
    while high - low > 1 and body_size(low) < body_parameters < body_size(high):
        root_low = math.sqrt(body_size(low))
        root_high = math.sqrt(body_size(high))
        share = (math.sqrt(body_parameters) - root_low) / (root_high - root_low)
        index = min(max(low + round(share * (high - low)), low + 1), high - 1)
        if body_size(index) < body_parameters:
            low = index
        else:
            high = index
    size_difference, index = min(
        (abs(body_size(index) - body_parameters), index) for index in (low, high)
    )
    return _Candidate(candidates[index], size_difference)


@functools.cache
def _count_body_parameters(family: Family, config: Any, vocab_size: int) -> int:
    model: Encoder = build_on_meta(
        lambda: family.build(config, vocab_size=vocab_size), where=f"models: {family.name}"
    )
    return count_parameters_by_role(model)["body"]


def count_train_flops(model: Encoder, family: Family, batch: Batch) -> int:
    """Count the floating-point operations of a forward and backward pass on this batch.

    Fused kernels are not counted, so they are turned off: attention on a CPU and whole LSTM layers.
    """
    assert isinstance(family, LanguageModelFamily)
    with contextlib.ExitStack() as unfused, FlopCounterMode(display=False) as counter:
        mark_methods_uncompiled(type(counter.mode))
        unfused.enter_context(warnings.catch_warnings(action="ignore"))
        unfused.enter_context(sdpa_kernel(SDPBackend.MATH))
        for backend in (torch.backends.mkldnn, torch.backends.cudnn):
            unfused.enter_context(backend.flags(enabled=False))
        family.objective(model, batch, None).loss.backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
