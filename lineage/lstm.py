"""A two-way LSTM with projection and clipped cells (Sak et al. 2014; the cell of ELMo's bilm-tf), both directions in one loop.

Shapes: a leading 2 is the direction; B items, T positions, P projection, H cell units.
"""

import torch
from torch import nn
from torch.nn import functional as F

State = tuple[tuple[torch.Tensor, torch.Tensor], ...]  # for each layer the output (2, B, P) and the cell (2, B, H)


class TwoWayLayer(nn.Module):
    """One layer's cells of both directions. Neither sees the other's input or state."""

    def __init__(self, *, projection: int, cells: int, cell_clip: float, projection_clip: float) -> None:
        super().__init__()
        self.cells, self.cell_clip, self.projection_clip = cells, cell_clip, projection_clip
        self.input_weight = nn.Parameter(torch.empty(2, projection, 4 * cells))
        self.state_weight = nn.Parameter(torch.empty(2, projection, 4 * cells))
        self.bias = nn.Parameter(torch.empty(2 * 4 * cells))  # flat, as what has one dimension gets no weight decay
        self.project = nn.Parameter(torch.empty(2, cells, projection))

    def forward(self, x_2BTP: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """(2, B, T, P) in reading order -> (2, B, T, P) and the state after the last position."""
        two, B, T, P = x_2BTP.shape
        gates = torch.baddbmm(self.bias.view(two, 1, -1), x_2BTP.reshape(two, B * T, P), self.input_weight).view(two, B, T, 4 * self.cells)
        output, cell = state
        outputs = []
        for step in gates.unbind(2):  # unbound once: indexing in the loop would make backward write the whole tensor at every step
            step = torch.baddbmm(step, output, self.state_weight)
            update, rest = step.split((self.cells, 3 * self.cells), -1)
            in_gate, forget, out = torch.sigmoid(rest).chunk(3, -1)
            cell = (forget * cell + in_gate * torch.tanh(update)).clamp(-self.cell_clip, self.cell_clip)
            output = torch.bmm(out * torch.tanh(cell), self.project).clamp(-self.projection_clip, self.projection_clip)
            outputs.append(output)
        return torch.stack(outputs, 2), (output, cell)


class TwoWayLSTM(nn.Module):
    """Layers of both directions, a residual from the second layer up (bilm-tf: none from the token layer to the first)."""

    def __init__(self, *, layers: int, projection: int, cells: int, cell_clip: float, projection_clip: float, dropout: float) -> None:
        super().__init__()
        self.projection, self.cells, self.dropout = projection, cells, dropout
        self.layers = nn.ModuleList(
            TwoWayLayer(projection=projection, cells=cells, cell_clip=cell_clip, projection_clip=projection_clip) for _ in range(layers)
        )

    def cold(self, like_2BTP: torch.Tensor) -> State:
        """The state before any text: zeros."""
        B = like_2BTP.shape[1]
        return tuple((like_2BTP.new_zeros(2, B, self.projection), like_2BTP.new_zeros(2, B, self.cells)) for _ in self.layers)

    def forward(self, x_2BTP: torch.Tensor, state: State | None) -> tuple[list[torch.Tensor], State]:
        """Each layer's output and the state to go on from, cut off from its history."""
        state = self.cold(x_2BTP) if state is None else state
        outputs, after = [], []
        for index, layer in enumerate(self.layers):
            x_2BTP = F.dropout(x_2BTP, self.dropout, self.training)  # the way round the layer sees it dropped too, as in the reference
            y_2BTP, (output, cell) = layer(x_2BTP, state[index])
            x_2BTP = y_2BTP + x_2BTP if index else y_2BTP
            outputs.append(x_2BTP)
            after.append((output.detach(), cell.detach()))
        return outputs, tuple(after)

    def initialise(self, generator: torch.Generator) -> None:
        """Glorot-scaled normal weights; the forget gates open (bias 1)."""
        for layer in self.layers:
            assert isinstance(layer, TwoWayLayer)
            for weight in (layer.input_weight, layer.state_weight, layer.project):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            with torch.no_grad():
                layer.bias.view(2, 1, -1)[..., 2 * self.cells : 3 * self.cells] = 1.0
