"""The LSTM cell's steps on a GPU, one kernel forward and one backward, in Triton.

As torch operations a step makes some 35 passes over gates and cells, over a third of ELMo's GPU
time (benchmarks/results/h200/gpu.md). The kernels compute in fp32 whatever the dtype in memory.
Each program has BLOCK cells of one direction; a cell's four gates are H apart in memory.
"""

import torch
import triton
from triton import language as tl

from lineage.networks.layers.lstm_cell import CellSteps

BLOCK = 512


class FusedCellSteps(CellSteps):
    """The steps of `CellSteps`, as one kernel each."""

    def forward(
        self,
        gates: torch.Tensor,
        bias: torch.Tensor,
        previous_output: torch.Tensor,
        weight_hh: torch.Tensor,
        previous_cell: torch.Tensor,
        cell: torch.Tensor,
        cell_tanh: torch.Tensor,
        hidden: torch.Tensor,
    ) -> None:
        torch.baddbmm(gates, previous_output, weight_hh, out=gates)
        D, B, H = cell.shape
        by_direction = (gates, previous_cell, cell, cell_tanh, hidden)
        _forward_kernel[triton.cdiv(B * H, BLOCK), D](
            bias,
            *by_direction,
            *(tensor.stride(0) for tensor in by_direction),
            self.cell_clip,
            B * H,
            H,
            BLOCK=BLOCK,
        )

    def backward(
        self,
        gates: torch.Tensor,
        cell_tanh: torch.Tensor,
        cell: torch.Tensor,
        previous_cell: torch.Tensor,
        d_hidden: torch.Tensor,
        d_cell: torch.Tensor,
    ) -> torch.Tensor:
        """Overwrite the gates with their gradients, and d_cell with that of the previous cell."""
        D, B, H = cell.shape
        by_direction = (gates, cell_tanh, cell, previous_cell, d_hidden, d_cell)
        _backward_kernel[triton.cdiv(B * H, BLOCK), D](
            *by_direction,
            *(tensor.stride(0) for tensor in by_direction),
            self.cell_clip,
            B * H,
            H,
            BLOCK=BLOCK,
        )
        return d_cell


@triton.jit
def _load(pointer, valid):
    return tl.load(pointer, valid).to(tl.float32)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _forward_kernel(
    bias,
    gates,
    previous_cell,
    cell,
    cell_tanh,
    hidden,
    gates_stride,
    previous_cell_stride,
    cell_stride,
    cell_tanh_stride,
    hidden_stride,
    cell_clip,
    num_cells,
    H,
    BLOCK: tl.constexpr,
):
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    direction = tl.program_id(1).to(tl.int64)
    valid = unit < num_cells
    column = unit % H
    gates += direction * gates_stride + (unit // H) * 4 * H + column
    bias += direction * 4 * H + column
    update = _tanh(_load(gates, valid) + _load(bias, valid))
    input_gate = tl.sigmoid(_load(gates + H, valid) + _load(bias + H, valid))
    forget_gate = tl.sigmoid(_load(gates + 2 * H, valid) + _load(bias + 2 * H, valid))
    output_gate = tl.sigmoid(_load(gates + 3 * H, valid) + _load(bias + 3 * H, valid))
    previous = _load(previous_cell + direction * previous_cell_stride + unit, valid)
    new = previous * forget_gate + input_gate * update
    new = tl.minimum(tl.maximum(new, -cell_clip), cell_clip)
    new_tanh = _tanh(new)
    tl.store(gates, update, valid)
    tl.store(gates + H, input_gate, valid)
    tl.store(gates + 2 * H, forget_gate, valid)
    tl.store(gates + 3 * H, output_gate, valid)
    tl.store(cell + direction * cell_stride + unit, new, valid)
    tl.store(cell_tanh + direction * cell_tanh_stride + unit, new_tanh, valid)
    tl.store(hidden + direction * hidden_stride + unit, output_gate * new_tanh, valid)


@triton.jit
def _backward_kernel(
    gates,
    cell_tanh,
    cell,
    previous_cell,
    d_hidden,
    d_cell,
    gates_stride,
    cell_tanh_stride,
    cell_stride,
    previous_cell_stride,
    d_hidden_stride,
    d_cell_stride,
    cell_clip,
    num_cells,
    H,
    BLOCK: tl.constexpr,
):
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    direction = tl.program_id(1).to(tl.int64)
    valid = unit < num_cells
    gates += direction * gates_stride + (unit // H) * 4 * H + unit % H
    d_cell += direction * d_cell_stride + unit
    update = _load(gates, valid)
    input_gate = _load(gates + H, valid)
    forget_gate = _load(gates + 2 * H, valid)
    output_gate = _load(gates + 3 * H, valid)
    new_tanh = _load(cell_tanh + direction * cell_tanh_stride + unit, valid)
    new = _load(cell + direction * cell_stride + unit, valid)
    previous = _load(previous_cell + direction * previous_cell_stride + unit, valid)
    d_h = _load(d_hidden + direction * d_hidden_stride + unit, valid)
    d_c = _load(d_cell, valid) + d_h * output_gate * (1.0 - new_tanh * new_tanh)
    d_c = tl.where((new > -cell_clip) & (new < cell_clip), d_c, 0.0)
    tl.store(gates, d_c * input_gate * (1.0 - update * update), valid)
    tl.store(gates + H, d_c * update * input_gate * (1.0 - input_gate), valid)
    tl.store(gates + 2 * H, d_c * previous * forget_gate * (1.0 - forget_gate), valid)
    tl.store(gates + 3 * H, d_h * new_tanh * output_gate * (1.0 - output_gate), valid)
    tl.store(d_cell, d_c * forget_gate, valid)
