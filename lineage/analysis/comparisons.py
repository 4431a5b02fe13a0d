"""Which cells are compared, and the verdict of each comparison."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from lineage.analysis import statistics
from lineage.analysis.cells import ResultCell, SeedPair, group_by_setting, stack_scores
from lineage.analysis.contributions import ItemRange
from lineage.analysis.records import (
    BASELINES,
    CHANCE_BASELINES,
    LEADER_INITS,
    TRAINED_INITS,
    TWO_BUDGET_FAMILIES,
    UNMATCHED_FAMILIES,
    Comparison,
    ComparisonType,
    SeedDifference,
    Setting,
    System,
    group_by,
)
from lineage.answers.metrics import max_difference
from lineage.config.params import Grid
from lineage.results import ENSEMBLE_FAMILY, OUTSIDE_FAMILY, PUBLIC_FAMILY

# Scores zero: the chance level of correlations, and of tasks without a chance baseline.
ZERO_BASELINE = System("chance", "chance", *["none"] * 6)
# Baselines that nobody would use, so they are not candidates.
FLOORS = (*CHANCE_BASELINES, "kneser_ney", "word_frequency")
CORRELATIONS = ("pearson", "spearman")
FamilyOfTests = tuple[Any, ...]


@dataclass(frozen=True)
class PlannedComparison:
    """Two cells to compare."""

    comparison_type: ComparisonType
    first: ResultCell
    second: ResultCell

    @property
    def family_of_tests(self) -> FamilyOfTests:
        """Return a key shared by the comparisons whose intervals hold jointly.

        Comparisons with other keys do not change this one.
        """
        system = self.first.system
        shared: Mapping[str, tuple[str, ...]] = {
            "models": (system.init, *system.method),
            "ablation": (self.second.system.model, *system.usage),
            "outside": (self.second.system.model,),
        }
        # Public checkpoints are apart, but not where all candidates answer one question.
        is_apart = system.family in UNMATCHED_FAMILIES and self.comparison_type != "outside"
        return (
            self.comparison_type,
            self.first.setting,
            shared.get(self.comparison_type, system.method),
            system.family if is_apart else "",
        )


@dataclass(frozen=True)
class PairedScores:
    """(R, N) scores of two cells on the same items, and the seeds (R, 2) of the repetitions."""

    planned: PlannedComparison
    first: np.ndarray
    second: np.ndarray
    seeds: np.ndarray
    group_sizes_N: np.ndarray | None
    num_finetune_seeds: int  # 0: neither of the two draws random numbers
    identical_predictions: bool

    @property
    def item_range(self) -> ItemRange | None:
        """Return the range of a difference of contributions: one system right, the other wrong."""
        first = self.planned.first.item_range
        second = self.planned.second.item_range
        if first is None and second is None:
            return None
        # The chance level has no range: it is what it is.
        first_low, first_high = first or (self.first.mean(), self.first.mean())
        second_low, second_high = second or (self.second.mean(), self.second.mean())
        return float(first_low - second_high), float(first_high - second_low)

    @property
    def differences(self) -> np.ndarray:
        """Return (R, N): how much better the first cell is."""
        return self.first - self.second

    def pretrain_seed_differences(self) -> tuple[SeedDifference, ...]:
        """Return the mean difference of each pretraining seed."""
        seeds_R = self.seeds[:, 0]
        return tuple(
            SeedDifference(int(seed), float(self.differences[seeds_R == seed].mean()))
            for seed in np.unique(seeds_R)
        )

    @property
    def setting_and_use(self) -> tuple[Setting, str]:
        """Return what decides how much seeds vary: labels, task, and the way of using models."""
        return self.planned.first.setting, self.planned.first.system.transfer

    @property
    def is_test(self) -> bool:
        """Return whether this is a test.

        A difference that is always zero is none, and says nothing about the variance between seeds.
        Nor is one with too few seeds.
        """
        return bool(self.differences.any()) and not self.has_too_few_seeds

    @property
    def has_too_few_seeds(self) -> bool:
        """Return whether the seeds do not tell how other seeds would turn out."""
        return 0 < self.num_finetune_seeds < statistics.MIN_SEEDS


def pair_scores(planned: PlannedComparison) -> PairedScores | None:
    """Pair two cells by seed; None if they share no seed, or fewer than two items.

    A cell without a seed (a baseline, zero-shot) is paired with every seed of the other one.
    """
    first = planned.first
    second = planned.second
    pairs = [(a, b) for a in first.item_scores for b in second.item_scores if _seeds_match(a, b)]
    if not pairs:
        return None
    first_scores = [first.item_scores[a] for a, _ in pairs]
    second_scores = [second.item_scores[b] for _, b in pairs]
    table = stack_scores([*first_scores, *second_scores])
    if table.shape[1] < 2:
        return None
    same_hashes = all(
        a in first.prediction_hashes
        and first.prediction_hashes[a] == second.prediction_hashes.get(b)
        for a, b in pairs
    )
    first_RN = table[: len(pairs)]
    second_RN = table[len(pairs) :]
    return PairedScores(
        planned,
        first_RN,
        second_RN,
        np.array([_merge_seeds(a, b) for a, b in pairs]),
        first.group_sizes_of([*first_scores, *second_scores]),
        len({seeds[1] for pair in pairs for seeds in pair} - {None}),
        same_hashes and np.array_equal(first_RN, second_RN),
    )


def _seeds_match(first: SeedPair, second: SeedPair) -> bool:
    return all(
        one is None or other is None or one == other
        for one, other in zip(first, second, strict=True)
    )


def _merge_seeds(first: SeedPair, second: SeedPair) -> list[int]:
    """Return the seeds of a pair: those of the first cell, or the second's, or 0."""
    merged = []
    for one, other in zip(first, second, strict=True):
        seed = other if one is None else one
        merged.append(seed or 0)
    return merged


