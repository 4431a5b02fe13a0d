"""The paired bootstrap, which tests compare with the intervals and p-values of studies."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lineage.analysis.statistics import CONFIDENCE_LEVEL


@dataclass(frozen=True)
class Bootstrap:
    """A difference between two systems, its percentile interval and p-values.

    Each p-value is a share of the resamples.
    """

    observed: float
    low: float
    high: float
    # The difference is 0 or less: Koehn 2004.
    p_not_above: float
    # The difference is at least twice the observed one: Berg-Kirkpatrick, Burkett and Klein 2012.
    p_shifted: float
    # The difference is as far from the observed one, on either side, as that is from 0.
    p_two_sided: float
    # As `p_two_sided`, with the observed difference counted as a resample, so that it is never 0:
    # Davison and Hinkley 1997, section 4.2.
    p_add_one: float


def bootstrap(
    statistic: Callable[[npt.NDArray[np.intp]], float],
    indices: npt.NDArray[np.integer],
    *,
    ties: bool = True,
) -> Bootstrap:
    """Run the paired bootstrap over examples (Efron 1979).

    Use it for scores that are not means over examples, such as F1 of spans or a correlation.
    `statistic` takes the indices of the examples to score, (N,), and returns the first system's
    score minus the second's, which must be finite. `indices` is (R, N): examples drawn with
    replacement. If `ties` is false, resamples that exactly reach a bound do not count.
    It treats one repetition and ignores seeds; studies compare by `difference` instead.
    """
    observed = statistic(np.arange(indices.shape[1]))
    differences = np.array([statistic(row) for row in np.asarray(indices, np.intp)])
    assert np.isfinite(differences).all(), "a resample has no score"
    # Sums depend on their order, so equal scores of different resamples differ in the last digits.
    slack = (1 if ties else -1) * 1e-12 * max(1.0, float(np.abs(differences).max()))
    low, high = np.quantile(differences, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    num_as_far = int(np.sum(np.abs(differences - observed) >= abs(observed) - slack))
    return Bootstrap(
        observed=observed,
        low=float(low),
        high=float(high),
        p_not_above=float(np.mean(differences <= slack)),
        p_shifted=float(np.mean(differences >= 2 * observed - slack)),
        p_two_sided=num_as_far / len(differences),
        p_add_one=(num_as_far + 1) / (len(differences) + 1),
    )
