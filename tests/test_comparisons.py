"""Which comparisons are made, and how sure a reader may be of them.

The leader is known from the very items that it is scored on.
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
from tests.study_rows import GRID, Study, analysis_of

REPETITIONS, ITEMS = 3, 300


def cell(
    model: str,
    scores: np.ndarray,
    *,
    family: str = "",
    metric: str = "accuracy",
    init: str = "pretrained",
) -> ResultCell:
    """Return the cell of a system with these (R, N) scores."""
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
    own = {
        (0, seed): pd.Series(row, index=[f"test-{i:03d}" for i in range(len(row))])
        for seed, row in enumerate(scores)
    }
    values = {seeds: float(one.mean()) for seeds, one in own.items()}
    hashes = {seeds: hash(tuple(one)) for seeds, one in own.items()}
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
        own,
        hashes,
    )


def summarize(cells: list[ResultCell], ranked: list[ResultCell] | None = None) -> SettingSummary:
    """Return the summary of the one setting of these cells; `ranked` are the rivals."""
    rivals = cells if ranked is None else ranked
    comparisons, not_compared = run_comparisons(
        plan_leader_comparisons(best_systems(rivals), rivals)
    )
    grid = dataclasses.replace(GRID, ablation_of={"bare": "gpt"})
    (setting,) = summarize_settings(
        analysis_of(
            cells, grid=grid, comparisons=tuple(comparisons), not_compared=tuple(not_compared)
        )
    )
    return setting


def drop_seeds(cell: ResultCell, *, keep: tuple[int, ...]) -> None:
    """Keep the repetitions with these fine-tuning seeds only."""
    for name in ("item_scores", "seed_values", "prediction_hashes"):
        kept = {seeds: one for seeds, one in getattr(cell, name).items() if seeds[1] in keep}
        setattr(cell, name, kept)


def equals(rng: np.random.Generator) -> list[ResultCell]:
    """Return eight systems and a constant answer, all right in about half of the items."""
    chances = np.clip(0.5 + 0.05 * rng.standard_normal((8, REPETITIONS, 1)), 0.2, 0.8)
    scores = (rng.random((8, REPETITIONS, ITEMS)) < chances).astype(float)
    constant = np.tile((rng.random(ITEMS) < 0.5).astype(float), (REPETITIONS, 1))
    return [
        *(cell(f"v{number}", own) for number, own in enumerate(scores)),
        cell("majority", constant),
    ]


def test_the_leader_of_equals_is_seldom_better_though_it_was_chosen_on_the_same_items() -> None:
    """Among 250 studies without any difference, about 5 % may find one."""
    rng, studies, better = np.random.default_rng(0), 250, {"leader": 0, "chance": 0}
    for _ in range(studies):
        every = equals(rng)
        said = {
            (one.comparison_type, one.verdict)
            for one in run_comparisons(plan_leader_comparisons(best_systems(every), every))[0]
        }
        better = {
            question: count + bool(said & {(question, "better"), (question, "worse")})
            for question, count in better.items()
        }
    assert max(better.values()) <= studies * 0.05 + 3 * np.sqrt(studies * 0.05 * 0.95), better


def test_all_pairs_of_systems_and_each_one_with_chance_count_as_compared() -> None:
    every = equals(np.random.default_rng(1))
    best = best_systems(every)
    assert len(best) == 9 and best[0].system.model != "majority"
    assert {
        one.comparison_type: one.num_comparisons
        for one in run_comparisons(plan_leader_comparisons(best, every))[0]
    } == {"leader": 9 * 8 // 2, "chance": 9}


def test_a_correlation_leads_where_it_is_shown_to_follow_something() -> None:
    rng = np.random.default_rng(2)
    for mean, said in ((0.0, False), (0.6, True)):
        own = [
            cell(name, mean + rng.normal(0, 1.0, (REPETITIONS, ITEMS)), metric="pearson")
            for name in ("gpt", "bert")
        ]
        found, _ = run_comparisons(plan_leader_comparisons(best_systems(own), own))
        (chance,) = [one for one in found if one.comparison_type == "chance"]
        assert (chance.verdict == "better") == said and chance.second.model == "chance"


@pytest.mark.parametrize(
    ("wins", "losses", "above"), [(16, 1, True), (12, 4, False), (9, 9, False), (5, 8, False)]
)
def test_above_chance_is_tested_on_the_same_items_as_a_lead(
    wins: int, losses: int, above: bool
) -> None:
    """The test is over items, for these models: 16 of 17 items that differ are enough."""
    constant = np.repeat([1.0, 0.0], [210, 90])
    own = constant.copy()
    own[:losses], own[210 : 210 + wins] = 0.0, 1.0
    majority, mine = (
        cell("majority", np.tile(constant, (REPETITIONS, 1))),
        cell("gpt", np.tile(own, (REPETITIONS, 1))),
    )
    assert is_above_chance(mine, [mine, majority]) == above and not is_above_chance(
        majority, [mine, majority]
    )
    chance = cell("chance", np.full((REPETITIONS, ITEMS), 0.9))
    assert not is_above_chance(mine, [mine, majority, chance]), "each of both has to be beaten"
    none = cell("majority", np.zeros((0, ITEMS)))  # as of analogies, and of translations
    assert is_above_chance(mine, [mine]) and is_above_chance(mine, [mine, none]), (
        "where nothing guesses"
    )
    assert not is_above_chance(cell("gpt", np.zeros((REPETITIONS, ITEMS))), [none])
    assert not is_above_chance(
        dataclasses.replace(mine, seed_values={}, item_scores={}), [mine, majority]
    )


def test_a_correlation_is_above_chance_where_it_follows_something() -> None:
    rng = np.random.default_rng(2)
    for mean in (0.0, 0.6):
        own = cell("gpt", mean + rng.normal(0, 1.0, (REPETITIONS, ITEMS)), metric="pearson")
        assert is_above_chance(own, [own]) == (mean > 0)


def test_systems_of_two_budgets_are_compared_with_their_members_only() -> None:
    """Also if a member is an ablation, and if its features are those of another layer."""
    scores = np.random.default_rng(5).random((4, REPETITIONS, ITEMS))
    base, changed, both = (
        cell(name, one) for name, one in zip(("gpt", "gpt_b", "both"), scores, strict=False)
    )
    both.system = dataclasses.replace(both.system, family="ensemble")
    static, mixed = cell("word2vec", scores[0]), cell("bert + word2vec", scores[1])
    mixed.system = dataclasses.replace(mixed.system, family="joined", features="concat_last_4")
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
    found = {
        (pair.comparison_type, pair.first.system.model, pair.second.system.model)
        for pair in plan_comparisons([base, changed, both, static, mixed], grid)
    }
    assert {one for one in found if one[0] in ("ensemble", "concatenated")} == {
        ("ensemble", "both", "gpt"),
        ("ensemble", "both", "gpt_b"),
        ("concatenated", "bert + word2vec", "word2vec"),
    }
    assert ("ablation", "gpt_b", "gpt") in found
    assert ("models", "gpt", "both") not in found


def ablations(*, with_identical: bool) -> list[Comparison]:
    rng = np.random.default_rng(3)
    whole, other = (
        (rng.random((REPETITIONS, ITEMS)) < share).astype(float) for share in (0.6, 0.5)
    )
    planned = [PlannedComparison("ablation", cell("bare", other), cell("gpt", whole))]
    if with_identical:
        planned += [
            PlannedComparison("ablation", cell(f"switch{number}", whole), cell("gpt", whole))
            for number in range(3)
        ]
    return run_comparisons(planned)[0]


def test_an_ablation_that_changes_no_prediction_adds_no_seed_variance_to_others() -> None:
    (alone,) = ablations(with_identical=False)
    first, *identical = ablations(with_identical=True)
    assert alone == first, "a difference that is always zero says nothing about seeds"
    assert {one.verdict for one in identical} == {"identical predictions"}
    assert {one.difference for one in identical} == {0.0}
    texts = {formatting.format_comparison(one) for one in identical}
    assert texts == {"0.0 points"} and " to " in formatting.format_comparison(first)


@pytest.mark.parametrize("change", [0.0, 0.01])
def test_pretraining_that_changes_no_prediction_has_a_verdict_of_its_own(change: float) -> None:
    scores = (np.random.default_rng(4).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    other = scores.copy()
    other[0, : int(change * ITEMS)] = 1 - other[0, : int(change * ITEMS)]
    both = [cell("gpt", scores), cell("gpt", other, init="random")]
    ((one,), _) = run_comparisons(plan_comparisons(both, GRID))
    assert (one.verdict == "identical predictions") == (change == 0)


def test_equal_scores_are_not_identical_predictions() -> None:
    """Of three labels two models predict different wrong ones."""
    scores = (np.random.default_rng(5).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    one, other = cell("gpt", scores), cell("gpt", scores, init="random")
    other.prediction_hashes = {seeds: n + 1 for seeds, n in other.prediction_hashes.items()}
    ((found,), _) = run_comparisons(plan_comparisons([one, other], GRID))
    assert found.verdict == "equivalent" and found.difference == 0.0


def random_cells(seed: int, **shares: float) -> list[ResultCell]:
    """Return a cell per model that is right in this share of items."""
    rng = np.random.default_rng(seed)
    return [
        cell(name, (rng.random((REPETITIONS, ITEMS)) < share).astype(float))
        for name, share in shares.items()
    ]


def test_a_rival_without_a_shared_seed_is_named_and_makes_no_lead_significant() -> None:
    own = random_cells(6, bert=0.9, gpt=0.89, tfidf=0.3)
    drop_seeds(own[0], keep=(0,))
    drop_seeds(own[1], keep=(1, 2))
    setting = summarize(own)
    assert [rival.system.model for rival in setting.rivals] == ["tfidf"]
    assert [system.model for system in setting.not_compared] == ["gpt"]
    assert not setting.leads_significantly
    text = "Not compared with gpt, fine-tuned: they have no seed in common."
    assert text in sentences.describe_setting(setting, margin=0.02)


def test_a_higher_score_that_is_no_rival_is_named() -> None:
    rng = np.random.default_rng(7)
    scores = [
        (rng.random((REPETITIONS, ITEMS)) < share).astype(float) for share in (0.6, 0.7, 0.8, 0.3)
    ]
    own = [
        cell("gpt", scores[0]),
        cell("gpt", scores[1], init="random"),
        cell("bare", scores[2]),
        cell("tfidf", scores[3]),
    ]
    setting = summarize(own, [one for one in own if one.system.model != "bare"])
    texts = sentences.describe_setting(setting, margin=0.02)
    higher = [text for text in texts if "scores higher" in text]
    assert len(higher) == 2
    assert higher[0].startswith("bare, fine-tuned") and "is an ablation" in higher[0]
    assert higher[1].startswith("gpt random init, fine-tuned")
    with_ablation = analysis_of(grid=dataclasses.replace(GRID, ablation_of={"bare": "gpt"}))
    assert sentences.describe_ablation_models(with_ablation).startswith("bare is an ablation")
    assert not sentences.describe_ablation_models(analysis_of())


def test_a_comparison_on_fewer_seeds_than_the_leader_has_tells_so() -> None:
    own = random_cells(8, bert=0.9, gpt=0.4)
    drop_seeds(own[1], keep=(0, 1))
    text = sentences.describe_setting(summarize(own), margin=0.02)[0]
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
    found = build_results(Study(tmp_path / "few", grid=few).write(), few, ReportParams())[1]
    text = sentences.describe_intervals(found)
    assert text.startswith("over items and pretraining seeds")
    assert text.endswith("so they do not cover what another would change.")


def test_clean_scores_count_ties_as_what_they_are() -> None:
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


def test_a_failure_on_an_extra_test_set_is_not_one_of_the_task() -> None:
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


def task_summary(language: str) -> TaskSummary:
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
def test_two_languages_have_two_lengths(languages: list[str], text: str) -> None:
    assert tasks.format_overlap_length([task_summary(name) for name in languages]) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ([None], "unknown"),
        ([30.0, None, 30.0], "1.0 minutes over 2 stages; 1 more is unknown"),
        ([60.0], "1.0 minutes over 1 stage"),
    ],
)
def test_unknown_times_are_counted(seconds: list[float | None], text: str) -> None:
    assert provenance.format_compute_time(seconds) == text