def run_comparisons(planned: Iterable[PlannedComparison]) -> list[Comparison]:
    """Compare every pair that shares seeds and items. Each family of tests has one correction."""
    paired = [scores for scores in map(pair_scores, planned) if scores is not None]
    families = group_by(range(len(paired)), lambda place: paired[place].planned.family_of_tests)
    found: dict[int, Comparison] = {}
    for places in families.values():
        family = compare_family([paired[place] for place in places])
        found |= dict(zip(places, family, strict=True))
    return [found[place] for place in sorted(found)]


def compare_family(
    family: Sequence[PairedScores], *, moderated_by: Sequence[PairedScores] = ()
) -> list[Comparison]:
    """Compare pairs that are read together: they share seed variances, and Holm's correction.

    A family of several settings or uses takes the seed variances of those of `moderated_by` that
    have the same setting and use, since runs with few labels vary much more than others.
    """
    tested = [place for place, scores in enumerate(family) if scores.is_test]
    estimates = _estimate_family(family, moderated_by)
    judgements = statistics.judge_differences([estimates[place] for place in tested])
    judgement_of = dict(zip(tested, judgements, strict=True))
    found = []
    for place, (scores, estimate) in enumerate(zip(family, estimates, strict=True)):
        judgement = judgement_of.get(place) or statistics.judge_differences([estimate])[0]
        verdict = judgement.verdict
        if scores.identical_predictions:
            verdict = "identical predictions"
        elif scores.has_too_few_seeds:
            verdict = "too few seeds"
        planned = scores.planned
        found.append(
            Comparison(
                comparison_type=planned.comparison_type,
                task=planned.first.task,
                label_count=planned.first.label_count,
                metric=planned.first.metric,
                first=planned.first.system,
                second=planned.second.system,
                difference=estimate.mean,
                ci_low=judgement.low,
                ci_high=judgement.high,
                standard_error=estimate.standard_error,
                detectable=(
                    None
                    if scores.has_too_few_seeds
                    else statistics.detectable_difference(estimate, len(tested))
                ),
                repetitions=len(scores.seeds),
                num_examples=estimate.num_items,
                verdict=verdict,
                num_folds=planned.first.num_folds,
                pretrain_seed_differences=scores.pretrain_seed_differences(),
            )
        )
    return found


def _estimate_family(
    family: Sequence[PairedScores], moderated_by: Sequence[PairedScores]
) -> list[statistics.Estimate]:
    known = [
        (one.setting_and_use, statistics.estimate_seed_variances(one.differences, one.seeds))
        for one in moderated_by or family
        if one.is_test
    ]
    estimates = []
    for scores in family:
        own = [
            variances
            for key, variances in known
            if not moderated_by or key == scores.setting_and_use
        ]
        estimates.append(_estimate_difference(scores, seed_variances=own))
    return estimates


