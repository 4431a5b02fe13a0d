"""Statements about methods: would a difference turn out the same with other seeds and items?

The scores of a system are a table of repetitions (R) by items (N). Both are samples: other seeds
and other items would have given another mean. Items and repetitions are crossed, so the variance
of the mean is that of a random-effects layout: the sum of the components, less the residual that
each of them contains (Owen 2007, The pigeonhole bootstrap), with Satterthwaite's (1946) degrees
of freedom. A bootstrap over three seeds has intervals that are too short by design. The intervals
of this estimate have their nominal coverage, and it needs no random numbers.

Repetitions are pretraining seeds, fine-tuning seeds, or both, crossed likewise. A
fine-tuning seed samples the labels that all pretrained models learn from. So more pretraining seeds
do not make the variance of the fine-tuning seeds smaller, and the fine-tuning seeds of one
pretrained model do not tell how another pretraining would turn out.

Two or three seeds estimate a variance badly. So the seed variances of comparisons that are read
together are moderated (Smyth 2004, sections 3 and 6): each is a weighted mean of its own and of a
prior variance, which adds its degrees of freedom. The prior is estimated from the variances.

Seeds draw new folds, or another subset of the labels, but from the same labelled items. Where their
training sets share many, the scores of seeds are alike: they vary less than with other labelled
items, and more seeds do not help. What they have in common is added (Nadeau and Bengio 2003,
section 3): `TrainingSets` says how they were drawn.

Three seeds are the fewest that say how others would turn out. With fewer fine-tuning seeds there is
no verdict (`lineage.analysis.comparisons`). With fewer pretraining seeds the statement is about
these pretraining runs. `lineage.analysis.ranking` has the statements about the trained systems.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

# scipy.stats, which has Student's t, takes a second to import.
from scipy.special import digamma, polygamma, stdtr, stdtrit

Scores = npt.NDArray[np.float64]
Seeds = npt.NDArray[np.integer]
SeedVariances = tuple[float, float]  # between pretraining seeds, and between fine-tuning seeds
Verdict = Literal[
    "better",
    "worse",
    "equivalent",
    "no significant difference",
    "identical predictions",
    "too few seeds",  # fewer than MIN_SEEDS of fine-tuning
]
CONFIDENCE_LEVEL = 0.95
MIN_SEEDS = 3  # fewer do not tell how others turn out
MIN_VARIANCES = 3  # that a prior is estimated from
POWER = 0.8  # of the smallest difference that a comparison could have shown
SMALLEST_SHARE = 1e-5  # of the median: smaller variances have no useful logarithm (as in limma)
EQUIVALENCE_MARGIN = 0.02  # "equivalent": an equivalence test puts it within ±2 points


@dataclass(frozen=True)
class Estimate:
    """A mean, with what its confidence interval follows from."""

    mean: float
    standard_error: float
    degrees_of_freedom: float
    num_items: int
    bounds: tuple[float, float] = (-np.inf, np.inf)  # of all scores, and so of the mean

    @property
    def low(self) -> float:
        """Return the lower end of the interval that holds in 95 of 100 cases."""
        return self.interval(1 - CONFIDENCE_LEVEL)[0]

    @property
    def high(self) -> float:
        """Return its upper end."""
        return self.interval(1 - CONFIDENCE_LEVEL)[1]

    def interval(self, error_rate: float) -> tuple[float, float]:
        """Return the interval that misses the truth at this rate."""
        margin = float(stdtrit(self.degrees_of_freedom, 1 - error_rate / 2)) * self.standard_error
        low, high = self.bounds
        return max(self.mean - margin, low), min(self.mean + margin, high)


@dataclass(frozen=True)
class Judgement:
    """The verdict on a difference, and an interval that agrees with it."""

    verdict: Verdict
    low: float
    high: float


@dataclass(frozen=True)
class TrainingSets:
    """How the fine-tuning seeds draw their training sets from the labelled items.

    The overlaps are the covariance of two seeds, as a share of the variance between them.
    """

    num_folds: int = 0  # of cross-validation; 0 if there is none
    # The share of the available labels that a random subset has: below 1, except with folds.
    label_share: float = 0.0

    @property
    def overlap_of_seeds(self) -> float:
        """Return the overlap of the seeds' means over test items; 0 without random subsets.

        If the effects of training items added up, two seeds would have `label_share` of the
        variance between training sets in common, and differ by the rest. They do not quite, so half
        of that holds in simulated studies (benchmarks/calibration_training.py).
        """
        if self.num_folds:
            return 0.0
        return self.label_share / (1 - self.label_share) / 2

    @property
    def overlap_of_items(self) -> float:
        """Return the overlap of the scores of single items; 0 without folds.

        Every item is in training sets of each seed, so that means differ by little more than their
        items explain. Nadeau and Bengio's n_test / n_train is 1 / (k - 1) of the variance between
        splits, and a seed is the mean of k of them. Subsets of the labels share as much less.
        """
        if self.num_folds < 2:
            return 0.0
        return self.label_share * self.num_folds / (self.num_folds - 1)


OWN_TRAINING_SETS = TrainingSets()  # of each seed, with no items in common


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


def estimate_mean(
    scores: Scores,
    *,
    bounds: tuple[float, float],
    seeds: Seeds | None = None,
    seed_variances: Sequence[SeedVariances] = (),
    group_sizes_N: npt.ArrayLike | None = None,
    item_range: tuple[float, float] | None = None,
    training_sets: TrainingSets = OWN_TRAINING_SETS,
) -> Estimate:
    """Estimate the mean of (R, N) scores, N > 1, with an interval over items and repetitions.

    All scores lie within `bounds`. `seeds` is (R, 2): the pretraining and the fine-tuning seed
    of each repetition. Without it the repetitions are fine-tuning seeds of one pretrained model.
    `seed_variances` are those of all comparisons that are read together, including this one.

    The variance includes two pseudo-items, one at each bound (Agresti and Min 2005). Without
    them, 20 right answers out of 20 would have an interval of width zero.

    If the N scores are those of groups of items, `group_sizes_N` are their sizes. A pseudo-item has
    the weight of one item then. Large groups pull the mean towards themselves, so deviations are
    divided by what is left of them (Bell and McCaffrey 2002), and the degrees of freedom are those
    of the effective number of groups (Carter, Schnepel and Steigerwald 2017).

    If the mean is a score such as F1, `item_range` is the range of the contributions of items
    (`lineage.analysis.contributions`). Then the pseudo-items are at its ends, and the degrees of
    freedom allow for a variance that rests on few items (`freedom_of_variance`).

    `training_sets` are those of the fine-tuning seeds.
    """
    assert scores.ndim == 2 and scores.shape[1] > 1, scores.shape
    num_items = scores.shape[1]
    mean = float(scores.mean())
    means_N = scores.mean(axis=0)
    item_variance, item_freedom = _item_variance(
        means_N, mean, group_sizes_N, pseudo_items=item_range or bounds
    )
    if item_range is not None:
        item_freedom = min(item_freedom, _freedom_of_items(means_N, group_sizes_N, item_range))
    variance, freedom = _total_variance(
        item_variance,
        item_freedom,
        scores,
        _resolve_seeds(scores, seeds),
        seed_variances,
        training_sets=training_sets,
    )
    return Estimate(
        mean=mean,
        standard_error=float(np.sqrt(variance)),
        degrees_of_freedom=freedom,
        num_items=num_items,
        bounds=bounds,
    )


def _item_variance(
    means_N: Scores,
    mean: float,
    group_sizes_N: npt.ArrayLike | None,
    *,
    pseudo_items: tuple[float, float],
) -> tuple[float, float]:
    """Return what the items add to the variance of the mean, and its degrees of freedom."""
    num_items = len(means_N)
    if group_sizes_N is None:
        padded = np.concatenate([means_N, pseudo_items])
        return float(padded.var(ddof=1)) / (num_items + 2), num_items - 1.0
    sizes_N = np.asarray(group_sizes_N, dtype=np.float64)
    shares_N = sizes_N / sizes_N.sum()
    variance = float(((means_N - mean) ** 2 / (1 - shares_N)).sum()) / num_items**2
    variance += sum((bound - mean) ** 2 for bound in pseudo_items) / sizes_N.sum() ** 2
    return variance, effective_groups(sizes_N) - 1


def _freedom_of_items(
    means_N: Scores, group_sizes_N: npt.ArrayLike | None, item_range: tuple[float, float]
) -> float:
    """Return the degrees of freedom of the variance over items, pseudo-items included."""
    share = 1.0 if group_sizes_N is None else len(means_N) / np.sum(group_sizes_N)
    mean = means_N.mean()
    pseudo_deviations = share * (np.array(item_range) - mean)
    return freedom_of_variance(np.concatenate([means_N - mean, pseudo_deviations]))


def effective_groups(sizes_N: Scores) -> float:
    """Return how many groups of equal size would tell as much as these."""
    return float(sizes_N.sum() ** 2 / (sizes_N**2).sum())


def freedom_of_variance(deviations_N: Scores) -> float:
    """Return the degrees of freedom of a variance that is the mean of these squared deviations.

    A chi-squared variable with as many varies as much as their sum (Satterthwaite 1946). There are
    few where a few items have most of the sum, such as those of a rare class.
    """
    return max(2 * effective_groups(deviations_N**2), 1.0)


def estimate_difference(
    first: Scores,
    second: Scores,
    *,
    seeds: Seeds | None = None,
    seed_variances: Sequence[SeedVariances] = (),
    max_difference: float = 1.0,
    group_sizes_N: npt.ArrayLike | None = None,
    item_range: tuple[float, float] | None = None,
    training_sets: TrainingSets = OWN_TRAINING_SETS,
) -> Estimate:
    """Estimate first - second from two (R, N) tables with the same items and the same seeds.

    `max_difference` is the largest possible difference. `seed_variances` are those of the
    differences that are read together. `item_range` is that of the differences of contributions.
    `training_sets` are as in `estimate_mean`.
    """
    assert first.shape == second.shape, (first.shape, second.shape)
    return estimate_mean(
        first - second,
        bounds=(-max_difference, max_difference),
        seeds=seeds,
        seed_variances=seed_variances,
        group_sizes_N=group_sizes_N,
        item_range=item_range,
        training_sets=training_sets,
    )


def estimate_over_seeds(
    values_R: Scores,
    *,
    seeds: Seeds,
    seed_variances: Sequence[SeedVariances],
    rounding_interval: float,
    bounds: tuple[float, float],
) -> Estimate:
    """Estimate the mean of what a repetition has once, such as the epochs of its training.

    The values are differences of two that are rounded to a multiple of `rounding_interval` each.
    The other arguments are as in `estimate_mean`.
    """
    rounding_variance = rounding_interval**2 / 6 / len(values_R)
    variance, freedom = _total_variance(
        rounding_variance,
        float("inf"),
        values_R[:, None],
        seeds,
        seed_variances,
        training_sets=OWN_TRAINING_SETS,
    )
    return Estimate(
        mean=float(values_R.mean()),
        standard_error=float(np.sqrt(variance)),
        degrees_of_freedom=freedom,
        num_items=len(values_R),
        bounds=bounds,
    )


def estimate_ratio(sums_K: npt.ArrayLike, sizes_K: npt.ArrayLike) -> Estimate:
    """Estimate the sum of all blocks per unit of their size, with an interval over K > 1 blocks.

    The ratio estimator (Cochran 1977, section 6.3): the deviation of a block is its sum less the
    ratio times its size. Unequal blocks are treated as groups of unequal size are in
    `estimate_mean`.
    """
    sums_K = np.asarray(sums_K, dtype=np.float64)
    sizes_K = np.asarray(sizes_K, dtype=np.float64)
    assert sums_K.shape == sizes_K.shape and len(sums_K) > 1, (sums_K.shape, sizes_K.shape)
    total = sizes_K.sum()
    ratio = float(sums_K.sum() / total)
    squares_K = (sums_K - ratio * sizes_K) ** 2 / (1 - sizes_K / total)
    return Estimate(
        mean=ratio,
        standard_error=float(np.sqrt(squares_K.sum()) / total),
        degrees_of_freedom=max(1.0, effective_groups(sizes_K) - 1),
        num_items=len(sums_K),
    )


def difference_p_value(estimate: Estimate) -> float:
    """Return the two-sided p-value of a difference of zero."""
    if not estimate.standard_error:
        return 1.0 if not estimate.mean else 0.0
    statistic = abs(estimate.mean) / estimate.standard_error
    return float(2 * stdtr(estimate.degrees_of_freedom, -statistic))


def equivalence_p_value(estimate: Estimate, margin: float = EQUIVALENCE_MARGIN) -> float:
    """Return the p-value of a difference beyond the margin: two one-sided tests (Schuirmann 1987)."""
    distance = margin - abs(estimate.mean)
    if not estimate.standard_error:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(estimate.degrees_of_freedom, -distance / estimate.standard_error))


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for all tests of a family (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def judge_differences(estimates: Sequence[Estimate]) -> list[Judgement]:
    """Judge differences that are read together.

    Each kind of verdict is wrong for any of them with a probability of 5 % at most (Holm 1979). An
    interval has the error rate that Holm's correction leaves to its difference: at most 5 %. So it
    excludes zero exactly if the verdict is `better` or `worse`, and lies within the margin if it is
    `equivalent`.
    """
    alpha = 1 - CONFIDENCE_LEVEL
    p_values = [*map(difference_p_value, estimates)]
    adjusted = adjust_p_values(p_values)
    equivalences = adjust_p_values([*map(equivalence_p_value, estimates)])
    judgements = []
    for estimate, p_value, p_different, p_beyond in zip(
        estimates, p_values, adjusted, equivalences, strict=True
    ):
        error_rate = alpha * p_value / p_different if p_different else alpha / len(estimates)
        low, high = estimate.interval(error_rate)
        is_within = low > -EQUIVALENCE_MARGIN and high < EQUIVALENCE_MARGIN
        verdict: Verdict = "no significant difference"
        if p_different < alpha:
            verdict = "better" if estimate.mean > 0 else "worse"
        elif p_beyond < alpha and is_within:
            verdict = "equivalent"
        judgements.append(Judgement(verdict, low, high))
    return judgements


def detectable_difference(estimate: Estimate, num_comparisons: int = 1) -> float:
    """Return the smallest difference that would be found in 80 of 100 such comparisons.

    Of several comparisons it is that of the first one to be found, which Holm's correction asks
    most of.
    """
    freedom = estimate.degrees_of_freedom
    alpha = (1 - CONFIDENCE_LEVEL) / max(num_comparisons, 1)
    quantiles = stdtrit(freedom, 1 - alpha / 2) + stdtrit(freedom, POWER)
    return float(quantiles * estimate.standard_error)


@dataclass(frozen=True)
class VariancePrior:
    """The variance that a group has in common; it weighs like so many seeds."""

    variance: float
    degrees_of_freedom: float  # inf if the variances differ by chance alone


def estimate_prior(variances: Sequence[float], degrees_of_freedom: float) -> VariancePrior | None:
    """Estimate the prior of some variances, each with these degrees of freedom.

    Smyth 2004, section 6.2: the moments of the logarithms. Returns None for fewer than three, or
    if all are zero.
    """
    if len(variances) < MIN_VARIANCES or not any(variances):
        return None
    values = np.asarray(variances)
    middle = float(np.median(values)) or float(values.max())
    logarithms = np.log(np.maximum(values, SMALLEST_SHARE * middle))
    half = degrees_of_freedom / 2
    centred = logarithms - digamma(half) + np.log(half)
    mean = float(centred.mean())
    excess = float(centred.var(ddof=1)) - float(polygamma(1, half))
    if excess <= 0:
        return VariancePrior(float(values.mean()), float("inf"))
    prior_half = _inverse_trigamma(excess)
    variance = float(np.exp(mean + digamma(prior_half) - np.log(prior_half)))
    return VariancePrior(variance, 2 * prior_half)


def _inverse_trigamma(value: float) -> float:
    """Return the x whose trigamma is the value."""

    def gap(log_x: float) -> float:
        return float(polygamma(1, np.exp(log_x))) - value

    return float(np.exp(brentq(gap, -20.0, 20.0)))


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
    table: Scores, seed_variances: Sequence[float], *, overlap: float = 0.0
) -> _VarianceComponent | None:
    """Return the component of a source from the (L, N) means of its levels.

    With a single level it is the mean of the other comparisons'; None if they have one level too.
    """
    levels, num_items = table.shape
    known = [variance for variance in seed_variances if np.isfinite(variance)]
    if levels == 1:
        if not known:
            return None
        return _VarianceComponent(float(np.mean(known)) * (1 + overlap), float(len(known)))
    own_freedom = levels - 1
    between = float(table.mean(axis=1).var(ddof=1))
    variance, freedom = _moderate(between, own_freedom, known)
    residual = table - table.mean(axis=1)[:, None] - table.mean(axis=0)[None, :] + table.mean()
    residual_freedom = max(own_freedom * (num_items - 1), 1)  # a single item has no residual
    return _VarianceComponent(
        variance=variance * (1 / levels + overlap) if overlap else variance / levels,
        degrees_of_freedom=freedom,
        residual_variance=float((residual**2).sum()) / residual_freedom / (levels * num_items),
        residual_degrees_of_freedom=residual_freedom,
    )


def _moderate(own: float, own_freedom: int, known: Sequence[float]) -> tuple[float, float]:
    """Return the moderated variance and its degrees of freedom (Smyth 2004, section 3).

    The degrees of freedom are at most those of all variances together (as in limma's eBayes). The
    variance is at least its own and the mean of all. Without that, seeds that vary more than those
    of other systems gave false differences in 15 to 25 of 100 simulated studies
    (benchmarks/calibration.py); a few variances with one or two degrees of freedom do not tell how
    much they differ.
    """
    prior = estimate_prior(known, own_freedom)
    if prior is None:
        return own, float(own_freedom)
    most = float(len(known) * own_freedom)
    lowest = max(own, float(np.mean(known)))
    if np.isinf(prior.degrees_of_freedom):
        return lowest, most
    total = prior.degrees_of_freedom + own_freedom
    weighted = prior.degrees_of_freedom * prior.variance + own_freedom * own
    return max(weighted / total, lowest), min(total, most)


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
    residual_freedom = max(freedom * (num_items - 1), 1)
    residual_sum = float(((rest - means[:, None]) ** 2).sum())
    return _VarianceComponent(
        variance=float((means**2).sum()) / freedom / repetitions,
        degrees_of_freedom=freedom,
        residual_variance=residual_sum / residual_freedom / (repetitions * num_items),
        residual_degrees_of_freedom=residual_freedom,
    )


def _total_variance(
    item_variance: float,
    item_freedom: float,
    scores: Scores,
    seeds: Seeds,
    seed_variances: Sequence[SeedVariances],
    *,
    training_sets: TrainingSets,
) -> tuple[float, float]:
    """Return the variance of the mean and its degrees of freedom."""
    components = []
    for source, levels_R in enumerate(seeds.T):
        if source == 0 and len(np.unique(levels_R)) < MIN_SEEDS:
            continue
        source_variances = [pair[source] for pair in seed_variances]
        is_finetuning = source == 1  # pretraining sees no labels
        component = _variance_component(
            _level_means(scores, levels_R),
            source_variances,
            overlap=training_sets.overlap_of_seeds if is_finetuning else 0.0,
        )
        if component is None:
            continue
        components.append(component)
        if is_finetuning:
            levels = len(np.unique(levels_R))
            shared = training_sets.overlap_of_items * levels * component.residual_variance
            item_variance = item_variance + shared
    interaction = _interaction_component(scores, seeds) if len(components) == 2 else None
    shared_variance = max(interaction.net_variance, 0.0) if interaction else 0.0
    net_variances = [component.net_variance for component in components]
    seed_variance = max([0.0, *net_variances, sum(net_variances) - shared_variance])
    if seed_variance == 0:  # repetitions differ by no more than their items explain
        return item_variance, item_freedom
    terms = [component.satterthwaite_term for component in components]
    if interaction:
        terms.append(interaction.satterthwaite_term)
    variance = item_variance + seed_variance
    freedom = variance**2 / (item_variance**2 / item_freedom + sum(terms))
    # Because the residual is subtracted, the formula can fall below the degrees of freedom of every
    # component, which are the minimum.
    smallest = min(item_freedom, *(component.degrees_of_freedom for component in components))
    return variance, max(freedom, float(smallest))
