"""Which comparisons are made, and how sure a reader may be of them: the leader is known from the very items that it is judged by."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import results
from lineage.analysis import build, contamination
from lineage.analysis.build import build_results
from lineage.analysis.cells import ResultCell, System
from lineage.analysis.comparisons import (
    PlannedComparison,
    best_systems,
    is_above_chance,
    plan_comparisons,
    plan_leader_comparisons,
    run_comparisons,
)
from lineage.config.params import ReportParams
from lineage.report import publication, sentences, tasks, view
from tests.study_rows import GRID, Study

REPETITIONS, ITEMS = 3, 300


def cell(
    variant: str,
    scores: np.ndarray,
    *,
    family: str = "",
    metric: str = "accuracy",
    init: str = "pretrained",
) -> ResultCell:
    """(R, N) scores of one way."""
    way = System(
        variant,
        family or variant,
        "none" if variant == "majority" else init,
        "none",
        "finetuned",
        "top",
        "linear",
        "none",
    )
    own = {
        (0, seed): pd.Series(row, index=[f"test-{i:03d}" for i in range(len(row))])
        for seed, row in enumerate(scores)
    }
    values = {seeds: float(one.mean()) for seeds, one in own.items()}
    said = {seeds: hash(tuple(one)) for seeds, one in own.items()}
    return ResultCell(
        way,
        "sense",
        "text_classification",
        "100",
        metric,
        100,
        scores.shape[1],
        values,
        [0.5] * len(scores),
        own,
        said,
    )


def equals(rng: np.random.Generator) -> list[ResultCell]:
    """Eight systems that are right in half of the items, give or take what differs from seed to seed, and one constant answer that is, too."""
    chances = np.clip(0.5 + 0.05 * rng.standard_normal((8, REPETITIONS, 1)), 0.2, 0.8)
    scores = (rng.random((8, REPETITIONS, ITEMS)) < chances).astype(float)
    constant = np.tile((rng.random(ITEMS) < 0.5).astype(float), (REPETITIONS, 1))
    return [
        *(cell(f"v{number}", own) for number, own in enumerate(scores)),
        cell("majority", constant),
    ]


def test_a_leader_of_equals_is_seldom_called_better_though_it_was_picked_on_the_same_items() -> (
    None
):
    """Of 250 studies in which nothing is better than anything, five in a hundred may say so, give or take what so few studies vary by."""
    rng, studies, better = np.random.default_rng(0), 250, {"best": 0, "guess": 0}
    for _ in range(studies):
        every = equals(rng)
        said = {
            (one["question"], one["verdict"])
            for one in run_comparisons(plan_leader_comparisons(best_systems(every), every))[0]
        }
        better = {
            question: count + bool(said & {(question, "better"), (question, "worse")})
            for question, count in better.items()
        }
    assert max(better.values()) <= studies * 0.05 + 3 * np.sqrt(studies * 0.05 * 0.95), better


def test_all_pairs_of_the_ways_and_each_way_against_guessing_count_as_asked() -> None:
    every = equals(np.random.default_rng(1))
    best = best_systems(every)
    assert len(best) == 9 and best[0].system.model != "majority"
    assert {
        one["question"]: one["comparisons_together"]
        for one in run_comparisons(plan_leader_comparisons(best, every))[0]
    } == {"best": 9 * 8 // 2, "guess": 9}


def test_a_correlation_leads_where_it_is_shown_to_follow_something() -> None:
    rng = np.random.default_rng(2)
    for mean, said in ((0.0, False), (0.6, True)):
        own = [
            cell(name, mean + rng.normal(0, 1.0, (REPETITIONS, ITEMS)), metric="pearson")
            for name in ("gpt", "bert")
        ]
        found, _ = run_comparisons(plan_leader_comparisons(best_systems(own), own))
        (guess,) = [one for one in found if one["question"] == "guess"]
        assert (guess["verdict"] == "better") == said and guess["second"]["model"] == "chance"


@pytest.mark.parametrize(
    ("wins", "losses", "above"), [(16, 1, True), (12, 4, False), (9, 9, False), (5, 8, False)]
)
def test_what_may_guess_is_asked_on_the_same_items_as_a_lead_is(
    wins: int, losses: int, above: bool
) -> None:
    """Over examples, of the models at hand, so that seeds have no part: three points above the majority's interval, and 16 of 17 that differ."""
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


