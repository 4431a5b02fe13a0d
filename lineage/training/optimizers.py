"""Optimizers, and rates as functions of progress (0 at the start, 1 at the end of the budget): nothing here counts steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.training.uncompiled import mark_methods_uncompiled, uncompiled_step

LrSchedule = Callable[[float], float]


def linear_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Up to 1 over the first `warmup_share`, then straight down to 0 (Devlin et al. 2019, appendix A.2)."""

    def rate(progress: float) -> float:
        if progress < warmup_ratio:
            return progress / warmup_ratio
        return max(0.0, (1.0 - progress) / (1.0 - warmup_ratio)) if warmup_ratio < 1 else 0.0

    return rate


def bert_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Up to 1 over the first `warmup_share`, then 1 - progress: BERT's released code does not rescale, and the rate drops after the warm-up."""

    def rate(progress: float) -> float:
        return progress / warmup_ratio if progress < warmup_ratio else max(0.0, 1.0 - progress)

    return rate


def gpt_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """(progress / warmup_share up to 1) x (1 - progress): in the released GPT-1 the fall applies during the warm-up too."""

    def rate(progress: float) -> float:
        up = progress / warmup_ratio if progress <= warmup_ratio and warmup_ratio else 1.0
        return up * max(0.0, 1.0 - progress)

    return rate


def constant_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Up to 1 over the first `warmup_share`, and there to the end, as bilm-tf and context2vec (with a share of 0)."""
    return lambda progress: progress / warmup_ratio if progress < warmup_ratio else 1.0


def cosine_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Up to 1 over the first `warmup_share`, then down to 0 along half a cosine (Radford et al. 2018, section 4.1: the pretraining of GPT-1)."""

    def rate(progress: float) -> float:
        if progress < warmup_ratio:
            return progress / warmup_ratio
        return (
            0.5
            + 0.5 * math.cos(math.pi * min(1.0, (progress - warmup_ratio) / (1.0 - warmup_ratio)))
            if warmup_ratio < 1
            else 0.0
        )

    return rate


LrScheduleName = Literal[
    "linear", "bert", "gpt", "constant", "cosine"
]  # bert and gpt as in their released code
LR_SCHEDULES: dict[LrScheduleName, Callable[[float], LrSchedule]] = {
    "linear": linear_schedule_with_warmup,
    "bert": bert_schedule_with_warmup,
    "gpt": gpt_schedule_with_warmup,
    "constant": constant_schedule_with_warmup,
    "cosine": cosine_schedule_with_warmup,
}


def slanted_triangular_schedule(
    cut_frac: float, ratio: float, *, steps: int | None = None
) -> LrSchedule:
    """From 1/ratio up to 1 at `cut_share`, and back to 1/ratio (Howard and Ruder 2018, section 3.2).

    Where the number of steps is known, the cut is a whole one, rounded down as in the paper, so that one step has the highest rate.
    The paper's denominator, cut x (1 / cut_share - 1), turns negative at the end where T x cut_share is not whole; T - cut does not.
    """
    cut = cut_frac if steps is None else math.floor(steps * cut_frac + 1e-9) / steps

    def rate(progress: float) -> float:
        up = (
            progress / cut
            if progress < cut
            else max(0.0, 1.0 - (progress - cut) / (1.0 - cut))
            if cut < 1
            else 1.0
        )
        return (1.0 + up * (ratio - 1.0)) / ratio

    return rate


