"""Simulate scores that are no means over items: F1 and Matthews correlation of rare classes, spans.

Systems that are equal answer the same items, which differ in difficulty. Contributions, intervals
and verdicts are the report's own. Statements about methods have three seeds.
Shapes: S systems, R seeds, N items, T words of a sentence.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from lineage.analysis.cells import ResultCell
from lineage.analysis.comparisons import PlannedComparison, estimate_gain, run_comparisons
from lineage.analysis.contributions import split_score
from lineage.analysis.ranking import rank_setting
from lineage.analysis.records import System
from lineage.answers.metrics import METRICS
from lineage.randomness import generator

Scores = npt.NDArray[np.float64]
Labels = npt.NDArray[np.object_]
NUM_SEEDS = 3
NUM_SYSTEMS = 4  # of a ranking
METRIC_NAMES = {
    "macro_f1": "macro-F1",
    "matthews": "Matthews correlation",
    "span_f1": "F1 of spans",
}
KINDS = {"span_f1": "token_classification"}
SEED_SPREAD = 0.3  # logits between the seeds of a system
SENTENCE_WORDS = 6
MANY_ITEMS = 200_000  # for the true score


@dataclass(frozen=True)
class RareLabels:
    """A test set of which a share has a rare label, and the skill of a system in logits."""

    metric: str
    num_items: int
    rare_share: float  # of items; of words for spans
    skill: float  # at items of the rare label, or spans
    common_skill: float  # at the others

    @property
    def name(self) -> str:
        expected = self.rare_share * self.num_items
        if self.metric == "span_f1":
            return f"{expected * SENTENCE_WORDS:.0f} spans in {self.num_items} sentences"
        return f"{expected:.0f} of {self.num_items} items"


CASES = (
    RareLabels("macro_f1", 50, 0.1, 1.0, 3.5),
    RareLabels("macro_f1", 100, 0.1, 1.0, 3.5),
    RareLabels("macro_f1", 200, 0.05, 2.0, 4.5),
    RareLabels("macro_f1", 200, 0.2, 1.0, 3.0),
    RareLabels("matthews", 50, 0.1, 1.0, 3.5),
    RareLabels("matthews", 100, 0.1, 1.0, 3.5),
    RareLabels("matthews", 200, 0.05, 2.0, 4.5),
    RareLabels("matthews", 200, 0.2, 1.0, 3.0),
    RareLabels("span_f1", 50, 0.05, 1.0, 5.0),
    RareLabels("span_f1", 100, 0.05, 1.0, 5.0),
    RareLabels("span_f1", 200, 0.02, 1.5, 6.0),
    RareLabels("span_f1", 200, 0.1, 1.0, 4.0),
)


@dataclass(frozen=True)
class CountOutcome:
    """Shares of studies, of systems that are equal."""

    coverage: float  # intervals of a score, over items
    coverage_of_difference: float  # over items
    false_findings: float  # over items and three seeds
    best_in_set: float  # of four systems, one that may be the best


def simulate_counts(case: RareLabels, *, studies: int) -> CountOutcome:
    """Compare equal systems in many studies, with the report's own code.

    Test sets without the rare label are drawn again.
    """
    rng = generator("calibration of counts", case.metric, case.num_items, case.rare_share)
    truth = _true_score(case)
    covered = []
    differences = []
    found = []
    in_set: list[bool] = []
    for _ in range(studies):
        cells = _simulate_cells(case, rng, num_systems=NUM_SYSTEMS)
        (ranking,) = rank_setting(cells, [])
        in_set += [one.may_be_best for one in ranking.standings]
        interval = cells[0].interval_over_items()
        difference = estimate_gain(cells[0], cells[1])
        assert interval is not None and difference is not None
        covered.append(interval[0] <= truth <= interval[1])
        differences.append(difference.low <= 0 <= difference.high)
        pair = _simulate_cells(case, rng, seed_spread=SEED_SPREAD, num_seeds=NUM_SEEDS)
        (comparison,) = run_comparisons([PlannedComparison("models", *pair)])
        found.append(comparison.verdict in ("better", "worse"))
    shares = [float(np.mean(held)) for held in (covered, differences, found, in_set)]
    return CountOutcome(*shares)


def _simulate_cells(
    case: RareLabels,
    rng: np.random.Generator,
    *,
    num_systems: int = 2,
    seed_spread: float = 0.0,
    num_seeds: int = 1,
) -> list[ResultCell]:
    """Return equal systems, all of which have answered the same items."""
    is_rare, difficulty = _draw_items(case, case.num_items, rng)
    cells = []
    for number in range(num_systems):
        system = System(f"model {number}", "gpt", "pretrained", "none", "frozen", *["none"] * 3)
        cell = ResultCell(
            system, "task", KINDS.get(case.metric, "text_classification"), "all", case.metric
        )
        for seed in range(num_seeds):
            shift = seed_spread * rng.standard_normal()
            labels, predictions = _answer(case, is_rare, difficulty, shift, rng)
            score = METRICS[case.metric](labels, predictions)
            table = pd.DataFrame({"label": labels, "prediction": predictions, "correct": score})
            split = split_score(case.metric, table)
            assert split is not None
            cell.item_scores[0, seed] = pd.Series(split[0])
            cell.item_ranges[0, seed] = split[1]
            cell.seed_values[0, seed] = score
        cell.validation_values.append(rng.random())
        cells.append(cell)
    return cells


def _draw_items(
    case: RareLabels, num_items: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], Scores]:
    """Return which items, or (N, T) words of sentences, are rare, and how difficult they are."""
    shape = (num_items, SENTENCE_WORDS) if case.metric == "span_f1" else (num_items,)
    is_rare = np.zeros(shape, bool)
    while not is_rare.any():
        is_rare = rng.random(shape) < case.rare_share
    return is_rare, rng.standard_normal(shape)


def _answer(
    case: RareLabels,
    is_rare: npt.NDArray[np.bool_],
    difficulty: Scores,
    shift: float,
    rng: np.random.Generator,
) -> tuple[Labels, Labels]:
    """Return labels and answers (N,); of sentences as tags, each span a word."""
    skill = np.where(is_rare, case.skill, case.common_skill) + shift
    is_right = rng.logistic(size=is_rare.shape) < skill - difficulty
    is_predicted = is_rare == is_right
    if case.metric != "span_f1":
        return _name(is_rare, "rare", "common"), _name(is_predicted, "rare", "common")
    return _join(_name(is_rare, "B-X", "O")), _join(_name(is_predicted, "B-X", "O"))


def _name(mask: npt.NDArray[np.bool_], name: str, other: str) -> Labels:
    return np.where(mask, np.array(name, object), np.array(other, object))


def _join(tags_NT: Labels) -> Labels:
    return np.array([" ".join(tags) for tags in tags_NT], object)


def _true_score(case: RareLabels) -> float:
    """Return the score of many items."""
    rng = np.random.default_rng(0)
    num_items = MANY_ITEMS // SENTENCE_WORDS if case.metric == "span_f1" else MANY_ITEMS
    is_rare, difficulty = _draw_items(case, num_items, rng)
    return METRICS[case.metric](*_answer(case, is_rare, difficulty, 0.0, rng))


def print_counts(studies: int) -> None:
    """Print the table as Markdown."""
    print(
        "| score | of the rare label | coverage | coverage of a difference | false findings | "
        "an equal system may be the best |"
    )
    print("|---|---|---|---|---|---|")
    for case in CASES:
        outcome = simulate_counts(case, studies=studies)
        shares = " | ".join(f"{share:.1%}" for share in vars(outcome).values())
        print(f"| {METRIC_NAMES[case.metric]} | {case.name} | {shares} |", flush=True)


if __name__ == "__main__":
    print_counts(1000)
