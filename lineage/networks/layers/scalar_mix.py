"""The scalar mix: a weighted sum of a model's layers that the task learns.

Peters et al. 2018, section 3.2, equation 1.
Shapes: L layers; any leading dimensions, then D units; K outputs of a linear probe.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l h_l; the weights w start at zero.

    The last `static_size` units of every layer are the word's vector of another model and are
    concatenated to the mix, as in [x_k; ELMo_k] (Peters et al. 2018, section 3.3).
    """

    def __init__(self, num_layers: int, *, gamma: bool = True, static_size: int = 0) -> None:
        super().__init__()
        self.static_size = static_size
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(())) if gamma else None

    def forward(self, layers: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
        """Mix L tensors (..., D)."""
        contextual_size = layers[0].shape[-1] - self.static_size
        static = layers[0][..., contextual_size:]
        if not isinstance(layers, torch.Tensor):
            layers = torch.stack(list(layers))
        mixed = torch.tensordot(self.shares(), layers[..., :contextual_size], 1)
        return torch.cat([mixed, static], -1) if self.static_size else mixed

    def shares(self) -> torch.Tensor:
        """Return (L,): the factor of each layer, with gamma."""
        shares = torch.softmax(self.weights, 0)
        return shares if self.gamma is None else self.gamma * shares

    def fold_into_linear(self, weight_DK: torch.Tensor) -> torch.Tensor:
        """Return the (L, D, K) weights that map all layers to the linear layer's output."""
        shares = self.shares()
        contextual_size = len(weight_DK) - self.static_size
        mixed_LDK = shares[:, None, None] * weight_DK[:contextual_size]
        static_LDK = F.pad(weight_DK[None, contextual_size:], (0, 0, 0, 0, 0, len(shares) - 1))
        return torch.cat([mixed_LDK, static_LDK], 1)

    def l2_penalty(self) -> torch.Tensor:
        """Return the sum of squared weights; penalizing it pulls the mix towards the mean."""
        return self.weights.square().sum()
