"""The planned comparisons are made, with the correct uncertainty.

The leader is chosen by the same items that it is scored on.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage import results
from lineage.analysis import build, contamination
from lineage.analysis.build import build_results
from lineage.analysis.cells import ResultCell
from lineage.analysis.comparisons import (
    PlannedComparison,
    best_systems,
    is_above_chance,
    plan_comparisons,
    plan_leader_comparisons,
    run_comparisons,
)
from lineage.analysis.records import AdaptationEffect, Comparison, System, TaskSummary
from lineage.analysis.settings import SettingSummary, summarize_settings
from lineage.config.params import ReportParams
from lineage.report import formatting, provenance, sentences, tables, tasks, view
from tests.study_rows import GRID, Study, build_analysis

REPETITIONS, ITEMS = 3, 300


def build_cell(
    model: str,
    scores: np.ndarray,
    *,
    family: str = "",
    metric: str = "accuracy",
    init: str = "pretrained",
) -> ResultCell:
    """Return the result of a system with these (R, N) scores."""
    system = System(
        model,
        family or model,
        "none" if model in ("majority", "chance", "tfidf") else init,
        "none",
        "finetuned",
        "last",
        "linear",
        "none",
    )
    item_scores = {
        (0, seed): pd.Series(row, index=[f"test-{i:03d}" for i in range(len(row))])
        for seed, row in enumerate(scores)
    }
    values = {seeds: float(scores_of_seed.mean()) for seeds, scores_of_seed in item_scores.items()}
    hashes = {seeds: hash(tuple(scores_of_seed)) for seeds, scores_of_seed in item_scores.items()}
    return ResultCell(
        system,
        "sense",
        "text_classification",
        "100",
        metric,
        100,
        scores.shape[1],
        values,
        [0.5] * len(scores),
        item_scores,
        hashes,
    )


def summarize(cells: list[ResultCell], ranked: list[ResultCell] | None = None) -> SettingSummary:
    """Return the summary of the one setting of these results; `ranked` are the rivals."""
    rivals = cells if ranked is None else ranked
    comparisons, not_compared = run_comparisons(
        plan_leader_comparisons(best_systems(rivals), rivals)
    )
    grid = dataclasses.replace(GRID, ablation_of={"bare": "gpt"})
    (setting,) = summarize_settings(
        build_analysis(
            cells, grid=grid, comparisons=tuple(comparisons), not_compared=tuple(not_compared)
        )
    )
    return setting


def drop_seeds(cell: ResultCell, *, keep: tuple[int, ...]) -> None:
    """Keep the repetitions with these fine-tuning seeds only."""
    for name in ("item_scores", "seed_values", "prediction_hashes"):
        kept = {seeds: one for seeds, one in getattr(cell, name).items() if seeds[1] in keep}
        setattr(cell, name, kept)


def build_equal_systems(rng: np.random.Generator) -> list[ResultCell]:
    """Return eight systems and a constant answer, all correct in about half of the items."""
    chances = np.clip(0.5 + 0.05 * rng.standard_normal((8, REPETITIONS, 1)), 0.2, 0.8)
    scores = (rng.random((8, REPETITIONS, ITEMS)) < chances).astype(float)
    constant = np.tile((rng.random(ITEMS) < 0.5).astype(float), (REPETITIONS, 1))
    return [
        *(
            build_cell(f"v{number}", scores_of_system)
            for number, scores_of_system in enumerate(scores)
        ),
        build_cell("majority", constant),
    ]


def test_the_leader_of_equal_systems_is_rarely_significantly_better() -> None:
    """Among 250 studies without any difference, about 5 % may find one.

    The leader is chosen on the same items.
    """
    rng = np.random.default_rng(0)
    studies = 250
    num_significant = {"leader": 0, "chance": 0}
    for _ in range(studies):
        cells = build_equal_systems(rng)
        comparisons, _ = run_comparisons(plan_leader_comparisons(best_systems(cells), cells))
        verdicts = {(comparison.comparison_type, comparison.verdict) for comparison in comparisons}
        for question in num_significant:
            if verdicts & {(question, "better"), (question, "worse")}:
                num_significant[question] += 1
    highest = max(num_significant.values())
    assert highest <= studies * 0.05 + 3 * np.sqrt(studies * 0.05 * 0.95), num_significant


def test_all_pairs_and_each_system_with_chance_count_as_comparisons() -> None:
    cells = build_equal_systems(np.random.default_rng(1))
    best = best_systems(cells)
    assert len(best) == 9 and best[0].system.model != "majority"
    assert {
        comparison.comparison_type: comparison.num_comparisons
        for comparison in run_comparisons(plan_leader_comparisons(best, cells))[0]
    } == {"leader": 9 * 8 // 2, "chance": 9}


def test_a_correlation_leads_if_it_is_significantly_above_zero() -> None:
    rng = np.random.default_rng(2)
    for mean, is_above in ((0.0, False), (0.6, True)):
        cells = [
            build_cell(name, mean + rng.normal(0, 1.0, (REPETITIONS, ITEMS)), metric="pearson")
            for name in ("gpt", "bert")
        ]
        comparisons, _ = run_comparisons(plan_leader_comparisons(best_systems(cells), cells))
        (chance,) = [
            comparison for comparison in comparisons if comparison.comparison_type == "chance"
        ]
        assert (chance.verdict == "better") == is_above and chance.second.model == "chance"


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
    return run_comparisons(planned)[0]


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
    ((comparison,), _) = run_comparisons(plan_comparisons(cells, GRID))
    assert (comparison.verdict == "identical predictions") == (change == 0)


def test_equal_scores_are_not_identical_predictions() -> None:
    """With three labels, two models can predict different wrong labels."""
    scores = (np.random.default_rng(5).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    one = build_cell("gpt", scores)
    other = build_cell("gpt", scores, init="random")
    other.prediction_hashes = {seeds: n + 1 for seeds, n in other.prediction_hashes.items()}
    ((comparison,), _) = run_comparisons(plan_comparisons([one, other], GRID))
    assert comparison.verdict == "equivalent" and comparison.difference == 0.0


def build_random_cells(seed: int, **shares: float) -> list[ResultCell]:
    """Return a result per model that is correct in this share of items."""
    rng = np.random.default_rng(seed)
    return [
        build_cell(name, (rng.random((REPETITIONS, ITEMS)) < share).astype(float))
        for name, share in shares.items()
    ]


def test_a_rival_without_a_shared_seed_is_named_and_prevents_a_significant_lead() -> None:
    cells = build_random_cells(6, bert=0.9, gpt=0.89, tfidf=0.3)
    drop_seeds(cells[0], keep=(0,))
    drop_seeds(cells[1], keep=(1, 2))
    setting = summarize(cells)
    assert [rival.system.model for rival in setting.rivals] == ["tfidf"]
    assert [system.model for system in setting.not_compared] == ["gpt"]
    assert not setting.leads_significantly
    text = "Not compared with gpt, fine-tuned: they have no seed in common."
    assert text in sentences.describe_setting(setting, margin=0.02)


def test_a_higher_score_of_an_ablation_or_random_init_is_named() -> None:
    rng = np.random.default_rng(7)
    scores = [
        (rng.random((REPETITIONS, ITEMS)) < share).astype(float) for share in (0.6, 0.7, 0.8, 0.3)
    ]
    cells = [
        build_cell("gpt", scores[0]),
        build_cell("gpt", scores[1], init="random"),
        build_cell("bare", scores[2]),
        build_cell("tfidf", scores[3]),
    ]
    setting = summarize(cells, [cell for cell in cells if cell.system.model != "bare"])
    texts = sentences.describe_setting(setting, margin=0.02)
    higher = [text for text in texts if "scores higher" in text]
    assert len(higher) == 2
    assert higher[0].startswith("bare, fine-tuned") and "is an ablation" in higher[0]
    assert higher[1].startswith("gpt random init, fine-tuned")
    with_ablation = build_analysis(grid=dataclasses.replace(GRID, ablation_of={"bare": "gpt"}))
    assert sentences.describe_ablation_models(with_ablation).startswith("bare is an ablation")
    assert not sentences.describe_ablation_models(build_analysis())


def test_a_comparison_on_fewer_seeds_than_the_leader_has_says_so() -> None:
    cells = build_random_cells(8, bert=0.9, gpt=0.4)
    drop_seeds(cells[1], keep=(0, 1))
    text = sentences.describe_setting(summarize(cells), margin=0.02)[0]
    assert ", on 2 of 3 repetitions)" in text


def test_several_pretraining_seeds_are_crossed_with_fine_tuning_seeds(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID,
        models=("elmo", "bert"),
        tasks=("sense",),
        pretrain_seeds=(0, 1, 2, 3),
        adapt_models=(),
        adapt_tasks=(),
    )
    analysis = build_results(Study(tmp_path, grid=grid).write(), grid, ReportParams())[1]
    models = [one for one in analysis.comparisons if one.comparison_type == "models"]
    assert {one.repetitions for one in models} == {12}
    scores = [one for one in analysis.scores if one.system.model == "bert"]
    assert {len(one.seeds) for one in scores} == {12}
    text = sentences.describe_intervals(analysis)
    assert text.startswith("over items, pretraining seeds and fine-tuning seeds")
    one = dataclasses.replace(grid, pretrain_seeds=(0,), finetune_seeds=(0,))
    alone = build_results(Study(tmp_path / "one", grid=one).write(), one, ReportParams())[1]
    text = sentences.describe_intervals(alone)
    assert text.startswith("over items only. Nothing was repeated")
    few = dataclasses.replace(grid, finetune_seeds=(0,))
    analysis_of_few = build_results(Study(tmp_path / "few", grid=few).write(), few, ReportParams())[
        1
    ]
    text = sentences.describe_intervals(analysis_of_few)
    assert text.startswith("over items and pretraining seeds")
    assert text.endswith("so they do not cover what another would change.")


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
    rows = [
        results.ResultRow(
            model="gpt",
            family="gpt",
            task="mr",
            kind="text_classification",
            metric="accuracy",
            num_examples=0,
            status="failed",
            reason=[results.Note("error", "why")],
            value=None,
            test_set=name,
        )
        for name in ("mr", "cr")
    ]
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
    assert tables.format_adaptation_outcome(effect) == outcome
    assert view.loss_did_not_fall(effect) == marked


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
    assert tasks.format_overlap_length([build_task_summary(name) for name in languages]) == text


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
