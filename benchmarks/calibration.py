"""Simulate studies whose truth is known, and count how often the report's statements are right.

    python -m benchmarks.calibration [--studies STUDIES]

Answers are simulated by a logistic model: items differ in difficulty, systems in ability, and the
seeds of a system vary around it. Statements about methods cover other items and other seeds.
Statements about models take the systems as they are and cover other items. A *collapse* is one run
at chance in one of ten studies. With fewer than three seeds there is no statement about methods.
F1 and Matthews correlation are in `calibration_counts`, training sets that overlap in
`calibration_training`.
Shapes: S systems, R seeds, N items, C comparisons, K tasks.
"""

import argparse
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.calibration_counts import print_counts
from benchmarks.calibration_training import print_training
from lineage.analysis import statistics
from lineage.analysis.champion import Contender, decide_champion
from lineage.analysis.effects import pool_effects
from lineage.analysis.ranking import compare_with_best, draw_means, selected_lower_limits
from lineage.randomness import generator

Scores = npt.NDArray[np.float64]
NUM_ITEMS = 500
NUM_COMPARISONS = 6
NUM_SYSTEMS = 6
NUM_TASKS = 8  # that share pretraining seeds
POOLED_SPREAD = 0.02
NUM_NIGHTS = 30
GROUP_SPREAD = 0.5  # logits between the groups of a system
GROUPS = {
    "30 of 20 items": np.full(30, 20.0),
    "30 of Zipf's sizes": np.ceil(150 / np.arange(1.0, 31.0)),
    "10 of 40 items": np.full(10, 40.0),
    "one of 480 items, 30 of 4": np.array([480.0] + [4.0] * 30),
}
POINT = 0.055  # logits
NUM_DRAWS = 2000  # of the bootstrap; a report has five times as many
ALONE = (0.2,)  # logits between seeds: about 4 points
EQUAL = ALONE * NUM_COMPARISONS
UNEQUAL = (0.05, 0.1, 0.1, 0.2, 0.2, 0.4)
COLLAPSE_SHARE = 0.1
EFFECT = 0.5  # logits: about 10 points


@dataclass(frozen=True)
class MethodOutcome:
    """Shares of comparisons of one kind of study."""

    coverage: float  # 95 % intervals with the true difference
    corrected_coverage: float  # intervals as they are shown, which agree with the verdicts
    false_findings: float  # studies without a difference that report one
    power: float  # true differences that are found


@dataclass(frozen=True)
class ModelOutcome:
    """Shares of studies."""

    best_in_set: float
    limits_hold: float  # all simultaneous lower limits
    coverage: float  # intervals of single scores with the true score
    set_size: float  # mean number of systems that may be the best


def simulate_answers(
    rng: np.random.Generator, difficulty_N: Scores, ability: float, spread: float, num_seeds: int
) -> Scores:
    """Return (R, N) of 0 and 1."""
    skill_R1 = ability + spread * rng.standard_normal((num_seeds, 1))
    right = rng.logistic(size=(num_seeds, len(difficulty_N))) < skill_R1 - difficulty_N
    return right.astype(np.float64)


@functools.cache
def expected_score(ability: float, spread: float) -> float:
    """Return the mean score over all items and seeds, by simulation."""
    rng = np.random.default_rng(0)
    skill = ability + np.hypot(spread, 1.0) * rng.standard_normal(200_000)
    return float(np.mean(1 / (1 + np.exp(-skill))))


def simulate_methods(
    num_seeds: int, spreads: tuple[float, ...], *, collapse: bool = False, studies: int
) -> MethodOutcome:
    """Compare pairs of systems in many studies: one half equal, one half with a difference."""
    rng = generator("calibration of methods", num_seeds, spreads, collapse)
    covered = []
    corrected = []
    false_studies = []
    found = []
    for study in range(studies):
        effect = EFFECT if study % 2 else 0.0
        estimates = list(_simulate_study(rng, num_seeds, spreads, effect, collapse=collapse))
        judgements = statistics.judge_differences(estimates)
        for spread, estimate, judgement in zip(spreads, estimates, judgements, strict=True):
            if effect:
                found.append(judgement.verdict == "better")
            truth = expected_score(1.0 + effect, spread) - expected_score(1.0, spread)
            covered.append(estimate.low <= truth <= estimate.high)
            corrected.append(judgement.low <= truth <= judgement.high)
        if not effect:
            false_studies.append(any(one.verdict in ("better", "worse") for one in judgements))
    return MethodOutcome(
        coverage=float(np.mean(covered)),
        corrected_coverage=float(np.mean(corrected)),
        false_findings=float(np.mean(false_studies)),
        power=float(np.mean(found)),
    )


