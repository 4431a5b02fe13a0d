"""The Transformer block that GPT and BERT share; one flag, `causal`, separates them.

Post-norm, as in both papers (Vaswani et al. 2017, section 3; Radford et al. 2018, section 4.1; Devlin et al. 2019, section 3), or pre-norm with a
norm after the last block, as in GPT-2 (Radford et al. 2019, section 2.3). Positions are learned, as in both papers, sinusoidal, or not told apart.
Shapes: B items, T positions, D width, H heads, F feed-forward width.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.records import few, positive, share

WIDEST = 4096  # that is tried


@dataclass(frozen=True)
class TransformerConfig:
    """The block `model` of a Transformer. `width` and `feed_forward` are solved from the budget where they are not given."""

    layers: int
    heads: int
    positions: int
    dropout: float
    activation: Literal["gelu", "gelu_tanh"]
    norm: Literal["post", "pre"]  # after each part and its residual, or before each part
    norm_epsilon: float
    initial_deviation: float  # of the normal that weights start from; 0.02 at the papers' 768 units
    position_encoding: Literal["learned", "sinusoidal", "none"] = "learned"  # `positions` is the longest text of all three
    width: int | None = None
    feed_forward: int | None = None

    def __post_init__(self) -> None:
        positive(self, "layers", "heads", "positions", "norm_epsilon", "initial_deviation", "width", "feed_forward")
        few(self, "layers")
        share(self, "dropout")
        if self.width is None and 4 * self.heads > WIDEST:
            raise ValueError(f"heads is {self.heads}, and no width up to {WIDEST:,} gives each four units; lower it, or give the width")
        if self.width is not None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")

    def candidates(self) -> Iterator[list["TransformerConfig"]]:
        """Configurations of growing width, first with the papers' feed-forward of 4 D, then with its neighbours."""
        widths = [self.width] if self.width else range(4 * self.heads, WIDEST + 1, 4 * self.heads)
        for eighths in (32, 30, 34, 28, 36, 26, 38, 24, 40):
            yield [replace(self, width=width, feed_forward=self.feed_forward or width * eighths // 8) for width in widths]


class Positions(nn.Module):
    """Tells a model where in the text a vector stands: by a learned table, by sinusoids, which have no parameters, or not at all."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind, width = config.position_encoding, config.width
        assert width is not None, "widths are solved before a model is built"
        if self.kind == "learned":
            self.weight = nn.Parameter(torch.empty(config.positions, width))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D). Under sinusoids x is scaled by sqrt(D) (Vaswani et al. 2017, section 3.4), else waves of 1 would drown it."""
        if self.kind == "none":
            return x_BTD
        T, D = x_BTD.shape[1:]
        return x_BTD + self.weight[:T] if self.kind == "learned" else x_BTD * D**0.5 + sinusoids(T, D, device=x_BTD.device)


def sinusoids(T: int, D: int, *, device: torch.device) -> torch.Tensor:
    """(T, D): sines at even units and cosines at odd ones, of wavelengths from 2 pi to 10,000 x 2 pi (Vaswani et al. 2017, section 3.5)."""
    angles = torch.arange(T, device=device)[:, None] / 10_000 ** (torch.arange(0, D, 2, device=device) / D)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :D]


class Block(nn.Module):
    """Self-attention and feed-forward, each with a residual and a normalisation after it, or before."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        width, inner = config.width, config.feed_forward
        assert width is not None and inner is not None, "widths are solved before a model is built"
        self.heads, self.causal, self.dropout, self.activation = config.heads, causal, config.dropout, config.activation
        self.first = config.norm == "pre"
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=config.norm_epsilon)

    def forward(self, x_BTD: torch.Tensor, attend_B11T: torch.Tensor | None) -> torch.Tensor:
        """(B, T, D) -> (B, T, D). `attend` is True where a position may be read; a causal block needs none, since padding stands last."""
        drop = self.dropout if self.training else 0.0
        read_BTD = F.dropout(self.read(self.attention_norm(x_BTD) if self.first else x_BTD, attend_B11T, drop), drop)
        x_BTD = x_BTD + read_BTD if self.first else self.attention_norm(x_BTD + read_BTD)
        inner = self.expand(self.feed_forward_norm(x_BTD) if self.first else x_BTD)
        inner = F.gelu(inner, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        x_BTD = x_BTD + F.dropout(self.contract(inner), drop)
        return x_BTD if self.first else self.feed_forward_norm(x_BTD)

    def read(self, x_BTD: torch.Tensor, attend_B11T: torch.Tensor | None, drop: float) -> torch.Tensor:
        """Self-attention: (B, T, D) -> (B, T, D)."""
        B, T, D = x_BTD.shape
        q, k, v = self.query_key_value(x_BTD).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=None if self.causal else attend_B11T, dropout_p=drop, is_causal=self.causal)
        return self.output(read.transpose(1, 2).reshape(B, T, D))


class Stack(nn.Module):
    """Blocks one above another; gives the output of each, the last one normalised where blocks normalise first."""

    def __init__(self, config: TransformerConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.last_norm = nn.LayerNorm(config.width or 0, eps=config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def run(self, x_BTD: torch.Tensor, beside: torch.Tensor | None) -> list[torch.Tensor]:
        """The L outputs, each (B, T, D), of blocks that all get the same tensor beside x."""
        outputs = []
        for block in self.blocks:
            x_BTD = block(x_BTD, beside)
            outputs.append(x_BTD)
        return [*outputs[:-1], self.last_norm(outputs[-1])]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Each block's parameters, the last norm's with the last block's."""
        groups = [[*block.parameters()] for block in self.blocks]
        groups[-1] += [*self.last_norm.parameters()]
        return groups


class Transformer(Stack):
    """A stack of Transformer blocks."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__(config, (Block(config, causal=causal) for _ in range(config.layers)))
        self.causal = causal

    def forward(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True) -> list[torch.Tensor]:
        """The L outputs, each (B, T, D). Where nothing is `padded` attention is faster."""
        return self.run(x_BTD, mask_BT[:, None, None, :] if padded and not self.causal else None)


def initialise_normal(module: nn.Module, generator: torch.Generator, *, deviation: float, truncated: bool) -> None:
    """N(0, deviation) weights (BERT: cut at two deviations), zero biases, unit norms: both papers' start."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.Embedding) or (isinstance(part, Positions) and part.kind == "learned"):
            assert isinstance(part.weight, torch.Tensor)
            if truncated:
                nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
            else:
                nn.init.normal_(part.weight, std=deviation, generator=generator)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
