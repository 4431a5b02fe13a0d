"""The paired bootstrap, against which the intervals of studies are checked."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lineage.analysis.statistics import CONFIDENCE_LEVEL


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


def bootstrap(
    statistic: Callable[[npt.NDArray[np.intp]], float],
    indices: npt.NDArray[np.integer],
    *,
    ties: bool = True,
) -> Bootstrap:
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
    low, high = np.quantile(found, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
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
