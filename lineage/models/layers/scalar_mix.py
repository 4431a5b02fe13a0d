"""The scalar mix: a weighted sum of a model's layers that the task learns (Peters et al. 2018, section 3.2, equation 1).

Shapes: L layers; any leading dimensions, then D; K outputs of a linear reader.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l h_l. `weights` are the w: zero at first, so that the mix begins as the mean of the layers.

    With `layer_norm` each layer is first brought to mean 0 and deviation 1, by *one* mean and variance over all its unmasked numbers in the batch,
    as in bilm-tf and AllenNLP: what stands at masked positions is then not zero.

    The last `static` numbers of every layer are none of its own, but a word's vector of another model, the same in all layers: it stands beside what
    is mixed, as it is, as in [x_k; ELMo_k] (Peters et al. 2018, section 3.3).
    """

    def __init__(
        self, num_layers: int, *, gamma: bool = True, layer_norm: bool = False, static_size: int = 0
    ) -> None:
        super().__init__()
        self.layer_norm, self.static_size = layer_norm, static_size
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(())) if gamma else None

    def forward(
        self, layers: Sequence[torch.Tensor], mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """L tensors (..., D) -> (..., D); `mask` (...) is True where a layer's numbers count for its norm."""
        own = layers[0].shape[-1] - self.static_size
        beside, layers = layers[0][..., own:], [x[..., :own] for x in layers]
        if self.layer_norm:
            layers = [_masked_layer_norm(x, mask) for x in layers]
        shares = torch.softmax(self.weights, 0)
        mixed = sum(share * x for share, x in zip(shares, layers, strict=True))
        assert isinstance(mixed, torch.Tensor)
        mixed = mixed if self.gamma is None else self.gamma * mixed
        return torch.cat([mixed, beside], -1) if self.static_size else mixed

    def fold_into_linear(self, weight_DK: torch.Tensor) -> torch.Tensor:
        """(L, D, K): the weights by which all layers' numbers together give what `weight_DK` makes of their mix; without `layer_norm` alone."""
        assert not self.layer_norm
        shares = torch.softmax(self.weights, 0)
        shares = shares if self.gamma is None else self.gamma * shares
        own = len(weight_DK) - self.static_size
        beside_LDK = F.pad(
            weight_DK[None, own:], (0, 0, 0, 0, 0, len(shares) - 1)
        )  # of the first layer alone
        return torch.cat([shares[:, None, None] * weight_DK[:own], beside_LDK], 1)

    def l2_penalty(self) -> torch.Tensor:
        """The sum of squares of the raw weights, to be added with the strength one likes: it pulls the mix towards the mean of the layers."""
        return self.weights.square().sum()


def _masked_layer_norm(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    where = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(-1).to(x.dtype)
    count = where.sum() * x.shape[-1]
    kept = x * where
    mean = kept.sum() / count
    variance = ((kept - mean) * where).square().sum() / count
    return (kept - mean) / torch.sqrt(variance + 1e-13)
