"""A cell of the comparison: what a way is chosen by, and how sure its own score is."""

import numpy as np
import pandas as pd

from lineage.analysis import cells, statistics
from lineage.analysis.records import System
from lineage.results import ResultRow, results_frame

ROW = ResultRow(model="gpt", family="gpt", init="pretrained", task="x", kind="text_classification", metric="accuracy", num_examples=10, transfer="frozen", head="linear",
          label_count="all", train_examples=9, pretrain_seed=0, finetune_seed=0, test_set="x", split="test", value=0.5)  # fmt: skip


def test_ways_are_chosen_on_validation_and_judged_on_test() -> None:
    said = [
        ("frozen", "validation", 0.9),
        ("frozen", "test", 0.5),
        ("finetuned", "validation", 0.6),
        ("finetuned", "test", 0.7),
    ]
    rows = results_frame(
        (
            ResultRow(**vars(ROW) | {"transfer": transfer, "split": split, "value": value})
            for transfer, split, value in said
        )
    )
    found = cells._build_cells(rows, split="test", tasks={})
    assert {
        cell.system.transfer: (cell.validation_values, cell.mean) for cell in found.values()
    } == {"frozen": ([0.9], 0.5), "finetuned": ([0.6], 0.7)}


def cell(metric: str, scores: dict[tuple[int, int], np.ndarray]) -> cells.ResultCell:
    way = System("gpt", "gpt", "pretrained", "none", "frozen", "mix", "linear", "none")
    own = {key: pd.Series(values) for key, values in scores.items()}
    means = {key: float(values.mean()) for key, values in scores.items()}
    return cells.ResultCell(
        way,
        "t",
        "text_regression",
        "all",
        metric,
        seed_values=means,
        item_scores=own,
        num_examples=40,
    )


def test_the_interval_of_a_negative_correlation_holds_it() -> None:
    rng = np.random.default_rng(1)
    found = cell("pearson", {(0, seed): rng.normal(-0.5, 0.3, 40) for seed in range(2)}).summarize()
    assert found.ci_low < found.mean < found.ci_high


def test_seeds_of_one_pretraining_are_no_pretrainings() -> None:
    rng = np.random.default_rng(1)
    scores = {
        (pretrain, seed): rng.normal(0.5 + 0.2 * pretrain, 0.2, 40)
        for pretrain in range(2)
        for seed in range(3)
    }
    wanted = statistics.estimate_mean(
        np.stack([*scores.values()]), bounds=(0.0, 1.0), seeds=np.array([*scores])
    )
    found = cell("accuracy", scores).summarize()
    assert (found.ci_low, found.ci_high) == (wanted.low, wanted.high)
