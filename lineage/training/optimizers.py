"""Optimizers, parameter groups and gradient clipping."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from lineage.config.records import Checked, check_fraction, check_non_negative, check_positive
from lineage.networks.base import Encoder
from lineage.training.schedules import (
    LrSchedule,
    LrScheduleName,
    schedule_with_warmup,
    slanted_triangular_schedule,
)
from lineage.training.settings import (
    BilmPretrainSettings,
    NonMonotonicTrigger,
    PretrainSettings,
    check_betas,
)
from lineage.training.uncompiled import mark_methods_uncompiled, uncompiled_step


@dataclass(frozen=True, kw_only=True)
class DiscriminativeFinetuneSettings(Checked):
    """The keys that `adapt` and `finetune` share: learning rates per layer, and AdamW."""

    learning_rate: float  # of the top layer
    # Each layer has the learning rate of the layer above times this factor, at most 1.
    layer_lr_decay: float = 1.0
    cut_frac: float = 0.1  # share of the steps over which the rate rises
    ratio: float = 32.0  # highest over lowest rate (slanted triangular only)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    schedule: LrScheduleName | Literal["slanted_triangular"] = "slanted_triangular"
    betas: tuple[float, ...] = (0.9, 0.999)
    epsilon: float = 1e-8
    bias_correction: bool = True  # the released BERT has none
    # Replaces the model's own dropout. Of several it is the greatest, and the others keep their
    # proportions; or each is given by name.
    body_dropout: float | dict[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "layer_lr_decay", "epsilon")
        if self.layer_lr_decay > 1:
            raise ValueError(
                f"layer_lr_decay is {self.layer_lr_decay}; each layer has the rate of the layer "
                f"above times it, so it is at most 1; write {1 / self.layer_lr_decay:.3g}"
            )
        check_stlr_settings(self)
        check_betas(self.betas)

    def lr_schedule(self, steps: int | None = None) -> LrSchedule:
        """Return the schedule; `steps` is their total number, if known."""
        if self.schedule == "slanted_triangular":
            return slanted_triangular_schedule(self.cut_frac, self.ratio, steps=steps)
        return schedule_with_warmup(self.schedule, self.cut_frac)

    def build_optimizer(
        self, layer_groups: Sequence[Sequence[nn.Parameter]]
    ) -> torch.optim.Optimizer:
        """Build the optimizer for layers in order from bottom to top."""
        groups = build_param_groups(
            layer_groups, weight_decay=self.weight_decay, layer_lr_decay=self.layer_lr_decay
        )
        return build_adamw(
            groups, betas=self.betas, epsilon=self.epsilon, bias_correction=self.bias_correction
        )


@dataclass(frozen=True)
class NewWordSettings:
    """Words of the target text that are added to a closed vocabulary."""

    max_words: int
    min_frequency: int  # in the text that is adapted to

    def __post_init__(self) -> None:
        check_positive(self, "max_words", "min_frequency")


@dataclass(frozen=True, kw_only=True)
class AdaptSettings(DiscriminativeFinetuneSettings):
    """The block `adapt`: continue pretraining on the target text (Howard and Ruder 2018, 3.2)."""

    layer_lr_decay: float = 1 / 2.6  # as in the paper
    # None: words outside the vocabulary stay unknown.
    new_words: NewWordSettings | None = None


def check_stlr_settings(settings: Any) -> None:
    """Raise ValueError if one of the five keys that every fine-tuning has is out of range."""
    check_positive(settings, "learning_rate", "cut_frac", "ratio", "max_grad_norm")
    check_fraction(settings, "cut_frac")
    check_non_negative(settings, "weight_decay")
    if settings.ratio < 1:
        raise ValueError(
            f"ratio is {settings.ratio}; it is the highest learning rate over the lowest, 1 or more"
        )


# `params`, `weight_decay`, `lr_scale` (share of the learning rate) and `depth` (layers above this
# one, for gradual unfreezing). torch accepts no TypedDict.
ParamGroup = dict[str, Any]


def build_param_groups(
    layer_groups: Sequence[Sequence[nn.Parameter]],
    *,
    weight_decay: float,
    layer_lr_decay: float = 1.0,
) -> list[ParamGroup]:
    """Build two groups per layer, from bottom to top: matrices with weight decay, others without.

    The top layer has the full learning rate, and each layer that of the layer above times
    `layer_lr_decay` (discriminative fine-tuning; Howard and Ruder 2018, section 3.2).
    """
    groups: list[ParamGroup] = []
    for index, parameters in enumerate(layer_groups):
        depth = len(layer_groups) - 1 - index
        matrices = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        for params, decay in ((matrices, weight_decay), (others, 0.0)):
            if params:
                group = {
                    "params": params,
                    "weight_decay": decay,
                    "lr_scale": layer_lr_decay**depth,
                    "depth": depth,
                }
                groups.append(group)
    return groups


mark_methods_uncompiled(torch.optim.Optimizer)


class AdamW(torch.optim.AdamW):
    """torch's AdamW without the compiler."""

    step = uncompiled_step(torch.optim.AdamW)


