"""The Transformer block that GPT and BERT share; the flag `causal` distinguishes them.

Post-norm (Vaswani et al. 2017, section 3; Radford et al. 2018, section 4.1; Devlin et al. 2019,
section 3), or pre-norm with a norm after the last block (GPT-2: Radford et al. 2019, section 2.3).
Positions are learned, as in the papers, sinusoidal, or absent.

Shapes: B items, T positions, D width.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_num_layers, check_positive

MAX_HIDDEN_SIZE = 4096  # the largest width tried to match a parameter budget
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}  # activation -> torch's `approximate`


@dataclass(frozen=True)
class TransformerConfig:
    """The block `architecture` of a Transformer.

    `hidden_size` and `ffn_size` follow from the parameter budget if they are not given.
    """

    num_layers: int
    num_heads: int
    max_positions: int
    dropout: float
    activation: Literal["gelu", "gelu_tanh"]
    norm_first: bool  # normalize before each part (GPT-2), or after each part and its residual
    layer_norm_eps: float
    init_std: float  # standard deviation of the initial weights; 0.02 at the papers' 768 units
    # `max_positions` is the longest text for all three encodings.
    position_encoding: Literal["learned", "sinusoidal", "none"] = "learned"
    hidden_size: int | None = None
    ffn_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "num_heads", "max_positions", "layer_norm_eps")
        check_positive(self, "init_std", "hidden_size", "ffn_size")
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")
        if self.hidden_size is None and 4 * self.num_heads > MAX_HIDDEN_SIZE:
            raise ValueError(
                f"num_heads is {self.num_heads}, and no hidden_size up to {MAX_HIDDEN_SIZE:,} "
                "gives each head four units; lower it, or set hidden_size"
            )
        if self.hidden_size is not None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )

    def candidates(self) -> Iterator[list["TransformerConfig"]]:
        """Yield lists of configs of growing width, the first with the papers' ffn_size of 4 D."""
        widths: Iterable[int] = range(4 * self.num_heads, MAX_HIDDEN_SIZE + 1, 4 * self.num_heads)
        if self.hidden_size:
            widths = [self.hidden_size]
        for eighths in (32, 30, 34, 28, 36, 26, 38, 24, 40):
            yield [
                replace(self, hidden_size=width, ffn_size=self.ffn_size or width * eighths // 8)
                for width in widths
            ]


class PositionEmbedding(nn.Module):
    """Add positions to vectors: a learned table, sinusoids without parameters, or nothing."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        assert config.hidden_size is not None, "widths are solved before a model is built"
        self.encoding = config.position_encoding
        if self.encoding == "learned":
            self.weight = nn.Parameter(torch.empty(config.max_positions, config.hidden_size))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D) to (B, T, D).

        Sinusoids are added to x times sqrt(D), which they would else dominate (Vaswani et al. 2017,
        3.4).
        """
        if self.encoding == "none":
            return x_BTD
        T, D = x_BTD.shape[1:]
        if self.encoding == "learned":
            return x_BTD + self.weight[:T]
        return x_BTD * D**0.5 + sinusoidal_positions(T, D, device=x_BTD.device)


def sinusoidal_positions(T: int, D: int, *, device: torch.device) -> torch.Tensor:
    """Return (T, D) sines at even units, cosines at odd ones (Vaswani et al. 2017, section 3.5)."""
    frequencies = 10_000 ** (torch.arange(0, D, 2, device=device) / D)
    angles = torch.arange(T, device=device)[:, None] / frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :D]


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward, each with a residual and a norm after it, or before it."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        width = config.hidden_size
        ffn_size = config.ffn_size
        assert width is not None and ffn_size is not None, (
            "widths are solved before a model is built"
        )
        self.num_heads = config.num_heads
        self.causal = causal
        self.dropout = config.dropout
        self.gelu_approximation = GELU_APPROXIMATIONS[config.activation]
        self.norm_first = config.norm_first
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.ffn_in = nn.Linear(width, ffn_size)
        self.ffn_out = nn.Linear(ffn_size, width)
        self.ffn_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(
        self, x_BTD: torch.Tensor, attention_mask_B11T: torch.Tensor | None
    ) -> torch.Tensor:
        """Map (B, T, D) to (B, T, D); a causal block needs no mask, since padding is at the end."""
        if self.norm_first:
            x_BTD = x_BTD + self.self_attention(self.attention_norm(x_BTD), attention_mask_B11T)
            return x_BTD + self.feed_forward(self.ffn_norm(x_BTD))
        x_BTD = self.attention_norm(x_BTD + self.self_attention(x_BTD, attention_mask_B11T))
        return self.ffn_norm(x_BTD + self.feed_forward(x_BTD))

    def self_attention(
        self, x_BTD: torch.Tensor, attention_mask_B11T: torch.Tensor | None
    ) -> torch.Tensor:
        B, T, D = x_BTD.shape
        qkv = self.qkv_proj(x_BTD).view(B, T, 3, self.num_heads, D // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if self.causal else attention_mask_B11T,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        attended_BTD = attended.transpose(1, 2).reshape(B, T, D)
        return F.dropout(self.out_proj(attended_BTD), self.dropout, self.training)

    def feed_forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.ffn_in(x_BTD), approximate=self.gelu_approximation)
        return F.dropout(self.ffn_out(hidden), self.dropout, self.training)


class LayerStack(nn.Module):
    """A stack of blocks that returns each block's output, the last normalized with `norm_first`."""

    def __init__(self, config: TransformerConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.final_norm: nn.Module = nn.Identity()
        if config.norm_first:
            assert config.hidden_size is not None
            self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def run_blocks(
        self, x_BTD: torch.Tensor, extra_input: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """Return the L outputs, each (B, T, D); every block also receives `extra_input`."""
        outputs = []
        for block in self.blocks:
            x_BTD = block(x_BTD, extra_input)
            outputs.append(x_BTD)
        return [*outputs[:-1], self.final_norm(outputs[-1])]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return each block's parameters; the final norm belongs to the last block."""
        groups = [[*block.parameters()] for block in self.blocks]
        groups[-1] += [*self.final_norm.parameters()]
        return groups


class Transformer(LayerStack):
    """A stack of Transformer blocks."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        blocks = (TransformerBlock(config, causal=causal) for _ in range(config.num_layers))
        super().__init__(config, blocks)
        self.causal = causal

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True
    ) -> list[torch.Tensor]:
        """Return the L outputs, each (B, T, D). Attention is faster if nothing is `padded`."""
        attention_mask_B11T = None
        if padded and not self.causal:
            attention_mask_B11T = mask_BT[:, None, None, :]
        return self.run_blocks(x_BTD, attention_mask_B11T)


def init_normal_weights(
    module: nn.Module, generator: torch.Generator, *, std: float, truncated: bool
) -> None:
    """Initialize as both papers do: N(0, std) weights (BERT: truncated), zero biases, unit norm."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
            continue
        # Positions that are not learned have no weight.
        weight = getattr(part, "weight", None)
        if isinstance(part, nn.Linear | nn.Embedding | PositionEmbedding) and weight is not None:
            if truncated:
                nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            else:
                nn.init.normal_(weight, std=std, generator=generator)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
