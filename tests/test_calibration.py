"""The report's statements are right as often as they claim, in simulated studies."""

import numpy as np
import pytest

from benchmarks.calibration import (
    ALONE,
    EQUAL,
    GROUPS,
    UNEQUAL,
    simulate_answers,
    simulate_champions,
    simulate_decline,
    simulate_groups,
    simulate_methods,
    simulate_models,
    simulate_pooling,
    simulate_selection,
)
from benchmarks.calibration_counts import CASES, RareLabels, simulate_counts
from benchmarks.calibration_training import TrainingSets, simulate_training

STUDIES = 200


def test_simulated_seeds_and_items_vary() -> None:
    rng = np.random.default_rng(0)
    difficulty_N = rng.standard_normal(2000)
    steady = simulate_answers(rng, difficulty_N, 1.0, 0.0, 8).mean(axis=1)
    varying = simulate_answers(rng, difficulty_N, 1.0, 0.8, 8).mean(axis=1)
    assert steady.std() < 0.02 < 0.05 < varying.std()
    assert steady.mean() == pytest.approx(0.70, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [3, 5])
@pytest.mark.parametrize(
    ("spreads", "collapse"), [(ALONE, False), (EQUAL, False), (UNEQUAL, False), (EQUAL, True)]
)
def test_statements_about_methods_hold(
    num_seeds: int, spreads: tuple[float, ...], collapse: bool
) -> None:
    outcome = simulate_methods(num_seeds, spreads, collapse=collapse, studies=STUDIES)
    assert 0.93 <= outcome.coverage <= 0.985
    assert outcome.corrected_coverage >= outcome.coverage
    assert outcome.false_findings <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / (STUDIES / 2))


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [2, 5])
@pytest.mark.parametrize("ability_spread", [0.0, 0.3])
def test_statements_about_trained_systems_hold(num_seeds: int, ability_spread: float) -> None:
    outcome = simulate_models(num_seeds, ability_spread, studies=STUDIES)
    lowest = 0.95 - 3 * np.sqrt(0.05 * 0.95 / STUDIES)
    assert outcome.best_in_set >= lowest and outcome.limits_hold >= lowest
    assert 0.93 <= outcome.coverage <= 0.97
    if ability_spread:
        assert outcome.set_size < 3.5, "most of six different systems are excluded"


@pytest.mark.parametrize(
    ("num_systems", "num_items"),
    [
        (8, 200),
        pytest.param(20, 200, marks=pytest.mark.slow),
        pytest.param(8, 1000, marks=pytest.mark.slow),
    ],
)
def test_the_interval_of_the_highest_of_many_scores_holds(num_systems: int, num_items: int) -> None:
    assert 0.92 <= simulate_selection(num_systems, num_items, studies=STUDIES) <= 0.99


@pytest.mark.parametrize("name", GROUPS)
def test_statements_hold_with_groups_of_any_sizes(name: str) -> None:
    outcome = simulate_groups(GROUPS[name], studies=STUDIES)
    assert outcome.coverage >= 0.92 and outcome.best_in_set >= 0.92


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_an_effect_pooled_over_tasks_that_share_seeds_is_seldom_false(num_seeds: int) -> None:
    assert simulate_pooling(num_seeds, studies=1000) <= 0.07


@pytest.mark.slow
def test_a_champion_is_seldom_replaced_by_an_equal_one_and_does_not_decline() -> None:
    assert simulate_champions(500, studies=STUDIES) <= 0.07 + 2 * np.sqrt(0.05 * 0.95 / STUDIES)
    assert simulate_decline(2000, studies=STUDIES) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_statements_about_f1_and_matthews_correlation_hold_for_rare_labels(
    case: RareLabels,
) -> None:
    outcome = simulate_counts(case, studies=STUDIES)
    lowest = 0.92 - 2 * np.sqrt(0.08 * 0.92 / STUDIES)
    assert outcome.coverage >= lowest and outcome.coverage_of_difference >= lowest
    assert outcome.best_in_set >= lowest
    assert outcome.false_findings <= 0.07 + 2 * np.sqrt(0.05 * 0.95 / STUDIES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        TrainingSets(200, 3, folds=5),
        TrainingSets(200, 10, folds=5),
        TrainingSets(200, 3, num_labels=100),
    ],
    ids=str,
)
def test_equal_learners_are_seldom_told_apart_by_overlapping_training_sets(
    case: TrainingSets,
) -> None:
    false_findings = simulate_training(case, studies=STUDIES)
    assert false_findings <= 0.07 + 2 * np.sqrt(0.05 * 0.95 / STUDIES)
