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

from lineage.batch import reversal, turned
from lineage.layers.awd import WeightDropLSTM
from lineage.layers.transformer import Stack, Transformer, TransformerConfig


@dataclass(frozen=True)
class ExtractorConfig(TransformerConfig):
    """The block `model` of a family whose extractor and direction are open. An LSTM has `cells`, and neither heads nor a feed-forward part."""

    extractor: Literal["transformer", "lstm"] = "transformer"
    direction: Literal["both_sides", "left_to_right", "joined"] = "both_sides"
    cells: int | None = None  # H of a layer, both directions of `both_sides` together

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells is not None and (self.cells <= 0 or self.cells % 2):
            raise ValueError(f"cells is {self.cells}; it is an even number, half of it for each direction of both_sides")
        other = "cells" if self.extractor == "transformer" else "feed_forward"
        if getattr(self, other) is not None:
            raise ValueError(f"{other} is {getattr(self, other)}, and nothing of an extractor {self.extractor} reads it; take it out")

    def candidates(self) -> Iterator[list[Any]]:
        """Configurations of growing width; an LSTM's first with as many cells as its width, then with some fewer or more."""
        if self.extractor == "transformer":
            yield from super().candidates()
            return
        widths = [self.width] if self.width else range(2 * self.heads, 4097, 2 * self.heads)
        for percent in (100, 95, 105, 90, 110, 85, 115, 80, 120, 75, 125):
            yield [replace(self, width=width, cells=self.cells or max(2, width * percent // 200 * 2)) for width in widths]

    @property
    def ways(self) -> int:
        """How many times the width a layer's output has."""
        return 2 if self.direction == "joined" else 1


def extractor(config: ExtractorConfig) -> "Transformer | LSTM | Joined":
    """The body that a configuration asks for: (B, T, D) and its mask -> a list of (B, T, D) a layer, or (B, T, 2 D) of two joined ones."""
    if config.direction == "joined":
        return Joined(*(extractor(replace(config, direction="left_to_right")) for _ in range(2)))
    both = config.direction == "both_sides"
    return LSTM(config, both_sides=both) if config.extractor == "lstm" else Transformer(config, causal=not both)


class LSTMBlock(nn.Module):
    """An LSTM, or one each way with their outputs joined, projected to D; with a residual and a normalisation after it, or before."""

    def __init__(self, config: TransformerConfig, *, cells: int, both_sides: bool) -> None:
        super().__init__()
        assert config.width is not None
        self.dropout, self.first = config.dropout, config.norm == "pre"
        self.ways = nn.ModuleList(WeightDropLSTM(config.width, cells // (1 + both_sides)) for _ in range(1 + both_sides))
        self.output = nn.Linear(cells, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def forward(self, x_BTD: torch.Tensor, turn_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)."""
        seen = self.norm(x_BTD) if self.first else x_BTD
        read = [self.read(0, seen)]
        if len(self.ways) == 2:
            read.append(turned(self.read(1, turned(seen, turn_BT)), turn_BT))
        x_BTD = x_BTD + F.dropout(self.output(torch.cat(read, -1)), self.dropout, self.training)
        return x_BTD if self.first else self.norm(x_BTD)

    def read(self, way: int, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, H of this direction), from a cold state."""
        layer = self.ways[way]
        assert isinstance(layer, WeightDropLSTM)
        return layer(x_BTD)[0]


class LSTM(Stack):
    """A stack of LSTM blocks, as `Transformer` is one of attention. From both sides every layer joins both directions (Senay and Salin 2020)."""

    def __init__(self, config: ExtractorConfig, *, both_sides: bool) -> None:
        cells = config.cells
        assert cells is not None, "cells are solved before a model is built"
        super().__init__(config, (LSTMBlock(config, cells=cells, both_sides=both_sides) for _ in range(config.layers)))

    def forward(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True) -> list[torch.Tensor]:
        """The L outputs, each (B, T, D); each item is turned round within its real part."""
        return self.run(x_BTD, reversal(mask_BT))


class Joined(nn.Module):
    """Two bodies, of which the second reads each item from its end; they share their input and nothing else (Peters et al. 2018, section 3.1)."""

    def __init__(self, ahead: nn.Module, back: nn.Module) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back

    def forward(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor, *, padded: bool = True) -> list[torch.Tensor]:
        """The L outputs, each (B, T, 2 D): what was read from the left, then from the right."""
        turn_BT = reversal(mask_BT)
        pairs = zip(self.ahead(x_BTD, mask_BT), self.back(turned(x_BTD, turn_BT), mask_BT), strict=True)
        return [torch.cat([one, turned(other, turn_BT)], -1) for one, other in pairs]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Each layer with both its directions."""
        return [[*one, *other] for one, other in zip(self.ahead.layer_groups(), self.back.layer_groups(), strict=True)]  # type: ignore[operator]


def initialise_lstms(module: nn.Module, generator: torch.Generator) -> None:
    """Uniform in one over the root of the units, as in AWD-LSTM; the forget gates open (bias 1), as in ELMo."""
    for layer in module.modules():
        if isinstance(layer, WeightDropLSTM):
            layer.initialise(generator)
            with torch.no_grad():
                for bias, value in ((layer.input_bias, 1.0), (layer.state_bias, 0.0)):
                    bias[layer.units : 2 * layer.units] = value
