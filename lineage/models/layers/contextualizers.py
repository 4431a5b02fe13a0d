"""What reads the text between the embedding and the softmax: a Transformer or an LSTM, from the left, from both sides at once, or once each way.

Two switches with three and two values, so that the six can be compared with all else equal. Both kinds have residuals and norms at the same places.
Shapes: B items, T positions, D width, H units of an LSTM.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.models.batch import gather_positions, reversed_positions
from lineage.models.layers.awd_lstm import WeightDropLSTM
from lineage.models.layers.transformer import LayerStack, Transformer, TransformerConfig


@dataclass(frozen=True)
class ContextualizerConfig(TransformerConfig):
    """The block `model` of a family whose extractor and direction are open. An LSTM has `cells`, and neither heads nor a feed-forward part."""

    contextualizer: Literal["transformer", "lstm"] = "transformer"
    direction: Literal["bidirectional", "left_to_right", "concatenated"] = "bidirectional"
    lstm_hidden_size: int | None = None  # H of a layer, both directions of `both_sides` together

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lstm_hidden_size is not None and (
            self.lstm_hidden_size <= 0 or self.lstm_hidden_size % 2
        ):
            raise ValueError(
                f"cells is {self.lstm_hidden_size}; it is an even number, half of it for each direction of both_sides"
            )
        other = "lstm_hidden_size" if self.contextualizer == "transformer" else "ffn_size"
        if getattr(self, other) is not None:
            raise ValueError(
                f"{other} is {getattr(self, other)}, and nothing of an extractor {self.contextualizer} reads it; take it out"
            )

    def candidates(self) -> Iterator[list[Any]]:
        """Configurations of growing width; an LSTM's first with as many cells as its width, then with some fewer or more."""
        if self.contextualizer == "transformer":
            yield from super().candidates()
            return
        widths = (
            [self.hidden_size]
            if self.hidden_size
            else range(2 * self.num_heads, 4097, 2 * self.num_heads)
        )
        for percent in (100, 95, 105, 90, 110, 85, 115, 80, 120, 75, 125):
            yield [
                replace(
                    self,
                    hidden_size=width,
                    lstm_hidden_size=self.lstm_hidden_size or max(2, width * percent // 200 * 2),
                )
                for width in widths
            ]

    @property
    def num_directions(self) -> int:
        """How many times the width a layer's output has."""
        return 2 if self.direction == "concatenated" else 1


def build_contextualizer(
    config: ContextualizerConfig,
) -> "Transformer | LSTMStack | ConcatenatedDirections":
    """The body that a configuration asks for: (B, T, D) and its mask -> a list of (B, T, D) a layer, or (B, T, 2 D) of two joined ones."""
    if config.direction == "concatenated":
        return ConcatenatedDirections(
            *(build_contextualizer(replace(config, direction="left_to_right")) for _ in range(2))
        )
    both = config.direction == "bidirectional"
    return (
        LSTMStack(config, bidirectional=both)
        if config.contextualizer == "lstm"
        else Transformer(config, causal=not both)
    )


class LSTMBlock(nn.Module):
    """An LSTM, or one each way with their outputs joined, projected to D; with a residual and a normalisation after it, or before."""

    def __init__(self, config: TransformerConfig, *, hidden_size: int, bidirectional: bool) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.dropout, self.norm_first = config.dropout, config.norm_first
        self.lstms = nn.ModuleList(
            WeightDropLSTM(config.hidden_size, hidden_size // (1 + bidirectional))
            for _ in range(1 + bidirectional)
        )
        self.out_proj = nn.Linear(hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x_BTD: torch.Tensor, reversed_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)."""
        seen = self.norm(x_BTD) if self.norm_first else x_BTD
        read = [self.run_direction(0, seen)]
        if len(self.lstms) == 2:
            read.append(
                gather_positions(
                    self.run_direction(1, gather_positions(seen, reversed_BT)), reversed_BT
                )
            )
        x_BTD = x_BTD + F.dropout(self.out_proj(torch.cat(read, -1)), self.dropout, self.training)
        return x_BTD if self.norm_first else self.norm(x_BTD)

    def run_direction(self, direction: int, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, H of this direction), from a cold state."""
        layer = self.lstms[direction]
        assert isinstance(layer, WeightDropLSTM)
        return layer(x_BTD)[0]


class LSTMStack(LayerStack):
    """A stack of LSTM blocks, as `Transformer` is one of attention. From both sides every layer joins both directions (Senay and Salin 2020)."""

    def __init__(self, config: ContextualizerConfig, *, bidirectional: bool) -> None:
        cells = config.lstm_hidden_size
        assert cells is not None, "cells are solved before a model is built"
        super().__init__(
            config,
            (
                LSTMBlock(config, hidden_size=cells, bidirectional=bidirectional)
                for _ in range(config.num_layers)
            ),
        )

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True
    ) -> list[torch.Tensor]:
        """The L outputs, each (B, T, D); each item is turned round within its real part."""
        return self.run_blocks(x_BTD, reversed_positions(mask_BT))


class ConcatenatedDirections(nn.Module):
    """Two bodies, of which the second reads each item from its end; they share their input and nothing else (Peters et al. 2018, section 3.1)."""

    def __init__(self, forward_body: nn.Module, backward_body: nn.Module) -> None:
        super().__init__()
        self.forward_body, self.backward_body = forward_body, backward_body

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True
    ) -> list[torch.Tensor]:
        """The L outputs, each (B, T, 2 D): what was read from the left, then from the right."""
        turn_BT = reversed_positions(mask_BT)
        pairs = zip(
            self.forward_body(x_BTD, mask_BT),
            self.backward_body(gather_positions(x_BTD, turn_BT), mask_BT),
            strict=True,
        )
        return [torch.cat([one, gather_positions(other, turn_BT)], -1) for one, other in pairs]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Each layer with both its directions."""
        return [
            [*one, *other]
            for one, other in zip(
                self.forward_body.layer_groups(), self.backward_body.layer_groups(), strict=True
            )
        ]


def init_lstm_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Uniform in one over the root of the units, as in AWD-LSTM; the forget gates open (bias 1), as in ELMo."""
    for layer in module.modules():
        if isinstance(layer, WeightDropLSTM):
            layer.init_weights(generator)
            with torch.no_grad():
                for bias, value in ((layer.bias_ih, 1.0), (layer.bias_hh, 0.0)):
                    bias[layer.hidden_size : 2 * layer.hidden_size] = value
