"""What a difference between two cells is worth: intervals over examples and repetitions at once, and a word for them.

A cell's scores are a table of repetitions (R) by examples (N). Both are samples: other seeds and other examples would have given another
mean. Examples and repetitions are crossed, so the variance of the mean is that of a random-effects layout (the sum of the shares, less the
residual that each of them contains: Owen 2007, The pigeonhole bootstrap), with Satterthwaite's (1946) degrees of freedom. Unlike a bootstrap
over three seeds, whose intervals are too short by design, this holds its level, and needs no random numbers.

Repetitions are pretrainings, fine-tuning seeds, or both, crossed in the same way: a seed draws the labels that all pretrainings learn from,
so that more pretrainings make nothing of it smaller, and fine-tuning seeds of one pretraining say nothing of the next.

Of many comparisons some have seeds that agree by luck, so that each alone would not hold the level of all. Comparisons that are read
together lend each other their seeds' variance (as in limma: Smyth 2004): none counts on steadier seeds than theirs on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import (
    stdtrit,
)  # the quantiles of Student's t; scipy.stats, which calls it too, takes a second to import

Scores = npt.NDArray[np.float64]
Seeds = npt.NDArray[np.integer]
SeedVariances = tuple[float, float]  # between pretrainings, and between fine-tuning seeds
Verdict = Literal["better", "worse", "not worse", "not separated"]
CONFIDENCE_LEVEL = 0.95
MAX_POOLED_COMPARISONS = 4  # comparisons whose seeds count for one's degrees of freedom, itself among them; not all, since their variances are not the same
EQUIVALENCE_MARGIN = (
    0.02  # "not worse" means: within two points of accuracy, shown by an equivalence test
)


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    mean: float
    standard_error: float
    degrees_of_freedom: float
    low: float
    high: float
    num_repetitions: int
    num_examples: int


def standard_error(values: npt.ArrayLike) -> float:
    """Standard error of the mean of independent values; not a number where there is only one."""
    found = np.asarray(values, dtype=np.float64)
    return float(found.std(ddof=1) / np.sqrt(found.size)) if found.size > 1 else float("nan")


def estimate_mean(
    scores: Scores,
    *,
    bounds: tuple[float, float],
    seeds: Seeds | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    seed_variances: Sequence[SeedVariances] = (),
    num_items: int = 0,
) -> Estimate:
    """The mean of (R, N) scores that lie within `bounds`, with an interval over examples and, where R > 1, repetitions.

    `seeds`: (R, 2), of pretraining and of fine-tuning, a row each; without them the repetitions are fine-tunings of one pretraining. Two examples
    more, one at each bound, enter the variance (Agresti and Min 2005): without them 20 right answers out of 20 would be certain to the last
    digit. Where examples are groups of `items` in all, these two have one item each. Needs N > 1. `spreads` are those of all that is read
    together, its own among them.
    """
    assert scores.ndim == 2 and scores.shape[1] > 1, scores.shape
    repetitions, examples = scores.shape
    mean = float(scores.mean())
    padded = [mean + (bound - mean) * examples / (num_items or examples) for bound in bounds]
    over_examples = float(np.concatenate([scores.mean(axis=0), padded]).var(ddof=1)) / (
        examples + 2
    )
    variance, freedom = _total_variance(
        over_examples, scores, _resolve_seeds(scores, seeds), seed_variances
    )
    error = float(np.sqrt(variance))
    reach = float(stdtrit(freedom, (1 + confidence_level) / 2)) * error
    return Estimate(
        mean,
        error,
        freedom,
        max(mean - reach, bounds[0]),
        min(mean + reach, bounds[1]),
        repetitions,
        examples,
    )


def estimate_seed_variances(scores: Scores, seeds: Seeds | None = None) -> SeedVariances:
    """The variance between the means of pretrainings, and between those of fine-tuning seeds; not a number where there is only one."""
    found = [_level_means(scores, own).mean(axis=1) for own in _resolve_seeds(scores, seeds).T]
    one, other = (float(means.var(ddof=1)) if len(means) > 1 else float("nan") for means in found)
    return one, other


@dataclass(frozen=True)
class _VarianceComponent:
    """What one source of repetitions adds to the variance of the mean, and how much of that the examples explain, which is in their share too."""

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


def _resolve_seeds(scores: Scores, seeds: Seeds | None) -> Seeds:
    found = (
        np.stack([np.zeros(len(scores), int), np.arange(len(scores))], 1)
        if seeds is None
        else np.asarray(seeds)
    )
    assert found.shape == (len(scores), 2), (found.shape, scores.shape)
    return found


def _level_means(scores: Scores, levels_R: npt.NDArray[np.integer]) -> Scores:
    """(L, N): the mean of the repetitions of each level."""
    return np.stack([scores[levels_R == level].mean(axis=0) for level in np.unique(levels_R)])


def _variance_component(
    table: Scores, seed_variances: Sequence[float]
) -> _VarianceComponent | None:
    """That of a source with the (L, N) means of its levels; with one level what others lend, which know the source. None where nobody does."""
    levels, examples = table.shape
    known = [one for one in seed_variances if np.isfinite(one)]
    pooled_variance = float(np.mean(known)) if known else 0.0
    if levels == 1:
        return (
            _VarianceComponent(pooled_variance, min(len(known), MAX_POOLED_COMPARISONS))
            if known
            else None
        )
    between = float(table.mean(axis=1).var(ddof=1))
    rest = table - table.mean(axis=1)[:, None] - table.mean(axis=0)[None, :] + table.mean()
    freedom_rest = (levels - 1) * (examples - 1)
    # Who varies more than the others on average counts on fewer of their degrees of freedom: it is not of their kind.
    num_pooled = max(
        1.0,
        min(max(len(known), 1), MAX_POOLED_COMPARISONS)
        * min(1.0, pooled_variance / between if between else 1.0),
    )
    return _VarianceComponent(
        max(between, pooled_variance) / levels,
        (levels - 1) * num_pooled,
        float((rest**2).sum()) / freedom_rest / (levels * examples),
        freedom_rest,
    )


def _interaction_component(scores: Scores, seeds: Seeds) -> _VarianceComponent | None:
    """What pretraining and fine-tuning seed make together, which is in the share of either."""
    (repetitions, examples), left = scores.shape, scores + scores.mean(axis=0)
    for own in seeds.T:
        left = left - _level_means(scores, own)[np.unique(own, return_inverse=True)[1]]
    freedom = repetitions + 1 - sum(len(np.unique(own)) for own in seeds.T)
    if freedom < 1:
        return None
    means = left.mean(axis=1)
    rest = (
        float(((left - means[:, None]) ** 2).sum())
        / (freedom * (examples - 1))
        / (repetitions * examples)
    )
    return _VarianceComponent(
        float((means**2).sum()) / freedom / repetitions, freedom, rest, freedom * (examples - 1)
    )


def _total_variance(
    example_variance: float, scores: Scores, seeds: Seeds, seed_variances: Sequence[SeedVariances]
) -> tuple[float, float]:
    """Variance of the mean, and its degrees of freedom."""
    examples = scores.shape[1]
    each = [
        _variance_component(_level_means(scores, own), [one[number] for one in seed_variances])
        for number, own in enumerate(seeds.T)
    ]
    shares = [one for one in each if one is not None]
    both = _interaction_component(scores, seeds) if len(shares) == 2 else None
    more = max(
        [
            0.0,
            *(one.net_variance for one in shares),
            sum(one.net_variance for one in shares) - max(both.net_variance if both else 0.0, 0.0),
        ]
    )
    if more == 0:  # repetitions differ by no more than their examples explain
        return example_variance, examples - 1.0
    by_freedom = example_variance**2 / (examples - 1) + sum(
        one.satterthwaite_term for one in (*shares, *([both] if both else []))
    )
    # The rest is taken away, so the formula can fall below the degrees of freedom of every part; there is no less to know than that.
    return example_variance + more, max(
        (example_variance + more) ** 2 / by_freedom,
        float(min(examples - 1, *(one.degrees_of_freedom for one in shares))),
    )


def estimate_difference(
    first: Scores,
    second: Scores,
    *,
    seeds: Seeds | None = None,
    num_comparisons: int = 1,
    seed_variances: Sequence[SeedVariances] = (),
    max_difference: float = 1.0,
    num_items: int = 0,
) -> Estimate:
    """first - second, both (R, N) with the same examples, and the same seeds row by row; `widest` is the largest difference that there can be.

    With `questions` > 1 the intervals of so many comparisons hold together (Bonferroni); `spreads` are those of their differences.
    """
    assert first.shape == second.shape, (first.shape, second.shape)
    level = 1 - (1 - CONFIDENCE_LEVEL) / num_comparisons
    return estimate_mean(
        first - second,
        bounds=(-max_difference, max_difference),
        seeds=seeds,
        confidence_level=level,
        seed_variances=seed_variances,
        num_items=num_items,
    )


def classify_difference(estimate: Estimate, *, num_comparisons: int = 1) -> Verdict:
    """`better` or `worse` where the interval leaves zero; `not worse` where two one-sided tests (Schuirmann 1987) put it within the margin."""
    if estimate.low > 0:
        return "better"
    if estimate.high < 0:
        return "worse"
    reach = (
        float(stdtrit(estimate.degrees_of_freedom, 1 - (1 - CONFIDENCE_LEVEL) / num_comparisons))
        * estimate.standard_error
    )
    return "not worse" if abs(estimate.mean) + reach < EQUIVALENCE_MARGIN else "not separated"