def _estimate_difference(
    scores: PairedScores, *, seed_variances: Sequence[statistics.SeedVariances]
) -> statistics.Estimate:
    """Estimate the score of the first cell minus that of the second.

    The comparison with chance is about the models at hand, so its interval is over items only, for
    the mean over seeds. So is that of a comparison with too few seeds.
    """
    first = scores.first
    second = scores.second
    seeds: statistics.Seeds | None = scores.seeds
    cell = scores.planned.first
    if scores.planned.comparison_type == "chance" or scores.has_too_few_seeds:
        first = first.mean(axis=0, keepdims=True)
        second = second.mean(axis=0, keepdims=True)
        seeds = None
    return statistics.estimate_difference(
        first,
        second,
        seeds=seeds,
        seed_variances=seed_variances,
        max_difference=max_difference(cell.metric),
        group_sizes_N=scores.group_sizes_N,
        item_range=scores.item_range,
        training_sets=cell.training_sets,
    )


def estimate_gain(first: ResultCell, second: ResultCell) -> statistics.Estimate | None:
    """Estimate how much better one cell is than another one, apart from all comparisons.

    The interval is over items, and over seeds if there are enough. It is None if they share no
    seed, or fewer than two items.
    """
    scores = pair_scores(PlannedComparison("models", first, second))
    return None if scores is None else _estimate_difference(scores, seed_variances=[])


def _chance_baselines(cell: ResultCell, cells: Sequence[ResultCell]) -> list[ResultCell]:
    """Return the cells that a cell must beat to be above chance.

    For correlations, and if none of them has a score, as in analogies, return a score of zero.
    """
    if cell.metric in CORRELATIONS:
        return [_zero_scores(cell)]
    baselines = [
        other
        for other in cells
        if other.system.model in CHANCE_BASELINES and other.item_scores and other is not cell
    ]
    if baselines or cell.system.model in CHANCE_BASELINES:
        return baselines
    return [_zero_scores(cell)]


def _zero_scores(cell: ResultCell) -> ResultCell:
    zeros = {seeds: scores * 0.0 for seeds, scores in cell.item_scores.items()}
    return replace(cell, system=ZERO_BASELINE, item_scores=zeros, item_ranges={})


def is_above_chance(cell: ResultCell, cells: Sequence[ResultCell]) -> bool:
    """Return whether a cell is significantly better than the chance level.

    The test is over items, for the mean over these seeds, without correction for other systems.
    `cells` are all of the setting.
    """
    if not cell.item_scores or cell.system.model in CHANCE_BASELINES:
        return False
    for other in _chance_baselines(cell, cells):
        scores = pair_scores(PlannedComparison("chance", cell, other))
        if scores is None or _estimate_difference(scores, seed_variances=[]).low <= 0:
            return False
    return True


def plan_comparisons(
    cells: list[ResultCell], grid: Grid, continued_models: Mapping[str, str] | None = None
) -> list[PlannedComparison]:
    """Plan all comparisons within settings. See `ComparisonType`.

    `continued_models` are those of `Params.continued_models`.
    """
    continued = continued_models or {}
    planned = []
    for group in group_by_setting(cells).values():
        scored = [cell for cell in group if cell.item_scores]
        for a, b in combinations(scored, 2):
            pair = _plan_pair(a, b, grid) or _plan_related(
                "continuation", a, b, lambda one, other: continued.get(one) == other
            )
            if pair:
                planned.append(pair)
        planned += _plan_outside(group, grid)
    return planned


def _plan_outside(cells: Sequence[ResultCell], grid: Grid) -> Iterator[PlannedComparison]:
    """Compare the candidates of a setting, chosen on validation, with each outside system."""
    outside = [cell for cell in cells if cell.system.family == OUTSIDE_FAMILY]
    if outside:
        own, public = choose_candidates(cells, grid.ablation_of)
        for candidate, other in product([*own, *public], outside):
            yield PlannedComparison("outside", candidate, other)


