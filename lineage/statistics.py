"""What a difference between two cells is worth: intervals over examples and repetitions at once, and a word for them.

A cell's scores are a table of repetitions (R, seeds) by examples (N). Both are samples: other seeds and other examples would have given
another mean. Examples and repetitions are crossed, so the variance of the mean is that of a two-way random-effects layout (the sum of
both shares, less the residual that each of them contains: Owen 2007, The pigeonhole bootstrap), with Satterthwaite's (1946) degrees of
freedom. Unlike a bootstrap over three seeds, whose intervals are too short by design, this holds its level, and needs no random numbers.

Of many comparisons some have seeds that agree by luck, so that each alone would not hold the level of all. Comparisons that are read
together lend each other their seeds' variance (as in limma: Smyth 2004): none counts on steadier seeds than theirs on average.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit  # the quantiles of Student's t; scipy.stats, which calls it too, takes a second to import

Scores = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "not worse", "not separated"]
LEVEL = 0.95
LENDING = 4  # comparisons whose seeds count for one's degrees of freedom, itself among them; not all, since their variances are not the same
MARGIN = 0.02  # "not worse" means: within two points of accuracy, shown by an equivalence test


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    mean: float
    standard_error: float
    freedom: float
    low: float
    high: float
    repetitions: int
    examples: int


def standard_error(values: npt.ArrayLike) -> float:
    """Standard error of the mean of independent values; not a number where there is only one."""
    found = np.asarray(values, dtype=np.float64)
    return float(found.std(ddof=1) / np.sqrt(found.size)) if found.size > 1 else float("nan")


def estimate(scores: Scores, *, bounds: tuple[float, float], level: float = LEVEL, spreads: Sequence[float] = ()) -> Estimate:
    """The mean of (R, N) scores that lie within `bounds`, with an interval over examples and, where R > 1, repetitions.

    Two examples more, one at each bound, enter the variance (Agresti and Min 2005): without them 20 right answers out of 20 would
    be certain to the last digit. Needs N > 1. `spreads` are those of all that is read together, its own among them.
    """
    assert scores.ndim == 2 and scores.shape[1] > 1, scores.shape
    repetitions, examples = scores.shape
    mean = float(scores.mean())
    variance, freedom = _variance(scores, bounds=bounds, spreads=spreads)
    error = float(np.sqrt(variance))
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    return Estimate(mean, error, freedom, max(mean - reach, bounds[0]), min(mean + reach, bounds[1]), repetitions, examples)


def spread(scores: Scores) -> float:
    """The variance between the repetitions' means of (R, N) scores; not a number where there is only one."""
    return float(scores.mean(axis=1).var(ddof=1)) if len(scores) > 1 else float("nan")


def _variance(scores: Scores, *, bounds: tuple[float, float], spreads: Sequence[float]) -> tuple[float, float]:
    """Variance of the mean, and its degrees of freedom."""
    repetitions, examples = scores.shape
    by_example = np.concatenate([scores.mean(axis=0), bounds])
    over_examples = float(by_example.var(ddof=1)) / (examples + 2)
    if repetitions == 1:
        return over_examples, examples - 1.0
    known = [one for one in spreads if np.isfinite(one)]
    over_repetitions = max(spread(scores), float(np.mean(known)) if known else 0.0) / repetitions
    freedom_repetitions = (repetitions - 1) * min(max(len(known), 1), LENDING)
    rest = scores - scores.mean(axis=1)[:, None] - scores.mean(axis=0)[None, :] + scores.mean()
    freedom_rest = (repetitions - 1) * (examples - 1)
    residual = float((rest**2).sum()) / freedom_rest / (repetitions * examples)
    if over_repetitions <= residual:  # repetitions differ by no more than their examples explain
        return over_examples, examples - 1.0
    variance = over_examples + over_repetitions - residual
    by_freedom = over_examples**2 / (examples - 1) + over_repetitions**2 / freedom_repetitions + residual**2 / freedom_rest
    # The residual is taken away, so the formula can fall below the degrees of freedom of every part; there is no less to know than that.
    return variance, max(variance**2 / by_freedom, float(min(freedom_repetitions, examples - 1)))