def _simulate_study(
    rng: np.random.Generator,
    num_seeds: int,
    spreads: tuple[float, ...],
    effect: float,
    *,
    collapse: bool,
) -> Iterator[statistics.Estimate]:
    difficulty_N = rng.standard_normal(NUM_ITEMS)
    pairs = []
    for place, spread in enumerate(spreads):
        first = simulate_answers(rng, difficulty_N, 1.0 + effect, spread, num_seeds)
        second = simulate_answers(rng, difficulty_N, 1.0, spread, num_seeds)
        if collapse and place == 0 and rng.random() < COLLAPSE_SHARE:
            first[0] = (rng.random(NUM_ITEMS) < 0.5).astype(np.float64)
        pairs.append((first, second))
    variances = [statistics.estimate_seed_variances(first - second) for first, second in pairs]
    for first, second in pairs:
        yield statistics.estimate_difference(first, second, seed_variances=variances)


def simulate_models(num_seeds: int, ability_spread: float, *, studies: int) -> ModelOutcome:
    """Rank systems in many studies, with the truth about the trained systems themselves."""
    rng = generator("calibration of models", num_seeds, ability_spread)
    true_items = np.random.default_rng(1).standard_normal(20_000)
    best_in_set = []
    limits_hold = []
    covered = []
    sizes = []
    for study in range(studies):
        skill_SR = (
            1.0
            + ability_spread * rng.standard_normal((NUM_SYSTEMS, 1))
            + 0.2 * rng.standard_normal((NUM_SYSTEMS, num_seeds))
        )
        true_S = np.stack([_true_score(skills_R, true_items) for skills_R in skill_SR])
        difficulty_N = rng.standard_normal(NUM_ITEMS)
        right = rng.logistic(size=(*skill_SR.shape, NUM_ITEMS)) < skill_SR[..., None] - difficulty_N
        scores_SN = right.astype(np.float64).mean(axis=1)
        draws_BS = draw_means(scores_SN, generator("study", study), NUM_DRAWS)
        comparisons = compare_with_best(scores_SN.mean(axis=1), draws_BS, num_items=NUM_ITEMS)
        best_in_set.append(comparisons[int(true_S.argmax())].may_be_best)
        behind_S = [true_S[i] - np.delete(true_S, i).max() for i in range(NUM_SYSTEMS)]
        limits_hold.append(
            all(one.low <= behind for one, behind in zip(comparisons, behind_S, strict=True))
        )
        sizes.append(sum(one.may_be_best for one in comparisons))
        for scores_N, truth in zip(scores_SN, true_S, strict=True):
            estimate = statistics.estimate_mean(scores_N[None], bounds=(0.0, 1.0))
            covered.append(estimate.low <= truth <= estimate.high)
    return ModelOutcome(
        float(np.mean(best_in_set)),
        float(np.mean(limits_hold)),
        float(np.mean(covered)),
        float(np.mean(sizes)),
    )


def simulate_selection(num_systems: int, num_items: int, *, studies: int) -> float:
    """Return how often the interval of the highest score has its true score; systems are equal."""
    rng = generator("calibration of selected scores", num_systems, num_items)
    truth = expected_score(1.0, 0.0)
    covered = []
    for _ in range(studies):
        difficulty_N = rng.standard_normal(num_items)
        scores_SN = simulate_answers(rng, difficulty_N, 1.0, 0.0, num_systems)
        estimates = [
            statistics.estimate_mean(scores_N[None], bounds=(0.0, 1.0)) for scores_N in scores_SN
        ]
        draws_BS = draw_means(scores_SN, rng, NUM_DRAWS)
        ranked = compare_with_best(scores_SN.mean(axis=1), draws_BS, num_items=num_items)
        in_set = [one.may_be_best for one in ranked]
        lows = selected_lower_limits(draws_BS, estimates, in_set, 0.0)
        highest = int(scores_SN.mean(axis=1).argmax())
        covered.append(lows[highest] <= truth <= estimates[highest].high)
    return float(np.mean(covered))


