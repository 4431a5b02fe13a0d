"""The softmax over a vocabulary on a CPU, where it is the dearest part of a language model: in blocks of rows that stay near the processor.

Shapes: N predicted positions, n of a block, V vocabulary, D width.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

LOGITS_PER_BLOCK = 2**23  # of a block: 32 MiB in fp32


SoftmaxInputs = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor | None
]  # what a softmax reads: vectors (N, D), weight (V, D), bias (V,)


def blockwise_cross_entropy(inputs: SoftmaxInputs, targets_N: torch.Tensor) -> torch.Tensor:
    """Summed nats of the targets: F.cross_entropy(F.linear(*read_out), targets, reduction="sum"), without ever holding all logits at once.

    Under autocast products are taken in its type, and what lies between them in fp32.
    """
    x_ND, weight_VD, bias_V = inputs
    kind = x_ND.device.type
    matmul_dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_ND.dtype
    with torch.autocast(kind, enabled=False):
        return _BlockwiseCrossEntropy.apply(
            x_ND, weight_VD, bias_V, targets_N, matmul_dtype, torch.is_grad_enabled()
        )


class _BlockwiseCrossEntropy(torch.autograd.Function):
    """Gradients are taken in the forward, block by block while its logits are at hand, and only scaled in the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        matmul_dtype: torch.dtype,
        needs_grad: bool,
    ) -> torch.Tensor:
        (N, _), V = x_ND.shape, len(weight_VD)
        rows = max(1, min(N, LOGITS_PER_BLOCK // V))
        x, weight, exact = x_ND.to(matmul_dtype), weight_VD.to(matmul_dtype), weight_VD.dtype
        low = x.new_empty(
            rows, V
        )  # the block in the type of the products, and in that of the weights
        high = low if matmul_dtype == exact else low.to(exact)
        needs_grad = needs_grad and any(
            ctx.needs_input_grad[:3]
        )  # which says nothing of no_grad, and within a forward it is always that
        grads = (
            [
                torch.empty_like(x_ND),
                torch.zeros_like(weight_VD),
                None if bias_V is None else torch.zeros_like(bias_V),
            ]
            if needs_grad
            else []
        )
        nats = weight_VD.new_zeros(())
        for first in range(0, N, rows):
            some, gold_n1 = x[first : first + rows], targets_N[first : first + rows, None]
            product, block = low[: len(some)], high[: len(some)]
            torch.mm(some, weight.T, out=product)
            if block is not product:
                block.copy_(product)
            if bias_V is not None:
                block.add_(bias_V)
            highest = block.amax(1, keepdim=True)
            truth = block.gather(1, gold_n1) - highest
            total = block.sub_(highest).exp_().sum(1, keepdim=True)
            nats += (total.log() - truth).sum()
            if needs_grad:
                block.div_(total).scatter_add_(1, gold_n1, block.new_full(gold_n1.shape, -1.0))
                if block is not product:
                    product.copy_(block)
                _accumulate_gradients(grads, some, weight, product, block, first)
        ctx.grads = grads
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_nats: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads, ctx.grads = ctx.grads, None
        assert grads is not None, "the gradients were given out, scaled in place"
        return (*(None if grad is None else grad.mul_(d_nats) for grad in grads), None, None, None)


def _accumulate_gradients(
    grads: list[torch.Tensor | None],
    x_nD: torch.Tensor,
    weight_VD: torch.Tensor,
    d_logits: torch.Tensor,
    exact_d_logits: torch.Tensor,
    first_row: int,
) -> None:
    """A block's share of the gradients; `exact` is d_logits before it was rounded for the products."""
    d_x, d_weight, d_bias = grads
    assert d_x is not None and d_weight is not None
    d_x[first_row : first_row + len(x_nD)] = torch.mm(d_logits, weight_VD)
    if d_weight.dtype == d_logits.dtype:
        torch.addmm(d_weight, d_logits.T, x_nD, out=d_weight)
    else:
        d_weight += torch.mm(d_logits.T, x_nD)
    if d_bias is not None:
        d_bias += exact_d_logits.sum(0)
