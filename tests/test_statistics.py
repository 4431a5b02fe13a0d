"""A planted effect is found, none is found where there is none, and the formulas are those of scipy."""

import numpy as np
import pytest
from scipy import stats

from lineage.analysis import statistics
from lineage.analysis.statistics import (
    EQUIVALENCE_MARGIN,
    Estimate,
    Scores,
    classify_difference,
    estimate_difference,
    estimate_mean,
    estimate_seed_variances,
    standard_error,
)
from lineage.evaluation.metrics import pearson
from tests.bootstrap import bootstrap

SEEDS, EXAMPLES, NONE = 3, 400, float("nan")


def right(
    rng: np.random.Generator,
    *,
    ability: float,
    seed_spread: float = 0.0,
    difficulty: Scores | None = None,
    seeds: int = SEEDS,
) -> Scores:
    """(seeds, examples) of 0 and 1: examples differ in difficulty, seeds in ability."""
    difficulty = rng.normal(size=EXAMPLES) if difficulty is None else difficulty
    skill = ability + seed_spread * rng.normal(size=(seeds, 1))
    return (rng.logistic(size=(seeds, EXAMPLES)) < skill - difficulty).astype(float)


def test_standard_error_is_that_of_scipy() -> None:
    values = np.random.default_rng(1).integers(0, 2, size=97)
    assert standard_error(values) == pytest.approx(stats.sem(values), rel=1e-12)
    assert np.isnan(standard_error([1.0]))


def test_one_repetition_gives_the_paired_t_interval_of_scipy() -> None:
    rng = np.random.default_rng(2)
    first, second = right(rng, ability=1.0, seeds=1), right(rng, ability=0.2, seeds=1)
    found = estimate_difference(first, second)
    padded = np.concatenate([(first - second)[0], [-1.0, 1.0]])
    low, high = stats.t.interval(
        0.95, EXAMPLES - 1, loc=(first - second).mean(), scale=stats.sem(padded)
    )
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_a_planted_effect_is_found_and_its_mirror_image_too() -> None:
    rng = np.random.default_rng(3)
    difficulty = rng.normal(size=EXAMPLES)
    strong = right(rng, ability=1.5, seed_spread=0.05, difficulty=difficulty)
    weak = right(rng, ability=0.5, seed_spread=0.05, difficulty=difficulty)
    assert classify_difference(estimate_difference(strong, weak)) == "better"
    assert classify_difference(estimate_difference(weak, strong)) == "worse"


def test_no_effect_is_no_significant_difference() -> None:
    rng = np.random.default_rng(4)
    difficulty = rng.normal(size=EXAMPLES)
    same = [right(rng, ability=1.0, seed_spread=0.1, difficulty=difficulty) for _ in range(2)]
    assert classify_difference(estimate_difference(same[0], same[1])) == "no significant difference"


def test_equivalence_needs_enough_examples() -> None:
    rng = np.random.default_rng(5)
    first = (rng.random((SEEDS, 5000)) < 0.9).astype(float)
    second = np.roll(first, 1, axis=1)
    second[:, 200:] = first[:, 200:]
    found = estimate_difference(first, second)
    assert classify_difference(found) == "equivalent" and abs(found.mean) < EQUIVALENCE_MARGIN
    assert (
        classify_difference(estimate_difference(first[:, :60], first[:, :60].copy()))
        == "no significant difference"
    ), "sixty equal answers do not show two points"


@pytest.mark.parametrize("seed_spread", [0.0, 0.6])
def test_intervals_hold_their_level_with_three_seeds(seed_spread: float) -> None:
    """Of 600 comparisons between equals about 5 % look separated, however much seeds differ; a bootstrap over 3 seeds errs in over 20 %."""
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(600):
        difficulty = rng.normal(size=EXAMPLES)
        pair = [
            right(rng, ability=1.0, seed_spread=seed_spread, difficulty=difficulty)
            for _ in range(2)
        ]
        wrong += classify_difference(estimate_difference(pair[0], pair[1])) in ("better", "worse")
    assert wrong / 600 < 0.09


