"""Intervals and comparisons find real differences, hold their error rates and match scipy."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import digamma, polygamma

from lineage.analysis import statistics
from lineage.analysis.contributions import macro_f1_slopes, matthews_slopes, split_score
from lineage.analysis.statistics import (
    EQUIVALENCE_MARGIN,
    Estimate,
    Scores,
    TrainingSets,
    adjust_p_values,
    detectable_difference,
    difference_p_value,
    equivalence_p_value,
    estimate_difference,
    estimate_mean,
    estimate_prior,
    estimate_ratio,
    estimate_seed_variances,
    judge_differences,
)
from lineage.answers.metrics import METRICS

SEEDS = 3
EXAMPLES = 400
NAN = float("nan")


def classify_difference(estimate: Estimate) -> str:
    """Return the verdict on a difference that is read alone."""
    (judgement,) = judge_differences([estimate])
    return judgement.verdict


def simulate_correct(
    rng: np.random.Generator,
    *,
    ability: float,
    seed_spread: float = 0.0,
    difficulty: Scores | None = None,
    seeds: int = SEEDS,
) -> Scores:
    """Return (seeds, examples) of 0 and 1; examples differ in difficulty and seeds in ability."""
    difficulty = rng.normal(size=EXAMPLES) if difficulty is None else difficulty
    skill = ability + seed_spread * rng.normal(size=(seeds, 1))
    return (rng.logistic(size=(seeds, EXAMPLES)) < skill - difficulty).astype(float)


@pytest.mark.parametrize("num_blocks", [10, 60])
def test_the_interval_of_a_ratio_covers_it_in_95_of_100_texts(num_blocks: int) -> None:
    """Blocks of unequal size differ in what they ask of a model, and the mean is known."""
    rng = np.random.default_rng(11)
    num_covered = 0
    for _ in range(4000):
        sizes = rng.uniform(500, 1500, num_blocks)
        per_unit = rng.normal(0.02, 0.05, num_blocks) + rng.exponential(0.03, num_blocks)
        estimate = estimate_ratio(sizes * per_unit, sizes)
        num_covered += estimate.low <= 0.05 <= estimate.high
    assert 0.935 < num_covered / 4000 < 0.965


def test_the_ratio_of_equal_blocks_has_the_t_interval_of_scipy() -> None:
    sums = np.random.default_rng(12).normal(3, 1, 17)
    estimate = estimate_ratio(sums, np.full(17, 10))
    low, high = stats.t.interval(0.95, 16, sums.mean() / 10, stats.sem(sums) / 10)
    assert (estimate.low, estimate.high) == pytest.approx((low, high))


def test_one_repetition_gives_the_paired_t_interval_of_scipy() -> None:
    rng = np.random.default_rng(2)
    first = simulate_correct(rng, ability=1.0, seeds=1)
    second = simulate_correct(rng, ability=0.2, seeds=1)
    estimate = estimate_difference(first, second)
    padded = np.concatenate([(first - second)[0], [-1.0, 1.0]])
    low, high = stats.t.interval(
        0.95, EXAMPLES - 1, loc=(first - second).mean(), scale=stats.sem(padded)
    )
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-9)


def test_a_real_difference_is_found_in_both_orders() -> None:
    rng = np.random.default_rng(3)
    difficulty = rng.normal(size=EXAMPLES)
    strong = simulate_correct(rng, ability=1.5, seed_spread=0.05, difficulty=difficulty)
    weak = simulate_correct(rng, ability=0.5, seed_spread=0.05, difficulty=difficulty)
    assert classify_difference(estimate_difference(strong, weak)) == "better"
    assert classify_difference(estimate_difference(weak, strong)) == "worse"


def test_equal_systems_show_no_significant_difference() -> None:
    rng = np.random.default_rng(4)
    difficulty = rng.normal(size=EXAMPLES)
    same = [
        simulate_correct(rng, ability=1.0, seed_spread=0.1, difficulty=difficulty) for _ in range(2)
    ]
    assert classify_difference(estimate_difference(same[0], same[1])) == "no significant difference"


def test_equivalence_needs_enough_examples() -> None:
    rng = np.random.default_rng(5)
    first = (rng.random((SEEDS, 5000)) < 0.9).astype(float)
    second = np.roll(first, 1, axis=1)
    second[:, 200:] = first[:, 200:]
    estimate = estimate_difference(first, second)
    assert classify_difference(estimate) == "equivalent" and abs(estimate.mean) < EQUIVALENCE_MARGIN
    assert (
        classify_difference(estimate_difference(first[:, :60], first[:, :60].copy()))
        == "no significant difference"
    ), "60 equal answers cannot show equivalence within 2 points"


@pytest.mark.parametrize("seed_spread", [0.0, 0.6])
def test_false_positive_rate_holds_with_three_seeds(seed_spread: float) -> None:
    """Compare equal systems 600 times: about 5% may look different, however much the seeds vary.

    A bootstrap over 3 seeds is wrong more than 20% of the time.
    """
    rng = np.random.default_rng(6)
    num_false_positives = 0
    for _ in range(600):
        difficulty = rng.normal(size=EXAMPLES)
        pair = [
            simulate_correct(rng, ability=1.0, seed_spread=seed_spread, difficulty=difficulty)
            for _ in range(2)
        ]
        num_false_positives += classify_difference(estimate_difference(pair[0], pair[1])) in (
            "better",
            "worse",
        )
    assert num_false_positives / 600 < 0.09


def compare_pairs(pairs: list[list[Scores]]) -> list[str]:
    """Return the verdicts on comparisons that are read together."""
    variances = [estimate_seed_variances(first - second) for first, second in pairs]
    estimates = [
        estimate_difference(first, second, seed_variances=variances) for first, second in pairs
    ]
    return [one.verdict for one in judge_differences(estimates)]


@pytest.mark.parametrize("seed_spreads", [(0.0, 0.0), (0.3, 0.3), (0.05, 0.6)])
def test_family_wise_error_rate_holds_over_twelve_comparisons(
    seed_spreads: tuple[float, float],
) -> None:
    """Of 100 studies with twelve comparisons of equal systems, about 5 may report a difference.

    When each comparison used only its own seeds, up to 36 did.
    """
    rng = np.random.default_rng(8)
    num_false_positives = 0
    for _ in range(100):
        difficulty = rng.normal(size=EXAMPLES)
        pairs = [
            [
                simulate_correct(rng, ability=1.0, seed_spread=spread, difficulty=difficulty)
                for _ in range(2)
            ]
            for spread in seed_spreads * 6
        ]
        num_false_positives += bool({*compare_pairs(pairs)} & {"better", "worse"})
    assert num_false_positives / 100 < 0.1


def test_a_real_difference_is_found_among_twelve_comparisons() -> None:
    """Moderate the seed variances; three seeds alone would find about 2 of 3 differences."""
    rng = np.random.default_rng(9)
    is_found = []
    for _ in range(20):
        pairs = [
            [simulate_correct(rng, ability=ability, seed_spread=0.1) for ability in (1.8, 0.8)]
            for _ in range(12)
        ]
        is_found += [verdict == "better" for verdict in compare_pairs(pairs)]
    assert np.mean(is_found) > 0.8


def test_the_prior_equals_that_of_limma() -> None:
    """limma's squeezeVar on these variances, with two degrees of freedom, by its formulas."""
    variances = [0.001, 0.2, 0.0004, 0.03, 0.9, 0.01]
    prior = estimate_prior(variances, 2)
    assert prior is not None
    z = np.log(variances) - digamma(1.0) + np.log(1.0)
    excess = z.var(ddof=1) - polygamma(1, 1.0)
    half = prior.degrees_of_freedom / 2
    assert polygamma(1, half) == pytest.approx(excess)
    assert np.log(prior.variance) == pytest.approx(z.mean() + digamma(half) - np.log(half))
    alike = estimate_prior([0.01, 0.011, 0.009, 0.01], 2)
    assert alike is not None and np.isinf(alike.degrees_of_freedom)
    assert alike.variance == pytest.approx(0.01)
    assert estimate_prior([0.01, 0.02], 2) is None and estimate_prior([0.0] * 5, 2) is None