class Adagrad(torch.optim.Adagrad):
    """torch's AdaGrad without the compiler."""

    step = uncompiled_step(torch.optim.Adagrad)


def build_adamw(
    groups: list[ParamGroup],
    *,
    betas: tuple[float, ...] = (0.9, 0.999),
    epsilon: float = 1e-8,
    bias_correction: bool = True,
) -> torch.optim.Optimizer:
    """Build AdamW with decoupled decay (Loshchilov and Hutter 2019) and a fused step, or BERT's."""
    if not bias_correction:
        return BertAdam(groups, betas=betas, epsilon=epsilon)
    return AdamW(groups, lr=0.0, betas=(betas[0], betas[1]), eps=epsilon, fused=True)


MUON_MOMENTUM = 0.95


class Muon(AdamW):
    """Muon (Jordan et al. 2024) for groups that are `orthogonalized`, and AdamW for the others.

    The update of a matrix is the orthogonal matrix nearest to its momentum. Times 0.2 sqrt(longer
    side) it is as large as one of AdamW's, so both take the same learning rate and decay (Liu et
    al. 2025, "Muon is scalable"). A parameter of more than two dimensions holds several matrices.
    torch's own Muon computes in bf16, which many processors emulate at a hundredth of their speed.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if group["orthogonalized"]:
                self._update_matrices(group)
        super().step()  # passes over parameters without a gradient

    def _update_matrices(self, group: dict[str, Any]) -> None:
        """Update the matrices of a group, and drop their gradients."""
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["momentum"] = torch.zeros_like(parameter)
            state["step"] += 1
            state["momentum"].lerp_(gradient, 1 - MUON_MOMENTUM)
            update = orthogonalize(gradient.lerp(state["momentum"], MUON_MOMENTUM))
            scale = 0.2 * max(parameter.shape[-2:]) ** 0.5
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(update, alpha=group["lr"] * scale)
            parameter.grad = None


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Return about U V^T for each (..., M, N) matrix U S V^T, by five Newton-Schulz steps.

    The coefficients are Jordan's: singular values end between about 0.7 and 1.2. A GPU computes in
    bf16, as in his code, and a CPU in fp32.
    """
    precision = torch.bfloat16 if matrices.device.type == "cuda" else torch.float32
    x = matrices.to(precision)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)


class BertAdam(torch.optim.Optimizer):
    """BERT's AdamWeightDecayOptimizer.

    Adam without bias correction, with epsilon outside the root and the decay added to the update.
    Without the correction the first steps are up to 3 times as long, which harms fine-tuning on
    small data (Mosbach et al. 2021; Zhang et al. 2021).
    """

    def __init__(
        self, groups: list[ParamGroup], *, betas: tuple[float, ...], epsilon: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": epsilon, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(
                    parameter.grad, parameter.grad, value=1 - beta2
                )
                update = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
                update.add_(parameter, alpha=group["weight_decay"])
                parameter.sub_(update, alpha=group["lr"])


