"""The recurrence with its backward written by hand equals the same steps under autograd, clips included."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from lineage.models.layers.lstm import LSTMStates, ProjectedLSTM, ProjectedLSTMLayer


def plain(
    layer: ProjectedLSTMLayer, x_2BTP: torch.Tensor, output: torch.Tensor, cell: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step after another, as in the paper (Sak et al. 2014, equations 7 to 13, without peepholes), with ELMo's clips."""
    outputs = []
    for x in x_2BTP.unbind(2):
        gates = (
            torch.bmm(x, layer.weight_ih)
            + torch.bmm(output, layer.weight_hh)
            + layer.bias.view(2, 1, -1)
        )
        update, in_gate, forget, out = gates.chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(in_gate) * torch.tanh(update)
        cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
        output = torch.bmm(torch.sigmoid(out) * torch.tanh(cell), layer.weight_hr).clamp(
            -layer.projection_clip, layer.projection_clip
        )
        outputs.append(output)
    return torch.stack(outputs, 2), output, cell


def draw(clip: float) -> tuple[ProjectedLSTM, torch.Tensor, LSTMStates, torch.Tensor]:
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

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    return body, some(2, 3, 6, 5), ((0.3 * some(2, 3, 5), 0.3 * some(2, 3, 7)),), some(2, 3, 6, 5)


@pytest.mark.parametrize(
    "asked", [("outputs", "output", "cell"), ("outputs",), ("output",), ("cell",)], ids="-".join
)
@pytest.mark.parametrize("clip", [0.1, 0.4, 100.0])
def test_outputs_state_and_every_gradient_are_those_of_the_plain_steps(
    clip: float, asked: tuple[str, ...]
) -> None:
    body, x, ((output, cell),), weight = draw(clip)
    layer = body.layers[0]
    assert isinstance(layer, ProjectedLSTMLayer)
    found = []
    for way in ("fast", "plain"):
        inputs = [value.clone().requires_grad_() for value in (x, output, cell)]
        if way == "fast":
            outputs, (last, after) = layer(inputs[0], (inputs[1], inputs[2]))
        else:
            outputs, last, after = plain(layer, *inputs)
        if way == "plain" and clip < 100:
            assert (outputs.abs() == clip).any() and (after.abs() == clip).any(), (
                "else the clips are not tried"
            )
        losses = {
            "outputs": (outputs * weight).sum(),
            "output": last.square().sum(),
            "cell": (after * after).sum(),
        }
        loss = torch.stack([losses[name] for name in asked]).sum()
        found.append(
            [outputs, last, after, *torch.autograd.grad(loss, [*inputs, *layer.parameters()])]
        )
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)


def test_the_second_half_goes_on_where_the_first_ended() -> None:
    body, x, state, _ = draw(0.4)
    whole, last = body(x, state)
    first, middle = body(x[:, :, :4], state)
    second, end = body(x[:, :, 4:], middle)
    torch.testing.assert_close(torch.cat([first[-1], second[-1]], 2), whole[-1])
    torch.testing.assert_close(end, last)


def test_under_bf16_products_are_rounded_and_gradients_reach_fp32_weights() -> None:
    body, x, _, weight = draw(3.0)
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
    """Within the rounding of bf16: by the sigmoid, tanh(0.01) would be off by a fifth there."""
    body, _, _, _ = draw(3.0)
    body = body.float()
    x = 0.02 * torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = body(x, None)[0][-1]
        with torch.autocast("cpu", torch.bfloat16):
            rounded = body(x, None)[0][-1].float()
    assert float((rounded - exact).norm() / exact.norm()) < 0.01


FUSED = """
import torch
from lineage.models.layers import lstm
from lineage.models.layers.lstm_kernels import FusedCellSteps

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
def test_the_kernels_for_a_gpu_compute_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    subprocess.run([sys.executable, "-c", FUSED], check=True)
