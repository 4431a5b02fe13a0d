"""The planned comparisons are made, with the correct uncertainty."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage import results
from lineage.analysis import build, contamination
from lineage.analysis.comparisons import (
    PlannedComparison,
    best_systems,
    is_above_chance,
    plan_comparisons,
    run_comparisons,
)
from lineage.analysis.records import AdaptationEffect, Comparison, TaskSummary
from lineage.report import formatting, provenance
from lineage.report.sections.adaptation import format_adaptation_outcome
from lineage.report.sections.data import format_overlap_length
from lineage.report.styles import loss_did_not_fall
from lineage.results import PUBLIC_FAMILY
from tests.helpers.result_cells import build_cell
from tests.helpers.study_rows import GRID, Study, analyze, build_row

REPETITIONS, ITEMS = 3, 300


@pytest.mark.parametrize(
    ("wins", "losses", "expected"), [(16, 1, True), (12, 4, False), (9, 9, False), (5, 8, False)]
)
def test_above_chance_is_tested_over_items(wins: int, losses: int, expected: bool) -> None:
    """The items are those of the lead, for these models; 16 of 17 items that differ are enough."""
    constant = np.repeat([1.0, 0.0], [210, 90])
    correct = constant.copy()
    correct[:losses], correct[210 : 210 + wins] = 0.0, 1.0
    majority = build_cell("majority", np.tile(constant, (REPETITIONS, 1)))
    gpt = build_cell("gpt", np.tile(correct, (REPETITIONS, 1)))
    assert is_above_chance(gpt, [gpt, majority]) == expected
    assert not is_above_chance(majority, [gpt, majority])
    chance = build_cell("chance", np.full((REPETITIONS, ITEMS), 0.9))
    assert not is_above_chance(gpt, [gpt, majority, chance]), (
        "majority and chance must both be beaten"
    )
    # Analogies and translations have no majority class.
    empty_majority = build_cell("majority", np.zeros((0, ITEMS)))
    assert is_above_chance(gpt, [gpt]), "there is no chance level"
    assert is_above_chance(gpt, [gpt, empty_majority]), "there is no chance level"
    assert not is_above_chance(build_cell("gpt", np.zeros((REPETITIONS, ITEMS))), [empty_majority])
    assert not is_above_chance(
        dataclasses.replace(gpt, seed_values={}, item_scores={}), [gpt, majority]
    )


def test_a_correlation_is_above_chance_if_it_is_above_zero() -> None:
    rng = np.random.default_rng(2)
    for mean in (0.0, 0.6):
        cell = build_cell("gpt", mean + rng.normal(0, 1.0, (REPETITIONS, ITEMS)), metric="pearson")
        assert is_above_chance(cell, [cell]) == (mean > 0)


def test_ensembles_and_concatenations_are_compared_only_with_their_members() -> None:
    """This holds if a member is an ablation, and if the features are those of another layer."""
    scores = np.random.default_rng(5).random((4, REPETITIONS, ITEMS))
    base, ablation, ensemble = (
        build_cell(name, one) for name, one in zip(("gpt", "gpt_b", "both"), scores, strict=False)
    )
    ensemble.system = dataclasses.replace(ensemble.system, family="ensemble")
    static = build_cell("word2vec", scores[0])
    concatenated = build_cell("bert + word2vec", scores[1])
    concatenated.system = dataclasses.replace(
        concatenated.system, family="joined", features="concat_last_4"
    )
    grid = dataclasses.replace(
        GRID,
        models=("gpt", "gpt_b", "bert", "word2vec"),
        ablation_of={"gpt_b": "gpt"},
        ensembles={"both": ("gpt", "gpt_b")},
        adapt_models=(),
        adapt_tasks=(),
        join_models=("bert",),
        join_tasks=("sense",),
    )
    planned = {
        (pair.comparison_type, pair.first.system.model, pair.second.system.model)
        for pair in plan_comparisons([base, ablation, ensemble, static, concatenated], grid)
    }
    assert {one for one in planned if one[0] in ("ensemble", "concatenated")} == {
        ("ensemble", "both", "gpt"),
        ("ensemble", "both", "gpt_b"),
        ("concatenated", "bert + word2vec", "word2vec"),
    }
    assert ("ablation", "gpt_b", "gpt") in planned
    assert ("models", "gpt", "both") not in planned


def compare_ablations(*, with_identical: bool) -> list[Comparison]:
    """Compare an ablation with its model, and three that change no prediction if asked for."""
    rng = np.random.default_rng(3)
    gpt, bare = ((rng.random((REPETITIONS, ITEMS)) < share).astype(float) for share in (0.6, 0.5))
    planned = [PlannedComparison("ablation", build_cell("bare", bare), build_cell("gpt", gpt))]
    if with_identical:
        planned += [
            PlannedComparison(
                "ablation", build_cell(f"switch{number}", gpt), build_cell("gpt", gpt)
            )
            for number in range(3)
        ]
    return run_comparisons(planned)


def test_identical_ablations_do_not_change_the_intervals_of_others() -> None:
    (alone,) = compare_ablations(with_identical=False)
    first, *identical = compare_ablations(with_identical=True)
    assert alone == first, "a difference that is always zero says nothing about seeds"
    assert {comparison.verdict for comparison in identical} == {"identical predictions"}
    assert {comparison.difference for comparison in identical} == {0.0}
    texts = {formatting.format_comparison(comparison) for comparison in identical}
    assert texts == {"0.0 points"} and " to " in formatting.format_comparison(first)


@pytest.mark.parametrize("change", [0.0, 0.01])
def test_pretraining_that_changes_no_prediction_has_its_own_verdict(change: float) -> None:
    scores = (np.random.default_rng(4).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    changed = scores.copy()
    changed[0, : int(change * ITEMS)] = 1 - changed[0, : int(change * ITEMS)]
    cells = [build_cell("gpt", scores), build_cell("gpt", changed, init="random")]
    (comparison,) = run_comparisons(plan_comparisons(cells, GRID))
    assert (comparison.verdict == "identical predictions") == (change == 0)


def test_equal_scores_are_not_identical_predictions() -> None:
    """With three labels, two models can predict different wrong labels."""
    scores = (np.random.default_rng(5).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    one = build_cell("gpt", scores)
    other = build_cell("gpt", scores, init="random")
    other.prediction_hashes = {seeds: n + 1 for seeds, n in other.prediction_hashes.items()}
    (comparison,) = run_comparisons(plan_comparisons([one, other], GRID))
    assert comparison.verdict == "equivalent" and comparison.difference == 0.0


def test_several_pretraining_seeds_are_crossed_with_fine_tuning_seeds(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID,
        models=("elmo", "bert"),
        tasks=("sense",),
        pretrain_seeds=(0, 1, 2, 3),
        adapt_models=(),
        adapt_tasks=(),
    )
    analysis = analyze(Study(tmp_path, grid=grid, items=40).write(), grid)
    models = [one for one in analysis.comparisons if one.comparison_type == "models"]
    assert {one.repetitions for one in models} == {12}
    scores = [one for one in analysis.scores if one.system.model == "bert"]
    assert {len(one.seeds) for one in scores} == {12}


def test_ties_count_with_their_accuracy_in_clean_scores() -> None:
    items = pd.DataFrame(
        {"label": "good", "prediction": "tie", "score": 0.25, "correct": 0.5}, index=range(8)
    )
    for model, kind, value in (
        ("majority", "minimal_pairs", 0.5),
        ("chance", "multiple_choice", 0.25),
        ("gpt", "text_classification", 0.0),
    ):
        row = {"metric": "accuracy", "model": model, "kind": kind}
        assert contamination._score_row(items, row)["value"] == value


def test_a_failure_on_an_extra_test_set_has_its_own_entry() -> None:
    failed = {"status": "failed", "reason": [results.Note("error", "why")], "value": None}
    rows = [build_row(**failed, task="mr", test_set=name) for name in ("mr", "cr")]
    failures = build.list_failures(results.results_frame(rows))
    assert {one.task for one in failures} == {"mr", "mr on cr"}


@pytest.mark.parametrize(
    ("metric", "num_improved", "outcome", "marked"),
    [
        ("next_sentence_accuracy", 2, "rose", False),
        ("next_sentence_accuracy", 0, "did not rise", False),
        ("masked_nats", 0, "† did not fall", True),
        ("masked_nats", 1, "† fell in 1 of 2 pretrainings", True),
    ],
)
def test_only_a_loss_that_did_not_fall_is_marked(
    metric: str, num_improved: int, outcome: str, marked: bool
) -> None:
    effect = AdaptationEffect("bert", "mr", metric, num_improved, 2, 2.0, 2.0, (), None)
    assert format_adaptation_outcome(effect) == outcome
    assert loss_did_not_fall(effect) == marked


def build_task_summary(language: str) -> TaskSummary:
    unit = "characters" if language == "zh" else "words"
    return TaskSummary("mr", "text_classification", True, 128, unit, False, False, {}, None, ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("languages", "text"),
    [
        (["en"], "13 words"),
        (["zh"], "20 characters"),
        (["en", "zh"], "13 words (20 characters of Chinese or Japanese)"),
    ],
)
def test_two_languages_have_two_overlap_lengths(languages: list[str], text: str) -> None:
    assert format_overlap_length([build_task_summary(name) for name in languages]) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ([None], "unknown"),
        ([30.0, None, 30.0], "1.0 minutes over 2 stages; 1 more is unknown"),
        ([60.0], "1.0 minutes over 1 stage"),
    ],
)
def test_unknown_compute_times_are_counted(seconds: list[float | None], text: str) -> None:
    assert provenance.format_compute_time(seconds) == text


def draw_scores(rng: np.random.Generator, share: float) -> np.ndarray:
    return (rng.random((REPETITIONS, ITEMS)) < share).astype(float)


def test_an_ablation_is_compared_with_the_same_probe_only() -> None:
    rng = np.random.default_rng(11)
    cells = [build_cell(name, draw_scores(rng, 0.6)) for name in ("gpt", "bare")]
    cells += [replace(one, system=replace(one.system, head="bilstm")) for one in cells]
    planned = plan_comparisons(cells, replace(GRID, ablation_of={"bare": "gpt"}))
    heads = [(p.comparison_type, p.first.system.head, p.second.system.head) for p in planned]
    assert heads == [("ablation", "linear", "linear"), ("ablation", "bilstm", "bilstm")]
    alone = [*run_comparisons(planned[:1]), *run_comparisons(planned[1:])]
    assert run_comparisons(planned) == alone, "the tests of each probe are corrected separately"


def test_all_candidates_beside_an_outside_system_are_one_family_of_tests() -> None:
    scores = draw_scores(np.random.default_rng(13), 0.6)
    candidates = [build_cell("gpt", scores), build_cell("bert", scores, family=PUBLIC_FAMILY)]
    first, second = (
        {
            PlannedComparison("outside", candidate, build_cell(name, scores)).family_of_tests
            for candidate in candidates
        }
        for name in ("weak", "strong")
    )
    assert len(first) == len(second) == 1 and first != second


def test_the_best_baseline_is_a_rival_whatever_a_model_is_called() -> None:
    rng = np.random.default_rng(12)
    cells = [
        build_cell("control", draw_scores(rng, 0.7)),
        build_cell("gpt", draw_scores(rng, 0.8)),
        build_cell("tfidf", draw_scores(rng, 0.6), init="none"),
    ]
    assert [one.system.model for one in best_systems(cells)] == ["gpt", "control", "tfidf"]
