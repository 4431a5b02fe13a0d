"""Pooled effects: what pretraining or adaptation adds over several tasks of one kind."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import stdtrit

from lineage.analysis.gains import Gain, GainSummary
from lineage.analysis.records import TEST_SET_SEPARATOR, Comparison, group_by
from lineage.analysis.statistics import CONFIDENCE_LEVEL, MIN_SEEDS

MIN_TASKS = 3  # for an interval: two tasks do not tell how much tasks differ
SMALLEST_ERROR = 1e-4  # identical predictions have a standard error of 0


@dataclass(frozen=True)
class PooledMean:
    """The mean effect over tasks; the interval is None for two tasks."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Effect:
    """The effect on one model with one method, over the tasks of one kind."""

    model: str
    method: str
    kind: str
    metric: str
    gains: tuple[Gain, ...]  # one a task
    pooled: PooledMean


def pool_effects(
    effects: Sequence[float],
    standard_errors: Sequence[float],
    seed_effects_PK: npt.NDArray[np.float64] | None = None,
) -> PooledMean:
    """Return the random-effects mean of three or more effects, with its interval.

    The variance between effects is that of Paule and Mandel (1982), and the interval that of
    Hartung and Knapp (2001), which holds for few effects. Effects that agree by chance do not make
    it shorter than their own errors allow (Röver et al. 2015).

    `seed_effects_PK` are the effects by pretraining seed, if there are at least MIN_SEEDS. All
    tasks share the seeds, so a lucky pretraining raises all effects, which their scatter does not
    show. The variance of the mean between seeds is added. The critical value is the mean of both,
    weighted by their variances (Cochran 1964).
    """
    effects_K = np.asarray(effects, dtype=np.float64)
    variances_K = np.maximum(np.asarray(standard_errors, dtype=np.float64), SMALLEST_ERROR) ** 2
    num_effects = len(effects_K)

    def weighted_mean(between: float) -> tuple[np.ndarray, float]:
        weights_K = 1 / (variances_K + between)
        return weights_K, float(weights_K @ effects_K / weights_K.sum())

    def excess(between: float) -> float:
        weights_K, mean = weighted_mean(between)
        return float(weights_K @ (effects_K - mean) ** 2) - (num_effects - 1)

    between = 0.0
    if excess(0.0) > 0:
        upper = float(np.ptp(effects_K)) ** 2 * num_effects + 1.0
        between = float(brentq(excess, 0.0, upper))
    weights_K, mean = weighted_mean(between)
    scatter = max(1.0, float(weights_K @ (effects_K - mean) ** 2) / (num_effects - 1))
    task_variance = scatter / float(weights_K.sum())
    tail = (1 + CONFIDENCE_LEVEL) / 2
    variance = task_variance
    critical_value = float(stdtrit(num_effects - 1, tail))
    if seed_effects_PK is not None:
        num_seeds = len(seed_effects_PK)
        means_P = seed_effects_PK @ weights_K / weights_K.sum()
        seed_variance = float(means_P.var(ddof=1)) / num_seeds
        variance = task_variance + seed_variance
        weighted = task_variance * critical_value + seed_variance * stdtrit(num_seeds - 1, tail)
        critical_value = float(weighted) / variance
    margin = critical_value * float(np.sqrt(variance))
    return PooledMean(mean, mean - margin, mean + margin)


def build_effects(summary: GainSummary) -> list[Effect]:
    """Return the effects of one type, each over the tasks of a kind at their most labels.

    Tasks of another metric are another group, and extra test sets, which the same runs answer, are
    left out.
    """
    own = [
        gain for gain in summary.at_most_labels if TEST_SET_SEPARATOR not in gain.comparison.task
    ]
    groups = group_by(
        own, lambda gain: (gain.model, gain.method, gain.kind, gain.comparison.metric)
    )
    return [Effect(*key, tuple(gains), _pool(gains)) for key, gains in groups.items()]


def _pool(gains: Sequence[Gain]) -> PooledMean:
    comparisons = [gain.comparison for gain in gains]
    effects = [comparison.difference for comparison in comparisons]
    if len(comparisons) >= MIN_TASKS:
        return pool_effects(
            effects,
            [comparison.standard_error for comparison in comparisons],
            _seed_effects(comparisons),
        )
    mean = float(np.mean(effects))
    (first, *others) = comparisons
    if others or first.verdict == "too few seeds":
        return PooledMean(mean, None, None)
    return PooledMean(mean, first.ci_low, first.ci_high)


def _seed_effects(comparisons: Sequence[Comparison]) -> npt.NDArray[np.float64] | None:
    """Return (P, K): the effects by pretraining seed and task; None if the seeds are too few."""
    by_task = [
        {one.seed: one.difference for one in comparison.pretrain_seed_differences}
        for comparison in comparisons
    ]
    seeds = set.intersection(*(set(differences) for differences in by_task))
    if len(seeds) < MIN_SEEDS:
        return None
    return np.array([[differences[seed] for differences in by_task] for seed in sorted(seeds)])