@pytest.mark.parametrize("seed_spreads", [(0.0, 0.0), (0.3, 0.3), (0.05, 0.6)])
def test_intervals_of_many_comparisons_hold_together(seed_spreads: tuple[float, float]) -> None:
    """Of 100 studies of twelve comparisons between equals 5 may call one separated; each by its own seeds, up to 36 did."""
    rng = np.random.default_rng(8)
    wrong = 0
    for _ in range(100):
        difficulty = rng.normal(size=EXAMPLES)
        pairs = [
            [right(rng, ability=1.0, seed_spread=one, difficulty=difficulty) for _ in range(2)]
            for one in seed_spreads * 6
        ]
        spreads = [estimate_seed_variances(first - second) for first, second in pairs]
        found = [
            estimate_difference(first, second, num_comparisons=12, seed_variances=spreads)
            for first, second in pairs
        ]
        wrong += any(
            classify_difference(one, num_comparisons=12) in ("better", "worse") for one in found
        )
    assert wrong / 100 < 0.1


def test_a_planted_effect_is_found_among_twelve_comparisons() -> None:
    """Their seeds count together: by its own three alone about two of three are found. Who varies more than the others by luck is found less."""
    rng = np.random.default_rng(9)
    found = []
    for _ in range(20):
        pairs = [
            [right(rng, ability=ability, seed_spread=0.1) for ability in (1.8, 0.8)]
            for _ in range(12)
        ]
        spreads = [estimate_seed_variances(first - second) for first, second in pairs]
        found += [
            classify_difference(
                estimate_difference(*pair, num_comparisons=12, seed_variances=spreads),
                num_comparisons=12,
            )
            == "better"
            for pair in pairs
        ]
    assert np.mean(found) > 0.8


def test_a_comparison_counts_on_seeds_no_steadier_than_the_mean_of_those_read_with_it() -> None:
    """Written out: the larger of both variances, over the repetitions, and the freedom of four comparisons at most."""
    first = right(np.random.default_rng(10), ability=1.0, seeds=3)
    second = first.copy()
    own, others = (
        estimate_difference(first, second),
        estimate_difference(
            first, second, seed_variances=[(NONE, 0.0), (NONE, 0.09), (NONE, NONE)]
        ),
    )
    by_example = np.concatenate([(first - second).mean(axis=0), [-1.0, 1.0]]).var(ddof=1) / (
        EXAMPLES + 2
    )
    lent = 0.045 / 3
    assert (
        own.standard_error == pytest.approx(np.sqrt(by_example))
        and own.degrees_of_freedom == EXAMPLES - 1
    )
    assert others.standard_error == pytest.approx(np.sqrt(by_example + lent))
    assert others.degrees_of_freedom == pytest.approx(
        (by_example + lent) ** 2 / (by_example**2 / (EXAMPLES - 1) + lent**2 / 4)
    )


def test_more_questions_make_wider_intervals() -> None:
    rng = np.random.default_rng(7)
    first, second = right(rng, ability=1.0), right(rng, ability=0.8)
    one, six = (
        estimate_difference(first, second),
        estimate_difference(first, second, num_comparisons=6),
    )
    assert six.low < one.low < one.high < six.high and six.mean == one.mean


def test_a_perfect_score_is_not_certain_to_the_last_digit() -> None:
    found = estimate_mean(np.ones((SEEDS, 20)), bounds=(0.0, 1.0))
    assert found.mean == 1 and found.high == 1 and 0.75 < found.low < 0.95


def test_readers_that_always_say_one_class_have_no_interval_over_the_whole_scale() -> None:
    """Their means are nearly equal, their answers opposite: almost no degrees of freedom by Satterthwaite's formula alone."""
    gold = np.arange(1000) % 2
    scores = np.stack([gold == 0, gold == 1, gold == 0]).astype(float)
    for seed, wrong in enumerate((0, 0, 32)):
        scores[seed, np.flatnonzero(scores[seed])[:wrong]] = 0.0
    found = estimate_mean(scores, bounds=(0.0, 1.0))
    assert found.degrees_of_freedom >= 2 and found.high - found.low < 0.1


def crossed(pretrainings: int, seeds: int) -> np.ndarray:
    return np.array([(one, other) for one in range(pretrainings) for other in range(seeds)])


