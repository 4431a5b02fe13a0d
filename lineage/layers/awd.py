"""AWD-LSTM: LSTMs under five kinds of dropout (Merity et al. 2018, "Regularizing and Optimizing LSTM Language Models", section 4).

Shapes: B items, T positions, V vocabulary, E embedding, H units, I inputs of a layer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

State = tuple[tuple[torch.Tensor, torch.Tensor], ...]  # for each layer output and cell, both (1, B, H)


@dataclass(frozen=True)
class Dropouts:
    """Shares that are left out in training, each where its name says."""

    embedding: float  # whole words of the table, in a window
    input: float  # units of the embedded words, the same at all positions of an item
    weight: float  # of the recurrent matrices, the same at all positions and items
    hidden: float  # units between layers, the same at all positions of an item
    output: float  # units before the softmax, the same at all positions of an item

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 1:
                raise ValueError(f"{name} is {value}; it is a share, from 0 to below 1")


def keep(shape: Sequence[int], share: float, like: torch.Tensor) -> torch.Tensor:
    """Ones where something is kept, zeros elsewhere."""
    return like.new_empty(shape).bernoulli_(1 - share)


def locked(x: torch.Tensor, shape: Sequence[int], share: float) -> torch.Tensor:
    """x with one mask of `shape` over all that it broadcasts to, what is kept scaled up."""
    return x * (keep(shape, share, x) / (1 - share)) if share else x


class WeightDropLSTM(nn.Module):
    """One LSTM layer on torch's fused kernel, whose recurrent matrix is dropped anew in each forward (DropConnect, section 3)."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.input_weight, self.state_weight = nn.Parameter(torch.empty(4 * units, inputs)), nn.Parameter(torch.empty(4 * units, units))
        self.input_bias, self.state_bias = nn.Parameter(torch.empty(4 * units)), nn.Parameter(torch.empty(4 * units))

    def forward(
        self, x_BTI: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None, *, drop: float = 0.0
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """(B, T, I) -> (B, T, H), and the state after the last position; the first is zero unless given. `drop` is zero outside of training."""
        if state is None:
            cold = self.state_weight.new_zeros(1, len(x_BTI), self.units)
            state = cold, cold
        dropped = locked(self.state_weight, self.state_weight.shape, drop)
        weights = [self.input_weight, dropped, self.input_bias, self.state_bias]
        with torch.autocast(x_BTI.device.type, enabled=False):  # which on a GPU would run the layer in fp16, whatever was asked for
            output, last, cell = torch.lstm(x_BTI.to(dropped.dtype), state, weights, True, 1, 0.0, self.training, False, True)
        return output, (last, cell)

    def initialise(self, generator: torch.Generator) -> None:
        """Uniform in one over the root of the units, as torch starts an LSTM."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.units**-0.5), self.units**-0.5, generator=generator)


class AwdLSTM(nn.Module):
    """A table of words and LSTM layers E -> H ... H -> E; the last has E units, so that the table can be the softmax."""

    def __init__(self, *, vocabulary: int, width: int, hidden: int, layers: int, dropouts: Dropouts) -> None:
        super().__init__()
        self.dropouts = dropouts
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        self.sizes = (width, *[hidden] * (layers - 1), width)
        self.layers = nn.ModuleList(WeightDropLSTM(inputs, units) for inputs, units in itertools.pairwise(self.sizes))

    def cold(self, rows: int) -> State:
        """The state before any text: zeros."""
        return tuple((self.table.new_zeros(1, rows, units), self.table.new_zeros(1, rows, units)) for units in self.sizes[1:])

    def embed(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, E), whole words of the table left out in training."""
        share = self.dropouts.embedding if self.training else 0.0
        return F.embedding(ids_BT, locked(self.table, (len(self.table), 1), share), padding_idx=0)

    def forward(self, ids_BT: torch.Tensor, state: State | None) -> tuple[list[torch.Tensor], torch.Tensor, State]:
        """The embedding and each layer's output as it leaves the layer; the last one dropped for the softmax; and the state to go on from.

        The state has no history, and rows that a smaller batch does not have are left out of it.
        """
        B = len(ids_BT)
        some = self.dropouts if self.training else Dropouts(0.0, 0.0, 0.0, 0.0, 0.0)
        before = self.cold(B) if state is None else tuple((h[:, :B].contiguous(), c[:, :B].contiguous()) for h, c in state)
        x = self.embed(ids_BT)
        outputs, after = [x], []
        x = locked(x, (B, 1, x.shape[-1]), some.input)
        for index, layer in enumerate(self.layers):
            if index:
                x = locked(x, (B, 1, x.shape[-1]), some.hidden)
            x, (h, c) = layer(x, before[index], drop=some.weight)
            outputs.append(x)
            after.append((h.detach(), c.detach()))
        return outputs, locked(x, (B, 1, x.shape[-1]), some.output), tuple(after)

    def initialise(self, generator: torch.Generator) -> None:
        """Words uniform in 0.1, LSTMs uniform in one over the root of their units: the original's start."""
        nn.init.uniform_(self.table, -0.1, 0.1, generator=generator)
        for layer in self.layers:
            assert isinstance(layer, WeightDropLSTM)
            layer.initialise(generator)