def test_planted_prior_is_found() -> None:
    """Variances of four degrees of freedom around a prior of 0.01 with eight."""
    rng = np.random.default_rng(16)
    true = 0.01 * 8 / rng.chisquare(8, 4000)
    prior = estimate_prior([*(true * rng.chisquare(4, 4000) / 4)], 4)
    assert prior is not None
    assert prior.variance == pytest.approx(0.01, rel=0.05)
    assert prior.degrees_of_freedom == pytest.approx(8, rel=0.15)


def test_a_seed_variance_is_at_least_its_own_and_the_mean_of_the_family() -> None:
    for own, known in ((0.5, [0.5, 0.01, 0.02, 0.03]), (0.01, [0.01, 0.5, 0.02, 0.03])):
        variance, freedom = statistics._moderate(own, 2, known)
        assert variance >= max(own, float(np.mean(known)))
        assert 2 < freedom <= 8
    assert statistics._moderate(0.5, 2, [0.5, 0.1]) == (0.5, 2.0), "two are too few for a prior"


def test_p_values_are_adjusted_as_by_holm() -> None:
    assert adjust_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_p_values([0.6, 0.7]) == [1.0, 1.0] and adjust_p_values([]) == []


def test_p_values_and_the_smallest_detectable_difference_follow_student() -> None:
    estimate = Estimate(0.03, 0.01, 7.0, 400)
    assert difference_p_value(estimate) == pytest.approx(2 * stats.t.sf(3.0, 7))
    assert equivalence_p_value(estimate, margin=0.05) == pytest.approx(stats.t.sf(2.0, 7))
    expected = 0.01 * (stats.t.ppf(0.975, 7) + stats.t.ppf(0.8, 7))
    assert detectable_difference(estimate) == pytest.approx(expected)
    constant = Estimate(0.0, 0.0, 7.0, 400)
    assert (difference_p_value(constant), equivalence_p_value(constant)) == (1.0, 0.0)


