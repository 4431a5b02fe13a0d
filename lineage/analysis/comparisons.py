"""Which cells are compared, and what each comparison shows."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from lineage.analysis import statistics
from lineage.analysis.cells import (
    BASELINES,
    CHANCE_BASELINES,
    IDENTICAL_PREDICTIONS,
    TRAINED_INITS,
    TWO_BUDGET_FAMILIES,
    UNMATCHED_FAMILIES,
    ResultCell,
    System,
    group_by_setting,
    stack_scores,
)
from lineage.config.params import Grid
from lineage.evaluation.metrics import MIN_SCORES
from lineage.results import PUBLIC_FAMILY

ZERO_CORRELATION = System(
    "chance", "chance", *["none"] * 6
)  # what a correlation is compared with: a reader that follows nothing


@dataclass(frozen=True)
class PlannedComparison:
    """Two cells and the question that they answer together."""

    comparison_type: str  # pretraining | adaptation | families | ablation | ensemble | joined | controls | best | beside | guess
    first: ResultCell
    second: ResultCell
    multiplicity: float = 1.0  # how many comparisons this one was chosen from, since the one that leads is known only afterwards: they count together

    @property
    def family_of_tests(self) -> tuple[Any, ...]:
        """Comparisons that are read together: their intervals hold jointly. What is asked of those apart moves no other."""
        system = self.first.system
        ablated_system = (
            self.second.system.model,
            system.init,
            system.transfer,
            system.head,
        )  # the system whose switches are asked about together
        shared = {
            "best": (),
            "beside": (),
            "guess": (),
            "families": (system.init, *system.method),
            "ablation": ablated_system,
        }.get(self.comparison_type, system.method)
        return (
            self.comparison_type,
            self.first.task,
            self.first.label_count,
            shared,
            system.family if system.family in UNMATCHED_FAMILIES else "",
        )


@dataclass(frozen=True)
class PairedScores:
    """(R, N) scores of two cells on the same examples, repetition by repetition, and the seeds of each, (R, 2)."""

    first: np.ndarray
    second: np.ndarray
    seeds: np.ndarray
    identical_predictions: bool

    @property
    def differences(self) -> np.ndarray:
        """(R, N): by how much the first is better."""
        return self.first - self.second


def pair_scores(first: ResultCell, second: ResultCell) -> PairedScores | None:
    """Two cells where they share their seeds; None where they share none.

    A cell without a seed (a control, a zero-shot reading) stands beside each of the other's.
    """

    def seeds_match(one: int | None, other: int | None) -> bool:
        return one is None or other is None or one == other

    pairs = [
        (a, b)
        for a in first.item_scores
        for b in second.item_scores
        if seeds_match(a[0], b[0]) and seeds_match(a[1], b[1])
    ]
    if not pairs:
        return None
    table = stack_scores(
        [*(first.item_scores[a] for a, _ in pairs), *(second.item_scores[b] for _, b in pairs)]
    )
    if table.shape[1] < 2:
        return None
    seeds = np.array(
        [
            [(one if one is not None else other) or 0 for one, other in zip(a, b, strict=True)]
            for a, b in pairs
        ]
    )
    same = all(
        a in first.prediction_hashes
        and first.prediction_hashes[a] == second.prediction_hashes.get(b)
        for a, b in pairs
    )
    one, other = table[: len(pairs)], table[len(pairs) :]
    return PairedScores(one, other, seeds, same and np.array_equal(one, other))


def run_comparisons(
    planned: Iterable[PlannedComparison],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every pair that shares seeds and examples, with its interval and its word; and, of those that do not, who was to be held against a leader."""
    scores = [(pair, pair_scores(pair.first, pair.second)) for pair in planned]
    spreads = defaultdict[tuple[Any, ...], list[statistics.SeedVariances]](list)
    for pair, paired_scores in scores:
        if (
            paired_scores is not None and paired_scores.differences.any()
        ):  # what never differs says nothing of how far seeds part
            spreads[pair.family_of_tests].append(
                statistics.estimate_seed_variances(paired_scores.differences, paired_scores.seeds)
            )
    records, not_compared = list[dict[str, Any]](), list[dict[str, Any]]()
    for pair, paired_scores in scores:
        description = {
            "question": pair.comparison_type,
            "task": pair.first.task,
            "label_count": pair.first.label_count,
            "metric": pair.first.metric,
            "first": asdict(pair.first.system),
            "second": asdict(pair.second.system),
        }
        if paired_scores is None:
            not_compared += [description] if pair.comparison_type == "best" else []
            continue
        num_comparisons = max(round(pair.multiplicity * len(spreads[pair.family_of_tests])), 1)
        estimate = _estimate_difference(
            pair,
            paired_scores,
            num_comparisons=num_comparisons,
            spreads=spreads[pair.family_of_tests],
        )
        records.append(
            description
            | {
                "difference": estimate.mean,
                "low": estimate.low,
                "high": estimate.high,
                "standard_error": estimate.standard_error,
                "freedom": estimate.degrees_of_freedom,
                "repetitions": estimate.num_repetitions,
                "num_examples": estimate.num_examples,
                "comparisons_together": num_comparisons,
                "verdict": IDENTICAL_PREDICTIONS
                if paired_scores.identical_predictions
                else statistics.classify_difference(estimate, num_comparisons=num_comparisons),
            }
        )
    return records, not_compared