@dataclass(frozen=True)
class DiscriminativeFinetuneSettings:
    """What adaptation and tuning have in common: the rates of layers, their course, and the optimizer, Adam with decoupled decay."""

    learning_rate: float  # of the top layer
    layer_lr_decay: float  # each layer below has the rate of the one above divided by this
    cut_frac: float  # over which the rate rises
    ratio: float  # of the highest rate over the lowest (slanted only)
    weight_decay: float
    max_grad_norm: float
    schedule: LrScheduleName | Literal["slanted"] = field(default="slanted", kw_only=True)
    betas: tuple[float, ...] = field(default=(0.9, 0.999), kw_only=True)
    epsilon: float = field(default=1e-8, kw_only=True)
    bias_correction: bool = field(default=True, kw_only=True)  # the released BERT has none
    body_dropout: float | dict[str, float] | None = field(
        default=None, kw_only=True
    )  # in place of the model's own; by name where it has several

    def __post_init__(self) -> None:
        check_positive(self, "layer_lr_decay", "epsilon")
        check_stlr_settings(self)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"betas are two numbers, at least 0 and below 1, found {list(self.betas)}"
            )

    def lr_schedule(self, steps: int | None = None) -> LrSchedule:
        """The rate as a function of progress, in shares of the highest; `steps` in all, where that is known."""
        return (
            slanted_triangular_schedule(self.cut_frac, self.ratio, steps=steps)
            if self.schedule == "slanted"
            else LR_SCHEDULES[self.schedule](self.cut_frac)
        )

    def build_optimizer(
        self, layer_groups: Sequence[Sequence[nn.Parameter]]
    ) -> torch.optim.Optimizer:
        """Adam for layers, bottom to top, each with its rate."""
        groups = build_param_groups(
            layer_groups, weight_decay=self.weight_decay, layer_lr_decay=self.layer_lr_decay
        )
        return (build_adamw if self.bias_correction else BertAdam)(
            groups, betas=(self.betas[0], self.betas[1]), epsilon=self.epsilon
        )


def check_stlr_settings(settings: Any) -> None:
    """Raise ValueError for what no course of rates, decay or clipping can be: the five keys that every fine-tuning has."""
    check_positive(settings, "rate", "cut_share", "ratio", "clip_norm")
    check_fraction(settings, "cut_share")
    check_non_negative(settings, "weight_decay")
    if settings.ratio < 1:
        raise ValueError(
            f"ratio is {settings.ratio}; it is the highest rate over the lowest, 1 or more"
        )


def build_param_groups(
    layer_groups: Sequence[Sequence[nn.Parameter]],
    *,
    weight_decay: float,
    layer_lr_decay: float = 1.0,
) -> list[dict[str, object]]:
    """Two groups a layer, bottom to top: matrices with weight decay, the rest without.

    `scale` is the layer's share of the rate: 1 at the top, divided by `layer_decay` for each layer below (discriminative fine-tuning, Howard
    and Ruder 2018, section 3.2). `depth` counts from the top, for gradual unfreezing.
    """
    groups: list[dict[str, object]] = []
    for index, parameters in enumerate(layer_groups):
        depth = len(layer_groups) - 1 - index
        for is_matrix in (True, False):
            selected = [p for p in parameters if (p.dim() > 1) == is_matrix]
            if selected:
                decay = weight_decay if is_matrix else 0.0
                groups.append(
                    {
                        "params": selected,
                        "weight_decay": decay,
                        "scale": layer_lr_decay**-depth,
                        "depth": depth,
                    }
                )
    return groups


mark_methods_uncompiled(torch.optim.Optimizer)


class AdamW(torch.optim.AdamW):
    """torch's, without its compiler."""

    step = uncompiled_step(torch.optim.AdamW)


class Adagrad(torch.optim.Adagrad):
    """torch's, without its compiler."""

    step = uncompiled_step(torch.optim.Adagrad)


