"""Which of the trained systems may be the best: a statement about these systems.

The systems are fixed, and only the test items could have been others. So items are drawn again
with replacement, the same ones for all systems (a paired bootstrap: Efron and Tibshirani 1993,
chapter 8), or groups of items that belong together. A system's score is its mean over seeds.
Shapes: S systems, N items or groups of items, B bootstrap samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit
from threadpoolctl import threadpool_limits

from lineage.analysis import statistics
from lineage.analysis.cells import ResultCell, split_test_set, stack_scores
from lineage.analysis.comparisons import choose_candidates, is_above_chance
from lineage.analysis.records import MEAN_TOLERANCE, Ranking, Standing
from lineage.answers.metrics import MIN_SCORES, max_difference
from lineage.randomness import generator
from lineage.results import PUBLIC_FAMILY

Scores = npt.NDArray[np.float64]
NUM_DRAWS = 10_000
DRAWS_AT_ONCE = 200_000  # item numbers, samples times items: so many fit into the cache


@dataclass(frozen=True)
class BestComparison:
    """How a system compares with the best of the others; differences are shares."""

    low: float  # simultaneous lower limit of its score minus the best of the others
    may_be_best: bool
    probability_best: float | None  # None with a single item


def draw_means(
    scores_SN: Scores,
    rng: np.random.Generator,
    num_draws: int = NUM_DRAWS,
    *,
    group_sizes_N: Scores | None = None,
    max_freedom: float = np.inf,
) -> Scores:
    """Return (B, S): the systems' means over items that are drawn again.

    The spread of the samples is widened, so that few items have the intervals of Student's t
    (Hesterberg 2015, section 5.1, the expanded percentile interval). If the scores are those of
    groups with these sizes, it is widened as in `statistics.estimate_mean`. The degrees of freedom
    are at most `max_freedom`.
    """
    num_systems, num_items = scores_SN.shape
    means_S = scores_SN.mean(axis=1)
    widening_N = np.full(num_items, num_items / (num_items - 1))
    freedom = num_items - 1.0
    if group_sizes_N is not None:
        widening_N = 1 / (1 - group_sizes_N / group_sizes_N.sum())
        freedom = statistics.effective_groups(group_sizes_N) - 1
    deviations_SN = (scores_SN - means_S[:, None]) * np.sqrt(widening_N)
    deviations_SN -= deviations_SN.mean(axis=1, keepdims=True)
    draws_BS = np.empty((num_draws, num_systems))
    chunk = max(1, DRAWS_AT_ONCE // num_items)
    with threadpool_limits(limits=1, user_api="blas"):  # threads would change the last digits
        for start in range(0, num_draws, chunk):
            size = min(chunk, num_draws - start)
            items_CN = rng.integers(num_items, size=(size, num_items), dtype=np.int32)
            cells = items_CN + num_items * np.arange(size, dtype=np.int64)[:, None]
            counts = np.bincount(cells.ravel(), minlength=size * num_items)
            # A product of integers and floats would not use the fast routines of BLAS.
            counts_CN = counts.reshape(size, num_items).astype(np.float64)
            draws_BS[start : start + size] = counts_CN @ deviations_SN.T / num_items
    tail = (1 + statistics.CONFIDENCE_LEVEL) / 2
    student_ratio = float(stdtrit(min(freedom, max_freedom), tail) / ndtri(tail))
    expanded_BS: Scores = means_S + student_ratio * draws_BS
    return expanded_BS


def compare_with_best(
    means_S: Scores,
    draws_BS: Scores,
    *,
    num_items: int,
    max_difference: float = 1.0,
    max_freedom: float = np.inf,
) -> list[BestComparison]:
    """Compare each system with the best of the others (Hsu 1984, multiple comparisons with it).

    With 95 % confidence the truly best system is among those that may be the best, and all lower
    limits hold at once.

    Critical values are quantiles, over the samples, of the largest studentized deviation from each
    system. A system is excluded if another is better by more than its critical value allows. The
    lower limits assume that the best is one of the systems that may be the best. What two systems
    get for one item differs by `max_difference` at most.
    """
    pseudo_variance = variance_of_pseudo_items(num_items, max_difference)
    freedom = min(num_items - 1.0, max_freedom)
    lowest_critical_value = float(stdtrit(freedom, statistics.CONFIDENCE_LEVEL))
    num_systems = len(means_S)
    if num_systems == 1:
        return [BestComparison(0.0, True, 1.0)]
    margins_SS = np.zeros((num_systems, num_systems))  # how far the column may seem above the row
    for system in range(num_systems):
        deviations_BS = draws_BS - draws_BS[:, [system]] - (means_S - means_S[system])
        errors_S = np.sqrt(deviations_BS.var(axis=0) + pseudo_variance)
        studentized_BS = deviations_BS / errors_S
        largest_B = np.delete(studentized_BS, system, axis=1).max(axis=1)
        critical_value = float(np.quantile(largest_B, statistics.CONFIDENCE_LEVEL))
        margins_SS[system] = max(critical_value, lowest_critical_value) * errors_S
    leads_SS = means_S[:, None] - means_S[None, :]  # of the row over the column
    np.fill_diagonal(leads_SS, np.inf)
    high_S = (leads_SS + margins_SS).min(axis=1)
    may_be_best_S = high_S >= -MEAN_TOLERANCE
    low_S = np.empty(num_systems)
    for system in range(num_systems):
        rivals = may_be_best_S.copy()
        rivals[system] = False
        if rivals.any():
            low_S[system] = (leads_SS[system] - margins_SS[:, system])[rivals].min()
        else:
            low_S[system] = 0.0  # it is the only one that may be the best
    best_B = draws_BS.max(axis=1)
    is_best_BS = draws_BS >= best_B[:, None] - MEAN_TOLERANCE
    shares_BS = is_best_BS / is_best_BS.sum(axis=1, keepdims=True)
    probabilities_S = shares_BS.mean(axis=0)
    return [
        BestComparison(
            low=float(low_S[system]),
            may_be_best=bool(may_be_best_S[system]),
            probability_best=float(probabilities_S[system]),
        )
        for system in range(num_systems)
    ]


def selected_lower_limits(
    draws_BS: Scores,
    estimates_S: Sequence[statistics.Estimate],
    may_be_best_S: Sequence[bool],
    lowest: float,
) -> list[float]:
    """Return lower limits of the scores that hold for whichever system is picked by its score.

    The highest of many scores owes something to luck, so its own interval would be too high. The
    lower limits of all systems that may be the best hold at once, and with them that of the one
    that is picked (Benjamini, Hechtlinger and Stark 2019). The limits of the others are their own,
    and so are all upper limits: luck does not lower a maximum. `lowest` is the lowest possible
    score.
    """
    tail = (1 + statistics.CONFIDENCE_LEVEL) / 2
    means_S = np.array([estimate.mean for estimate in estimates_S])
    errors_S = np.array([estimate.standard_error for estimate in estimates_S])
    lows_S = np.array([estimate.low for estimate in estimates_S])
    best_S = np.array(may_be_best_S)
    if best_S.sum() > 1:
        # A share that is high by luck also seems to vary less than it does.
        errors_S = np.maximum(errors_S, errors_S[best_S].mean())
        largest_B = ((draws_BS - means_S) / errors_S)[:, best_S].max(axis=1)
        freedom = estimates_S[0].degrees_of_freedom
        critical_value = max(float(np.quantile(largest_B, tail)), float(stdtrit(freedom, tail)))
        lows_S = np.where(best_S, np.maximum(means_S - critical_value * errors_S, lowest), lows_S)
    return [float(low) for low in lows_S]


def variance_of_pseudo_items(num_items: int, max_difference: float) -> float:
    """Return what two pseudo-items add to the variance of a difference of two systems.

    As in `statistics.estimate_mean`: without them, 20 items with the same answers would show that
    two systems are equal.
    """
    return 2 * max_difference**2 / ((num_items + 1) * (num_items + 2))


def rank_setting(cells: Sequence[ResultCell], ablations: Sequence[str]) -> list[Ranking]:
    """Rank the best system of each model in a setting, and TF-IDF.

    `cells` are all of the setting. Each model is represented by the system that is best on
    validation. There is one ranking of what has the study's budget, and a second one with public
    checkpoints if there are any. Random-init baselines, ablations and systems of two models are
    left out. Returns nothing if no system has a score.
    """
    own, public = choose_candidates(cells, ablations)
    rankings = []
    if own:
        rankings.append(_rank("budget", own, cells))
    if public:
        rankings.append(_rank("overall", [*own, *public], cells))
    return rankings


def _rank(
    scope: Literal["budget", "overall"],
    candidates: Sequence[ResultCell],
    cells: Sequence[ResultCell],
) -> Ranking:
    first = candidates[0]
    scores_SN = mean_scores(candidates)
    tables = (table for cell in candidates for table in cell.item_scores.values())
    sizes_N = first.group_sizes_of(tables)
    means_S = scores_SN.mean(axis=1)
    num_items = scores_SN.shape[1]
    task, extra_test_set = split_test_set(first.task)
    item_difference, max_freedom = _limits_of_items(candidates, scores_SN)
    intervals: Sequence[tuple[float | None, float | None]] = [(None, None)] * len(candidates)
    if num_items > 1:
        # The label counts of a task share their samples, so that their differences are paired too.
        rng = generator("bootstrap", task, num_items)
        draws_BS = draw_means(scores_SN, rng, group_sizes_N=sizes_N, max_freedom=max_freedom)
        comparisons = compare_with_best(
            means_S,
            draws_BS,
            num_items=first.num_grouped_items or num_items,
            max_difference=item_difference,
            max_freedom=max_freedom,
        )
        intervals = _selected_intervals(candidates, scores_SN, sizes_N, draws_BS, comparisons)
    else:
        largest = max_difference(first.metric)
        comparisons = [BestComparison(-largest, True, None)] * len(means_S)
    standings = []
    rows = zip(candidates, means_S, comparisons, intervals, strict=True)
    for cell, mean, comparison, (ci_low, ci_high) in rows:
        standings.append(
            Standing(
                system=cell.system,
                mean=float(mean),
                ci_low=ci_low,
                ci_high=ci_high,
                num_runs=len(cell.item_scores),
                is_public=cell.system.family == PUBLIC_FAMILY,
                above_chance=is_above_chance(cell, cells),
                behind_low=comparison.low,
                may_be_best=comparison.may_be_best,
                probability_best=comparison.probability_best,
                validation=None if extra_test_set else cell.validation_mean,
            )
        )
    return Ranking(
        scope=scope,
        task=first.task,
        label_count=first.label_count,
        kind=first.kind,
        metric=first.metric,
        train_examples=max(cell.train_examples for cell in candidates),
        num_examples=first.num_examples,
        standings=tuple(sorted(standings, key=lambda standing: -standing.mean)),
    )


def _limits_of_items(candidates: Sequence[ResultCell], scores_SN: Scores) -> tuple[float, float]:
    """Return the largest difference that an item can make, and the most degrees of freedom.

    If a score is no mean over items, both follow from the contributions (see
    `lineage.analysis.contributions`).
    """
    ranges = [cell.item_range for cell in candidates if cell.item_range is not None]
    if not ranges:
        return max_difference(candidates[0].metric), np.inf
    lowest = min(one[0] for one in ranges)
    highest = max(one[1] for one in ranges)
    deviations_SN = scores_SN - scores_SN.mean(axis=1, keepdims=True)
    typical_N = np.sqrt((deviations_SN**2).mean(axis=0))
    return highest - lowest, statistics.freedom_of_variance(typical_N)


def _selected_intervals(
    candidates: Sequence[ResultCell],
    scores_SN: Scores,
    sizes_N: Scores | None,
    draws_BS: Scores,
    comparisons: Sequence[BestComparison],
) -> list[tuple[float, float]]:
    """Return the interval of each score, which allows for the choice among them."""
    lowest = MIN_SCORES.get(candidates[0].metric, 0.0)
    estimates = [
        statistics.estimate_mean(
            scores_N[None],
            bounds=(lowest, 1.0),
            group_sizes_N=sizes_N,
            item_range=cell.item_range,
        )
        for cell, scores_N in zip(candidates, scores_SN, strict=True)
    ]
    lows = selected_lower_limits(
        draws_BS, estimates, [one.may_be_best for one in comparisons], lowest
    )
    return [(low, one.high) for low, one in zip(lows, estimates, strict=True)]


def mean_scores(cells: Sequence[ResultCell]) -> Scores:
    """Return (S, N): the mean over seeds of each system, on the items that all have answered."""
    tables = [score for cell in cells for score in cell.item_scores.values()]
    ends = np.cumsum([len(cell.item_scores) for cell in cells])
    by_cell = np.split(stack_scores(tables), ends[:-1])
    return np.stack([scores_RN.mean(axis=0) for scores_RN in by_cell])
