"""The cross-entropy of a softmax over a vocabulary on a CPU, in blocks of rows that stay in cache.

Shapes: N predicted positions, n rows of a block, V vocabulary, D width.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

LOGITS_PER_BLOCK = 2**23  # 32 MiB in fp32

SoftmaxInputs = tuple[  # vectors (N, D), weight (V, D), bias (V,)
    torch.Tensor, torch.Tensor, torch.Tensor | None
]


def blockwise_cross_entropy(inputs: SoftmaxInputs, targets_N: torch.Tensor) -> torch.Tensor:
    """Return the summed nats of the targets without ever holding all logits at once.

    Equal to F.cross_entropy(F.linear(*inputs), targets_N, reduction="sum"). Under autocast only the
    products have its dtype.
    """
    x_ND, weight_VD, bias_V = inputs
    device_type = x_ND.device.type
    matmul_dtype = x_ND.dtype
    if torch.is_autocast_enabled(device_type):
        matmul_dtype = torch.get_autocast_dtype(device_type)
    with torch.autocast(device_type, enabled=False):
        return _BlockwiseCrossEntropy.apply(
            x_ND, weight_VD, bias_V, targets_N, matmul_dtype, torch.is_grad_enabled()
        )


class _BlockwiseCrossEntropy(torch.autograd.Function):
    """Compute gradients in the forward, while a block's logits exist; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        matmul_dtype: torch.dtype,
        grad_enabled: bool,
    ) -> torch.Tensor:
        """Return the summed nats; `grad_enabled` is the caller's, since forward always has none."""
        N = len(x_ND)
        V = len(weight_VD)
        rows = max(1, min(N, LOGITS_PER_BLOCK // V))
        x = x_ND.to(matmul_dtype)
        weight = weight_VD.to(matmul_dtype)
        # The block of logits in the dtype of the products and in that of the weights.
        products = x.new_empty(rows, V)
        logits = products
        if matmul_dtype != weight_VD.dtype:
            logits = products.to(weight_VD.dtype)
        # needs_input_grad does not know about no_grad.
        needs_grad = grad_enabled and any(ctx.needs_input_grad[:3])
        grads: list[torch.Tensor | None] = []
        if needs_grad:
            d_bias = None if bias_V is None else torch.zeros_like(bias_V)
            grads = [torch.empty_like(x_ND), torch.zeros_like(weight_VD), d_bias]
        nats = weight_VD.new_zeros(())
        for first in range(0, N, rows):
            x_nD = x[first : first + rows]
            target_n1 = targets_N[first : first + rows, None]
            product = products[: len(x_nD)]
            block = logits[: len(x_nD)]
            torch.mm(x_nD, weight.T, out=product)
            if block is not product:
                block.copy_(product)
            if bias_V is not None:
                block.add_(bias_V)
            highest = block.amax(1, keepdim=True)
            true_logit = block.gather(1, target_n1) - highest
            total = block.sub_(highest).exp_().sum(1, keepdim=True)
            nats += (total.log() - true_logit).sum()
            if needs_grad:
                minus_one = block.new_full(target_n1.shape, -1.0)
                block.div_(total).scatter_add_(1, target_n1, minus_one)
                if block is not product:
                    product.copy_(block)
                _accumulate_gradients(grads, x_nD, weight, product, block, first)
        ctx.grads = grads
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_nats: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients in place and hand them out, once."""
        grads = ctx.grads
        ctx.grads = None
        assert grads is not None, "the gradients were given out, scaled in place"
        scaled = [None if grad is None else grad.mul_(d_nats) for grad in grads]
        return (*scaled, None, None, None)


def _accumulate_gradients(
    grads: list[torch.Tensor | None],
    x_nD: torch.Tensor,
    weight_VD: torch.Tensor,
    d_logits: torch.Tensor,
    exact_d_logits: torch.Tensor,
    first_row: int,
) -> None:
    """Add a block's gradients; `exact_d_logits` is d_logits before rounding for the products."""
    d_x, d_weight, d_bias = grads
    assert d_x is not None and d_weight is not None
    d_x[first_row : first_row + len(x_nD)] = torch.mm(d_logits, weight_VD)
    if d_weight.dtype == d_logits.dtype:
        torch.addmm(d_weight, d_logits.T, x_nD, out=d_weight)
    else:
        d_weight += torch.mm(d_logits.T, x_nD)
    if d_bias is not None:
        d_bias += exact_d_logits.sum(0)
