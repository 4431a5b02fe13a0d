"""The blockwise softmax gives the value and gradients of the full one, in fp32 and bf16."""

import pytest
import torch
from torch.nn import functional as F

from lineage.networks.layers import softmax
from lineage.networks.layers.softmax import blockwise_cross_entropy

Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]


def draw_case(dtype: torch.dtype = torch.float64, *, bias: bool = True, n: int = 13) -> Case:
    generator = torch.Generator().manual_seed(3)
    x, weight, offset = (
        torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()
        for shape in ((n, 7), (99, 7), (99,))
    )
    return x, weight, offset if bias else None, torch.randint(99, (n,), generator=generator)


def full_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), targets, reduction="sum")


def blockwise(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> torch.Tensor:
    return blockwise_cross_entropy((x, weight, bias), targets)


def value_and_gradients(nats: torch.Tensor, case: Case) -> list[torch.Tensor]:
    return [
        nats.detach(),
        *torch.autograd.grad(nats / 7, [tensor for tensor in case[:3] if tensor is not None]),
    ]


@pytest.mark.parametrize("rows", [1, 5, 13, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients_equal_the_full_softmax_for_any_block_size(
    rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "LOGITS_PER_BLOCK", rows * 99)
    case = draw_case(bias=bias)
    for actual, expected in zip(
        value_and_gradients(blockwise(*case), case),
        value_and_gradients(full_cross_entropy(*case), case),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_logits_that_differ_by_hundreds_stay_finite() -> None:
    x, weight, bias, targets = draw_case()
    case = (100 * x.detach(), weight, bias, targets)
    nats = blockwise(*case)
    torch.testing.assert_close(nats, full_cross_entropy(*case))
    assert torch.isfinite(torch.autograd.grad(nats, weight)[0]).all()


def test_bf16_rounds_only_the_products() -> None:
    case = draw_case(torch.float32, n=400)
    exact = value_and_gradients(full_cross_entropy(*case), case)
    with torch.autocast("cpu", torch.bfloat16):
        blockwise_result = value_and_gradients(blockwise(*case), case)
        full_result = value_and_gradients(full_cross_entropy(*case), case)
    for actual, full, expected in zip(blockwise_result, full_result, exact, strict=True):
        assert actual.dtype == torch.float32 and not torch.equal(actual, expected)
        assert (
            float((actual - expected).norm())
            <= 1.5 * float((full.float() - expected).norm())
            <= 0.05 * float(expected.norm())
        )


def test_without_targets_loss_and_gradients_are_zero() -> None:
    x, weight, bias, targets = draw_case(n=0)
    results = value_and_gradients(blockwise(x, weight, bias, targets), (x, weight, bias, targets))
    assert all(float(result.abs().sum()) == 0 for result in results)


def test_gradients_are_only_computed_if_grad_mode_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In validation the parameters require gradients, but grad mode is off."""

    def fail(*_: object) -> None:
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(softmax, "_accumulate_gradients", fail)
    case = draw_case()
    with torch.no_grad():
        nats = blockwise(*case)
    assert not nats.requires_grad
    torch.testing.assert_close(nats, full_cross_entropy(*case).detach())
    with pytest.raises(AssertionError, match="a gradient was computed"):
        blockwise(*case)
