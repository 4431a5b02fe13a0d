"""Confidence intervals of scores and of differences between two systems, and their verdicts.

The scores of a system are a table of repetitions (R) by items (N). Both are samples: other seeds
and other items would have given another mean. Items and repetitions are crossed, so the variance
of the mean is that of a random-effects layout: the sum of the components, less the residual that
each of them contains (Owen 2007, The pigeonhole bootstrap), with Satterthwaite's (1946) degrees
of freedom. A bootstrap over three seeds has intervals that are too short by design. The intervals
of this estimate have their nominal coverage, and it needs no random numbers.

Repetitions are pretraining seeds, fine-tuning seeds, or both, crossed in the same way. A
fine-tuning seed draws the labels that all pretrained models learn from. So more pretraining seeds
do not make the variance of the fine-tuning seeds smaller, and the fine-tuning seeds of one
pretrained model do not tell how another pretraining would turn out.

Among many comparisons, the seeds of a few agree by chance, and the interval of such a comparison
alone would be too short. So comparisons that are read together share their seed variance (as in
limma: Smyth 2004): each assumes at least the average seed variance of the group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit  # quantiles of Student's t; scipy.stats takes a second to import

Scores = npt.NDArray[np.float64]
Seeds = npt.NDArray[np.integer]
SeedVariances = tuple[float, float]  # between pretraining seeds, and between fine-tuning seeds
Verdict = Literal[
    "better", "worse", "equivalent", "no significant difference", "identical predictions"
]
CONFIDENCE_LEVEL = 0.95
# At most this many comparisons, the one at hand included, add to the degrees of freedom of the
# seeds. More would assume that their variances are the same.
MAX_POOLED_COMPARISONS = 4
EQUIVALENCE_MARGIN = 0.02  # "equivalent": an equivalence test puts it within ±2 points


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval."""

    mean: float
    standard_error: float
    degrees_of_freedom: float
    low: float
    high: float
    num_repetitions: int
    num_items: int


@dataclass(frozen=True)
class _VarianceComponent:
    """The share of one source of repetitions in the variance of the mean.

    `residual_variance` is the part of `variance` that the items explain; the variance over items
    counts it too.
    """

    variance: float
    degrees_of_freedom: float
    residual_variance: float = 0.0
    residual_degrees_of_freedom: float = 1.0

    @property
    def net_variance(self) -> float:
        return self.variance - self.residual_variance

    @property
    def satterthwaite_term(self) -> float:
        return (
            self.variance**2 / self.degrees_of_freedom
            + self.residual_variance**2 / self.residual_degrees_of_freedom
        )


def standard_error(values: npt.ArrayLike) -> float:
    """Return the standard error of the mean of independent values; NaN for a single value."""
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        return float("nan")
    return float(array.std(ddof=1) / np.sqrt(array.size))


def estimate_mean(
    scores: Scores,
    *,
    bounds: tuple[float, float],
    seeds: Seeds | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    seed_variances: Sequence[SeedVariances] = (),
    num_grouped_items: int = 0,
) -> Estimate:
    """Estimate the mean of (R, N) scores, N > 1, with an interval over items and repetitions.

    All scores lie within `bounds`. `seeds` is (R, 2): the pretraining and the fine-tuning seed
    of each repetition. Without it the repetitions are fine-tuning seeds of one pretrained model.
    `seed_variances` are those of all comparisons that are read together, including this one.

    The variance includes two pseudo-items, one at each bound (Agresti and Min 2005). Without
    them, 20 right answers out of 20 would have an interval of width zero. If the N scores are
    those of groups with `num_grouped_items` items in total, a pseudo-item has the weight of one
    item.
    """
    assert scores.ndim == 2 and scores.shape[1] > 1, scores.shape
    repetitions, num_items = scores.shape
    mean = float(scores.mean())
    total_items = num_grouped_items or num_items
    pseudo_items = [mean + (bound - mean) * num_items / total_items for bound in bounds]
    padded = np.concatenate([scores.mean(axis=0), pseudo_items])
    item_variance = float(padded.var(ddof=1)) / (num_items + 2)
    variance, freedom = _total_variance(
        item_variance, scores, _resolve_seeds(scores, seeds), seed_variances
    )
    error = float(np.sqrt(variance))
    margin = float(stdtrit(freedom, (1 + confidence_level) / 2)) * error
    low, high = bounds
    return Estimate(
        mean=mean,
        standard_error=error,
        degrees_of_freedom=freedom,
        low=max(mean - margin, low),
        high=min(mean + margin, high),
        num_repetitions=repetitions,
        num_items=num_items,
    )


def estimate_difference(
    first: Scores,
    second: Scores,
    *,
    seeds: Seeds | None = None,
    num_comparisons: int = 1,
    seed_variances: Sequence[SeedVariances] = (),
    max_difference: float = 1.0,
    num_grouped_items: int = 0,
) -> Estimate:
    """Estimate first - second from two (R, N) tables with the same items and the same seeds.

    `max_difference` is the largest possible difference. With `num_comparisons` > 1 the intervals
    of that many comparisons hold jointly (Bonferroni); `seed_variances` are those of their
    differences.
    """
    assert first.shape == second.shape, (first.shape, second.shape)
    return estimate_mean(
        first - second,
        bounds=(-max_difference, max_difference),
        seeds=seeds,
        confidence_level=1 - (1 - CONFIDENCE_LEVEL) / num_comparisons,
        seed_variances=seed_variances,
        num_grouped_items=num_grouped_items,
    )