def test_a_correlation_is_above_guessing_where_it_follows_something() -> None:
    rng = np.random.default_rng(2)
    for mean in (0.0, 0.6):
        own = cell("gpt", mean + rng.normal(0, 1.0, (REPETITIONS, ITEMS)), metric="pearson")
        assert is_above_chance(own, [own]) == (mean > 0)


def test_two_budgets_are_held_against_their_members_whatever_else_these_are(tmp_path: Path) -> None:
    """Also against one that is a change of the other, and where features of another layer stand beside the static vectors."""
    scores = np.random.default_rng(5).random((4, REPETITIONS, ITEMS))
    base, changed, both = (
        cell(name, one) for name, one in zip(("gpt", "gpt_b", "both"), scores, strict=False)
    )
    both.system = dataclasses.replace(both.system, family="ensemble")
    static, mixed = cell("word2vec", scores[0]), cell("bert + word2vec", scores[1])
    mixed.system = dataclasses.replace(mixed.system, family="joined", features="concat_last_4")
    grid = dataclasses.replace(GRID, models=("gpt", "gpt_b", "bert", "word2vec"), ablation_of={"gpt_b": "gpt"}, ensembles={"both": ("gpt", "gpt_b")},
                               adapt_models=(), adapt_tasks=(), join_models=("bert",), join_tasks=("sense",))  # fmt: skip
    found = {
        (pair.comparison_type, pair.first.system.model, pair.second.system.model)
        for pair in plan_comparisons([base, changed, both, static, mixed], grid)
    }
    assert {one for one in found if one[0] in ("ensemble", "joined")} == {("ensemble", "both", "gpt"), ("ensemble", "both", "gpt_b"),
                                                                          ("joined", "bert + word2vec", "word2vec")}  # fmt: skip
    assert ("ablation", "gpt_b", "gpt") in found and not {
        one for one in found if one[0] == "families"
    } & {("families", "gpt", "both")}


