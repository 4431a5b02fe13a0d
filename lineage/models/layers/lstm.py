"""A two-way LSTM with projection and clipped cells (Sak et al. 2014; the cell of ELMo's bilm-tf), both directions in one loop, or one alone.

Shapes: a leading 2 is the direction (1 where there is one alone); B items, T positions, P projection, H cell units.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LSTMStates = tuple[
    tuple[torch.Tensor, torch.Tensor], ...
]  # for each layer the output (2, B, P) and the cell (2, B, H)


clip_backward = torch.ops.aten.hardtanh_backward.grad_input  # a clipped value passes no gradient on


class ProjectedLSTMLayer(nn.Module):
    """One layer's cells of both directions. Neither sees the other's input or state."""

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
        self.cell_size, self.cell_clip, self.projection_clip = cell_size, cell_clip, projection_clip
        self.weight_ih = nn.Parameter(torch.empty(num_directions, projection_size, 4 * cell_size))
        self.weight_hh = nn.Parameter(torch.empty(num_directions, projection_size, 4 * cell_size))
        self.bias = nn.Parameter(
            torch.empty(num_directions * 4 * cell_size)
        )  # flat, as what has one dimension gets no weight decay
        self.weight_hr = nn.Parameter(torch.empty(num_directions, cell_size, projection_size))

    def forward(
        self,
        x_2BTP: torch.Tensor,
        state: tuple[torch.Tensor, torch.Tensor],
        lengths_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """(2, B, T, P) in reading order -> (2, B, T, P) and the state after the last position, or after each item's own last one."""
        kind = x_2BTP.device.type
        matmul_dtype = (
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_2BTP.dtype
        )
        with torch.autocast(kind, enabled=False):
            weights = [
                weight.to(matmul_dtype)
                for weight in (self.weight_ih, self.weight_hh, self.weight_hr)
            ]
            outputs_2TBP, output, cell, cells_2TBH = _ProjectedLSTMFunction.apply(
                x_2BTP.transpose(1, 2).to(matmul_dtype),
                *weights,
                self.bias,
                *state,
                self.cell_clip,
                self.projection_clip,
            )
        if lengths_B is not None:
            items = torch.arange(len(lengths_B), device=lengths_B.device)
            output, cell = (
                outputs_2TBP[:, lengths_B - 1, items],
                cells_2TBH[:, lengths_B - 1, items],
            )
        return outputs_2TBP.transpose(1, 2), (output, cell)


