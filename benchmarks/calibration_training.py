"""Simulate studies whose seeds draw training sets that overlap: folds, and subsets of few labels.

Two learners that are equally good, ridge regression on two blocks of features, are trained on items
drawn from a population. A finding is false, since with other items neither is better. Folds and
subsets are drawn by lineage's own functions, and verdicts are the report's.
Shapes: N items, D features, R seeds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from lineage.analysis.cells import ResultCell
from lineage.analysis.comparisons import PlannedComparison, run_comparisons
from lineage.analysis.records import System
from lineage.data.splits import nested_stratified_subset
from lineage.data.task_data import assign_fold_splits
from lineage.randomness import generator

Scores = npt.NDArray[np.float64]
Rows = npt.NDArray[np.integer]
Parts = tuple[Rows, Rows, Rows]  # the items of train, validation and test
NUM_FEATURES = 20  # of each learner
SIGNAL = 2.0  # logits
PENALTIES = (1.0, 10.0, 100.0)  # of which validation chooses
NUM_TEST_ITEMS = 500  # without folds
NUM_VALIDATION_ITEMS = 50


@dataclass(frozen=True)
class TrainingSets:
    """Labelled items, and how many training sets each seed draws from them."""

    num_items: int
    num_seeds: int
    folds: int = 0  # 0: a test set of its own, and one training set for each seed
    num_labels: int = 0  # of a random subset; 0: all

    @property
    def name(self) -> str:
        if self.folds:
            subset = f"{self.num_labels} labels in " if self.num_labels else ""
            return f"{subset}{self.folds} folds of {self.num_items} items"
        return f"{self.num_labels} labels of {self.num_items}"


CASES = (
    TrainingSets(200, 3, folds=5),
    TrainingSets(200, 10, folds=5),
    TrainingSets(200, 3, folds=10),
    TrainingSets(500, 3, folds=5),
    TrainingSets(300, 3, folds=3, num_labels=30),
    TrainingSets(300, 3, folds=3, num_labels=100),
    TrainingSets(1000, 3, num_labels=100),
    TrainingSets(200, 3, num_labels=100),
    TrainingSets(200, 5, num_labels=100),
    TrainingSets(125, 5, num_labels=100),
)


def simulate_training(case: TrainingSets, *, studies: int) -> float:
    """Return how often one of two equal learners is reported to be better."""
    rng = generator("calibration of training sets", case.name, case.num_seeds)
    found = []
    for study in range(studies):
        blocks, answers_N = _draw_items(case, rng)
        cells = [_make_cell(number, case) for number in range(2)]
        for seed in range(case.num_seeds):
            rights = [np.full(len(answers_N), np.nan) for _ in blocks]
            for train, validation, test in _list_parts(case, answers_N, study, seed):
                for right_N, features in zip(rights, blocks, strict=True):
                    right_N[test] = _train(features, answers_N, train, validation, test)
            for cell, right_N in zip(cells, rights, strict=True):
                cell.item_scores[0, seed] = pd.Series(right_N).dropna()
        (comparison,) = run_comparisons([PlannedComparison("models", *cells)])
        found.append(comparison.verdict in ("better", "worse"))
    return float(np.mean(found))


def _make_cell(number: int, case: TrainingSets) -> ResultCell:
    system = System(f"model {number}", "gpt", "pretrained", "none", "frozen", *["none"] * 3)
    label_count = str(case.num_labels or "all")
    cell = ResultCell(system, "task", "text_classification", label_count, "accuracy")
    cell.num_folds = case.folds
    cell.num_labels = case.num_items
    cell.train_examples = case.num_labels
    return cell


def _draw_items(case: TrainingSets, rng: np.random.Generator) -> tuple[list[Scores], Scores]:
    """Return the features of both learners (N, D), and the answers (N,) of -1 and 1."""
    num_items = case.num_items
    if not case.folds:
        num_items += NUM_VALIDATION_ITEMS + NUM_TEST_ITEMS
    weights_D = SIGNAL * rng.standard_normal(NUM_FEATURES) / np.sqrt(NUM_FEATURES)
    blocks = [rng.standard_normal((num_items, NUM_FEATURES)) for _ in range(2)]
    logits_N = (blocks[0] + blocks[1]) @ weights_D / np.sqrt(2)
    answers_N = np.where(rng.logistic(size=num_items) < logits_N, 1.0, -1.0)
    return blocks, answers_N


def _list_parts(case: TrainingSets, answers_N: Scores, study: int, seed: int) -> Iterator[Parts]:
    """Yield the parts of each training set of a seed."""
    drawn = 1000 * study + seed
    labels_N = (answers_N > 0).astype(int)
    if case.folds:
        items = pd.DataFrame({"label": labels_N})
        for fold in range(case.folds):
            parts = assign_fold_splits(
                items,
                folds=case.folds,
                fold=fold,
                seed=drawn,
                by_group=False,
                validation_share=0.1,
            )
            train = parts["train"]
            count = case.num_labels or len(train)
            train = train[nested_stratified_subset(labels_N[train], count, seed=drawn)]
            yield train, parts["validation"], parts["test"]
        return
    train = nested_stratified_subset(labels_N[: case.num_items], case.num_labels, seed=drawn)
    first_test = case.num_items + NUM_VALIDATION_ITEMS
    test = np.arange(first_test, len(answers_N))
    yield train, np.arange(case.num_items, first_test), test


def _train(
    features: Scores, answers_N: Scores, train: Rows, validation: Rows, test: Rows
) -> Scores:
    """Return which test items a ridge regression has right; validation chooses its penalty."""
    squares = features[train].T @ features[train]
    products = features[train].T @ answers_N[train]
    best = -1.0
    chosen = products
    for penalty in PENALTIES:
        weights = np.linalg.solve(squares + penalty * np.eye(len(squares)), products)
        score = float(np.mean((features[validation] @ weights) * answers_N[validation] > 0))
        if score > best:
            best = score
            chosen = weights
    right: Scores = ((features[test] @ chosen) * answers_N[test] > 0).astype(np.float64)
    return right


def print_training(studies: int) -> None:
    """Print the table as Markdown."""
    print("| training sets | seeds | false findings |")
    print("|---|---|---|")
    for case in CASES:
        share = simulate_training(case, studies=studies)
        print(f"| {case.name} | {case.num_seeds} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    print_training(1000)