def simulate_pooling(num_seeds: int, *, studies: int) -> float:
    """Return how often a pooled effect of zero is reported as one; tasks share pretraining seeds.

    Effects vary between tasks, between pretrainings, and in each run of a task, by two points each.
    """
    rng = generator("calibration of pooled effects", num_seeds)
    found = []
    for _ in range(studies):
        noise_PK = POOLED_SPREAD * rng.standard_normal((num_seeds, NUM_TASKS))
        seeds_P1 = POOLED_SPREAD * rng.standard_normal((num_seeds, 1))
        effects_PK = noise_PK + seeds_P1 + POOLED_SPREAD * rng.standard_normal(NUM_TASKS)
        errors_K = effects_PK.std(axis=0, ddof=1) / np.sqrt(num_seeds)
        pooled = pool_effects(effects_PK.mean(axis=0).tolist(), errors_K.tolist(), effects_PK)
        assert pooled.low is not None and pooled.high is not None
        found.append(not pooled.low <= 0 <= pooled.high)
    return float(np.mean(found))


@dataclass(frozen=True)
class GroupOutcome:
    """Shares of studies in which two systems are equal, but for groups of items."""

    coverage: float  # intervals of the difference with zero
    best_in_set: float  # systems that may be the best, as both are


def simulate_groups(sizes_N: Scores, *, studies: int) -> GroupOutcome:
    """Compare two systems that are equal over all groups, of which each is better in some."""
    rng = generator("calibration of groups", sizes_N.tolist())
    counts_N = sizes_N.astype(int)
    starts_N = np.cumsum(counts_N) - counts_N
    covered = []
    in_set: list[bool] = []
    for _ in range(studies):
        difficulty = rng.standard_normal(counts_N.sum())
        scores_SN = []
        for _ in range(2):
            skill = np.repeat(1.0 + GROUP_SPREAD * rng.standard_normal(len(counts_N)), counts_N)
            right = (rng.logistic(size=len(skill)) < skill - difficulty).astype(np.float64)
            mean = right.mean()
            sums_N = np.add.reduceat(right, starts_N)
            # As `lineage.analysis.cells` scores groups.
            scores_SN.append(mean + (sums_N - mean * counts_N) * len(counts_N) / len(right))
        table_SN = np.stack(scores_SN)
        estimate = statistics.estimate_difference(table_SN[:1], table_SN[1:], group_sizes_N=sizes_N)
        covered.append(estimate.low <= 0 <= estimate.high)
        draws_BS = draw_means(table_SN, rng, NUM_DRAWS, group_sizes_N=sizes_N)
        ranked = compare_with_best(table_SN.mean(axis=1), draws_BS, num_items=int(counts_N.sum()))
        in_set += [one.may_be_best for one in ranked]
    return GroupOutcome(float(np.mean(covered)), float(np.mean(in_set)))


def simulate_champions(num_items: int, *, studies: int) -> float:
    """Return how often a champion is replaced in a month of equal systems, a new one each night.

    They take the same time, but for 30 % more or less by chance.
    """
    rng = generator("calibration of champions", num_items)
    replaced = []
    for _ in range(studies):
        difficulty_N = rng.standard_normal(num_items)
        seconds = 1000 * np.exp(0.3 * rng.standard_normal(NUM_NIGHTS))
        systems = [simulate_contender(rng, difficulty_N, 1.0, cost) for cost in seconds]
        replaced.append(find_last_champion(systems, rng) > 0)
    return float(np.mean(replaced))


def simulate_decline(num_items: int, *, studies: int) -> float:
    """Return how many points are lost in eight nights of systems that get worse and faster.

    Each is a point worse than the one before, and takes a fifth of its time.
    """
    rng = generator("calibration of declining champions", num_items)
    lost = []
    for _ in range(studies):
        difficulty_N = rng.standard_normal(num_items)
        systems = [
            simulate_contender(rng, difficulty_N, 1.0 - POINT * night, 1e8 / 5.0**night)
            for night in range(8)
        ]
        last = find_last_champion(systems, rng)
        lost.append(expected_score(1.0, 0.0) - expected_score(1.0 - POINT * last, 0.0))
    return float(np.mean(lost))