class AveragedSGD(torch.optim.Optimizer):
    """NT-ASGD: SGD that also averages its weights once triggered (Merity et al. 2018, section 3).

    As torch's ASGD with t0 = 0 and lambd = 0: the decay is added to the gradient, and the mean
    begins with the second step.
    """

    def __init__(self, groups: list[ParamGroup], trigger: NonMonotonicTrigger) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.trigger = trigger

    def update_trigger(self, losses: Sequence[float]) -> None:
        """Begin to average once these validation losses, one per check, meet the trigger."""
        if is_averaging(self) or not self.trigger.is_triggered(losses):
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                average = parameter.detach().clone()
                self.state[parameter] = {"step": torch.zeros(()), "average": average}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = parameter.grad.add(parameter, alpha=group["weight_decay"])
                parameter.sub_(update, alpha=group["lr"])
                state = self.state.get(parameter)
                if state:
                    state["step"] += 1
                    state["average"].lerp_(parameter, 1 / max(1.0, float(state["step"]) - 1))


def is_averaging(optimizer: torch.optim.Optimizer) -> bool:
    return any("average" in state for state in optimizer.state.values())


@torch.no_grad()
def swap_averaged_weights(optimizer: torch.optim.Optimizer) -> None:
    """Exchange the weights and their averages, if there are any; a second call undoes it."""
    for parameter, state in optimizer.state.items():
        if "average" in state:
            weights = parameter.clone()
            parameter.copy_(state["average"])
            state["average"].copy_(weights)


def build_pretraining_optimizer(
    model: Encoder, settings: PretrainSettings
) -> torch.optim.Optimizer:
    """Build the optimizer that a block `pretrain` requests.

    Muon updates the matrices of the body. AdaGrad (Duchi et al. 2011) is TensorFlow's: the sums of
    squares start at `initial_accumulator_value`, and no epsilon is added to their root. AWD-LSTM's
    own code decays biases too, so AveragedSGD has one group.
    """
    parameters = [*model.parameters()]
    if settings.nt_asgd:
        decay = settings.weight_decay
        group = {"params": parameters, "weight_decay": decay, "lr_scale": 1.0, "depth": 0}
        return AveragedSGD([group], settings.nt_asgd)
    groups = build_param_groups([parameters], weight_decay=settings.weight_decay)
    if isinstance(settings, BilmPretrainSettings) and settings.optimizer == "adagrad":
        initial = settings.initial_accumulator_value
        return Adagrad(groups, lr=0.0, initial_accumulator_value=initial, eps=0.0)
    if settings.optimizer == "muon":
        return _build_muon(model, settings)
    return build_adamw(
        groups,
        betas=settings.betas,
        epsilon=settings.epsilon,
        bias_correction=settings.bias_correction,
    )


def _build_muon(model: Encoder, settings: PretrainSettings) -> Muon:
    body = {*model.modules_by_role()["body"].parameters()}
    matrices = [p for p in model.parameters() if p in body and p.dim() > 1]
    others = [p for p in model.parameters() if p not in body or p.dim() <= 1]
    decay = settings.weight_decay
    groups = [
        *(
            group | {"orthogonalized": True}
            for group in build_param_groups([matrices], weight_decay=decay)
        ),
        *(
            group | {"orthogonalized": False}
            for group in build_param_groups([others], weight_decay=decay)
        ),
    ]
    beta1, beta2 = settings.betas
    return Muon(groups, lr=0.0, betas=(beta1, beta2), eps=settings.epsilon, fused=True)


def set_learning_rates(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_scale"]


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale all gradients together to a norm of at most `max_norm`; return the norm before.

    torch's own function does not support sparse gradients, so their rows stand in for them.
    """
    dense = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            dense.append(_sparse_gradient_rows(parameter))
        else:
            dense.append(parameter)
    return torch.nn.utils.clip_grad_norm_(dense, max_norm)


def _sparse_gradient_rows(parameter: nn.Parameter) -> torch.Tensor:
    """Coalesce a sparse gradient; return a tensor whose gradient shares memory with its rows."""
    assert parameter.grad is not None
    parameter.grad = parameter.grad.coalesce()
    rows = parameter.grad.values().detach()
    rows.grad = parameter.grad.values()
    return rows


def densify_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Make sparse gradients dense, except for AdaGrad without decay.

    Only AdaGrad without decay leaves a weight as it is where the gradient is zero.
    """
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.Adagrad) and not group["weight_decay"]:
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
