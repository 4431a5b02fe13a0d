"""A challenger becomes the champion if it is better, or equivalent and cheaper, on equal items."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from lineage.analysis.champion import ChampionDecision, ChampionOutcome, Contender, decide_champion
from lineage.randomness import generator
from lineage.report.champions import describe_champion, list_changes

ITEMS = 600


def contender(share: float, *, items: int = ITEMS, **changes: Any) -> Contender:
    """Return a system that is right on this share of the items, the easiest ones."""
    values: dict[str, Any] = {
        "system_digest": f"system {share}",
        "test_items_digest": "items",
        "scores_N": (np.arange(items) < share * items).astype(float),
        "num_grouped_items": 0,
        "cost_seconds": 100.0,
    }
    return Contender(**values | changes)


def decide(
    challenger: Contender,
    champion: Contender | None,
    *,
    max_difference: float = 1.0,
    **changes: Any,
) -> ChampionDecision:
    return decide_champion(
        challenger,
        champion,
        generator("test"),
        margin=0.02,
        max_difference=max_difference,
        **changes,
    )


def test_the_first_system_is_the_champion() -> None:
    decision = decide(contender(0.5), None)
    assert (decision.takes_over, decision.reason) == (True, "first")
    assert decision.difference is None


def test_a_better_challenger_takes_over_whatever_it_costs() -> None:
    decision = decide(contender(0.85, cost_seconds=1e6), contender(0.8))
    assert (decision.takes_over, decision.reason) == (True, "better")
    assert decision.difference == pytest.approx(0.05)
    assert decision.low is not None and decision.high is not None
    assert 0 < decision.low < 0.05 < decision.high < 0.08


@pytest.mark.parametrize("seconds", [1.0, 100.0, None])
def test_a_worse_challenger_does_not_take_over_however_cheap(seconds: float | None) -> None:
    decision = decide(contender(0.75, cost_seconds=seconds), contender(0.8))
    assert (decision.takes_over, decision.reason) == (False, "not better")
    assert decision.high is not None and decision.high < 0


def test_an_equal_challenger_takes_over_only_if_it_is_cheaper() -> None:
    champion = contender(0.8)
    for seconds, takes_over in ((10.0, True), (100.0, False), (1000.0, False), (None, False)):
        decision = decide(contender(0.8, cost_seconds=seconds), champion)
        assert decision.takes_over == takes_over, seconds
        assert decision.reason == ("equivalent and cheaper" if takes_over else "not better")
    assert not decide(
        contender(0.8, cost_seconds=10.0), contender(0.8, cost_seconds=None)
    ).takes_over


def test_times_that_differ_by_chance_are_no_reason_to_take_over() -> None:
    assert not decide(contender(0.8, cost_seconds=30.0), contender(0.8)).takes_over
    assert decide(contender(0.8, cost_seconds=20.0), contender(0.8)).takes_over
    short, shorter = contender(0.8, cost_seconds=30.0), contender(0.8, cost_seconds=1.0)
    assert not decide(shorter, short).takes_over, "the load of the machine decides such times"


def test_points_are_not_lost_one_by_one() -> None:
    """The margin counts from the best champion so far."""
    present = contender(0.79, items=6000)
    cheaper = contender(0.78, items=6000, cost_seconds=1.0)
    assert decide(cheaper, present).takes_over
    assert not decide(cheaper, present, best=contender(0.8, items=6000)).takes_over


def test_each_earlier_comparison_makes_the_next_one_stricter() -> None:
    better, champion = contender(0.82), contender(0.8)
    assert decide(better, champion).takes_over
    later = decide(better, champion, num_earlier=100)
    assert (later.takes_over, later.reason) == (False, "not better")
    assert later.low is not None and later.low < 0 < 0.02 < later.high


def test_a_cheaper_challenger_must_be_shown_to_be_within_two_points() -> None:
    """A point below on 600 items that go with the champion's is shown; on 60 items nothing is."""
    assert decide(contender(0.795, cost_seconds=1.0), contender(0.8)).takes_over
    assert not decide(contender(0.77, cost_seconds=1.0), contender(0.8)).takes_over
    few = {"items": 60, "cost_seconds": 1.0}
    assert not decide(contender(0.8, **few), contender(0.8, items=60)).takes_over


def test_systems_scored_on_other_items_are_not_compared() -> None:
    decision = decide(contender(1.0, test_items_digest="other items"), contender(0.1))
    assert (decision.takes_over, decision.reason) == (False, "other test items")
    assert decision.difference is None
    decision = decide(contender(1.0, items=ITEMS + 1), contender(0.1))
    assert (decision.takes_over, decision.reason) == (False, "other test items")


def test_the_champion_itself_on_other_items_stays_the_champion() -> None:
    """Later systems can be compared with its new scores."""
    champion = contender(0.8)
    decision = decide(dataclasses.replace(champion, test_items_digest="more items"), champion)
    assert (decision.takes_over, decision.reason) == (True, "same system")


def test_systems_without_kept_scores_are_not_compared() -> None:
    for one, other in (
        (contender(1.0, scores_N=None), contender(0.1)),
        (contender(1.0), contender(0.1, scores_N=None)),
    ):
        decision = decide(one, other)
        assert (decision.takes_over, decision.reason) == (False, "no item scores")


def test_few_items_do_not_show_that_a_challenger_is_better() -> None:
    assert not decide(contender(1.0, items=1), contender(0.0, items=1)).takes_over
    assert not decide(contender(1.0, items=3), contender(0.0, items=3)).takes_over
    assert decide(contender(1.0, items=30), contender(0.0, items=30)).takes_over


def test_groups_of_items_weigh_as_groups() -> None:
    """Ten groups that all agree tell less than their 600 items would."""
    groups = {"items": 10, "num_grouped_items": 600}
    decision = decide(contender(0.9, **groups), contender(0.8, **groups))
    assert not decision.takes_over and decision.low is not None and decision.low < 0


def test_the_decision_is_the_same_each_time() -> None:
    assert decide(contender(0.82), contender(0.8)) == decide(contender(0.82), contender(0.8))


def outcome(decision: ChampionDecision | None) -> ChampionOutcome:
    return ChampionOutcome("mood", "gpt-finetuned", 2, "tfidf", 1, decision)


def test_each_outcome_is_described_and_only_changes_are_for_the_terminal() -> None:
    better = decide(contender(0.85), contender(0.8))
    cheaper = decide(contender(0.8, cost_seconds=1.0), contender(0.8))
    worse = decide(contender(0.75), contender(0.8))
    other = decide(contender(0.9, test_items_digest="x"), contender(0.8))
    kept = decide(contender(0.9, scores_N=None), contender(0.8))
    assert describe_champion(outcome(better)).startswith(
        "The champion is now gpt-finetuned (version 2): it is better than tfidf (version 1) on the "
        "same test items (+5.0 points, +"
    )
    assert "takes less time to build than tfidf" in describe_champion(outcome(cheaper))
    for decision in (worse, other, kept):
        assert describe_champion(outcome(decision)).startswith(
            "The champion is still tfidf (version 1): gpt-finetuned (version 2) "
        )
    assert "cannot be compared" in describe_champion(outcome(other))
    assert "the first one" in describe_champion(outcome(decide(contender(0.5), None)))
    assert "very same" in describe_champion(outcome(None))
    every = [better, cheaper, worse, other, kept, decide(contender(0.5), None), None]
    changes = list_changes([outcome(decision) for decision in every])
    assert len(changes) == 2 and all(
        line.startswith("mood: The champion is now") for line in changes
    )