def test_two_pretrainings_are_taken_as_they_are() -> None:
    """Whatever they differ by; three are a sample of pretrainings."""
    rng = np.random.default_rng(17)
    answers = (rng.random((1, 500)) < 0.7).astype(float)
    errors = {}
    for num_pretrainings in (2, 3):
        scores = np.repeat(answers, num_pretrainings, axis=0)
        scores[0, :100] = 1 - scores[0, :100]
        seeds = np.array([[seed, 0] for seed in range(num_pretrainings)])
        errors[num_pretrainings] = estimate_mean(scores, bounds=(0, 1), seeds=seeds).standard_error
    assert errors[2] < 0.025 < errors[3]


def test_the_interval_of_a_perfect_score_has_a_width() -> None:
    estimate = estimate_mean(np.ones((SEEDS, 20)), bounds=(0.0, 1.0))
    assert estimate.mean == 1 and estimate.high == 1 and 0.75 < estimate.low < 0.95


def test_models_that_always_predict_one_class_get_a_narrow_interval() -> None:
    """Seeds have nearly equal means but opposite answers.

    Satterthwaite's formula alone would leave almost no degrees of freedom.
    """
    labels = np.arange(1000) % 2
    scores = np.stack([labels == 0, labels == 1, labels == 0]).astype(float)
    for seed, num_wrong in enumerate((0, 0, 32)):
        scores[seed, np.flatnonzero(scores[seed])[:num_wrong]] = 0.0
    estimate = estimate_mean(scores, bounds=(0.0, 1.0))
    assert estimate.degrees_of_freedom >= 2 and estimate.high - estimate.low < 0.1


def crossed_seeds(pretrainings: int, seeds: int) -> np.ndarray:
    """Return (pretraining seed, finetune seed) for every combination."""
    return np.array(
        [(pretraining, seed) for pretraining in range(pretrainings) for seed in range(seeds)]
    )


def test_pretraining_and_finetune_variance_add_without_double_counting() -> None:
    """Write the formula out for a 2 x 3 table of means with identical examples."""
    means = np.array([[0.2, 0.5, 0.8], [0.3, 0.7, 0.5]])
    scores = np.repeat(means.reshape(6, 1), 900, axis=1)
    seeds = crossed_seeds(2, 3)
    pretrain_variance = means.mean(1).var(ddof=1) / 2
    finetune_variance = means.mean(0).var(ddof=1) / 3
    residuals = means - means.mean(1, keepdims=True) - means.mean(0) + means.mean()
    residual_variance = (residuals**2).sum() / 2 / 6
    assert estimate_seed_variances(scores, seeds) == pytest.approx(
        (2 * pretrain_variance, 3 * finetune_variance)
    )
    example_variance = np.concatenate([np.repeat(means.mean(), 900), [0.0, 1.0]]).var(ddof=1) / 902
    variance = example_variance + max(
        pretrain_variance,
        finetune_variance,
        pretrain_variance + finetune_variance - residual_variance,
    )
    estimate = estimate_mean(scores, bounds=(0.0, 1.0), seeds=seeds)
    assert estimate.standard_error**2 == pytest.approx(variance)
    assert estimate.degrees_of_freedom >= 1
    reversed_estimate = estimate_mean(scores[::-1], bounds=(0.0, 1.0), seeds=seeds[::-1])
    assert (reversed_estimate.low, reversed_estimate.high) == pytest.approx(
        (estimate.low, estimate.high)
    ), "the order of repetitions does not matter"
    assert estimate_mean(scores[:3], bounds=(0.0, 1.0), seeds=seeds[:3]) == estimate_mean(
        scores[:3], bounds=(0.0, 1.0)
    ), "one pretraining adds no variance"


