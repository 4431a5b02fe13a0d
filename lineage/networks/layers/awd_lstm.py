"""AWD-LSTM: LSTMs with five kinds of dropout.

Merity et al. 2018, "Regularizing and Optimizing LSTM Language Models", section 4.

Shapes: B items, T positions, V vocabulary, E embedding, H units, I inputs of a layer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.layers.lstm import LSTMState, LSTMStates


@dataclass(frozen=True)
class AwdDropouts:
    """Dropout probabilities in training, each from 0 to below 1."""

    embedding: float  # whole words of the table, for one window
    input: float  # units of the embedded words, the same at all positions of an item
    weight: float  # entries of the recurrent matrices, the same at all positions and items
    hidden: float  # units between layers, the same at all positions of an item
    output: float  # units before the softmax, the same at all positions of an item

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 1:
                raise ValueError(f"{name} is {value}; it is a share, from 0 to below 1")

    def scale(self, greatest: float) -> "AwdDropouts":
        """Return dropouts in the same proportions, with another greatest one.

        If all are 0, the proportions are those of Howard and Ruder 2018, section 4.1, who scale
        their dropouts so.
        """
        own = self if any(vars(self).values()) else PAPER_DROPOUTS
        factor = greatest / max(vars(own).values())
        return AwdDropouts(**{name: value * factor for name, value in vars(own).items()})


PAPER_DROPOUTS = AwdDropouts(embedding=0.05, input=0.4, weight=0.5, hidden=0.3, output=0.4)
NO_DROPOUT = AwdDropouts(embedding=0.0, input=0.0, weight=0.0, hidden=0.0, output=0.0)


def sample_keep_mask(shape: Sequence[int], p: float, like: torch.Tensor) -> torch.Tensor:
    """Sample ones with probability 1 - p, zeros elsewhere."""
    return like.new_empty(shape).bernoulli_(1 - p)


def locked_dropout(x: torch.Tensor, mask_shape: Sequence[int], p: float) -> torch.Tensor:
    """Multiply x by one scaled dropout mask that is broadcast to its shape."""
    return x * (sample_keep_mask(mask_shape, p, x) / (1 - p)) if p else x


class WeightDropLSTM(nn.Module):
    """One LSTM layer on torch's fused kernel."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden_size))

    def forward(
        self, x_BTI: torch.Tensor, state: LSTMState | None = None, *, drop: float = 0.0
    ) -> tuple[torch.Tensor, LSTMState]:
        """Map (B, T, I) to (B, T, H) and the state after the last position, both (1, B, H).

        Callers pass `drop=0.0` outside training.
        """
        if state is None:
            zeros = self.weight_hh.new_zeros(1, len(x_BTI), self.hidden_size)
            state = zeros, zeros
        weight_hh = locked_dropout(self.weight_hh, self.weight_hh.shape, drop)
        # On a GPU autocast would run the layer in fp16, whichever precision is requested.
        with torch.autocast(x_BTI.device.type, enabled=False):
            output, last, cell = torch.lstm(
                x_BTI.to(weight_hh.dtype),
                state,
                [self.weight_ih, weight_hh, self.bias_ih, self.bias_hh],
                has_biases=True,
                num_layers=1,
                dropout=0.0,
                train=self.training,
                bidirectional=False,
                batch_first=True,
            )
        return output, (last, cell)

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize uniformly within 1 / sqrt(H), as torch does."""
        bound = self.hidden_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)


class AwdLSTM(nn.Module):
    """A table of words and LSTM layers E -> H ... H -> E."""

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

    def embed(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Return (B, T, E); training drops whole words of the table."""
        p = self.dropouts.embedding if self.training else 0.0
        weight_VE = locked_dropout(self.embedding_weight, (len(self.embedding_weight), 1), p)
        return F.embedding(ids_BT, weight_VE, padding_idx=0)

    def forward(
        self, ids_BT: torch.Tensor, state: LSTMStates | None
    ) -> tuple[list[torch.Tensor], torch.Tensor, LSTMStates]:
        """Return the embedding and each layer's output, the softmax's input, and the state."""
        B = len(ids_BT)
        dropouts = self.dropouts if self.training else NO_DROPOUT
        states: list[LSTMState | None] = [None] * len(self.layers)
        if state is not None:
            states = [(h[:, :B].contiguous(), c[:, :B].contiguous()) for h, c in state]
        x = self.embed(ids_BT)
        outputs = [x]
        next_state = []
        x = locked_dropout(x, (B, 1, x.shape[-1]), dropouts.input)
        for index, layer in enumerate(self.layers):
            if index > 0:
                x = locked_dropout(x, (B, 1, x.shape[-1]), dropouts.hidden)
            x, (h, c) = layer(x, states[index], drop=dropouts.weight)
            outputs.append(x)
            next_state.append((h.detach(), c.detach()))
        dropped = locked_dropout(x, (B, 1, x.shape[-1]), dropouts.output)
        return outputs, dropped, tuple(next_state)

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize as the original does: words within 0.1, LSTMs within 1 / sqrt(units)."""
        nn.init.uniform_(self.embedding_weight, -0.1, 0.1, generator=generator)
        for layer in self.layers:
            assert isinstance(layer, WeightDropLSTM)
            layer.init_weights(generator)