def test_pretrainings_and_seeds_each_have_their_share_and_what_both_make_counts_once() -> None:
    """Written out for a table of means, 2 x 3, with examples that are all alike."""
    means = np.array([[0.2, 0.5, 0.8], [0.3, 0.7, 0.5]])
    scores, seeds = np.repeat(means.reshape(6, 1), 900, axis=1), crossed(2, 3)
    of_pretraining, of_seed = means.mean(1).var(ddof=1) / 2, means.mean(0).var(ddof=1) / 3
    left = means - means.mean(1, keepdims=True) - means.mean(0) + means.mean()
    both = (left**2).sum() / 2 / 6
    assert estimate_seed_variances(scores, seeds) == pytest.approx(
        (2 * of_pretraining, 3 * of_seed)
    )
    over_examples = np.concatenate([np.repeat(means.mean(), 900), [0.0, 1.0]]).var(ddof=1) / 902
    variance = over_examples + max(of_pretraining, of_seed, of_pretraining + of_seed - both)
    found = estimate_mean(scores, bounds=(0.0, 1.0), seeds=seeds)
    assert (
        found.standard_error**2 == pytest.approx(variance)
        and found.num_repetitions == 6
        and found.degrees_of_freedom >= 1
    )
    other = estimate_mean(scores[::-1], bounds=(0.0, 1.0), seeds=seeds[::-1])
    assert (other.low, other.high) == pytest.approx((found.low, found.high)), "in whatever order"
    assert estimate_mean(scores[:3], bounds=(0.0, 1.0), seeds=seeds[:3]) == estimate_mean(
        scores[:3], bounds=(0.0, 1.0)
    ), "one pretraining has no share"


@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (3, 1)])
def test_intervals_hold_their_level_where_pretrainings_share_the_labels_that_a_seed_draws(
    shape: tuple[int, int],
) -> None:
    """A mean over the seeds of each pretraining leaves that out: of 100 comparisons between equals 17 to 36 looked separated."""
    rng, seeds, wrong = np.random.default_rng(11), crossed(*shape), 0
    for _ in range(300):
        skill = 0.05 * rng.normal(size=shape[0])[seeds[:, 0]] + (
            0.15 * rng.normal(size=shape[1])[seeds[:, 1]] if shape[1] > 1 else 0.0
        )
        apart = (rng.logistic(size=(len(seeds), EXAMPLES)) < skill[:, None]).astype(float) - (
            rng.random((len(seeds), EXAMPLES)) < 0.5
        )
        wrong += classify_difference(
            estimate_difference(apart, np.zeros_like(apart), seeds=seeds)
        ) in ("better", "worse")
    assert wrong / 300 < 0.09


def test_who_has_one_seed_left_borrows_what_seeds_are_worth_and_who_varies_most_borrows_less() -> (
    None
):
    first = right(np.random.default_rng(12), ability=1.0, seeds=1)
    alone, beside = (
        estimate_difference(first, first),
        estimate_difference(
            first, first, seed_variances=[(NONE, NONE), (NONE, 0.04), (NONE, 0.08)]
        ),
    )
    assert beside.standard_error**2 == pytest.approx(alone.standard_error**2 + 0.06)
    three = right(np.random.default_rng(13), ability=1.0, seed_spread=2.0)
    own = estimate_seed_variances(three)[1]
    few, kin = (
        estimate_difference(three, 0 * three, seed_variances=[(NONE, own), *[(NONE, other)] * 5])
        for other in (0.0, own)
    )
    assert (
        few.standard_error == pytest.approx(kin.standard_error)
        and few.degrees_of_freedom < 0.6 * kin.degrees_of_freedom
    )


