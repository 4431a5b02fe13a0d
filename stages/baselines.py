"""Stage baselines@TASK: systems that need no pretraining -> rows and predictions.

They are the majority class, chance, TF-IDF with logistic regression, and the ceilings of a
synthetic task. The statistics of the task's data are written too, and the TF-IDF models.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.artifacts import folder_bytes, write_table
from lineage.config.params import read_recorded_params
from lineage.data.dataset_stats import compute_dataset_stats, write_dataset_stats
from lineage.data.task_data import TaskData
from lineage.evaluation.baselines import (
    ChosenTfidf,
    build_predictions_table,
    ceiling_rows,
    evaluate_baselines,
    unscored_rows,
)
from lineage.evaluation.result_rows import mean_values
from lineage.methods.saved_tfidf import save_tfidf
from lineage.results import ResultRow, results_frame
from lineage.runtime.stage import Stage, run_stage
from lineage.serving.systems import write_systems
from lineage.tasks.base import load_kind

RESULTS_DIR = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Fit and score every baseline.

    If the report's split is validation, the test file is not read.
    """
    (name,) = stage.arguments
    params = read_recorded_params()
    grid = params.grid
    split = params.report.split
    folder = Path("artifacts/tasks") / name
    task = TaskData.load(folder, split=split)
    stats = compute_dataset_stats(task, grid.finetune_seeds)
    write_dataset_stats(RESULTS_DIR / "statistics" / f"{stage.file_name}.json", stats)
    rows: list[ResultRow] = []
    tables: list[pd.DataFrame] = []
    chosen_tfidf: list[ChosenTfidf] = []
    if split == "test" and task.info["ceilings"]:
        rows += ceiling_rows(task.info, task.info["counts"]["test"])
    if split not in task.scored_splits:
        rows += unscored_rows(task.info, split)
    else:
        parameters = {
            "tfidf": grid.tfidf_C,
            "label_count": grid.label_counts,
            "finetune_seeds": grid.finetune_seeds,
            "split": split,
        }
        baseline_rows: list[ResultRow] = []
        with stage.track(parameters=parameters, inputs=[folder], task=name) as tracker:
            for some_rows, predictions in evaluate_baselines(
                load_kind(task.info["kind"]),
                task,
                split=split,
                finetune_seeds=grid.finetune_seeds,
                label_counts=grid.label_counts,
                tfidf_C=grid.tfidf_C,
                keep_tfidf=chosen_tfidf.append,
            ):
                baseline_rows += some_rows
                tables.append(predictions)
            tracker.log_summary(mean_values(baseline_rows))
        rows += baseline_rows
    write_chosen_tfidf(stage, chosen_tfidf, task.info)
    file_name = f"{stage.file_name}.parquet"
    write_table(RESULTS_DIR / "rows" / file_name, results_frame(rows))
    write_table(RESULTS_DIR / "predictions" / file_name, build_predictions_table(tables))


def write_chosen_tfidf(
    stage: Stage, chosen_tfidf: Sequence[ChosenTfidf], info: dict[str, Any]
) -> None:
    """Write the TF-IDF model of each label count."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        costs = []
        for chosen in chosen_tfidf:
            folder = Path(scratch) / chosen.run.label_count
            save_tfidf(folder, chosen, info)
            folders.append(folder)
            costs.append(
                {
                    "label_count": chosen.run.label_count,
                    "items_per_second": chosen.items_per_second,
                    "model_bytes": folder_bytes(folder),
                }
            )
        stage.metadata["tfidf"] = costs
        write_systems(stage.file_name, folders)


def main() -> None:
    """Run the stage."""
    run_stage("baselines", work)


if __name__ == "__main__":
    main()