def _estimate_difference(
    planned: PlannedComparison,
    paired_scores: PairedScores,
    *,
    num_comparisons: int,
    spreads: list[statistics.SeedVariances],
) -> statistics.Estimate:
    """The first cell less the second; better than guessing is asked of the models at hand: over examples, of their mean.

    Of two seeds no interval would leave anything out.
    """
    max_difference, items = (
        1.0 - MIN_SCORES.get(planned.first.metric, 0.0),
        planned.first.num_grouped_items,
    )
    if planned.comparison_type == "guess":
        first, second = (
            scores.mean(axis=0, keepdims=True)
            for scores in (paired_scores.first, paired_scores.second)
        )
        return statistics.estimate_difference(
            first,
            second,
            num_comparisons=num_comparisons,
            max_difference=max_difference,
            num_items=items,
        )
    return statistics.estimate_difference(
        paired_scores.first,
        paired_scores.second,
        seeds=paired_scores.seeds,
        num_comparisons=num_comparisons,
        seed_variances=spreads,
        max_difference=max_difference,
        num_items=items,
    )


def plan_leader_comparisons(
    ranked: list[ResultCell], result_cells: list[ResultCell]
) -> list[PlannedComparison]:
    """The first of the ways that stand for a question's variants against all others, and against guessing; public ones beside it.

    Which is first was seen on the very items that are scored. So all pairs of these ways count as asked, and each of them against guessing.
    `cells`: all of the question.
    """
    leader, num_systems = ranked[0], len(ranked)
    found = [
        PlannedComparison("best", leader, other, multiplicity=num_systems / 2)
        for other in ranked[1:]
    ]
    found += [
        PlannedComparison("beside", one, leader, multiplicity=num_systems)
        for one in best_systems(result_cells, public=True)
    ]
    return found + [
        PlannedComparison("guess", leader, cell, multiplicity=num_systems)
        for cell in _chance_baselines(leader, result_cells)
    ]


def _chance_baselines(result: ResultCell, result_cells: list[ResultCell]) -> list[ResultCell]:
    """What a cell is held against to see whether it knows anything of an item: the majority class and chance; zero, of correlations, and where these
    have no value, as of translations and analogies."""
    if result.metric in ("pearson", "spearman"):
        return [_zero_correlation(result)]
    found = [
        other
        for other in result_cells
        if other.system.model in CHANCE_BASELINES and other.item_scores and other is not result
    ]
    return (
        found if found or result.system.model in CHANCE_BASELINES else [_zero_correlation(result)]
    )


def _zero_correlation(result: ResultCell) -> ResultCell:
    return replace(
        result,
        system=ZERO_CORRELATION,
        item_scores={seeds: one * 0.0 for seeds, one in result.item_scores.items()},
    )


def is_above_chance(result: ResultCell, result_cells: list[ResultCell]) -> bool:
    """Whether a cell is shown to be better than guessing: asked as a lead is, on the same examples, but of it alone. `cells`: all of the question."""
    if not result.item_scores or result.system.model in CHANCE_BASELINES:
        return False
    asked = [
        PlannedComparison("guess", result, other)
        for other in _chance_baselines(result, result_cells)
    ]
    held = [
        (pair, both) for pair in asked if (both := pair_scores(pair.first, pair.second)) is not None
    ]
    return len(held) == len(asked) and all(
        _estimate_difference(pair, both, num_comparisons=1, spreads=[]).low > 0
        for pair, both in held
    )


