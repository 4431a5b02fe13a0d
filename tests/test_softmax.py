"""The softmax in blocks is the softmax: value and gradients, in fp32, under bf16, and where one table is tied."""

import pytest
import torch
from torch.nn import functional as F

from lineage.models.layers import softmax
from lineage.models.layers.softmax import blockwise_cross_entropy

Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]


def draw(dtype: torch.dtype = torch.float64, *, bias: bool = True, n: int = 13) -> Case:
    some = torch.Generator().manual_seed(3)
    x, weight, offset = (
        torch.randn(*shape, generator=some, dtype=dtype).requires_grad_()
        for shape in ((n, 7), (99, 7), (99,))
    )
    return x, weight, offset if bias else None, torch.randint(99, (n,), generator=some)


def plain(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), targets, reduction="sum")


def blocks(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> torch.Tensor:
    return blockwise_cross_entropy((x, weight, bias), targets)


def answers(nats: torch.Tensor, case: Case) -> list[torch.Tensor]:
    return [
        nats.detach(),
        *torch.autograd.grad(nats / 7, [some for some in case[:3] if some is not None]),
    ]


@pytest.mark.parametrize("rows", [1, 5, 13, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients_are_those_of_the_whole_softmax_for_any_block(
    rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "LOGITS_PER_BLOCK", rows * 99)
    case = draw(bias=bias)
    for ours, theirs in zip(answers(blocks(*case), case), answers(plain(*case), case), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_logits_that_differ_by_hundreds_stay_finite() -> None:
    x, weight, bias, targets = draw()
    case = (100 * x.detach(), weight, bias, targets)
    found = blocks(*case)
    torch.testing.assert_close(found, plain(*case))
    assert torch.isfinite(torch.autograd.grad(found, weight)[0]).all()


def test_under_bf16_only_the_products_are_rounded() -> None:
    case = draw(torch.float32, n=400)
    exact = answers(plain(*case), case)
    with torch.autocast("cpu", torch.bfloat16):
        found, usual = answers(blocks(*case), case), answers(plain(*case), case)
    for ours, theirs, right in zip(found, usual, exact, strict=True):
        assert ours.dtype == torch.float32 and not torch.equal(ours, right)
        assert (
            float((ours - right).norm())
            <= 1.5 * float((theirs.float() - right).norm())
            <= 0.05 * float(right.norm())
        )


def test_no_target_is_no_loss_and_no_gradient() -> None:
    x, weight, bias, targets = draw(n=0)
    found = answers(blocks(x, weight, bias, targets), (x, weight, bias, targets))
    assert all(float(some.abs().sum()) == 0 for some in found)


def test_without_gradients_none_are_taken() -> None:
    case = draw()
    with torch.no_grad():
        found = blocks(*case)
    assert not found.requires_grad
    torch.testing.assert_close(found, plain(*case).detach())


def test_no_gradient_is_computed_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In validation the parameters want gradients, and nobody else does."""

    def never(*_: object) -> None:
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(softmax, "_accumulate_gradients", never)
    x, weight, bias, targets = draw()
    with torch.no_grad():
        blockwise_cross_entropy((x, weight, bias), targets)
    with pytest.raises(AssertionError, match="a gradient was computed"):
        blockwise_cross_entropy((x, weight, bias), targets)