@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (3, 1)])
def test_false_positive_rate_holds_when_pretrainings_share_finetune_seeds(
    shape: tuple[int, int],
) -> None:
    """All pretrainings fine-tune on the labels that a finetune seed draws.

    Averaging over the seeds of each pretraining ignores that: 17 to 36 of 100 comparisons between
    equal systems looked different.
    """
    rng = np.random.default_rng(11)
    seeds = crossed_seeds(*shape)
    num_false_positives = 0
    for _ in range(300):
        skill = 0.05 * rng.normal(size=shape[0])[seeds[:, 0]] + (
            0.15 * rng.normal(size=shape[1])[seeds[:, 1]] if shape[1] > 1 else 0.0
        )
        differences = (rng.logistic(size=(len(seeds), EXAMPLES)) < skill[:, None]).astype(float) - (
            rng.random((len(seeds), EXAMPLES)) < 0.5
        )
        num_false_positives += classify_difference(
            estimate_difference(differences, np.zeros_like(differences), seeds=seeds)
        ) in ("better", "worse")
    assert num_false_positives / 300 < 0.09


def test_the_two_pseudo_items_count_as_items_when_examples_are_groups() -> None:
    """Ten authors have thirty items each, and both systems are equal.

    Counted as ten examples, the interval would cover more than 0.4 of the scale.
    """
    rng = np.random.default_rng(14)
    differences = (rng.random((SEEDS, 10, 30)) < 0.7).astype(float).mean(2) - (
        rng.random((SEEDS, 10, 30)) < 0.7
    ).astype(float).mean(2)
    as_examples, as_groups = (
        estimate_difference(differences, 0 * differences, group_sizes_N=sizes_N)
        for sizes_N in (None, np.full(10, 30))
    )
    assert as_examples.high - as_examples.low > 0.4 and 0.05 < as_groups.high - as_groups.low < 0.25
    simulation_rng = np.random.default_rng(15)
    num_false_positives = 0
    for _ in range(300):
        simulated = (simulation_rng.random((SEEDS, 10, 30)) < 0.7).astype(float).mean(2) - (
            simulation_rng.random((SEEDS, 10, 30)) < 0.7
        ).astype(float).mean(2)
        num_false_positives += classify_difference(
            estimate_difference(simulated, 0 * simulated, group_sizes_N=np.full(10, 30))
        ) in (
            "better",
            "worse",
        )
    assert num_false_positives / 300 < 0.09


def test_the_interval_of_one_repetition_matches_a_bootstrap_over_examples() -> None:
    rng = np.random.default_rng(9)
    first, second = (rng.random(2000) < share for share in (0.8, 0.7))
    differences = first.astype(float) - second
    indices = rng.integers(0, 2000, (2000, 2000), dtype=np.uint16)
    estimate = estimate_difference(first[None].astype(float), second[None].astype(float))
    means = [float(differences[sample].mean()) for sample in indices]
    assert (estimate.low, estimate.high) == pytest.approx(
        np.quantile(means, [0.025, 0.975]), abs=0.06 * (estimate.high - estimate.low)
    )


def test_equivalence_is_corrected_for_the_number_of_comparisons() -> None:
    # 1.96 standard errors: 0.0196; 2.39, for one of six: 0.0239.
    estimate = Estimate(0.0, 0.0100, 1e6, 100)
    assert classify_difference(estimate) == "equivalent"
    assert {one.verdict for one in judge_differences([estimate] * 6)} == {
        "no significant difference"
    }


def test_a_difference_whose_interval_leaves_the_margin_is_not_equivalent() -> None:
    """Two one-sided tests of 5 % would say so: 1.64 standard errors are 0.0189."""
    estimate = Estimate(0.0, 0.0115, 1e6, 100)
    assert equivalence_p_value(estimate) < 0.05 and estimate.high > 0.02
    assert classify_difference(estimate) == "no significant difference"


