"""Layers of forward and backward LSTMs over padded sequences.

Shapes: B sequences, T positions, R = B T rows, D inputs, H units of both directions, E inputs that
enter late.
"""

import torch
from torch import nn

from lineage.families.translator import init_uniform
from lineage.networks.batch import reversed_positions
from lineage.networks.layers.dropout import fast_dropout


class BiLstm(nn.Module):
    """Layers of forward and backward LSTMs with dropout between the layers.

    The first `late_size` inputs are concatenated to the output of layer `layers_below_join`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        dropout: float,
        late_size: int = 0,
        layers_below_join: int = 0,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.late_size = late_size
        self.layers_below_join = layers_below_join
        sizes = [input_size - late_size] + [2 * hidden_size] * num_layers
        sizes[layers_below_join] += late_size
        self.output_size = sizes[-1]
        # The backward LSTMs read reversed sequences. torch's bidirectional LSTM would need packed
        # sequences, which take twice the time (docs/decisions/0018).
        self.forward_lstms = nn.ModuleList(
            nn.LSTM(size, hidden_size, batch_first=True) for size in sizes[:-1]
        )
        self.backward_lstms = nn.ModuleList(
            nn.LSTM(size, hidden_size, batch_first=True) for size in sizes[:-1]
        )

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw all parameters from U(-1 / sqrt(hidden size), 1 / sqrt(hidden size))."""
        init_uniform([self.forward_lstms, self.backward_lstms], self.hidden_size, generator)

    def forward(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return (B, T, H). Padding must be on the right; the output there is arbitrary."""
        reversed_R = _reversed_rows(mask_BT)
        late_BTE = x_BTD[..., : self.late_size]
        y_BTH = x_BTD[..., self.late_size :]
        num_layers = len(self.forward_lstms)
        for layer in range(num_layers):
            forward_BTH, _ = self.forward_lstms[layer](y_BTH)
            backward_BTH, _ = self.backward_lstms[layer](_select_rows(y_BTH, reversed_R))
            y_BTH = torch.cat([forward_BTH, _select_rows(backward_BTH, reversed_R)], -1)
            if layer + 1 == self.layers_below_join:
                y_BTH = torch.cat([y_BTH, late_BTE], -1)
            if layer + 1 < num_layers:
                y_BTH = fast_dropout(y_BTH, self.dropout, self.training)
        return y_BTH


def _reversed_rows(mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (R,): the rows that reverse the real part of every sequence."""
    B, T = mask_BT.shape
    first_rows_B1 = T * torch.arange(B, device=mask_BT.device)[:, None]
    return (first_rows_B1 + reversed_positions(mask_BT)).flatten()


def _select_rows(x_BTD: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
    """Return (B, T, D): the vectors at these rows; a CPU copies rows faster than it gathers."""
    return x_BTD.flatten(0, 1).index_select(0, rows_R).view_as(x_BTD)