def test_two_items_more_are_two_items_where_examples_are_groups() -> None:
    """Ten authors of thirty items each, read by equals: as ten cases more than half the scale is within the limits."""
    rng = np.random.default_rng(14)
    apart = (rng.random((SEEDS, 10, 30)) < 0.7).astype(float).mean(2) - (
        rng.random((SEEDS, 10, 30)) < 0.7
    ).astype(float).mean(2)
    as_cases, as_groups = (
        estimate_difference(apart, 0 * apart, num_grouped_items=items) for items in (0, 300)
    )
    assert as_cases.high - as_cases.low > 0.4 and 0.05 < as_groups.high - as_groups.low < 0.25
    rows = np.random.default_rng(15)
    wrong = 0
    for _ in range(300):
        one = (rows.random((SEEDS, 10, 30)) < 0.7).astype(float).mean(2) - (
            rows.random((SEEDS, 10, 30)) < 0.7
        ).astype(float).mean(2)
        wrong += classify_difference(estimate_difference(one, 0 * one, num_grouped_items=300)) in (
            "better",
            "worse",
        )
    assert wrong / 300 < 0.09


def test_a_bootstrap_of_four_resamples_counted_by_hand() -> None:
    apart, indices = (
        np.array([0.3, 0.1]),
        np.array([[0, 0], [0, 1], [1, 1], [1, 0]]),
    )  # differences 0.3, 0.2, 0.1, 0.2
    found, strict = (
        bootstrap(lambda some: float(apart[some].mean() - 0.1), indices, ties=ties)
        for ties in (True, False)
    )
    assert found.observed == pytest.approx(0.1) and (found.low, found.high) == pytest.approx(
        (0.0075, 0.1925)
    )
    assert (found.p_not_above, found.p_shifted, found.p_two_sided, found.p_add_one) == (
        1 / 4,
        1 / 4,
        2 / 4,
        3 / 5,
    )
    assert (strict.p_not_above, strict.p_shifted, strict.p_two_sided, strict.p_add_one) == (
        0,
        0,
        0,
        1 / 5,
    )


def test_between_one_system_and_itself_every_resample_is_a_tie() -> None:
    indices = np.random.default_rng(8).integers(0, 20, (50, 20))
    found, strict = (bootstrap(lambda some: 0.0, indices, ties=ties) for ties in (True, False))
    assert found.p_not_above == found.p_shifted == found.p_two_sided == found.p_add_one == 1
    assert strict.p_not_above == strict.p_shifted == strict.p_two_sided == 0


def test_the_interval_of_one_repetition_is_that_of_a_bootstrap_over_its_examples() -> None:
    rng = np.random.default_rng(9)
    first, second = (rng.random(2000) < share for share in (0.8, 0.7))
    apart, indices = (
        first.astype(float) - second,
        rng.integers(0, 2000, (2000, 2000), dtype=np.uint16),
    )
    ours, theirs = (
        estimate_difference(first[None].astype(float), second[None].astype(float)),
        bootstrap(lambda some: float(apart[some].mean()), indices),
    )
    assert (ours.low, ours.high) == pytest.approx(
        (theirs.low, theirs.high), abs=0.06 * (ours.high - ours.low)
    )


def test_a_bootstrap_of_a_score_that_is_no_mean_over_examples() -> None:
    rng = np.random.default_rng(10)
    gold = rng.normal(size=300)
    near, far = (gold + spread * rng.normal(size=300) for spread in (0.5, 2.0))
    indices = rng.integers(0, 300, (300, 300))
    found = bootstrap(
        lambda some: pearson(gold[some], near[some]) - pearson(gold[some], far[some]), indices
    )
    assert (
        0 < found.low < found.observed < found.high
        and found.p_not_above == 0
        and found.p_add_one < 0.01
    )
    with pytest.raises(AssertionError, match="no score"):
        bootstrap(lambda some: pearson(gold[some], np.zeros(300)), indices[:2])


def test_an_equivalence_is_tested_from_one_side_and_at_the_level_of_all_questions() -> None:
    found = Estimate(
        0.0, 0.0115, 1e6, -0.03, 0.03, 1, 100
    )  # 1.64 standard errors are 0.0189, 1.96 are 0.0225
    assert (
        classify_difference(found) == "equivalent"
        and classify_difference(found, num_comparisons=6) == "no significant difference"
    )


def test_one_seed_borrows_the_spread_of_others_with_few_degrees_of_freedom() -> None:
    assert (
        statistics._variance_component(np.ones((1, 5)), [0.1] * 9).degrees_of_freedom
        == statistics.MAX_POOLED_COMPARISONS
    )
