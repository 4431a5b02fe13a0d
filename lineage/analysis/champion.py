"""Decide whether a new system replaces the champion, the system that is in use.

Both have answered the same test items. As in `lineage.analysis.ranking`, the two systems are fixed,
and only the items could have been others.
Shapes: N items or groups of items, B bootstrap samples.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from lineage.analysis import statistics
from lineage.analysis.decision import SAME_COST_FACTOR, SHORTEST_SECONDS
from lineage.analysis.ranking import (
    Scores,
    compare_with_best,
    draw_means,
    variance_of_pseudo_items,
)

Reason = Literal[
    "first",  # there is no champion yet
    "better",
    "equivalent and cheaper",
    "same system",  # its bytes are those of the champion, which had answered other items
    "not better",
    "other test items",  # or another metric: nothing can be compared
    "no item scores",  # one of the two keeps none
]


@dataclass(frozen=True)
class Contender:
    """A system with its scores on test items, for a comparison with another one."""

    system_digest: str  # of its files
    test_items_digest: str  # of the items with their labels, and of the metric
    scores_N: Scores | None  # means over seeds; None if they may not be kept
    num_grouped_items: int  # in all groups; 0 if items are scored one by one
    cost_seconds: float | None  # to build it; None if unknown


@dataclass(frozen=True)
class ChampionDecision:
    """The decision about a challenger, and the reason.

    `difference` is the challenger's mean score minus the champion's, with its 95 % interval; all
    three are None if the two were not compared.
    """

    takes_over: bool
    reason: Reason
    difference: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ChampionOutcome:
    """The place of a task's recommended system in the registry of models."""

    task: str
    system: str  # the name of the recommended system
    version: int  # that holds it
    champion: str  # the name of the system that was the champion before; its own if it is the first
    champion_version: int
    decision: ChampionDecision | None  # None: it is the champion already

    @property
    def has_changed(self) -> bool:
        """True if another system is the champion now."""
        if self.decision is None:
            return False
        return self.decision.reason in ("better", "equivalent and cheaper")


def decide_champion(
    challenger: Contender,
    champion: Contender | None,
    rng: np.random.Generator,
    *,
    margin: float,
    max_difference: float,
) -> ChampionDecision:
    """Decide whether the challenger becomes the champion.

    It does if it is better on the same test items, or if it takes less time to build and is shown
    to be at most `margin` below the champion (the rule of `decision.decide`). Two scores differ by
    `max_difference` at most. The items are drawn with `rng`.
    """
    if champion is None:
        return ChampionDecision(takes_over=True, reason="first")
    if challenger.test_items_digest != champion.test_items_digest:
        # Nothing is lost: it is the same system, and later ones can be compared with it again.
        if challenger.system_digest == champion.system_digest:
            return ChampionDecision(takes_over=True, reason="same system")
        return ChampionDecision(takes_over=False, reason="other test items")
    if challenger.scores_N is None or champion.scores_N is None:
        return ChampionDecision(takes_over=False, reason="no item scores")
    if len(challenger.scores_N) != len(champion.scores_N):  # another version groups the items
        return ChampionDecision(takes_over=False, reason="other test items")
    scores_SN = np.stack([challenger.scores_N, champion.scores_N])
    means_S = scores_SN.mean(axis=1)
    difference = float(means_S[0] - means_S[1])
    num_units = scores_SN.shape[1]
    if num_units == 1:  # a single item tells nothing about others
        return ChampionDecision(takes_over=False, reason="not better", difference=difference)
    num_items = challenger.num_grouped_items or num_units
    draws_BS = draw_means(scores_SN, rng)
    margin_of_error = _margin_of_error(
        draws_BS[:, 0] - draws_BS[:, 1] - difference,
        num_units=num_units,
        pseudo_variance=variance_of_pseudo_items(num_items, max_difference),
    )
    behind = compare_with_best(
        means_S, draws_BS, num_items=num_items, max_difference=max_difference
    )
    is_equivalent = behind[0].low >= -margin
    is_cheaper = False
    if challenger.cost_seconds is not None and champion.cost_seconds is not None:
        seconds = max(challenger.cost_seconds, SHORTEST_SECONDS)
        is_cheaper = seconds * SAME_COST_FACTOR < champion.cost_seconds
    reason: Reason = "not better"
    if difference > margin_of_error:
        reason = "better"
    elif is_equivalent and is_cheaper:
        reason = "equivalent and cheaper"
    return ChampionDecision(
        takes_over=reason != "not better",
        reason=reason,
        difference=difference,
        low=difference - margin_of_error,
        high=difference + margin_of_error,
    )


def _margin_of_error(deviations_B: Scores, *, num_units: int, pseudo_variance: float) -> float:
    """Return half the width of the 95 % interval of a difference, from its bootstrap samples.

    The critical value is the quantile of the studentized samples, and at least that of Student's t.
    """
    error = float(np.sqrt(deviations_B.var() + pseudo_variance))
    level = statistics.CONFIDENCE_LEVEL
    drawn_value = float(np.quantile(np.abs(deviations_B), level)) / error
    return max(drawn_value, float(stdtrit(num_units - 1, (1 + level) / 2))) * error
