"""Numbers, metrics and systems as short texts."""

import pytest

from lineage.report import formatting
from tests.helpers.study_rows import build_comparison


def test_an_interval_that_the_data_cannot_support_is_replaced_by_the_reason() -> None:
    interval = {"ci_low": -0.05, "ci_high": 0.1}
    cases = [
        ({"num_examples": 3}, "+2.4 points, too few items or groups for an interval"),
        ({"verdict": "too few seeds"}, "+2.4 points, −5.0 to +10.0 for these models"),
        ({"verdict": "no significant difference"}, "+2.4 points, −5.0 to +10.0"),
    ]
    for changes, text in cases:
        assert formatting.format_comparison(build_comparison(**interval | changes)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999_400, "999 kB"),
        (999_700, "1 MB"),
        (999_960_000, "1 GB"),
        (999.6, "1 kB"),
        (12_340, "12.3 kB"),
        (12.3, "12.3 B"),
    ],
)
def test_three_digits_are_rounded_before_their_prefix_is_chosen(value: float, text: str) -> None:
    assert formatting.format_si(value, "B") == text


def test_zero_has_no_sign_and_negatives_have_a_minus_sign() -> None:
    assert formatting.format_percent(-0.0001) == "0.0"
    assert formatting.format_percent(-0.001) == "−0.1"
    assert formatting.format_percent(None) == "–"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0003, 0.04, "+0.03 to +4.0"),
        (-0.04, -0.0003, "−4.0 to −0.03"),
        (0.00001, 0.04, "+0.00 to +4.0"),
        (0.0, 0.04, "0.0 to +4.0"),
        (1e-17, 0.0006, "0.0 to +0.1"),
    ],
)
def test_an_interval_tells_on_which_side_of_zero_it_ends(
    low: float, high: float, text: str
) -> None:
    """Sums of floats leave a difference of 1e-17 where there is none."""
    assert formatting.format_range(low, high) == text
