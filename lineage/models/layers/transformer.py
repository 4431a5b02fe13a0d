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

from lineage.config.records import check_fraction, check_num_layers, check_positive

MAX_HIDDEN_SIZE = 4096  # that is tried


@dataclass(frozen=True)
class TransformerConfig:
    """The block `model` of a Transformer. `width` and `feed_forward` are solved from the budget where they are not given."""

    num_layers: int
    num_heads: int
    max_positions: int
    dropout: float
    activation: Literal["gelu", "gelu_tanh"]
    norm_first: bool  # after each part and its residual, or before each part
    layer_norm_eps: float
    init_std: float  # of the normal that weights start from; 0.02 at the papers' 768 units
    position_encoding: Literal["learned", "sinusoidal", "none"] = (
        "learned"  # `positions` is the longest text of all three
    )
    hidden_size: int | None = None
    ffn_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(
            self,
            "num_layers",
            "num_heads",
            "max_positions",
            "layer_norm_eps",
            "init_std",
            "hidden_size",
            "ffn_size",
        )
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")
        if self.hidden_size is None and 4 * self.num_heads > MAX_HIDDEN_SIZE:
            raise ValueError(
                f"heads is {self.num_heads}, and no width up to {MAX_HIDDEN_SIZE:,} gives each four units; lower it, or give the width"
            )
        if self.hidden_size is not None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"width {self.hidden_size} is not a multiple of heads {self.num_heads}"
            )

    def candidates(self) -> Iterator[list["TransformerConfig"]]:
        """Configurations of growing width, first with the papers' feed-forward of 4 D, then with its neighbours."""
        widths = (
            [self.hidden_size]
            if self.hidden_size
            else range(4 * self.num_heads, MAX_HIDDEN_SIZE + 1, 4 * self.num_heads)
        )
        for eighths in (32, 30, 34, 28, 36, 26, 38, 24, 40):
            yield [
                replace(self, hidden_size=width, ffn_size=self.ffn_size or width * eighths // 8)
                for width in widths
            ]


class PositionEmbedding(nn.Module):
    """Tells a model where in the text a vector stands: by a learned table, by sinusoids, which have no parameters, or not at all."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.encoding, width = config.position_encoding, config.hidden_size
        assert width is not None, "widths are solved before a model is built"
        if self.encoding == "learned":
            self.weight = nn.Parameter(torch.empty(config.max_positions, width))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D). Under sinusoids x is scaled by sqrt(D) (Vaswani et al. 2017, section 3.4), else waves of 1 would drown it."""
        if self.encoding == "none":
            return x_BTD
        T, D = x_BTD.shape[1:]
        return (
            x_BTD + self.weight[:T]
            if self.encoding == "learned"
            else x_BTD * D**0.5 + sinusoidal_positions(T, D, device=x_BTD.device)
        )


def sinusoidal_positions(T: int, D: int, *, device: torch.device) -> torch.Tensor:
    """(T, D): sines at even units and cosines at odd ones, of wavelengths from 2 pi to 10,000 x 2 pi (Vaswani et al. 2017, section 3.5)."""
    angles = torch.arange(T, device=device)[:, None] / 10_000 ** (
        torch.arange(0, D, 2, device=device) / D
    )
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :D]


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward, each with a residual and a normalisation after it, or before."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.ffn_size
        assert width is not None and inner is not None, "widths are solved before a model is built"
        self.num_heads, self.causal, self.dropout, self.activation = (
            config.num_heads,
            causal,
            config.dropout,
            config.activation,
        )
        self.norm_first = config.norm_first
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.ffn_in = nn.Linear(width, inner)
        self.ffn_out = nn.Linear(inner, width)
        self.ffn_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(
        self, x_BTD: torch.Tensor, attention_mask_B11T: torch.Tensor | None
    ) -> torch.Tensor:
        """(B, T, D) -> (B, T, D). `attend` is True where a position may be read; a causal block needs none, since padding stands last."""
        drop = self.dropout if self.training else 0.0
        read_BTD = F.dropout(
            self.self_attention(
                self.attention_norm(x_BTD) if self.norm_first else x_BTD, attention_mask_B11T, drop
            ),
            drop,
        )
        x_BTD = x_BTD + read_BTD if self.norm_first else self.attention_norm(x_BTD + read_BTD)
        inner = self.ffn_in(self.ffn_norm(x_BTD) if self.norm_first else x_BTD)
        inner = F.gelu(inner, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        x_BTD = x_BTD + F.dropout(self.ffn_out(inner), drop)
        return x_BTD if self.norm_first else self.ffn_norm(x_BTD)

    def self_attention(
        self, x_BTD: torch.Tensor, attention_mask_B11T: torch.Tensor | None, dropout_p: float
    ) -> torch.Tensor:
        """Self-attention: (B, T, D) -> (B, T, D)."""
        B, T, D = x_BTD.shape
        q, k, v = (
            self.qkv_proj(x_BTD)
            .view(B, T, 3, self.num_heads, D // self.num_heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        read = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if self.causal else attention_mask_B11T,
            dropout_p=dropout_p,
            is_causal=self.causal,
        )
        return self.out_proj(read.transpose(1, 2).reshape(B, T, D))


class LayerStack(nn.Module):
    """Blocks one above another; gives the output of each, the last one normalised where blocks normalise first."""

    def __init__(self, config: TransformerConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = (
            nn.LayerNorm(config.hidden_size or 0, eps=config.layer_norm_eps)
            if config.norm_first
            else nn.Identity()
        )

    def run_blocks(
        self, x_BTD: torch.Tensor, extra_input: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """The L outputs, each (B, T, D), of blocks that all get the same tensor beside x."""
        outputs = []
        for block in self.blocks:
            x_BTD = block(x_BTD, extra_input)
            outputs.append(x_BTD)
        return [*outputs[:-1], self.final_norm(outputs[-1])]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Each block's parameters, the last norm's with the last block's."""
        groups = [[*block.parameters()] for block in self.blocks]
        groups[-1] += [*self.final_norm.parameters()]
        return groups


class Transformer(LayerStack):
    """A stack of Transformer blocks."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__(
            config, (TransformerBlock(config, causal=causal) for _ in range(config.num_layers))
        )
        self.causal = causal

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True
    ) -> list[torch.Tensor]:
        """The L outputs, each (B, T, D). Where nothing is `padded` attention is faster."""
        return self.run_blocks(
            x_BTD, mask_BT[:, None, None, :] if padded and not self.causal else None
        )


def init_normal_weights(
    module: nn.Module, generator: torch.Generator, *, std: float, truncated: bool
) -> None:
    """N(0, deviation) weights (BERT: cut at two deviations), zero biases, unit norms: both papers' start."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.Embedding) or (
            isinstance(part, PositionEmbedding) and part.encoding == "learned"
        ):
            assert isinstance(part.weight, torch.Tensor)
            if truncated:
                nn.init.trunc_normal_(
                    part.weight, std=std, a=-2 * std, b=2 * std, generator=generator
                )
            else:
                nn.init.normal_(part.weight, std=std, generator=generator)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