def build_adamw(
    groups: list[dict[str, object]],
    *,
    betas: tuple[float, ...] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019), in one fused step."""
    return AdamW(groups, lr=0.0, betas=(betas[0], betas[1]), eps=epsilon, fused=True)


class BertAdam(torch.optim.Optimizer):
    """BERT's own AdamWeightDecayOptimizer: Adam without bias correction, epsilon outside of the root, decay added to the update.

    Without the correction the first steps are up to 3 times as long, for which small data pays (Mosbach et al. 2021; Zhang et al. 2021).
    """

    def __init__(
        self, groups: list[dict[str, object]], *, betas: tuple[float, float], epsilon: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": epsilon, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= {
                        "step": torch.zeros(()),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
                state["step"] += 1
                state["exp_avg"].lerp_(parameter.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(
                    parameter.grad, parameter.grad, value=1 - second
                )
                update = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
                parameter.sub_(
                    update.add_(parameter, alpha=group["weight_decay"]), alpha=group["lr"]
                )


@dataclass(frozen=True)
class NonMonotonicTrigger:
    """When SGD begins to average its weights: at the first check whose loss is no better than all but the last few were (NT-ASGD)."""

    checks: int  # of the whole validation text, at equal distances over the budget
    patience: int  # the last few: n in the paper, where it is 5

    def __post_init__(self) -> None:
        check_positive(self, "checks", "patience")
        if self.checks <= self.patience + 1:
            raise ValueError(
                f"{self.checks} checks are too few for a patience of {self.patience}: averaging would never begin; ask for more"
            )

    def is_triggered(self, losses: Sequence[float]) -> bool:
        """Whether the last validation loss is above the best one of those before the last `patience` (Merity et al. 2018, algorithm 1)."""
        *earlier, last = losses
        return len(earlier) > self.patience and last > min(earlier[: -self.patience])


class AveragedSGD(torch.optim.Optimizer):
    """NT-ASGD: SGD that, once its rule has held, also keeps the mean of its weights (Merity et al. 2018, section 3).

    As torch's ASGD with t0 = 0 and lambd = 0: the decay is added to the gradient, and the mean begins with the second step.
    """

    def __init__(self, groups: list[dict[str, object]], trigger: NonMonotonicTrigger) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.trigger = trigger

    def update_trigger(self, losses: Sequence[float]) -> None:
        """Begin to average, if these validation losses, one a check, are the first for which the rule holds."""
        if not is_averaging(self) and self.trigger.is_triggered(losses):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter] = {
                        "step": torch.zeros(()),
                        "average": parameter.detach().clone(),
                    }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient, and of its mean."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                parameter.sub_(
                    parameter.grad.add(parameter, alpha=group["weight_decay"]), alpha=group["lr"]
                )
                if state := self.state.get(parameter):
                    state["step"] += 1
                    state["average"].lerp_(parameter, 1 / max(1.0, float(state["step"]) - 1))


def build_pretraining_optimizer(
    parameters: Sequence[nn.Parameter], settings: Any
) -> torch.optim.Optimizer:
    """The optimizer that a block `pretrain` asks for.

    AdaGrad (Duchi et al. 2011) is TensorFlow's: the squares start from `initial_accumulator`, and no epsilon is added to their root.
    """
    if settings.nt_asgd:  # biases decay too, as in AWD-LSTM's own code
        return AveragedSGD(
            [{"params": [*parameters], "weight_decay": settings.weight_decay, "scale": 1.0}],
            settings.nt_asgd,
        )
    groups = build_param_groups([parameters], weight_decay=settings.weight_decay)
    if getattr(settings, "optimizer", "adam") == "adagrad":
        return Adagrad(
            groups, lr=0.0, initial_accumulator_value=settings.initial_accumulator_value, eps=0.0
        )
    adam = build_adamw if settings.bias_correction else BertAdam
    return adam(groups, betas=settings.betas, epsilon=settings.epsilon)


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Cut the gradients to a norm of all as one; gives the norm they had. As torch's, which knows no sparse ones: their rows stand for them."""
    return torch.nn.utils.clip_grad_norm_(
        [
            _sparse_gradient_rows(p) if p.grad is not None and p.grad.is_sparse else p
            for p in parameters
        ],
        max_norm,
    )


def _sparse_gradient_rows(parameter: nn.Parameter) -> torch.Tensor:
    """Something whose gradient is the rows of the parameter's sparse one, each now there once: to scale these is to scale those."""
    assert parameter.grad is not None
    parameter.grad = parameter.grad.coalesce()
    rows = parameter.grad.values().detach()
    rows.grad = parameter.grad.values()
    return rows


def densify_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Make sparse gradients dense for all but AdaGrad without decay: only there nothing moves where the gradient is zero."""
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.Adagrad) and not group["weight_decay"]:
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()


def is_averaging(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer keeps means of its weights by now."""
    return any("average" in state for state in optimizer.state.values())


@torch.no_grad()
def swap_averaged_weights(optimizer: torch.optim.Optimizer) -> None:
    """Put the means in the weights' place and the weights in theirs; a second time, and all is as before. Without means nothing happens."""
    for parameter, state in optimizer.state.items():
        if "average" in state:
            weights = parameter.clone()
            parameter.copy_(state["average"])
            state["average"].copy_(weights)


def set_learning_rates(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give each group its share of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["scale"]
