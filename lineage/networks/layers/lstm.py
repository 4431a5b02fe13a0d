"""A bidirectional LSTM with projection and clipped cells, both directions in one loop.

Sak et al. 2014; the cell of ELMo's bilm-tf.

Shapes: a leading 2 is the direction (1 for one direction); B items, T positions, P projection, H
cell units. Gates are in the order update, input, forget, output.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_num_layers, check_positive
from lineage.networks.base import candidate_sizes
from lineage.networks.layers.lstm_cell import CellSteps, clip_backward

LSTMState = tuple[torch.Tensor, torch.Tensor]  # output (2, B, P) and cell (2, B, H)
LSTMStates = tuple[LSTMState, ...]  # one state per layer


class ProjectedLSTMLayer(nn.Module):
    """One layer of both directions. Neither sees the other's input or state."""

    def __init__(
        self,
        *,
        projection_size: int,
        cell_size: int,
        cell_clip: float,
        projection_clip: float,
        num_directions: int = 2,
    ) -> None:
        super().__init__()
        self.cell_size = cell_size
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.weight_ih = nn.Parameter(torch.empty(num_directions, projection_size, 4 * cell_size))
        self.weight_hh = nn.Parameter(torch.empty(num_directions, projection_size, 4 * cell_size))
        # The bias is flat because parameters of one dimension get no weight decay.
        self.bias = nn.Parameter(torch.empty(num_directions * 4 * cell_size))
        self.weight_hr = nn.Parameter(torch.empty(num_directions, cell_size, projection_size))

    def forward(
        self, x_2BTP: torch.Tensor, state: LSTMState, lengths_B: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, LSTMState]:
        """Map (2, B, T, P) in reading order to (2, B, T, P) and a state.

        The state is that after the last position, or with `lengths_B` after each item's last one.
        """
        device_type = x_2BTP.device.type
        matmul_dtype = x_2BTP.dtype
        if torch.is_autocast_enabled(device_type):
            matmul_dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            outputs_2TBP, output, cell, cells_2TBH = _ProjectedLSTMFunction.apply(
                x_2BTP.transpose(1, 2).to(matmul_dtype),
                self.weight_ih.to(matmul_dtype),
                self.weight_hh.to(matmul_dtype),
                self.weight_hr.to(matmul_dtype),
                self.bias,
                *state,
                self.cell_clip,
                self.projection_clip,
            )
        if lengths_B is not None:
            items = torch.arange(len(lengths_B), device=lengths_B.device)
            output = outputs_2TBP[:, lengths_B - 1, items]
            cell = cells_2TBH[:, lengths_B - 1, items]
        return outputs_2TBP.transpose(1, 2), (output, cell)


