"""The LSTM with its own backward pass matches plain steps under autograd, including clipping."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from lineage.networks.layers.lstm import LSTMStates, ProjectedLSTM, ProjectedLSTMLayer


def plain_steps(
    layer: ProjectedLSTMLayer, x_2BTP: torch.Tensor, output: torch.Tensor, cell: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute one step after another (Sak et al. 2014, equations 7 to 13), with ELMo's clips.

    Peepholes are left out.
    """
    outputs = []
    for x_2BP in x_2BTP.unbind(2):
        gates = (
            torch.bmm(x_2BP, layer.weight_ih)
            + torch.bmm(output, layer.weight_hh)
            + layer.bias.view(2, 1, -1)
        )
        update, input_gate, forget_gate, output_gate = gates.chunk(4, -1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(update)
        cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
        output = torch.bmm(torch.sigmoid(output_gate) * torch.tanh(cell), layer.weight_hr).clamp(
            -layer.projection_clip, layer.projection_clip
        )
        outputs.append(output)
    return torch.stack(outputs, 2), output, cell


def build_lstm_and_inputs(
    clip: float,
) -> tuple[ProjectedLSTM, torch.Tensor, LSTMStates, torch.Tensor]:
    """Return an LSTM, its input, its initial state, and weights for a loss."""
    generator = torch.Generator().manual_seed(5)
    body = ProjectedLSTM(
        num_layers=1,
        projection_size=5,
        cell_size=7,
        cell_clip=clip,
        projection_clip=clip,
        dropout=0.0,
    ).double()
    body.init_weights(generator)

    def random_tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    x_2BTP = random_tensor(2, 3, 6, 5)
    state = ((0.3 * random_tensor(2, 3, 5), 0.3 * random_tensor(2, 3, 7)),)
    loss_weight = random_tensor(2, 3, 6, 5)
    return body, x_2BTP, state, loss_weight


@pytest.mark.parametrize(
    "loss_names",
    [("outputs", "output", "cell"), ("outputs",), ("output",), ("cell",)],
    ids="-".join,
)
@pytest.mark.parametrize("clip", [0.1, 0.4, 100.0])
def test_outputs_state_and_gradients_match_plain_steps(
    clip: float, loss_names: tuple[str, ...]
) -> None:
    body, x, ((output, cell),), weight = build_lstm_and_inputs(clip)
    layer = body.layers[0]
    results = []
    for implementation in ("fast", "plain"):
        inputs = [value.clone().requires_grad_() for value in (x, output, cell)]
        if implementation == "fast":
            outputs, (last_output, last_cell) = layer(inputs[0], (inputs[1], inputs[2]))
        else:
            outputs, last_output, last_cell = plain_steps(layer, *inputs)
        if implementation == "plain" and clip < 100:
            assert (outputs.abs() == clip).any() and (last_cell.abs() == clip).any(), (
                "otherwise clipping is not tested"
            )
        losses = {
            "outputs": (outputs * weight).sum(),
            "output": last_output.square().sum(),
            "cell": (last_cell * last_cell).sum(),
        }
        loss = torch.stack([losses[name] for name in loss_names]).sum()
        results.append(
            [
                outputs,
                last_output,
                last_cell,
                *torch.autograd.grad(loss, [*inputs, *layer.parameters()]),
            ]
        )
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_the_second_half_continues_from_the_state_of_the_first() -> None:
    body, x, state, _ = build_lstm_and_inputs(0.4)
    outputs, final_state = body(x, state)
    first_outputs, middle_state = body(x[:, :, :4], state)
    second_outputs, second_state = body(x[:, :, 4:], middle_state)
    torch.testing.assert_close(torch.cat([first_outputs[-1], second_outputs[-1]], 2), outputs[-1])
    torch.testing.assert_close(second_state, final_state)


def test_bf16_rounds_products_and_gives_fp32_gradients() -> None:
    body, x, _, weight = build_lstm_and_inputs(3.0)
    body, x, weight = body.float(), x.float(), weight.float()
    grads = []
    for enabled in (False, True):
        body.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outputs, _ = body(x, None)
        assert outputs[-1].dtype == (torch.bfloat16 if enabled else torch.float32)
        (outputs[-1].float() * weight).sum().backward()
        grads.append([parameter.grad for parameter in body.parameters()])
    for exact, rounded in zip(*grads, strict=True):
        assert exact is not None and rounded is not None and rounded.dtype == torch.float32
        assert not torch.equal(exact, rounded)
        torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_small_values_keep_their_precision_under_bf16() -> None:
    """The error stays within bf16 rounding; tanh(0.01) by a sigmoid would be off by a fifth."""
    body, _, _, _ = build_lstm_and_inputs(3.0)
    body = body.float()
    x = 0.02 * torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = body(x, None)[0][-1]
        with torch.autocast("cpu", torch.bfloat16):
            rounded = body(x, None)[0][-1].float()
    assert float((rounded - exact).norm() / exact.norm()) < 0.01


FUSED_SCRIPT = """
import torch
from lineage.networks.layers import lstm
from lineage.networks.layers.lstm_kernels import FusedCellSteps

def gradients(steps, clip):
    lstm._cell_steps_class = lambda device_type: steps
    generator = torch.Generator().manual_seed(1)
    layer = lstm.ProjectedLSTM(num_layers=1, projection_size=16, cell_size=300, cell_clip=clip, projection_clip=0.8, dropout=0.0)
    layer.init_weights(generator)
    x = torch.randn(2, 4, 3, 16, generator=generator).requires_grad_()
    outputs, _ = layer(x, None)
    outputs[0].square().sum().backward()
    return [outputs[0].detach(), x.grad, *(weight.grad for weight in layer.parameters())]

for clip in (0.1, 3.0):
    for fused, plain in zip(gradients(FusedCellSteps, clip), gradients(lstm.CellSteps, clip)):
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton comes with torch for GPUs only"
)
def test_the_gpu_kernels_compute_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    subprocess.run([sys.executable, "-c", FUSED_SCRIPT], check=True)
