"""The set of systems that may be the best has the best one, and speaks of these models only."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

from lineage.analysis.cells import ResultCell, _score_items
from lineage.analysis.ranking import compare_with_best, draw_means, rank_setting
from lineage.analysis.records import Ranking
from lineage.randomness import generator
from lineage.results import PUBLIC_FAMILY
from tests.helpers.result_cells import NUM_ITEMS, build_cell, build_cells


def rank(cells: list[ResultCell]) -> Ranking:
    (ranking,) = rank_setting(cells, [])
    return ranking


def names_that_may_be_best(ranking: Ranking) -> list[str]:
    return [one.system.model for one in ranking.standings if one.may_be_best]


def test_a_clear_winner_is_the_only_system_that_may_be_the_best() -> None:
    ranking = rank(build_cells(elmo=0.9, gpt=0.7, bert=0.69, tfidf=0.6))
    assert names_that_may_be_best(ranking) == ["elmo"]
    best = ranking.best
    assert best.probability_best > 0.99 and best.behind_low == 0.0


def test_systems_with_equal_predictions_share_the_first_place() -> None:
    elmo, gpt = build_cells(elmo=0.8, gpt=0.5)
    twin = dataclasses.replace(elmo, system=dataclasses.replace(elmo.system, model="bert"))
    ranking = rank([elmo, twin, gpt])
    assert names_that_may_be_best(ranking) == ["elmo", "bert"]
    assert [one.probability_best for one in ranking.standings] == [0.5, 0.5, 0.0]
    lows = [one.behind_low for one in ranking.standings[:2]]
    # 1.647 standard errors of two pseudo-items beside 600 items.
    assert lows == pytest.approx([-1.6474 * (2 / (601 * 602)) ** 0.5] * 2, rel=1e-3)


def test_seeds_that_differ_do_not_widen_a_statement_about_these_models() -> None:
    """Two seeds at 95 % and 75 %: the mean of these two is known as well as the items allow."""
    rng = np.random.default_rng(1)
    order_N = rng.permutation(NUM_ITEMS)
    far_apart = np.stack([(order_N < share * NUM_ITEMS).astype(float) for share in (0.95, 0.75)])
    together = np.stack([(order_N < 0.6 * NUM_ITEMS).astype(float)] * 2)
    ranking = rank([build_cell("elmo", far_apart), build_cell("gpt", together)])
    assert names_that_may_be_best(ranking) == ["elmo"]
    best = ranking.best
    assert best.num_runs == 2 and best.ci_low is not None and best.ci_high is not None
    assert best.ci_high - best.ci_low < 0.08


def test_each_model_is_represented_by_its_best_system_on_validation() -> None:
    frozen, finetuned, other = build_cells(elmo=0.9, gpt=0.7, bert=0.6)
    finetuned.system = dataclasses.replace(frozen.system, transfer="frozen")
    finetuned.validation_values = [0.95]
    frozen.validation_values = [0.5]
    ranking = rank([frozen, finetuned, other])
    assert [one.system.model for one in ranking.standings] == ["elmo", "bert"]
    assert ranking.best.system.transfer == "frozen", "although its test score is lower"
    assert [one.validation for one in ranking.standings] == [0.95, 0.5]


def test_public_models_have_a_ranking_of_their_own() -> None:
    *own, public = build_cells(elmo=0.7, tfidf=0.6, minilm=0.9)
    public.system = dataclasses.replace(public.system, family=PUBLIC_FAMILY)
    budget, overall = rank_setting([*own, public], [])
    assert (budget.scope, overall.scope) == ("budget", "overall")
    assert [one.system.model for one in budget.standings] == ["elmo", "tfidf"]
    assert overall.best.system.model == "minilm" and overall.best.is_public
    assert names_that_may_be_best(budget) == ["elmo"]


def test_ablations_random_init_and_floors_are_no_candidates() -> None:
    cells = build_cells(elmo=0.7, bare=0.9, gpt=0.95, majority=0.99)
    cells[2].system = dataclasses.replace(cells[2].system, init="random")
    (ranking,) = rank_setting(cells, ["bare"])
    assert [one.system.model for one in ranking.standings] == ["elmo"]
    assert not ranking.best.above_chance, "the majority class is better"


def test_items_of_a_cluster_are_drawn_together() -> None:
    """A lead that comes from one of twelve templates is no lead."""
    num_clusters, size = 12, 50
    groups = np.repeat([f"t{n}" for n in range(num_clusters)], size)
    gpt_N = np.tile([1.0, 0.0], num_clusters * size // 2)
    elmo_N = gpt_N.copy()
    elmo_N[:size] = 1.0  # the whole first template
    tables = []
    for scores_N in (elmo_N, gpt_N):
        ids = [f"test-{n:03d}" for n in range(len(scores_N))]
        tables.append(pd.DataFrame({"id": ids, "group": groups, "correct": scores_N}))

    def rank_both(*, by_group: bool) -> Ranking:
        cells = []
        for name, table in zip(("elmo", "gpt"), tables, strict=True):
            cell = build_cell(name, table["correct"].to_numpy()[None])
            cell.item_scores = {(0, 0): _score_items(table, by_group=by_group)}
            if by_group:
                cell.group_sizes = table.groupby("group")["correct"].size()
            cells.append(cell)
        return rank(cells)

    assert names_that_may_be_best(rank_both(by_group=False)) == ["elmo"]
    clustered = rank_both(by_group=True)
    assert names_that_may_be_best(clustered) == ["elmo", "gpt"]
    assert clustered.best.mean == pytest.approx(elmo_N.mean())


def test_swapping_predictions_swaps_the_places() -> None:
    elmo, gpt = build_cells(elmo=0.9, gpt=0.7)
    before = rank([elmo, gpt])
    swapped = [
        dataclasses.replace(gpt, system=elmo.system),
        dataclasses.replace(elmo, system=gpt.system),
    ]
    after = rank(swapped)
    assert [one.system.model for one in after.standings] == ["gpt", "elmo"]
    for one, other in zip(before.standings, after.standings, strict=True):
        assert one == dataclasses.replace(other, system=one.system)


def test_draws_have_the_spread_of_the_mean() -> None:
    scores_SN = np.random.default_rng(3).random((2, 30))
    draws_BS = draw_means(scores_SN, generator("test"), 20_000)
    standard_error = scores_SN.std(axis=1, ddof=1) / np.sqrt(30)
    # 2.045 and 1.960 are the 97.5 % quantiles of Student's t with 29 degrees and of the normal.
    expected = standard_error * 2.045 / 1.960
    assert draws_BS.mean(axis=0) == pytest.approx(scores_SN.mean(axis=1), abs=0.002)
    assert draws_BS.std(axis=0) == pytest.approx(expected, rel=0.02)
    again = draw_means(scores_SN, generator("test"), 20_000)
    assert np.array_equal(draws_BS, again)


def test_many_items_are_drawn_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    scores_SN = np.random.default_rng(4).random((3, 70))
    whole = draw_means(scores_SN, generator("test"), 500)
    monkeypatch.setattr("lineage.analysis.ranking.DRAWS_AT_ONCE", 700)
    assert np.allclose(draw_means(scores_SN, generator("test"), 500), whole)


def test_the_number_of_threads_does_not_change_a_digit() -> None:
    scores_SN = generator("scores").random((30, 1000))
    draws = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            draws.append(draw_means(scores_SN, generator("bootstrap"), 1000))
    assert np.array_equal(*draws)


def test_a_single_system_is_the_best() -> None:
    draws = np.full((10, 1), 0.7)
    (only,) = compare_with_best(np.array([0.7]), draws, num_items=10)
    assert only.may_be_best and only.probability_best == 1.0
