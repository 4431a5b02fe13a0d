"""Learning rates follow the schedules of the papers and of transformers."""

import pytest

from lineage.training.schedules import schedule_with_warmup, slanted_triangular_schedule


@pytest.mark.parametrize(
    ("name", "warmup_ratio", "shares"),
    [
        ("linear", 0.25, {0.0: 0.0, 0.125: 0.5, 0.25: 1.0, 0.625: 0.5, 1.0: 0.0}),
        ("constant", 0.5, {0.0: 0.0, 0.25: 0.5, 0.5: 1.0, 1.0: 1.0}),
        ("constant", 0.0, {0.0: 1.0}),
        # GPT is pretrained along half a cosine. In its fine-tuning the rate decays in warmup too.
        ("cosine", 0.2, {0.0: 0.0, 0.1: 0.5, 0.2: 1.0, 0.6: 0.5, 1.0: 0.0}),
        ("gpt", 0.002, {0.001: 0.5 * 0.999, 0.002: 0.998, 0.5: 0.5, 1.0: 0.0}),
        ("gpt", 0.0, {0.0: 1.0}),
        ("trapezoid", 0.1, {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.6: 1.0, 0.8: 0.5, 1.0: 0.0}),
        ("trapezoid", 0.0, {0.0: 1.0}),
    ],
)
def test_a_schedule_has_its_share_of_the_rate_at_each_progress(
    name: str, warmup_ratio: float, shares: dict[float, float]
) -> None:
    schedule = schedule_with_warmup(name, warmup_ratio)
    assert {progress: schedule(progress) for progress in shares} == pytest.approx(shares)


@pytest.mark.parametrize("total", [100, 105, 37])
def test_the_slanted_triangular_schedule_has_its_ends_and_peak(total: int) -> None:
    """If total x cut is not a whole number, the paper's denominator would become negative."""
    schedule = slanted_triangular_schedule(0.1, 32.0)
    values = [schedule(step / total) for step in range(total + 1)]
    assert values[0] == pytest.approx(1 / 32)
    assert values[-1] == pytest.approx(1 / 32)
    assert schedule(0.1) == pytest.approx(1.0)
    assert min(values) >= 1 / 32 - 1e-12 and max(values) <= 1.0
    assert schedule(0.55) == pytest.approx((1 + 1 / 32) / 2), "the decay is linear to the end"