def plan_comparisons(result_cells: list[ResultCell], grid: Grid) -> list[PlannedComparison]:
    """Pretrained against its untrained twin, adapted against pretrained, variants pairwise, each against the bag of words."""
    found = []
    for some in group_by_setting(result_cells).values():
        for a, b in combinations([c for c in some if c.item_scores], 2):
            twins = a.system.model == b.system.model and a.system.method == b.system.method
            inits = {a.system.init: a, b.system.init: b}
            if twins and inits.keys() == {"pretrained", "random"}:
                found.append(PlannedComparison("pretraining", inits["pretrained"], inits["random"]))
            elif twins and inits.keys() == {"adapted", "pretrained"}:
                found.append(PlannedComparison("adaptation", inits["adapted"], inits["pretrained"]))
            elif {a.system.family, b.system.family} & {*TWO_BUDGET_FAMILIES}:
                found += _plan_member_comparison(a, b, grid)
            elif {a.system.model, b.system.model} & {*grid.ablation_of}:
                found += _plan_ablation(a, b, grid)
            elif b.system.model == "tfidf":
                found += (
                    [PlannedComparison("controls", a, b)] if a.system.init in TRAINED_INITS else []
                )
            elif PUBLIC_FAMILY in (a.system.family, b.system.family):
                continue
            elif (
                a.system.init == b.system.init
                and a.system.init in TRAINED_INITS
                and a.system.method == b.system.method
            ):
                found.append(PlannedComparison("families", a, b))
    return found


def _plan_ablation(a: ResultCell, b: ResultCell, grid: Grid) -> list[PlannedComparison]:
    """A variant and the one that it is but for one switch, in the same use; which layers are read, and how, may be that switch."""
    for one, other in ((a, b), (b, a)):
        use = (one.system.init, one.system.transfer, one.system.head) == (
            other.system.init,
            other.system.transfer,
            other.system.head,
        )
        if (
            use
            and one.system.init in TRAINED_INITS
            and grid.ablation_of.get(one.system.model) == other.system.model
        ):
            return [PlannedComparison("ablation", one, other)]
    return []


def _plan_member_comparison(a: ResultCell, b: ResultCell, grid: Grid) -> list[PlannedComparison]:
    """What has two budgets and one of the two variants, in the same use, whichever layers each reads; with the rest it is not compared."""
    for mixed, other in ((a, b), (b, a)):
        use = (mixed.system.init, mixed.system.transfer, mixed.system.head) == (
            other.system.init,
            other.system.transfer,
            other.system.head,
        )
        if (
            use
            and mixed.system.init in TRAINED_INITS
            and other.system.model in grid.two_budget_systems.get(mixed.system.model, ())
        ):
            return [PlannedComparison(mixed.system.family, mixed, other)]
    return []


def best_systems(result_cells: list[ResultCell], *, public: bool = False) -> list[ResultCell]:
    """Each variant's best way, the best control, and TF-IDF beside it, best first; two budgets are more than others have. Of the `public` ones apart.

    A variant's way is chosen on validation where all of its ways have been measured there, since choosing on the test items flatters.
    """
    results_by_model: dict[str, list[ResultCell]] = {}
    for result in result_cells:
        control = result.system.model in BASELINES
        asked = (
            result.system.family == PUBLIC_FAMILY
            if public
            else result.system.family not in UNMATCHED_FAMILIES
        )
        if (
            result.item_scores
            and result.seed_values
            and (control or result.system.init in TRAINED_INITS)
            and asked
        ):
            results_by_model.setdefault("" if control else result.system.model, []).append(
                result
            )  # no variant has that name
    best = []
    for some in results_by_model.values():
        if all(result.validation_values for result in some):
            best.append(max(some, key=lambda cell: float(np.mean(cell.validation_values))))
        else:
            best.append(max(some, key=lambda cell: cell.mean))
    best += [
        result
        for result in results_by_model.get("", ())
        if result.system.model == "tfidf" and result not in best
    ]
    return sorted(best, key=lambda cell: -cell.mean)
