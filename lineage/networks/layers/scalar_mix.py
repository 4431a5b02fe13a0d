"""The scalar mix: a weighted sum of a model's layers that the task learns.

Peters et al. 2018, section 3.2, equation 1.
Shapes: L layers; any leading dimensions, then D units; K outputs of a linear probe.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l h_l; the weights w start at zero.

    With `layer_norm` each layer is first normalized by one mean and one variance over its unmasked
    values, as in bilm-tf and AllenNLP. The last `static_size` units of every layer are the word's
    vector of another model and are concatenated to the mix, as in [x_k; ELMo_k] (Peters et al.
    2018, section 3.3).
    """

    def __init__(
        self, num_layers: int, *, gamma: bool = True, layer_norm: bool = False, static_size: int = 0
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.static_size = static_size
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(())) if gamma else None

    def forward(
        self, layers: torch.Tensor | Sequence[torch.Tensor], mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mix L tensors (..., D); `mask` (...) is True at values that count for the norm."""
        contextual_size = layers[0].shape[-1] - self.static_size
        static = layers[0][..., contextual_size:]
        if self.layer_norm or not isinstance(layers, torch.Tensor):
            norm = partial(_masked_layer_norm, mask=mask) if self.layer_norm else nn.Identity()
            layers = torch.stack([norm(layer[..., :contextual_size]) for layer in layers])
        mixed = torch.tensordot(self.shares(), layers[..., :contextual_size], 1)
        return torch.cat([mixed, static], -1) if self.static_size else mixed

    def shares(self) -> torch.Tensor:
        """Return (L,): the factor of each layer, with gamma."""
        shares = torch.softmax(self.weights, 0)
        return shares if self.gamma is None else self.gamma * shares

    def fold_into_linear(self, weight_DK: torch.Tensor) -> torch.Tensor:
        """Return the (L, D, K) weights that map all layers to the linear layer's output."""
        assert not self.layer_norm
        shares = self.shares()
        contextual_size = len(weight_DK) - self.static_size
        mixed_LDK = shares[:, None, None] * weight_DK[:contextual_size]
        static_LDK = F.pad(weight_DK[None, contextual_size:], (0, 0, 0, 0, 0, len(shares) - 1))
        return torch.cat([mixed_LDK, static_LDK], 1)

    def l2_penalty(self) -> torch.Tensor:
        """Return the sum of squared weights; penalizing it pulls the mix towards the mean."""
        return self.weights.square().sum()


def _masked_layer_norm(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    keep = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(-1).to(x.dtype)
    count = keep.sum() * x.shape[-1]
    kept = x * keep
    mean = kept.sum() / count
    variance = ((kept - mean) * keep).square().sum() / count
    return (kept - mean) / torch.sqrt(variance + 1e-13)
