"""Failed results are listed in the report and do not change other scores."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis.build import build_results
from lineage.analysis.cells import ResultCell
from lineage.analysis.contamination import build_clean_scores
from lineage.analysis.records import System
from lineage.config.params import ReportParams
from lineage.report import publication
from tests.study_rows import GRID, Study, render_pages

THREE_SEEDS_GRID = dataclasses.replace(
    GRID, models=("gpt", "bert"), adapt_models=("gpt", "bert"), pretrain_seeds=(0, 1, 2)
)
FAILED_VALUES = {
    "status": "failed",
    "reason": [results.Note("error", "the loss is nan")],
    "value": None,
    "num_examples": 0,
}


def fail_stage(folder: Path, stage: str, *, except_seeds: tuple[int, ...] = ()) -> None:
    """Mark the results of a stage as failed, except those of some seeds.

    Random-init baselines stay, because their pretraining cannot fail.
    """
    table = artifacts.read_table(folder / "rows" / f"{stage}.parquet")
    is_failed = (table["init"] != "random") & ~table["finetune_seed"].isin(except_seeds)
    predictions = artifacts.read_table(folder / "predictions" / f"{stage}.parquet")
    rows = results.results_frame(
        [
            results.ResultRow(**(row | (FAILED_VALUES if failed else {})))
            for row, failed in zip(row_dicts(table), is_failed, strict=True)
        ]
    )
    artifacts.write_table(folder / "rows" / f"{stage}.parquet", rows)
    artifacts.write_table(
        folder / "predictions" / f"{stage}.parquet",
        predictions[
            (predictions["init"] == "random") | predictions["finetune_seed"].isin(except_seeds)
        ],
    )


def row_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): None if pd.isna(v) else v for k, v in row.items()}
        for row in table.astype(object).to_dict("records")
    ]


def test_one_failed_pretraining_of_three_is_listed_and_changes_no_mean(tmp_path: Path) -> None:
    folder = Study(tmp_path, grid=THREE_SEEDS_GRID, items=60).write()
    for stage in (
        "evaluate-bert-1-sentiment",
        "evaluate-bert-1-sense",
        "evaluate-bert-1-agreement",
        "evaluate_adapted-bert-1-sentiment",
    ):
        fail_stage(folder, stage)
    budget = folder / "budgets/pretrain-bert-1.json"
    artifacts.write_json(
        budget, artifacts.read_json(budget) | {"text_bytes": 5, "status": "failed"}
    )
    for seed, text_bytes_read in enumerate(([0, 90], [], [0, 100])):
        artifacts.write_table(
            folder / f"curves/adapt-bert-{seed}-sentiment.parquet",
            pd.DataFrame({"text_bytes": text_bytes_read}, dtype="float64"),
        )
    analysis = build_results(folder, THREE_SEEDS_GRID, ReportParams())[1]
    assert {(one.model, one.pretrain_seeds) for one in analysis.failures} == {("bert", (1,))}
    text_bytes = {one.model: one.text_bytes for one in analysis.budget}
    assert text_bytes == {"gpt": 4_000_000, "bert": 4_000_000}
    adapted = {one.text_bytes for one in analysis.adaptation if one.model == "bert"}
    assert adapted == {95.0}
    section = render_pages(analysis)["md"].split("## Failed or not applicable")[-1]
    assert "| 0, 1, 2 of pretraining 1 |" in section and "| all of pretraining 1 |" in section
    stages = {}
    for seed, seconds in enumerate((60.0, 1.0, 80.0)):
        digest = artifacts.file_digest(folder / f"curves/pretrain-bert-{seed}.parquet")
        stages[f"pretrain@bert-{seed}"] = {"seconds": seconds, "curve_sha256": digest}
    lines = publication.add_pretraining_costs(analysis.budget, stages, curves_dir=folder / "curves")
    assert {one.model: one.seconds for one in lines} == {"gpt": None, "bert": 70.0}
    for seed in (0, 2):
        budget = folder / f"budgets/pretrain-bert-{seed}.json"
        artifacts.write_json(budget, artifacts.read_json(budget) | {"status": "failed"})
    budgets = build_results(folder, THREE_SEEDS_GRID, ReportParams())[1].budget
    assert {one.model for one in budgets} == {"gpt", "bert"}, (
        "if all seeds failed, all of them count"
    )


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_repetition_with_a_failed_fold_counts_in_neither_mean(is_complete: bool) -> None:
    system = System("gpt", "gpt", "pretrained", "none", "frozen", "scalar_mix", "linear", "none")
    cell = ResultCell(system, "sense", "text_classification", "all", "accuracy", 100, 10)
    cell.seed_values = {(0, 0): 0.8} | ({(0, 1): 0.2} if is_complete else {})
    rows = [
        results.ResultRow(
            **dataclasses.asdict(system),
            kind="text_classification",
            task="sense",
            test_set="sense",
            label_count="all",
            metric="accuracy",
            pretrain_seed=0,
            finetune_seed=seed,
            fold=fold,
            item_filter="clean",
            num_examples=5,
            value=value,
        )
        for seed, value in ((0, 0.8), (1, 0.2))
        for fold in (0, 1)
    ]
    clean = results.results_frame(rows[: 4 if is_complete else 3])
    (table,) = build_clean_scores(clean, [[cell]])
    (score,) = table.systems
    expected = pytest.approx(0.5 if is_complete else 0.8)
    assert score.all_items == expected and score.clean_items == expected
