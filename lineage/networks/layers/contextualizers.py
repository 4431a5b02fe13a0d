"""The network between the embedding and the softmax: a Transformer or an LSTM.

It reads from left to right, in both directions at once, or once in each direction. Both networks
have residuals and norms at the same places, so that the six combinations can be compared.

Shapes: B items, T positions, D width, H units of an LSTM.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.batch import gather_positions, reversed_positions
from lineage.networks.layers.awd_lstm import WeightDropLSTM
from lineage.networks.layers.transformer import (
    MAX_HIDDEN_SIZE,
    LayerStack,
    Transformer,
    TransformerConfig,
)


@dataclass(frozen=True)
class ContextualizerConfig(TransformerConfig):
    """The block `architecture` of a family whose contextualizer and direction can be chosen.

    An LSTM has `lstm_hidden_size` and neither heads nor a feed-forward part.
    """

    contextualizer: Literal["transformer", "lstm"] = "transformer"
    direction: Literal["bidirectional", "left_to_right", "concatenated"] = "bidirectional"
    lstm_hidden_size: int | None = None  # H per layer; `bidirectional` splits it in two

    def __post_init__(self) -> None:
        super().__post_init__()
        units = self.lstm_hidden_size
        if units is not None and (units <= 0 or units % 2):
            raise ValueError(
                f"lstm_hidden_size is {units}; it must be an even number above zero, half of it "
                "for each direction of bidirectional"
            )
        if self.contextualizer == "transformer" and units is not None:
            raise ValueError(
                f"lstm_hidden_size is {units}, but a Transformer does not use it; remove it"
            )
        if self.contextualizer == "lstm" and self.ffn_size is not None:
            raise ValueError(f"ffn_size is {self.ffn_size}, but an LSTM does not use it; remove it")

    def candidates(self) -> Iterator[list["TransformerConfig"]]:
        """Yield lists of configs of growing width; an LSTM has about as many units as its width."""
        if self.contextualizer == "transformer":
            yield from super().candidates()
            return
        widths: Iterable[int] = range(2 * self.num_heads, MAX_HIDDEN_SIZE + 1, 2 * self.num_heads)
        if self.hidden_size:
            widths = [self.hidden_size]
        for percent in (100, 95, 105, 90, 110, 85, 115, 80, 120, 75, 125):
            candidates: list[TransformerConfig] = []
            for width in widths:
                units = self.lstm_hidden_size or max(2, width * percent // 200 * 2)
                candidates.append(replace(self, hidden_size=width, lstm_hidden_size=units))
            yield candidates

    @property
    def num_directions(self) -> int:
        """The size of a layer's output, in multiples of the width."""
        return 2 if self.direction == "concatenated" else 1


def build_contextualizer(config: ContextualizerConfig) -> "LayerStack | ConcatenatedDirections":
    """Build a network that maps (B, T, D) and a mask to one (B, T, D) or (B, T, 2 D) per layer."""
    if config.direction == "concatenated":
        one_direction = replace(config, direction="left_to_right")
        return ConcatenatedDirections(_build_stack(one_direction), _build_stack(one_direction))
    return _build_stack(config)


def _build_stack(config: ContextualizerConfig) -> LayerStack:
    bidirectional = config.direction == "bidirectional"
    if config.contextualizer == "lstm":
        return LSTMStack(config, bidirectional=bidirectional)
    return Transformer(config, causal=not bidirectional)


class LSTMBlock(nn.Module):
    """An LSTM, or one for each direction, projected to D."""

    def __init__(self, config: TransformerConfig, *, hidden_size: int, bidirectional: bool) -> None:
        super().__init__()
        assert config.hidden_size is not None
        num_lstms = 2 if bidirectional else 1
        self.dropout = config.dropout
        self.norm_first = config.norm_first
        self.lstms = nn.ModuleList(
            WeightDropLSTM(config.hidden_size, hidden_size // num_lstms) for _ in range(num_lstms)
        )
        self.out_proj = nn.Linear(hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x_BTD: torch.Tensor, reversed_BT: torch.Tensor) -> torch.Tensor:
        inputs_BTD = self.norm(x_BTD) if self.norm_first else x_BTD
        forward, _ = self.lstms[0](inputs_BTD)
        outputs = [forward]
        if len(self.lstms) == 2:
            backward, _ = self.lstms[1](gather_positions(inputs_BTD, reversed_BT))
            outputs.append(gather_positions(backward, reversed_BT))
        projected_BTD = self.out_proj(torch.cat(outputs, -1))
        x_BTD = x_BTD + F.dropout(projected_BTD, self.dropout, self.training)
        return x_BTD if self.norm_first else self.norm(x_BTD)


class LSTMStack(LayerStack):
    """A stack of LSTM blocks, the counterpart of `Transformer`."""

    def __init__(self, config: ContextualizerConfig, *, bidirectional: bool) -> None:
        units = config.lstm_hidden_size
        assert units is not None, "widths are solved before a model is built"
        blocks = (
            LSTMBlock(config, hidden_size=units, bidirectional=bidirectional)
            for _ in range(config.num_layers)
        )
        super().__init__(config, blocks)

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True
    ) -> list[torch.Tensor]:
        """Return the L outputs, each (B, T, D); each item is reversed within its real part."""
        return self.run_blocks(x_BTD, reversed_positions(mask_BT))


class ConcatenatedDirections(nn.Module):
    """Two networks of one input; the second reads from the end (Peters et al. 2018, 3.1)."""

    def __init__(self, forward_body: LayerStack, backward_body: LayerStack) -> None:
        super().__init__()
        self.forward_body = forward_body
        self.backward_body = backward_body

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True
    ) -> list[torch.Tensor]:
        """Return the L outputs, each (B, T, 2 D): forward, then backward."""
        reversed_BT = reversed_positions(mask_BT)
        forward_outputs = self.forward_body(x_BTD, mask_BT)
        backward_outputs = self.backward_body(gather_positions(x_BTD, reversed_BT), mask_BT)
        return [
            torch.cat([forward_BTD, gather_positions(backward_BTD, reversed_BT)], -1)
            for forward_BTD, backward_BTD in zip(forward_outputs, backward_outputs, strict=True)
        ]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        pairs = zip(
            self.forward_body.layer_groups(), self.backward_body.layer_groups(), strict=True
        )
        return [[*forward_group, *backward_group] for forward_group, backward_group in pairs]


def init_lstm_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Initialize LSTMs as AWD-LSTM does, with open forget gates (bias 1), as in ELMo."""
    for layer in module.modules():
        if isinstance(layer, WeightDropLSTM):
            layer.init_weights(generator)
            forget_gate = slice(layer.hidden_size, 2 * layer.hidden_size)
            with torch.no_grad():
                layer.bias_ih[forget_gate] = 1.0
                layer.bias_hh[forget_gate] = 0.0