def difference(first: Scores, second: Scores, *, questions: int = 1, spreads: Sequence[float] = (), widest: float = 1.0) -> Estimate:
    """first - second, both (R, N) with the same examples, and the same seeds row by row; `widest` is the largest difference that there can be.

    With `questions` > 1 the intervals of so many comparisons hold together (Bonferroni); `spreads` are those of their differences.
    """
    assert first.shape == second.shape, (first.shape, second.shape)
    return estimate(first - second, bounds=(-widest, widest), level=1 - (1 - LEVEL) / questions, spreads=spreads)


def verdict(found: Estimate, *, questions: int = 1, margin: float = MARGIN) -> Verdict:
    """`better` or `worse` where the interval leaves zero; `not worse` where two one-sided tests (Schuirmann 1987) put it within the margin."""
    if found.low > 0:
        return "better"
    if found.high < 0:
        return "worse"
    reach = float(stdtrit(found.freedom, 1 - (1 - LEVEL) / questions)) * found.standard_error
    return "not worse" if abs(found.mean) + reach < margin else "not separated"


@dataclass(frozen=True)
class Bootstrap:
    """A difference between two systems, its percentile interval, and what speaks against it; each p is a share of resamples."""

    observed: float
    low: float
    high: float
    p_not_above: float  # the difference is 0 or less: Koehn 2004
    p_shifted: float  # at least twice the observed, as of a world without difference, moved by it: Berg-Kirkpatrick, Burkett and Klein 2012
    p_two_sided: float  # as far from the observed, on either side, as that is from 0
    p_add_one: float  # the same with the observed itself counted as a resample, so that it is never 0: Davison and Hinkley 1997, section 4.2


def bootstrap(statistic: Callable[[npt.NDArray[np.intp]], float], indices: npt.NDArray[np.integer], *, ties: bool = True) -> Bootstrap:
    """Paired bootstrap over examples (Efron 1979) of a score that is no mean over them: F1 of spans, a correlation.

    `statistic` takes the examples to score, (N,) indices, and gives the first system's score less the second's, which must be a number;
    indices: (R, N), examples drawn with replacement. Where `ties` is false, resamples that only reach a bound do not count. It knows nothing
    of seeds: it is for one repetition, or a check of `difference`, by which a study compares.
    """
    rows, examples = np.asarray(indices, np.intp), indices.shape[1]
    observed, found = statistic(np.arange(examples)), np.array([statistic(row) for row in rows])
    assert np.isfinite(found).all(), "a resample has no score"
    # Equal scores of different resamples differ in their last digits, by the order in which they were added up.
    slack = (1 if ties else -1) * 1e-12 * max(1.0, float(np.abs(found).max()))
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    apart = int(np.sum(np.abs(found - observed) >= abs(observed) - slack))
    return Bootstrap(
        observed=observed,
        low=float(low),
        high=float(high),
        p_not_above=float(np.mean(found <= slack)),
        p_shifted=float(np.mean(found >= 2 * observed - slack)),
        p_two_sided=apart / len(found),
        p_add_one=(apart + 1) / (len(found) + 1),
    )


def units(scores: Scores, pretrain_seeds: npt.ArrayLike) -> Scores:
    """Scores by unit of repetition: (R, N) -> (P, N), the mean of each pretraining where there are several, else unchanged.

    A statement about a method rests on pretrainings; fine-tuning seeds of one pretraining are not independent of each other.
    """
    seeds = np.asarray(pretrain_seeds)
    assert seeds.shape == scores.shape[:1], (seeds.shape, scores.shape)
    distinct = np.unique(seeds)
    return np.stack([scores[seeds == seed].mean(axis=0) for seed in distinct]) if distinct.size > 1 else scores