def ablation(same: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    whole, other = (
        (rng.random((REPETITIONS, ITEMS)) < share).astype(float) for share in (0.6, 0.5)
    )
    rest = (
        [
            PlannedComparison("ablation", cell(f"switch{number}", whole), cell("gpt", whole))
            for number in range(3)
        ]
        if same
        else []
    )
    return run_comparisons(
        [PlannedComparison("ablation", cell("bare", other), cell("gpt", whole)), *rest]
    )[0]


def test_a_switch_that_changes_no_answer_is_told_and_lends_nothing_to_others() -> None:
    (alone,), (beside, *same) = ablation(False), ablation(True)
    assert alone == beside, "what never differs is no knowledge of seeds"
    assert {one["verdict"] for one in same} == {"same answers"} and {
        one["difference"] for one in same
    } == {0.0}
    assert [sentences.format_comparison(one) for one in same] == [
        "0.0 points"
    ] * 3 and "to" in sentences.format_comparison(beside)


@pytest.mark.parametrize("change", [0.0, 0.01])
def test_pretraining_that_changes_no_answer_is_said_so(change: float) -> None:
    scores = (np.random.default_rng(4).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    other = scores.copy()
    other[0, : int(change * ITEMS)] = 1 - other[0, : int(change * ITEMS)]
    both = [cell("gpt", scores), cell("gpt", other, init="random")]
    ((one,), _) = run_comparisons(plan_comparisons(both, GRID))
    assert (one["verdict"] == "same answers") == (change == 0)


def test_the_same_items_right_are_no_same_answers_where_others_are_wrong_in_another_way() -> None:
    """Of three labels two models say different wrong ones; nothing then parts them, and nothing says that they are one."""
    scores = (np.random.default_rng(5).random((REPETITIONS, ITEMS)) < 0.6).astype(float)
    one, other = cell("gpt", scores), cell("gpt", scores, init="random")
    other.prediction_hashes = {
        seeds: answer + 1 for seeds, answer in other.prediction_hashes.items()
    }
    ((found,), _) = run_comparisons(plan_comparisons([one, other], GRID))
    assert found["verdict"] == "not worse" and found["difference"] == 0.0


def test_a_rival_without_a_seed_in_common_is_named_and_makes_no_lead_clear() -> None:
    rng = np.random.default_rng(6)
    scores = [
        (rng.random((REPETITIONS, ITEMS)) < share).astype(float) for share in (0.9, 0.89, 0.3)
    ]
    own = [cell(name, some) for name, some in zip(("bert", "gpt", "tfidf"), scores, strict=True)]
    for some, kept in ((own[0], (0,)), (own[1], (1, 2))):
        for name in ("scores", "values", "answers"):
            setattr(
                some,
                name,
                {seeds: value for seeds, value in getattr(some, name).items() if seeds[1] in kept},
            )
    found, without = run_comparisons(plan_leader_comparisons(best_systems(own), own))
    assert [one["second"]["model"] for one in found if one["question"] == "best"] == ["tfidf"] and [
        one["second"]["model"] for one in without
    ] == ["gpt"]
    grid = {"ablation_of": {}, "pretrain_seeds": [0], "finetune_seeds": [0, 1, 2]}
    (asked,) = sentences.summarize_settings(
        {
            "cells": [one.to_record() for one in own],
            "comparisons": found,
            "not_compared": without,
            "grid": grid,
        }
    )
    assert (
        not asked["clear"]
        and "Not compared with gpt, tuned: they have no seed in common."
        in sentences.describe_setting(asked, margin=0.02)
    )


def test_what_has_more_than_the_leader_and_is_no_rival_of_it_is_named() -> None:
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
    rivals = [one for one in own if one.system.model != "bare"]
    found, without = run_comparisons(plan_leader_comparisons(best_systems(rivals), rivals))
    tree = {"cells": [one.to_record() for one in own], "comparisons": found, "not_compared": without,
            "grid": {"ablation_of": {"bare": "gpt"}, "pretrain_seeds": [0], "finetune_seeds": [0, 1, 2]}}  # fmt: skip
    (asked,) = sentences.summarize_settings(tree)
    above = [
        said
        for said in sentences.describe_setting(asked, margin=0.02)
        if said.startswith("Above it is ")
    ]
    assert ["bare, tuned" in above[0], "gpt untrained, tuned" in above[1], len(above)] == [
        True,
        True,
        2,
    ]
    assert sentences.describe_ablation_models(tree).startswith(
        "bare is no rival here"
    ) and not sentences.describe_ablation_models({"grid": {"ablation_of": {}}})


def test_a_comparison_on_fewer_seeds_than_the_leader_has_says_so() -> None:
    rng = np.random.default_rng(8)
    own = [
        cell(name, (rng.random((REPETITIONS, ITEMS)) < share).astype(float))
        for name, share in (("bert", 0.9), ("gpt", 0.4))
    ]
    for name in ("scores", "values", "answers"):
        getattr(own[1], name).pop((0, 2))
    found, without = run_comparisons(plan_leader_comparisons(best_systems(own), own))
    grid = {"ablation_of": {}, "pretrain_seeds": [0], "finetune_seeds": [0, 1, 2]}
    (asked,) = sentences.summarize_settings(
        {
            "cells": [one.to_record() for one in own],
            "comparisons": found,
            "not_compared": without,
            "grid": grid,
        }
    )
    assert ", on 2 of 3 repetitions)" in sentences.describe_setting(asked, margin=0.02)[0]


def test_several_pretrainings_are_crossed_with_their_seeds(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID,
        models=("elmo", "bert"),
        tasks=("sense",),
        pretrain_seeds=(0, 1, 2, 3),
        adapt_models=(),
        adapt_tasks=(),
    )
    tree = build_results(Study(tmp_path, grid=grid).write(), grid, ReportParams())[1]
    assert {c["repetitions"] for c in tree["comparisons"] if c["question"] == "families"} == {12}
    assert {len(c["seeds"]) for c in tree["cells"] if c["model"] == "bert"} == {12}
    assert sentences.describe_intervals(tree).startswith(
        "over examples, pretrainings and seeds at once"
    )
    one = dataclasses.replace(grid, pretrain_seeds=(0,), finetune_seeds=(0,))
    alone = build_results(Study(tmp_path / "one", grid=one).write(), one, ReportParams())[1]
    assert sentences.describe_intervals(alone).startswith(
        "over examples alone. Nothing was repeated"
    )
    few = dataclasses.replace(grid, finetune_seeds=(0,))
    said = sentences.describe_intervals(
        build_results(Study(tmp_path / "few", grid=few).write(), few, ReportParams())[1]
    )
    assert said.startswith("over examples and pretrainings at once") and said.endswith(
        "what another one changes is not in them."
    )


def test_scores_of_the_items_that_are_left_count_ties_as_what_they_are() -> None:
    left = pd.DataFrame(
        {"label": "good", "prediction": "tie", "score": 0.25, "correct": 0.5}, index=range(8)
    )
    asked = {"metric": "accuracy", "model": "majority", "kind": "minimal_pairs"}
    assert contamination._score_row(left, asked)["value"] == 0.5
    assert (
        contamination._score_row(left, asked | {"model": "chance", "kind": "multiple_choice"})[
            "value"
        ]
        == 0.25
    )
    assert (
        contamination._score_row(left, asked | {"model": "gpt", "kind": "text_classification"})[
            "value"
        ]
        == 0.0
    )


def test_what_failed_on_a_second_test_set_is_not_booked_to_the_task() -> None:
    common = {"model": "gpt", "family": "gpt", "task": "mr", "kind": "text_classification", "metric": "accuracy", "num_examples": 0, "status": "failed",
              "reason": "why", "value": None}  # fmt: skip
    table = results.results_frame(
        [results.ResultRow(**common, test_set=name) for name in ("mr", "cr")]
    )
    assert {line["task"] for line in build._list_failures(table)} == {"mr", "mr on cr"}


def test_a_share_that_rises_in_adaptation_is_good_and_marks_nothing() -> None:
    rose, fell = (
        {"metric": "next_accuracy", "better": better, "pretrainings": 2} for better in (2, 0)
    )
    assert [view._format_adaptation_outcome(one) for one in (rose, fell)] == [
        "rose",
        "did not rise",
    ] and not view._loss_did_not_fall(fell)
    loss = {"metric": "masked_nats", "better": 0, "pretrainings": 2}
    assert view._format_adaptation_outcome(loss) == "† did not fall" and view._loss_did_not_fall(
        loss
    )
    assert view._format_adaptation_outcome(
        loss | {"better": 1}
    ) == "† fell in 1 of 2 pretrainings" and view._loss_did_not_fall(loss | {"better": 1})


def test_two_languages_have_two_lengths_and_unknown_times_are_said_to_be() -> None:
    units = {"en": {"unit": "words"}, "zh": {"unit": "characters"}}
    said = {
        names: tasks.format_overlap_length({"tasks": [units[name] for name in names]})
        for names in (("en",), ("zh",), ("en", "zh"))
    }
    assert [*said.values()] == [
        "13 words",
        "20 characters",
        "13 words (of Chinese and Japanese 20 characters)",
    ]
    assert [publication._format_compute_time(some) for some in ([None], [30.0, None, 30.0], [60.0])] == [
        "unknown", "1.0 minutes over 2 stages, that of 1 more is unknown", "1.0 minutes over 1 stage"]  # fmt: skip
