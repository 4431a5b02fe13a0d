"""AWD-LSTM: LSTMs under five kinds of dropout (Merity et al. 2018, "Regularizing and Optimizing LSTM Language Models", section 4).

Shapes: B items, T positions, V vocabulary, E embedding, H units, I inputs of a layer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

LSTMStates = tuple[
    tuple[torch.Tensor, torch.Tensor], ...
]  # for each layer output and cell, both (1, B, H)


@dataclass(frozen=True)
class AwdDropouts:
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


def sample_keep_mask(shape: Sequence[int], p: float, like: torch.Tensor) -> torch.Tensor:
    """Ones where something is kept, zeros elsewhere."""
    return like.new_empty(shape).bernoulli_(1 - p)


def locked_dropout(x: torch.Tensor, mask_shape: Sequence[int], p: float) -> torch.Tensor:
    """x with one mask of `shape` over all that it broadcasts to, what is kept scaled up."""
    return x * (sample_keep_mask(mask_shape, p, x) / (1 - p)) if p else x


class WeightDropLSTM(nn.Module):
    """One LSTM layer on torch's fused kernel, whose recurrent matrix is dropped anew in each forward (DropConnect, section 3)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih, self.weight_hh = (
            nn.Parameter(torch.empty(4 * hidden_size, input_size)),
            nn.Parameter(torch.empty(4 * hidden_size, hidden_size)),
        )
        self.bias_ih, self.bias_hh = (
            nn.Parameter(torch.empty(4 * hidden_size)),
            nn.Parameter(torch.empty(4 * hidden_size)),
        )

    def forward(
        self,
        x_BTI: torch.Tensor,
        state: tuple[torch.Tensor, torch.Tensor] | None = None,
        *,
        drop: float = 0.0,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """(B, T, I) -> (B, T, H), and the state after the last position; the first is zero unless given. `drop` is zero outside of training."""
        if state is None:
            cold = self.weight_hh.new_zeros(1, len(x_BTI), self.hidden_size)
            state = cold, cold
        dropped = locked_dropout(self.weight_hh, self.weight_hh.shape, drop)
        weights = [self.weight_ih, dropped, self.bias_ih, self.bias_hh]
        with torch.autocast(
            x_BTI.device.type, enabled=False
        ):  # which on a GPU would run the layer in fp16, whatever was asked for
            output, last, cell = torch.lstm(
                x_BTI.to(dropped.dtype), state, weights, True, 1, 0.0, self.training, False, True
            )
        return output, (last, cell)

    def init_weights(self, generator: torch.Generator) -> None:
        """Uniform in one over the root of the units, as torch starts an LSTM."""
        for parameter in self.parameters():
            nn.init.uniform_(
                parameter, -(self.hidden_size**-0.5), self.hidden_size**-0.5, generator=generator
            )


class AwdLSTM(nn.Module):
    """A table of words and LSTM layers E -> H ... H -> E; the last has E units, so that the table can be the softmax."""

    def __init__(
        self,
        *,
        vocab_size: int,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        dropouts: AwdDropouts,
    ) -> None:
        super().__init__()
        self.dropouts = dropouts
        self.embedding_weight = nn.Parameter(torch.empty(vocab_size, embedding_size))
        self.layer_sizes = (embedding_size, *[hidden_size] * (num_layers - 1), embedding_size)
        self.layers = nn.ModuleList(
            WeightDropLSTM(inputs, units) for inputs, units in itertools.pairwise(self.layer_sizes)
        )

    def zero_state(self, batch_size: int) -> LSTMStates:
        """The state before any text: zeros."""
        return tuple(
            (
                self.embedding_weight.new_zeros(1, batch_size, units),
                self.embedding_weight.new_zeros(1, batch_size, units),
            )
            for units in self.layer_sizes[1:]
        )

    def embed(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, E), whole words of the table left out in training."""
        share = self.dropouts.embedding if self.training else 0.0
        return F.embedding(
            ids_BT,
            locked_dropout(self.embedding_weight, (len(self.embedding_weight), 1), share),
            padding_idx=0,
        )

    def forward(
        self, ids_BT: torch.Tensor, state: LSTMStates | None
    ) -> tuple[list[torch.Tensor], torch.Tensor, LSTMStates]:
        """The embedding and each layer's output as it leaves the layer; the last one dropped for the softmax; and the state to go on from.

        The state has no history, and rows that a smaller batch does not have are left out of it.
        """
        B = len(ids_BT)
        dropouts = self.dropouts if self.training else AwdDropouts(0.0, 0.0, 0.0, 0.0, 0.0)
        before = (
            self.zero_state(B)
            if state is None
            else tuple((h[:, :B].contiguous(), c[:, :B].contiguous()) for h, c in state)
        )
        x = self.embed(ids_BT)
        outputs, after = [x], []
        x = locked_dropout(x, (B, 1, x.shape[-1]), dropouts.input)
        for index, layer in enumerate(self.layers):
            if index:
                x = locked_dropout(x, (B, 1, x.shape[-1]), dropouts.hidden)
            x, (h, c) = layer(x, before[index], drop=dropouts.weight)
            outputs.append(x)
            after.append((h.detach(), c.detach()))
        return outputs, locked_dropout(x, (B, 1, x.shape[-1]), dropouts.output), tuple(after)

    def init_weights(self, generator: torch.Generator) -> None:
        """Words uniform in 0.1, LSTMs uniform in one over the root of their units: the original's start."""
        nn.init.uniform_(self.embedding_weight, -0.1, 0.1, generator=generator)
        for layer in self.layers:
            assert isinstance(layer, WeightDropLSTM)
            layer.init_weights(generator)
