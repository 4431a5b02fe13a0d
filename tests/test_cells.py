"""A result is chosen by its validation score, and its own score has an interval."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lineage.analysis import cells, statistics
from lineage.analysis.records import DuplicateLabelCount, Setting, System
from lineage.results import ResultRow, results_frame
from tests.helpers.study_rows import GPT

ROW = ResultRow(model="gpt", family="gpt", init="pretrained", task="x", kind="text_classification", metric="accuracy", num_examples=10, transfer="frozen", head="linear",
          label_count="all", train_examples=9, pretrain_seed=0, finetune_seed=0, test_set="x", split="test", value=0.5)  # fmt: skip


def test_results_hold_validation_values_for_choosing_and_test_values_as_scores() -> None:
    values = [
        ("frozen", "validation", 0.9),
        ("frozen", "test", 0.5),
        ("finetuned", "validation", 0.6),
        ("finetuned", "test", 0.7),
    ]
    rows = results_frame(
        (
            ResultRow(**vars(ROW) | {"transfer": transfer, "split": split, "value": value})
            for transfer, split, value in values
        )
    )
    results_by_key = cells.build_cells(rows, split="test", tasks={})
    assert {
        cell.system.transfer: (cell.validation_values, cell.mean)
        for cell in results_by_key.values()
    } == {"frozen": ([0.9], 0.5), "finetuned": ([0.6], 0.7)}


def build_cell(metric: str, scores: dict[tuple[int, int], np.ndarray]) -> cells.ResultCell:
    system = System("gpt", "gpt", "pretrained", "none", "frozen", "mix", "linear", "none")
    item_scores = {key: pd.Series(values) for key, values in scores.items()}
    seed_values = {key: float(values.mean()) for key, values in scores.items()}
    return cells.ResultCell(
        system,
        "t",
        "text_regression",
        "all",
        metric,
        seed_values=seed_values,
        item_scores=item_scores,
        num_examples=40,
    )


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_the_interval_of_a_negative_correlation_contains_it(metric: str) -> None:
    rng = np.random.default_rng(1)
    summary = build_cell(
        metric, {(0, seed): rng.normal(-0.5, 0.3, 40) for seed in range(2)}
    ).summarize()
    assert summary.ci_low < summary.mean < summary.ci_high


def test_the_interval_of_a_score_is_that_of_the_mean_over_its_seeds() -> None:
    """Seeds that differ do not widen it, since the statement is about these runs."""
    rng = np.random.default_rng(1)
    scores = {
        (pretrain, seed): rng.normal(0.5 + 0.2 * pretrain, 0.2, 40)
        for pretrain in range(2)
        for seed in range(3)
    }
    mean_N = np.stack([*scores.values()]).mean(axis=0, keepdims=True)
    expected = statistics.estimate_mean(mean_N, bounds=(0.0, 1.0))
    actual = build_cell("accuracy", scores).summarize()
    assert (actual.ci_low, actual.ci_high) == pytest.approx((expected.low, expected.high))


def build_cells(task: str, available: int, label_counts: list[str]) -> list[cells.ResultCell]:
    """Return a cell per label count of a task with this number of labels."""
    found = []
    for label_count in label_counts:
        count = available if label_count == "all" else min(available, int(label_count))
        cell = cells.ResultCell(GPT, task, "word_sense", label_count, "accuracy", count)
        cell.seed_values = {(0, 0): 0.5}
        found.append(cell)
    return found


def test_label_counts_above_the_number_of_labels_are_one_setting() -> None:
    """A setting stays if it has a system that the other lacks, or that has no score there."""
    all_cells = [
        *build_cells("sense", 49, ["30", "100", "all"]),
        *build_cells("mood", 49, ["30", "100"]),
        *build_cells("tone", 100, ["100", "all"]),
        *build_cells("news", 60, ["99", "200"]),
    ]
    kept, dropped = cells.drop_duplicate_label_counts(all_cells)
    assert [cell.setting for cell in kept] == [
        Setting("sense", "30"),
        Setting("sense", "all"),
        Setting("mood", "30"),
        Setting("mood", "100"),
        Setting("tone", "all"),
        Setting("news", "99"),
    ]
    assert dropped == [
        DuplicateLabelCount("sense", "100", 49, "all"),
        DuplicateLabelCount("tone", "100", 100, "all"),
        DuplicateLabelCount("news", "200", 60, "99"),
    ]
    other = replace(all_cells[1], system=replace(GPT, transfer="finetuned"))
    kept_with_other, still_dropped = cells.drop_duplicate_label_counts([*all_cells, other])
    assert len(kept_with_other) == len(kept) + 2 and still_dropped == dropped[1:]
    failed = [replace(c, seed_values={}) if c.label_count == "all" else c for c in all_cells]
    kept, _ = cells.drop_duplicate_label_counts(failed)
    settings = {cell.setting for cell in all_cells} - {Setting("news", "200")}
    assert {cell.setting for cell in kept} == settings