def simulate_contender(
    rng: np.random.Generator, difficulty_N: Scores, ability: float, seconds: float
) -> Contender:
    """Return a system with its answers to the items."""
    (answers_N,) = simulate_answers(rng, difficulty_N, ability, 0.0, 1)
    return Contender(str(rng.random()), "items", answers_N, 0, seconds)


def find_last_champion(systems: Sequence[Contender], rng: np.random.Generator) -> int:
    """Enter the systems in turn, and return the place of the champion in the end."""
    champions = [0]
    for place in range(1, len(systems)):
        best = max(champions, key=lambda one: float(np.mean(systems[one].scores_N)))
        decision = decide_champion(
            systems[place],
            systems[champions[-1]],
            rng,
            margin=statistics.EQUIVALENCE_MARGIN,
            max_difference=1.0,
            best=systems[best],
            num_earlier=place - 1,
        )
        if decision.takes_over:
            champions.append(place)
    return champions[-1]


def _true_score(skills_R: Scores, true_items: Scores) -> float:
    return float(np.mean(1 / (1 + np.exp(true_items - skills_R[:, None]))))


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=1000)
    studies = parser.parse_args().studies
    print("| seeds | seed variances | coverage | as shown | false findings | power |")
    print("|---|---|---|---|---|---|")
    for num_seeds in (3, 5):
        cases = (
            ("one comparison", ALONE, False),
            ("equal", EQUAL, False),
            ("unequal", UNEQUAL, False),
            ("a collapse", EQUAL, True),
        )
        for name, spreads, collapse in cases:
            method = simulate_methods(num_seeds, spreads, collapse=collapse, studies=studies)
            cells = [method.coverage, method.corrected_coverage]
            cells += [method.false_findings, method.power]
            shares = " | ".join(f"{share:.1%}" for share in cells)
            print(f"| {num_seeds} | {name} | {shares} |", flush=True)
    print()
    print("| seeds | systems | best in the set | limits hold | coverage of scores | set size |")
    print("|---|---|---|---|---|---|")
    for num_seeds in (2, 3, 5):
        for name, spread in (("equal but for their seeds", 0.0), ("different", 0.3)):
            model = simulate_models(num_seeds, spread, studies=studies)
            cells = [model.best_in_set, model.limits_hold, model.coverage]
            shares = " | ".join(f"{share:.1%}" for share in cells)
            print(f"| {num_seeds} | {name} | {shares} | {model.set_size:.1f} |", flush=True)
    print()
    print("| equal systems | items | coverage of the highest score |")
    print("|---|---|---|")
    for num_systems in (4, 8, 20):
        for num_items in (200, 1000):
            coverage = simulate_selection(num_systems, num_items, studies=studies)
            print(f"| {num_systems} | {num_items} | {coverage:.1%} |", flush=True)
    print()
    print("| groups | coverage of a difference | an equal system may be the best |")
    print("|---|---|---|")
    for name, sizes in GROUPS.items():
        group = simulate_groups(sizes, studies=studies)
        print(f"| {name} | {group.coverage:.1%} | {group.best_in_set:.1%} |", flush=True)
    print()
    print("| items | replaced in 30 nights of equal systems | points lost in 8 nights of decline |")
    print("|---|---|---|")
    for num_items in (200, 500):
        share = simulate_champions(num_items, studies=studies // 5)
        points = 100 * simulate_decline(num_items, studies=studies // 5)
        print(f"| {num_items} | {share:.1%} | {points:.1f} |", flush=True)
    print()
    print("| pretraining seeds | pooled effects of zero that are reported |")
    print("|---|---|")
    for num_seeds in (3, 5):
        print(f"| {num_seeds} | {simulate_pooling(num_seeds, studies=studies):.1%} |", flush=True)
    print()
    print_counts(studies)
    print()
    print_training(studies)


if __name__ == "__main__":
    main()