def test_intervals_agree_with_the_verdicts_beside_them() -> None:
    """Whatever the family is like; and each is at least as wide as the interval of its own."""
    rng = np.random.default_rng(31)
    verdicts = []
    for _ in range(300):
        estimates = [
            Estimate(float(rng.normal(0, 0.03)), float(rng.uniform(0.002, 0.03)), 9.0, 100)
            for _ in range(rng.integers(1, 9))
        ]
        for estimate, one in zip(estimates, judge_differences(estimates), strict=True):
            verdicts.append(one.verdict)
            assert one.low <= estimate.low and estimate.high <= one.high
            assert (one.low > 0) == (one.verdict == "better")
            assert (one.high < 0) == (one.verdict == "worse")
            if one.verdict == "equivalent":
                assert one.low > -0.02 and one.high < 0.02
    assert {*verdicts} == {"better", "worse", "equivalent", "no significant difference"}


def test_a_single_seed_borrows_the_variance_of_the_family() -> None:
    component = statistics._variance_component(np.ones((1, 5)), [0.1] * 9)
    assert component is not None
    assert (component.variance, component.degrees_of_freedom) == (pytest.approx(0.1), 9)


@pytest.mark.parametrize(
    ("metric", "slopes"), [("macro_f1", macro_f1_slopes), ("matthews", matthews_slopes)]
)
def test_contributions_to_scores_of_counts_follow_the_derivative(
    metric: str, slopes: Callable[[Scores], Scores]
) -> None:
    rng = np.random.default_rng(3)
    counts_LL = 1.0 + rng.integers(1, 20, (4, 4))
    labels, predictions = np.indices((4, 4)).reshape(2, -1)

    def score(counts: Scores) -> float:
        repeats = counts.ravel().astype(int)
        return METRICS[metric](np.repeat(labels, repeats), np.repeat(predictions, repeats))

    many = 1_000 * counts_LL
    for cell in np.ndindex(4, 4):
        step = np.zeros((4, 4))
        step[cell] = 1.0
        expected = (score(many + step) - score(many - step)) / 2
        assert slopes(many)[cell] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("metric", ["macro_f1", "matthews", "span_f1"])
def test_a_rare_label_without_mistakes_still_has_an_interval(metric: str) -> None:
    labels = np.array(["B-X"] * 5 + ["O"] * 95, object)
    items = pd.DataFrame({"label": labels, "prediction": labels, "correct": 1.0})
    split = split_score(metric, items)
    assert split is not None
    contributions, item_range = split
    assert contributions.mean() == pytest.approx(1.0)
    assert item_range[0] < -2, "a mistake at one of five items would cost points"
    assert estimate_mean(np.ones((1, 100)), bounds=(0.0, 1.0)).low > 0.97, "as if it were accuracy"
    estimate = estimate_mean(contributions[None], bounds=(0.0, 1.0), item_range=item_range)
    assert estimate.low < 0.9
    assert split_score("accuracy", items) is None


def test_training_items_that_seeds_share_widen_intervals() -> None:
    """Two seeds with half of the labels share half of the variance between them, by the rule.

    So the variance over three seeds grows from 1/3 to 1/3 + 1/2 of it. With five folds, 5/4 of the
    variance of single items over seeds is added (Nadeau and Bengio 2003, section 3).
    """
    assert TrainingSets().overlap_of_seeds == TrainingSets().overlap_of_items == 0
    assert TrainingSets(label_share=0.5).overlap_of_seeds == 0.5
    assert TrainingSets(num_folds=5, label_share=1.0).overlap_of_items == 1.25
    assert TrainingSets(num_folds=5, label_share=1.0).overlap_of_seeds == 0
    items_N = np.linspace(0.3, 0.7, 400)
    scores = items_N + np.array([[-0.1], [0.0], [0.1]])  # the seeds differ, and nothing else does
    alone = estimate_mean(scores, bounds=(0, 1))
    shared = estimate_mean(scores, bounds=(0, 1), training_sets=TrainingSets(label_share=0.5))
    items_variance = estimate_mean(items_N[None], bounds=(0, 1)).standard_error ** 2
    ratio = (shared.standard_error**2 - items_variance) / (alone.standard_error**2 - items_variance)
    assert ratio == pytest.approx((1 / 3 + 1 / 2) / (1 / 3))
    rng = np.random.default_rng(0)
    noisy = scores + 0.1 * rng.standard_normal(scores.shape)
    folds = TrainingSets(num_folds=5, label_share=1.0)
    assert (
        estimate_mean(noisy, bounds=(0, 1), training_sets=folds).standard_error
        > estimate_mean(noisy, bounds=(0, 1)).standard_error
    )