class _ProjectedLSTMFunction(torch.autograd.Function):
    """All steps of a layer, with a backward written by hand: exact, clips included.

    The input goes through one product over all steps, and the weights' gradients are one each instead of a sum of T. What a step needs is written
    into memory that the one before it used: on a CPU fresh pages take their time. Products are in the type of x, cells in that of the
    bias (fp32 under bf16). On a CPU tanh(x) is taken as 2 sigmoid(2 x) - 1: torch's own takes four times as long there; but not in bf16, whose steps
    near one half are too large for it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_2TBP: torch.Tensor,
        input_weight: torch.Tensor,
        state_weight: torch.Tensor,
        project: torch.Tensor,
        bias: torch.Tensor,
        output: torch.Tensor,
        cell: torch.Tensor,
        cell_clip: float,
        projection_clip: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        two, T, B, P = x_2TBP.shape
        H = project.shape[1]
        x = x_2TBP.reshape(two, T * B, P)
        gates, shift = (
            torch.bmm(x, input_weight).view(two, T, B, 4 * H),
            bias.view(two, 1, 4 * H).to(x.dtype),
        )
        hidden, states = x.new_empty(two, T, B, H), x.new_empty(two, T + 1, B, P)
        cells, squashed = bias.new_empty(two, T + 1, B, H), bias.new_empty(two, T, B, H)
        states[:, 0], cells[:, 0] = output, cell
        before, state = cells[:, 0], states[:, 0]
        views = (v.unbind(1) for v in (gates, cells[:, 1:], squashed, hidden, states[:, 1:]))
        for step, after, flat, h, state_next in zip(*views, strict=True):
            torch.baddbmm(
                step.add_(shift), state, state_weight, out=step
            )  # in the product of all steps it would be written to all gates
            update, in_gate, forget, out = step.split(H, -1)
            _activate_gates(step, update)
            torch.mul(before, forget, out=after).addcmul_(in_gate, update).clamp_(
                -cell_clip, cell_clip
            )
            torch.mul(after, 2, out=flat).sigmoid_().mul_(2).sub_(1)
            torch.mul(out, flat, out=h)
            torch.bmm(h, project, out=state_next).clamp_(-projection_clip, projection_clip)
            before, state = after, state_next
        ctx.save_for_backward(
            x, input_weight, state_weight, project, states, cells, squashed, hidden
        )
        ctx.gates = gates  # overwritten by their gradients
        ctx.clips = cell_clip, projection_clip
        every = cells[:, 1:]
        ctx.mark_non_differentiable(every)
        ctx.set_materialize_grads(False)  # zeros in the size of all cells
        return states[:, 1:], states[:, T].clone(), cells[:, T].clone(), every

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_outputs: torch.Tensor | None,
        d_output: torch.Tensor | None,
        d_cell: torch.Tensor | None,
        _: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        x, input_weight, state_weight, project, states, cells, squashed, hidden = ctx.saved_tensors
        gates, ctx.gates = ctx.gates, None
        cell_clip, projection_clip = ctx.clips
        (two, T, B, H), P = squashed.shape, project.shape[2]
        d_outputs = torch.zeros_like(states[:, 1:]) if d_outputs is None else d_outputs
        d_output = torch.zeros_like(states[:, T]) if d_output is None else d_output
        d_cell = torch.zeros_like(cells[:, T]) if d_cell is None else d_cell.clone()
        d_projected, d_h, rest = (
            gates.new_empty(two, T, B, P),
            gates.new_empty(two, B, H),
            gates.new_empty(two, B, 3 * H),
        )
        d_flat, d_new, d_in, d_before = (torch.empty_like(d_cell) for _ in range(4))
        weight_back, project_back, one = (
            state_weight.transpose(1, 2),
            project.transpose(1, 2),
            gates.new_ones(()),
        )
        found = (gates, squashed, d_projected, d_outputs, states[:, 1:], cells[:, 1:], cells[:, :T])
        for step, flat, d_p, d_o, state, after, before in reversed(
            list(zip(*(v.unbind(1) for v in found), strict=True))
        ):
            clip_backward(
                torch.add(d_output, d_o), state, -projection_clip, projection_clip, grad_input=d_p
            )
            torch.bmm(d_p, project_back, out=d_h)
            update, in_gate, forget, out = step.split(H, -1)
            torch.mul(d_h, out, out=d_flat)
            d_cell.add_(d_flat).addcmul_(d_flat.mul_(flat), flat, value=-1)
            clip_backward(d_cell, after, -cell_clip, cell_clip, grad_input=d_cell)
            torch.mul(d_cell, in_gate, out=d_new)
            torch.mul(d_cell, update, out=d_in)
            torch.mul(d_cell, forget, out=d_before)
            torch.addcmul(
                d_new, torch.mul(d_new, update, out=d_flat), update, value=-1, out=update
            )  # from here on the gradients of the gates
            step[..., H:].mul_(torch.sub(one, step[..., H:], out=rest))
            out.mul_(d_h.mul_(flat))
            in_gate.mul_(d_in)
            forget.mul_(before).mul_(d_cell)
            d_cell, d_before, d_output = d_before, d_cell, torch.bmm(step, weight_back)
        d_gates = gates.view(two, T * B, 4 * H)
        d_x = torch.bmm(d_gates, input_weight.transpose(1, 2)).view(two, T, B, P)
        d_input_weight = torch.bmm(x.transpose(1, 2), d_gates)
        d_state_weight = torch.bmm(states[:, :T].reshape(two, T * B, P).transpose(1, 2), d_gates)
        d_project = torch.bmm(
            hidden.view(two, T * B, H).transpose(1, 2), d_projected.view(two, T * B, P)
        )
        return (
            d_x,
            d_input_weight,
            d_state_weight,
            d_project,
            d_gates.sum(1, dtype=cells.dtype).flatten(),
            d_output,
            d_cell,
            None,
            None,
        )


def _activate_gates(gates: torch.Tensor, candidate: torch.Tensor) -> None:
    """tanh of the update, sigmoid of the other gates, in place."""
    if gates.device.type == "cpu" and gates.dtype != torch.bfloat16:
        candidate.mul_(2)
        gates.sigmoid_()
        candidate.mul_(2).sub_(1)
    else:
        candidate.tanh_()
        gates[..., candidate.shape[-1] :].sigmoid_()


class ProjectedLSTM(nn.Module):
    """Layers of both directions, a residual from the second layer up (bilm-tf: none from the token layer to the first)."""

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
        self.projection_size, self.cell_size, self.dropout, self.residual = (
            projection_size,
            cell_size,
            dropout,
            residual,
        )
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
        """The state before any text: zeros."""
        ways, B = like_2BTP.shape[:2]
        return tuple(
            (
                like_2BTP.new_zeros(ways, B, self.projection_size),
                like_2BTP.new_zeros(ways, B, self.cell_size),
            )
            for _ in self.layers
        )

    def forward(
        self, x_2BTP: torch.Tensor, state: LSTMStates | None, lengths_B: torch.Tensor | None = None
    ) -> tuple[list[torch.Tensor], LSTMStates]:
        """Each layer's output and the state to go on from, cut off from its history: after the last position, or after each item's own."""
        state = self.zero_state(x_2BTP) if state is None else state
        outputs, after = [], []
        for index, layer in enumerate(self.layers):
            x_2BTP = F.dropout(
                x_2BTP, self.dropout, self.training
            )  # the way round the layer sees it dropped too, as in the reference
            y_2BTP, (output, cell) = layer(x_2BTP, state[index], lengths_B)
            x_2BTP = y_2BTP + x_2BTP if index and self.residual else y_2BTP
            outputs.append(x_2BTP)
            after.append((output.detach(), cell.detach()))
        return outputs, tuple(after)

    def init_weights(self, generator: torch.Generator) -> None:
        """Glorot's uniform weights, TensorFlow's own choice where none is named as in bilm-tf; the forget gates open (bias 1)."""
        for layer in self.layers:
            assert isinstance(layer, ProjectedLSTMLayer)
            joined = (
                6 / (2 * self.projection_size + 4 * self.cell_size)
            ) ** 0.5  # input and state are one matrix there
            for weight, bound in (
                (layer.weight_ih, joined),
                (layer.weight_hh, joined),
                (layer.weight_hr, (6 / sum(layer.weight_hr.shape[1:])) ** 0.5),
            ):
                nn.init.uniform_(weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)
            with torch.no_grad():
                layer.bias.view(-1, 4 * self.cell_size)[
                    ..., 2 * self.cell_size : 3 * self.cell_size
                ] = 1.0