class _ProjectedLSTMFunction(torch.autograd.Function):
    """All steps of a layer, with a hand-written backward that is exact, clips included.

    The input goes through one matrix product for all steps, and each weight gradient is one
    product. Steps share memory, since fresh pages are slow on a CPU. Products have the dtype of x,
    cells that of the bias (fp32 under bf16). tanh(x) is computed as 2 sigmoid(2 x) - 1, four times
    as fast on a CPU; not for the gates in bf16, which is too coarse near one half.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_2TBP: torch.Tensor,
        weight_ih: torch.Tensor,
        weight_hh: torch.Tensor,
        weight_hr: torch.Tensor,
        bias: torch.Tensor,
        output: torch.Tensor,
        cell: torch.Tensor,
        cell_clip: float,
        projection_clip: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return all outputs (2, T, B, P), the last output, the last cell, all cells."""
        D, T, B, P = x_2TBP.shape  # D directions
        H = weight_hr.shape[1]
        x = x_2TBP.reshape(D, T * B, P)
        gates = torch.bmm(x, weight_ih).view(D, T, B, 4 * H)
        # Added step by step: in the product of all steps it would be one more pass over all gates.
        step_bias = bias.view(D, 1, 4 * H).to(x.dtype)
        hidden = x.new_empty(D, T, B, H)
        outputs = x.new_empty(D, T + 1, B, P)
        cells = bias.new_empty(D, T + 1, B, H)
        cell_tanhs = bias.new_empty(D, T, B, H)
        outputs[:, 0] = output
        cells[:, 0] = cell
        previous_cell = cells[:, 0]
        previous_output = outputs[:, 0]
        by_step = (gates, cells[:, 1:], cell_tanhs, hidden, outputs[:, 1:])
        views = (tensor.unbind(1) for tensor in by_step)
        steps = _cell_steps_class(x.device.type)(cell_clip)
        for step_gates, cell, cell_tanh, h, output in zip(*views, strict=True):
            steps.forward(
                step_gates, step_bias, previous_output, weight_hh, previous_cell, cell, cell_tanh, h
            )
            torch.bmm(h, weight_hr, out=output).clamp_(-projection_clip, projection_clip)
            previous_cell = cell
            previous_output = output
        ctx.save_for_backward(
            x, weight_ih, weight_hh, weight_hr, outputs, cells, cell_tanhs, hidden
        )
        ctx.gates = gates  # not saved for backward, because their gradients overwrite them
        ctx.clips = cell_clip, projection_clip
        all_cells = cells[:, 1:]
        ctx.mark_non_differentiable(all_cells)
        ctx.set_materialize_grads(False)  # it would allocate zeros of the size of all cells
        return outputs[:, 1:], outputs[:, T].clone(), cells[:, T].clone(), all_cells

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_outputs: torch.Tensor | None,
        d_output: torch.Tensor | None,
        d_cell: torch.Tensor | None,
        _: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the inputs of `forward`; the clips have none."""
        x, weight_ih, weight_hh, weight_hr, outputs, cells, cell_tanhs, hidden = ctx.saved_tensors
        gates = ctx.gates
        ctx.gates = None
        D, T, B, H = cell_tanhs.shape
        P = weight_hr.shape[2]
        d_outputs = torch.zeros_like(outputs[:, 1:]) if d_outputs is None else d_outputs
        d_output = torch.zeros_like(outputs[:, T]) if d_output is None else d_output
        d_cell = torch.zeros_like(cells[:, T]) if d_cell is None else d_cell.clone()
        d_projected = gates.new_empty(D, T, B, P)
        d_output, d_cell = _backward_through_time(
            ctx.clips,
            (gates, cell_tanhs, d_projected, d_outputs, outputs[:, 1:], cells[:, 1:], cells[:, :T]),
            d_output,
            d_cell,
            weight_hh,
            weight_hr,
        )
        d_gates = gates.view(D, T * B, 4 * H)
        previous_outputs = outputs[:, :T].reshape(D, T * B, P)
        hidden = hidden.view(D, T * B, H)
        return (
            torch.bmm(d_gates, weight_ih.transpose(1, 2)).view(D, T, B, P),
            torch.bmm(x.transpose(1, 2), d_gates),
            torch.bmm(previous_outputs.transpose(1, 2), d_gates),
            torch.bmm(hidden.transpose(1, 2), d_projected.view(D, T * B, P)),
            d_gates.sum(1, dtype=cells.dtype).flatten(),
            d_output,
            d_cell,
            None,
            None,
        )


def _backward_through_time(
    clips: tuple[float, float],
    by_step: tuple[torch.Tensor, ...],
    d_output: torch.Tensor,
    d_cell: torch.Tensor,
    weight_hh: torch.Tensor,
    weight_hr: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the steps backward and return the gradients of the initial output and cell."""
    cell_clip, projection_clip = clips
    gates = by_step[0]
    D, _, B, _ = gates.shape
    H = gates.shape[-1] // 4
    d_h = gates.new_empty(D, B, H)
    weight_hh_T = weight_hh.transpose(1, 2)
    weight_hr_T = weight_hr.transpose(1, 2)
    cell_steps = _cell_steps_class(gates.device.type)(cell_clip)
    steps = list(zip(*(tensor.unbind(1) for tensor in by_step), strict=True))
    for step_gates, cell_tanh, d_projected, d_y, y, cell, previous_cell in reversed(steps):
        d_total = torch.add(d_output, d_y)
        clip_backward(d_total, y, -projection_clip, projection_clip, grad_input=d_projected)
        torch.bmm(d_projected, weight_hr_T, out=d_h)
        d_cell = cell_steps.backward(step_gates, cell_tanh, cell, previous_cell, d_h, d_cell)
        d_output = torch.bmm(step_gates, weight_hh_T)
    return d_output, d_cell


@cache
def _cell_steps_class(device_type: str) -> type[CellSteps]:
    """Return the steps for a device: on a GPU one kernel each, if Triton is installed."""
    if device_type == "cuda":
        try:  # Triton comes with torch for Linux and GPUs only
            from lineage.networks.layers.lstm_kernels import FusedCellSteps
        except ImportError:
            return CellSteps
        return FusedCellSteps
    return CellSteps


