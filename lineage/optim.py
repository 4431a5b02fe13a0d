"""Optimizers, and rates as functions of progress (0 at the start, 1 at the end of the budget): nothing here counts steps."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

Rate = Callable[[float], float]


def warmup_linear(warmup_share: float) -> Rate:
    """Up to 1 over the first `warmup_share`, then straight down to 0 (Devlin et al. 2019, appendix A.2)."""

    def rate(progress: float) -> float:
        if progress < warmup_share:
            return progress / warmup_share
        return max(0.0, (1.0 - progress) / (1.0 - warmup_share)) if warmup_share < 1 else 0.0

    return rate


def slanted_triangular(cut_share: float, ratio: float) -> Rate:
    """From 1/ratio up to 1 at `cut_share`, and back to 1/ratio (Howard and Ruder 2018, section 3.2).

    The paper's denominator, cut x (1 / cut_share - 1), turns negative at the end where the cut is not whole; 1 - cut does not.
    """

    def rate(progress: float) -> float:
        up = progress / cut_share if progress < cut_share else max(0.0, 1.0 - (progress - cut_share) / (1.0 - cut_share)) if cut_share < 1 else 1.0
        return (1.0 + up * (ratio - 1.0)) / ratio

    return rate


def decayed_groups(layers: Sequence[Sequence[nn.Parameter]], *, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, object]]:
    """Two groups a layer, bottom to top: matrices with weight decay, the rest without.

    `scale` is the layer's share of the rate: 1 at the top, divided by `layer_decay` for each layer below (discriminative fine-tuning, Howard
    and Ruder 2018, section 3.2). `depth` counts from the top, for gradual unfreezing.
    """
    groups: list[dict[str, object]] = []
    for index, parameters in enumerate(layers):
        depth = len(layers) - 1 - index
        for matrices in (True, False):
            some = [p for p in parameters if (p.dim() > 1) == matrices]
            if some:
                decay = weight_decay if matrices else 0.0
                groups.append({"params": some, "weight_decay": decay, "scale": layer_decay**-depth, "depth": depth})
    return groups


def adamw(groups: list[dict[str, object]], *, betas: tuple[float, ...] = (0.9, 0.999), epsilon: float = 1e-8) -> torch.optim.AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019), in one fused step."""
    return torch.optim.AdamW(groups, lr=0.0, betas=(betas[0], betas[1]), eps=epsilon, fused=True)


def set_rates(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give each group its share of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
