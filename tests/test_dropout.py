"""The dropout that is fast on a CPU has the rate, scale and gradient of torch's."""

import pytest
import torch

from lineage.networks.layers.dropout import fast_dropout
from lineage.training.state import RngState

CPU = torch.device("cpu")


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.93])
def test_each_unit_is_dropped_with_the_probability_and_the_mean_stays(p: float) -> None:
    """Of a million independent units, the share has a standard deviation of at most 0.0005."""
    with RngState(3).activate(CPU):
        dropped = fast_dropout(torch.ones(7, 142_857), p, True)
    is_zero = dropped == 0
    assert abs(float(is_zero.double().mean()) - p) < 5 * 0.0005
    kept = dropped[~is_zero].unique()
    assert kept.tolist() == pytest.approx([1 / (1 - p)], rel=2e-5 / (1 - p))
    # Units that share a draw are independent too.
    for distance in (1, 2, 3):
        together = (is_zero[:, :-distance] & is_zero[:, distance:]).double().mean()
        assert abs(float(together) - p * p) < 5 * 0.0005


def test_the_gradient_is_that_of_the_units_that_were_kept() -> None:
    x = torch.randn(11, 13, dtype=torch.double, requires_grad=True)
    y = fast_dropout(x, 0.3, True)
    assert y.dtype == torch.double
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert 0 < int((x.grad == 0).sum()) < x.numel()


def test_the_random_state_decides_and_nothing_is_dropped_in_evaluation() -> None:
    x = torch.ones(5, 9)
    first, second, third = (_drop(x, seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert fast_dropout(x, 0.4, False) is x
    assert fast_dropout(x, 0.0, True) is x
    assert not fast_dropout(x, 1.0, True).any()
    assert fast_dropout(x[:0], 0.4, True).shape == (0, 9)


def _drop(x: torch.Tensor, seed: int) -> torch.Tensor:
    with RngState(seed).activate(CPU):
        return fast_dropout(x, 0.4, True)
