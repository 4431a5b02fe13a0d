"""A cell of the comparison: what a way is chosen by, and how sure its own score is."""

import numpy as np
import pandas as pd

from lineage.report import cells
from lineage.rows import Row, table
from lineage.scoring import statistics

ROW = Row(variant="gpt", family="gpt", init="pretrained", task="x", kind="classify", metric="accuracy", examples=10, transfer="frozen", head="linear",
          labels="all", train_examples=9, pretrain_seed=0, seed=0, test_set="x", split="test", value=0.5)  # fmt: skip


def test_ways_are_chosen_on_validation_and_judged_on_test() -> None:
    said = [("frozen", "validation", 0.9), ("frozen", "test", 0.5), ("tuned", "validation", 0.6), ("tuned", "test", 0.7)]
    rows = table((Row(**vars(ROW) | {"transfer": transfer, "split": split, "value": value}) for transfer, split, value in said))
    found = cells._cells(rows, split="test", tasks={})
    assert {cell.way.transfer: (cell.validation, cell.mean) for cell in found.values()} == {"frozen": ([0.9], 0.5), "tuned": ([0.6], 0.7)}


def cell(metric: str, scores: dict[tuple[int, int], np.ndarray]) -> cells.Cell:
    way = cells.Way("gpt", "gpt", "pretrained", "none", "frozen", "mix", "linear", "none")
    own = {key: pd.Series(values) for key, values in scores.items()}
    means = {key: float(values.mean()) for key, values in scores.items()}
    return cells.Cell(way, "t", "regress", "all", metric, values=means, scores=own, examples=40)


def test_the_interval_of_a_negative_correlation_holds_it() -> None:
    rng = np.random.default_rng(1)
    found = cell("pearson", {(0, seed): rng.normal(-0.5, 0.3, 40) for seed in range(2)}).facts()
    assert found["low"] < found["mean"] < found["high"]


def test_seeds_of_one_pretraining_are_no_pretrainings() -> None:
    rng = np.random.default_rng(1)
    scores = {(pretrain, seed): rng.normal(0.5 + 0.2 * pretrain, 0.2, 40) for pretrain in range(2) for seed in range(3)}
    wanted = statistics.estimate(np.stack([*scores.values()]), bounds=(0.0, 1.0), seeds=np.array([*scores]))
    found = cell("accuracy", scores).facts()
    assert (found["low"], found["high"]) == (wanted.low, wanted.high)
