"""A study of one task in which chance may score higher than the majority class."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis
from lineage.artifacts import write_table
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.data.dataset_stats import compute_dataset_stats, write_dataset_stats
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import sort_predictions
from lineage.results import results_frame
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.study_rows import write_no_ngrams, write_overlap

TASK_KEYS: dict[str, Any] = {"kind": "multiple_choice", "choices": ["one", "two"], "label": "label"}


GRID = Grid(("gpt",), ("small",), (0,), (), (), (), (0, 1), ("all",))


def build_choices(count: int, *, share: float, seed: int) -> pd.DataFrame:
    """Return items with two choices that nothing distinguishes.

    The first choice is correct in this share of the items.
    """
    label = (np.arange(count) >= share * count).astype(int)
    return pd.DataFrame(
        {
            "text": [f"text {seed} {n}" for n in range(count)],
            "one": "it was",
            "two": "it is",
            "label": label,
        }
    )


def analyze_study(
    tmp_path: Path,
    data: TaskData,
    *,
    accuracy: float,
    kind: str = "multiple_choice",
    tasks: dict[str, Task] | None = None,
) -> tuple[Path, Analysis]:
    """Write the results of the baselines and of one model, and analyze them.

    The model is correct in the share `accuracy` of the items, with every seed.
    """
    cells = [
        *tiny.evaluate_baselines(
            load_kind(kind),
            data,
            split="test",
            finetune_seeds=GRID.finetune_seeds,
            label_counts=GRID.label_counts,
        )
    ]
    rows = [row for baseline_rows, _ in cells for row in baseline_rows]
    predictions = sort_predictions([table for _, table in cells])
    model_predictions = predictions[predictions["model"] == "majority"].copy()
    model_predictions[["model", "family", "init", "transfer", "pretrain_seed"]] = [
        "gpt",
        "gpt",
        "pretrained",
        "frozen",
        0,
    ]
    number = model_predictions["id"].str.extract(r"(\d+)$", expand=False).astype(int)
    model_predictions["correct"] = (number * 7919 % 1000 < 1000 * accuracy).astype(float)
    # The model has rows of all groups, even if the baselines have none.
    groups = ["all", *sorted({*model_predictions["group"]} - {"all"})]
    majority_rows = [row for row in rows if row.model == "majority" and row.group == "all"]
    model_rows = [replace(row, group=group) for row in majority_rows for group in groups]
    model_columns = {
        "model": "gpt",
        "family": "gpt",
        "init": "pretrained",
        "transfer": "frozen",
        "pretrain_seed": 0,
        "value": model_predictions["correct"].mean(),
    }
    model_results = results_frame(model_rows).assign(**model_columns)
    for stage, stage_rows, table in (
        ("evaluate-gpt-0-small", model_results, model_predictions),
        ("baselines-small", results_frame(rows), predictions),
    ):
        write_table(tmp_path / f"rows/{stage}.parquet", stage_rows)
        write_table(tmp_path / f"predictions/{stage}.parquet", table)
    write_no_ngrams(tmp_path)
    write_overlap(tmp_path, "small", predictions["id"].unique())
    stats = compute_dataset_stats(data, GRID.finetune_seeds)
    write_dataset_stats(tmp_path / "statistics/baselines-small.json", stats)
    return tmp_path, build_results(tmp_path, GRID, ReportParams(), tasks)[1]
