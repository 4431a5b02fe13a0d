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
from lineage.analysis.decision import SHORTEST_SECONDS
from lineage.analysis.ranking import Scores, draw_means, variance_of_pseudo_items

# The same training can take twice as long on a busy machine, and there is a new time each night.
CHEAPER_FACTOR = 4.0

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

    `difference` is the challenger's mean score minus the champion's, with an interval that allows
    for the comparisons before; all three are None if the two were not compared.
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
    best: Contender | None = None,
    num_earlier: int = 0,
) -> ChampionDecision:
    """Decide whether the challenger becomes the champion.

    It does if it is better on the same test items, or if it takes less time to build and is shown
    to be at most `margin` below the best champion so far, `best` (None: the present one). Counted
    from the present one, a point could be lost each night. Two scores differ by `max_difference`
    at most. The items are drawn with `rng`.

    Of `num_earlier` comparisons on the same test items, each could have been wrong. So the k-th
    may be wrong with a probability of 6 / (pi k)^2 times 5 %, which add up to 5 %.
    """
    if champion is None:
        return ChampionDecision(takes_over=True, reason="first")
    if challenger.test_items_digest != champion.test_items_digest:
        # Nothing is lost: it is the same system, and later ones can be compared with it again.
        if challenger.system_digest == champion.system_digest:
            return ChampionDecision(takes_over=True, reason="same system")
        return ChampionDecision(takes_over=False, reason="other test items")
    best = best or champion
    if any(one.scores_N is None for one in (challenger, champion, best)):
        return ChampionDecision(takes_over=False, reason="no item scores")
    alpha = (1 - statistics.CONFIDENCE_LEVEL) * 6 / (np.pi * (num_earlier + 1)) ** 2
    lead = _compare(challenger, champion, rng, alpha=alpha, max_difference=max_difference)
    lead_over_best = lead
    if best is not champion:
        lead_over_best = _compare(challenger, best, rng, alpha=alpha, max_difference=max_difference)
    if lead is None or lead_over_best is None:  # another version groups the items
        return ChampionDecision(takes_over=False, reason="other test items")
    is_cheaper = False
    if challenger.cost_seconds is not None and champion.cost_seconds is not None:
        seconds = max(challenger.cost_seconds, SHORTEST_SECONDS)
        is_cheaper = seconds * CHEAPER_FACTOR < champion.cost_seconds
    reason: Reason = "not better"
    if lead.low > 0:
        reason = "better"
    elif lead_over_best.low >= -margin and is_cheaper:
        reason = "equivalent and cheaper"
    return ChampionDecision(
        takes_over=reason != "not better",
        reason=reason,
        difference=lead.mean,
        low=lead.low,
        high=lead.high,
    )


@dataclass(frozen=True)
class _Lead:
    """How much better one system is than another, with its interval."""

    mean: float
    low: float
    high: float


def _compare(
    first: Contender,
    second: Contender,
    rng: np.random.Generator,
    *,
    alpha: float,
    max_difference: float,
) -> _Lead | None:
    """Compare two systems on the same items; None if they have other numbers of scores.

    The critical value is the quantile of the studentized samples, and at least that of Student's t.
    """
    assert first.scores_N is not None and second.scores_N is not None
    if len(first.scores_N) != len(second.scores_N):
        return None
    differences_1N = (first.scores_N - second.scores_N)[None]
    num_units = differences_1N.shape[1]
    mean = float(differences_1N.mean())
    if num_units == 1:  # a single item tells nothing about others
        return _Lead(mean, -max_difference, max_difference)
    deviations_B = draw_means(differences_1N, rng)[:, 0] - mean
    num_items = first.num_grouped_items or num_units
    pseudo_variance = variance_of_pseudo_items(num_items, max_difference)
    error = float(np.sqrt(deviations_B.var() + pseudo_variance))
    drawn_value = float(np.quantile(np.abs(deviations_B), 1 - alpha)) / error
    margin = max(drawn_value, float(stdtrit(num_units - 1, 1 - alpha / 2))) * error
    return _Lead(mean, mean - margin, mean + margin)
