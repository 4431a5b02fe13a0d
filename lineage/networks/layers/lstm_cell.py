"""The steps of the projected LSTM's cells as torch operations."""

import torch

# Backward of clamp: the gradient is zero where a value was clipped.
clip_backward = torch.ops.aten.hardtanh_backward.grad_input


class CellSteps:
    """One step of a layer's cells, forward and backward, as torch operations on (2, B, ...)."""

    def __init__(self, cell_clip: float) -> None:
        self.cell_clip = cell_clip
        self.scratch: tuple[torch.Tensor, ...] = ()

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
        """Activate the gates, which hold the input's products; write cell, its tanh, and hidden."""
        torch.baddbmm(gates.add_(bias), previous_output, weight_hh, out=gates)
        update, input_gate, forget_gate, output_gate = gates.chunk(4, -1)
        _activate_gates(gates, update)
        torch.mul(previous_cell, forget_gate, out=cell).addcmul_(input_gate, update)
        cell.clamp_(-self.cell_clip, self.cell_clip)
        torch.mul(cell, 2, out=cell_tanh).sigmoid_().mul_(2).sub_(1)
        torch.mul(output_gate, cell_tanh, out=hidden)

    def backward(
        self,
        gates: torch.Tensor,
        cell_tanh: torch.Tensor,
        cell: torch.Tensor,
        previous_cell: torch.Tensor,
        d_hidden: torch.Tensor,
        d_cell: torch.Tensor,
    ) -> torch.Tensor:
        """Overwrite the gates with their gradients; return the gradient of the previous cell."""
        update, input_gate, forget_gate, output_gate = gates.chunk(4, -1)
        sigmoids = gates[..., update.shape[-1] :]
        if not self.scratch:
            self.scratch = (
                *(torch.empty_like(d_cell) for _ in range(4)),
                torch.empty_like(sigmoids),
                gates.new_ones(()),
            )
        product, d_update, d_input_gate, d_previous_cell, complements, one = self.scratch
        # d_cell += d_hidden * output_gate * (1 - tanh(cell)^2)
        torch.mul(d_hidden, output_gate, out=product)
        d_cell.add_(product).addcmul_(product.mul_(cell_tanh), cell_tanh, value=-1)
        clip_backward(d_cell, cell, -self.cell_clip, self.cell_clip, grad_input=d_cell)
        torch.mul(d_cell, input_gate, out=d_update)
        torch.mul(d_cell, update, out=d_input_gate)
        torch.mul(d_cell, forget_gate, out=d_previous_cell)
        # From here on the gates hold their gradients: d (1 - y^2) of tanh, d y (1 - y) of sigmoid.
        torch.mul(d_update, update, out=product)
        torch.addcmul(d_update, product, update, value=-1, out=update)
        sigmoids.mul_(torch.sub(one, sigmoids, out=complements))
        output_gate.mul_(d_hidden.mul_(cell_tanh))
        input_gate.mul_(d_input_gate)
        forget_gate.mul_(previous_cell).mul_(d_cell)
        self.scratch = (product, d_update, d_input_gate, d_cell, complements, one)
        return d_previous_cell


def _activate_gates(gates: torch.Tensor, update: torch.Tensor) -> None:
    if gates.device.type == "cpu" and gates.dtype != torch.bfloat16:
        update.mul_(2)
        gates.sigmoid_()
        update.mul_(2).sub_(1)
    else:
        update.tanh_()
        gates[..., update.shape[-1] :].sigmoid_()