def classify_difference(estimate: Estimate, *, num_comparisons: int = 1) -> Verdict:
    """Return the verdict on a difference.

    "better" and "worse" need an interval that excludes zero. "equivalent" needs two one-sided
    tests (Schuirmann 1987) that put the difference within the margin.
    """
    if estimate.low > 0:
        return "better"
    if estimate.high < 0:
        return "worse"
    level = 1 - (1 - CONFIDENCE_LEVEL) / num_comparisons
    margin = float(stdtrit(estimate.degrees_of_freedom, level)) * estimate.standard_error
    if abs(estimate.mean) + margin < EQUIVALENCE_MARGIN:
        return "equivalent"
    return "no significant difference"


def estimate_seed_variances(scores: Scores, seeds: Seeds | None = None) -> SeedVariances:
    """Return the variance between pretraining seeds and that between fine-tuning seeds.

    A variance is NaN if there is only one such seed.
    """
    pretrain_levels_R, finetune_levels_R = _resolve_seeds(scores, seeds).T
    pretrain_variance = _variance_of_levels(scores, pretrain_levels_R)
    finetune_variance = _variance_of_levels(scores, finetune_levels_R)
    return pretrain_variance, finetune_variance


def _variance_of_levels(scores: Scores, levels_R: npt.NDArray[np.integer]) -> float:
    means = _level_means(scores, levels_R).mean(axis=1)
    if len(means) < 2:
        return float("nan")
    return float(means.var(ddof=1))


def _resolve_seeds(scores: Scores, seeds: Seeds | None) -> Seeds:
    if seeds is None:
        repetitions = len(scores)
        seeds = np.stack([np.zeros(repetitions, int), np.arange(repetitions)], 1)
    seeds_R2 = np.asarray(seeds)
    assert seeds_R2.shape == (len(scores), 2), (seeds_R2.shape, scores.shape)
    return seeds_R2


def _level_means(scores: Scores, levels_R: npt.NDArray[np.integer]) -> Scores:
    """Return (L, N): the mean of the repetitions of each level."""
    return np.stack([scores[levels_R == level].mean(axis=0) for level in np.unique(levels_R)])


def _variance_component(
    table: Scores, seed_variances: Sequence[float]
) -> _VarianceComponent | None:
    """Return the component of a source from the (L, N) means of its levels.

    With a single level it is taken from the other comparisons; None if they have one level too.
    """
    levels, num_items = table.shape
    known = [variance for variance in seed_variances if np.isfinite(variance)]
    pooled_variance = float(np.mean(known)) if known else 0.0
    if levels == 1:
        if not known:
            return None
        return _VarianceComponent(pooled_variance, min(len(known), MAX_POOLED_COMPARISONS))
    between = float(table.mean(axis=1).var(ddof=1))
    residual = table - table.mean(axis=1)[:, None] - table.mean(axis=0)[None, :] + table.mean()
    residual_freedom = (levels - 1) * (num_items - 1)
    # A comparison that varies more than the average takes fewer degrees of freedom from the others,
    # because its variance is not theirs.
    similarity = 1.0
    if between:
        similarity = min(1.0, pooled_variance / between)
    num_pooled = max(1.0, min(max(len(known), 1), MAX_POOLED_COMPARISONS) * similarity)
    return _VarianceComponent(
        variance=max(between, pooled_variance) / levels,
        degrees_of_freedom=(levels - 1) * num_pooled,
        residual_variance=float((residual**2).sum()) / residual_freedom / (levels * num_items),
        residual_degrees_of_freedom=residual_freedom,
    )


def _interaction_component(scores: Scores, seeds: Seeds) -> _VarianceComponent | None:
    """Return the interaction of pretraining and fine-tuning seed, which both components contain."""
    repetitions, num_items = scores.shape
    rest = scores + scores.mean(axis=0)
    freedom = repetitions + 1
    for levels_R in seeds.T:
        _, places_R = np.unique(levels_R, return_inverse=True)
        rest = rest - _level_means(scores, levels_R)[places_R]
        freedom -= len(np.unique(levels_R))
    if freedom < 1:
        return None
    means = rest.mean(axis=1)
    residual_freedom = freedom * (num_items - 1)
    residual_sum = float(((rest - means[:, None]) ** 2).sum())
    return _VarianceComponent(
        variance=float((means**2).sum()) / freedom / repetitions,
        degrees_of_freedom=freedom,
        residual_variance=residual_sum / residual_freedom / (repetitions * num_items),
        residual_degrees_of_freedom=residual_freedom,
    )


def _total_variance(
    item_variance: float, scores: Scores, seeds: Seeds, seed_variances: Sequence[SeedVariances]
) -> tuple[float, float]:
    """Return the variance of the mean and its degrees of freedom."""
    num_items = scores.shape[1]
    components = []
    for source, levels_R in enumerate(seeds.T):
        source_variances = [pair[source] for pair in seed_variances]
        component = _variance_component(_level_means(scores, levels_R), source_variances)
        if component is not None:
            components.append(component)
    interaction = _interaction_component(scores, seeds) if len(components) == 2 else None
    shared_variance = max(interaction.net_variance, 0.0) if interaction else 0.0
    net_variances = [component.net_variance for component in components]
    seed_variance = max([0.0, *net_variances, sum(net_variances) - shared_variance])
    if seed_variance == 0:  # repetitions differ by no more than their items explain
        return item_variance, num_items - 1.0
    terms = [component.satterthwaite_term for component in components]
    if interaction:
        terms.append(interaction.satterthwaite_term)
    variance = item_variance + seed_variance
    freedom = variance**2 / (item_variance**2 / (num_items - 1) + sum(terms))
    # Because the residual is subtracted, the formula can fall below the degrees of freedom of every
    # component, which are the minimum.
    smallest = min(num_items - 1, *(component.degrees_of_freedom for component in components))
    return variance, max(freedom, float(smallest))