class ProjectedLSTM(nn.Module):
    """Layers of both directions, with residuals from the second layer up, as in bilm-tf."""

    def __init__(
        self,
        *,
        num_layers: int,
        projection_size: int,
        cell_size: int,
        cell_clip: float,
        projection_clip: float,
        dropout: float,
        residual: bool = True,
        num_directions: int = 2,
    ) -> None:
        super().__init__()
        self.projection_size = projection_size
        self.cell_size = cell_size
        self.dropout = dropout
        self.residual = residual
        self.layers = nn.ModuleList(
            ProjectedLSTMLayer(
                projection_size=projection_size,
                cell_size=cell_size,
                cell_clip=cell_clip,
                projection_clip=projection_clip,
                num_directions=num_directions,
            )
            for _ in range(num_layers)
        )

    def zero_state(self, like_2BTP: torch.Tensor) -> LSTMStates:
        D, B = like_2BTP.shape[:2]
        states = []
        for _ in self.layers:
            output = like_2BTP.new_zeros(D, B, self.projection_size)
            cell = like_2BTP.new_zeros(D, B, self.cell_size)
            states.append((output, cell))
        return tuple(states)

    def forward(
        self, x_2BTP: torch.Tensor, state: LSTMStates | None, lengths_B: torch.Tensor | None = None
    ) -> tuple[list[torch.Tensor], LSTMStates]:
        """Return each layer's output and the detached state from which to continue.

        The state is that after the last position, or with `lengths_B` after each item's last one.
        """
        state = self.zero_state(x_2BTP) if state is None else state
        outputs = []
        next_state = []
        for index, layer in enumerate(self.layers):
            # The residual also adds the dropped input, as in the reference.
            x_2BTP = F.dropout(x_2BTP, self.dropout, self.training)
            y_2BTP, (output, cell) = layer(x_2BTP, state[index], lengths_B)
            if index > 0 and self.residual:
                y_2BTP = y_2BTP + x_2BTP
            x_2BTP = y_2BTP
            outputs.append(x_2BTP)
            next_state.append((output.detach(), cell.detach()))
        return outputs, tuple(next_state)

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize with Glorot-uniform weights, TensorFlow's default, as in bilm-tf."""
        # In TensorFlow input and state are multiplied by one matrix, whose size sets the bound.
        bound_ih_hh = (6 / (2 * self.projection_size + 4 * self.cell_size)) ** 0.5
        bound_hr = (6 / (self.cell_size + self.projection_size)) ** 0.5
        for layer in self.layers:
            assert isinstance(layer, ProjectedLSTMLayer)
            for weight in (layer.weight_ih, layer.weight_hh):
                nn.init.uniform_(weight, -bound_ih_hh, bound_ih_hh, generator=generator)
            nn.init.uniform_(layer.weight_hr, -bound_hr, bound_hr, generator=generator)
            nn.init.zeros_(layer.bias)
            with torch.no_grad():
                gate_biases = layer.bias.view(-1, 4 * self.cell_size)
                gate_biases[..., 2 * self.cell_size : 3 * self.cell_size] = 1.0


@dataclass(frozen=True, kw_only=True)
class ProjectedLSTMConfig:
    """The keys of `architecture` that language models of projected LSTMs share.

    `projection_size` and `cell_size` follow from the parameter budget if they are not given.
    """

    num_layers: int
    # cell_size / projection_size; 8 in ELMo, 4 in TagLM (2048 / 512)
    cell_to_projection_ratio: int
    dropout: float
    cell_clip: float | None
    projection_clip: float | None
    softmax_samples: int | None  # candidates of the sampled softmax in training; None: all words
    projection_size: int | None = None
    cell_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "cell_to_projection_ratio", "cell_clip")
        check_positive(self, "projection_clip", "softmax_samples", "projection_size", "cell_size")
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list[Self]]:
        """Yield lists of configs of growing projection."""
        return candidate_sizes(
            self, "projection_size", "cell_size", ratio=self.cell_to_projection_ratio
        )

    def build_lstm(self, *, residual: bool, num_directions: int) -> ProjectedLSTM:
        """Build the layers with empty parameters."""
        assert self.projection_size is not None and self.cell_size is not None, (
            "widths are solved before a model is built"
        )
        return ProjectedLSTM(
            num_layers=self.num_layers,
            projection_size=self.projection_size,
            cell_size=self.cell_size,
            cell_clip=self.cell_clip or math.inf,
            projection_clip=self.projection_clip or math.inf,
            dropout=self.dropout,
            residual=residual,
            num_directions=num_directions,
        )