def _plan_pair(a: ResultCell, b: ResultCell, grid: Grid) -> PlannedComparison | None:
    inits = {a.system.init: a, b.system.init: b}
    if a.system.model == b.system.model and a.system.method == b.system.method:
        if inits.keys() == {"pretrained", "random"}:
            return PlannedComparison("pretraining", inits["pretrained"], inits["random"])
        if inits.keys() == {"adapted", "pretrained"}:
            return PlannedComparison("adaptation", inits["adapted"], inits["pretrained"])
        if inits.keys() == {"adapted", "target_only"}:
            return PlannedComparison("general_text", inits["adapted"], inits["target_only"])
    families = {a.system.family, b.system.family}
    if families & {*TWO_BUDGET_FAMILIES}:
        members = grid.two_budget_systems
        comparison_type: ComparisonType = "concatenated"
        if ENSEMBLE_FAMILY in families:
            comparison_type = "ensemble"
        return _plan_related(
            comparison_type, a, b, lambda system, member: member in members.get(system, ())
        )
    if b.system.model == "kneser_ney":  # ablations too: they may have learned too little
        return PlannedComparison("kneser_ney", a, b) if a.system.init in TRAINED_INITS else None
    if {a.system.model, b.system.model} & {*grid.ablation_of}:
        return _plan_related(
            "ablation", a, b, lambda one, other: grid.ablation_of.get(one) == other
        )
    if b.system.model == "tfidf":
        return PlannedComparison("tfidf", a, b) if a.system.init in TRAINED_INITS else None
    if PUBLIC_FAMILY in families or a.system.init not in TRAINED_INITS:
        return None
    if a.system.init == b.system.init and a.system.method == b.system.method:
        return PlannedComparison("models", a, b)
    return None


def _plan_related(
    comparison_type: ComparisonType,
    a: ResultCell,
    b: ResultCell,
    is_related: Callable[[str, str], bool],
) -> PlannedComparison | None:
    """Compare two related models of the same usage: `is_related` gets the names of both, in order.

    Their features may differ, because an ablation may be of the layers that are read.
    """
    for first, second in ((a, b), (b, a)):
        is_same_usage = first.system.usage == second.system.usage
        is_trained = first.system.init in TRAINED_INITS
        if is_same_usage and is_trained and is_related(first.system.model, second.system.model):
            return PlannedComparison(comparison_type, first, second)
    return None


def best_systems(cells: list[ResultCell], *, public: bool = False) -> list[ResultCell]:
    """Return the best system of each model, the best baseline, and TF-IDF; best first.

    Systems of two budgets are left out, since they have more than the others. With `public`,
    the best systems of the public checkpoints are returned instead.

    A model's system is chosen on validation if all of its systems have a score there, because
    choosing on the test items would overestimate its score.
    """
    baselines = []
    cells_by_model: dict[str, list[ResultCell]] = {}
    for cell in cells:
        is_public = cell.system.family == PUBLIC_FAMILY
        eligible = is_public if public else cell.system.family not in UNMATCHED_FAMILIES
        if not (eligible and cell.item_scores and cell.seed_values):
            continue
        if cell.system.model in BASELINES:
            baselines.append(cell)
        elif cell.system.init in LEADER_INITS:
            cells_by_model.setdefault(cell.system.model, []).append(cell)
    best = [best_system(group) for group in cells_by_model.values()]
    if baselines:
        best.append(best_system(baselines))
    tfidf = [cell for cell in baselines if cell.system.model == "tfidf" and cell not in best]
    return sorted([*best, *tfidf], key=lambda cell: -cell.mean)


def choose_candidates(
    cells: Sequence[ResultCell], ablations: Iterable[str]
) -> tuple[list[ResultCell], list[ResultCell]]:
    """Return the candidates of a setting that have the study's budget, and the public ones."""
    eligible = [cell for cell in cells if cell.system.model not in ablations]
    own = [cell for cell in best_systems(eligible) if cell.system.model not in FLOORS]
    return own, best_systems(eligible, public=True)


def best_system(cells: Sequence[ResultCell]) -> ResultCell:
    """Return the best on validation if all have a score there, or else the best mean."""
    if all(cell.validation_values for cell in cells):
        return max(cells, key=lambda cell: cell.validation_mean or 0.0)
    return max(cells, key=lambda cell: cell.mean)
