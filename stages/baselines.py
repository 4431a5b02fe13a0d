"""Stage baselines@T: majority, TF-IDF with logistic regression, and the ceilings of a generated task -> rows and predictions."""

from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.config.params import read_params
from lineage.data.task_data import TaskData
from lineage.evaluation.baselines import (
    build_predictions_table,
    ceiling_rows,
    data_count_rows,
    evaluate_baselines,
    fold_rows,
    unscored_rows,
)
from lineage.evaluation.result_rows import mean_values
from lineage.results import ResultRow, results_frame
from lineage.runtime.stage import Stage, run_stage
from lineage.tasks.base import load_kind

RESULTS_DIR = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Fit and score every cell; with report.split validation the test file is not read."""
    (name,) = stage.arguments
    params, folder = read_params(), Path("artifacts/tasks") / name
    task, split = TaskData.load(folder, split=params.report.split), params.report.split
    facts = task.info
    kind = load_kind(facts["kind"])
    rows: list[ResultRow] = [*data_count_rows(facts), *fold_rows(task, params.grid.finetune_seeds)]
    rows += (
        ceiling_rows(facts, facts["counts"]["test"])
        if split == "test" and facts["ceilings"]
        else []
    )
    tables: list[pd.DataFrame] = []
    if split not in task.scored_splits:
        rows += unscored_rows(facts, split)
    else:
        parameters = {
            "tfidf": params.grid.tfidf_C,
            "label_count": params.grid.label_counts,
            "finetune_seeds": params.grid.finetune_seeds,
            "split": split,
        }
        with stage.track(parameters=parameters, inputs=[folder], task=name) as tracker:
            results = list(
                evaluate_baselines(
                    kind,
                    task,
                    split=split,
                    finetune_seeds=params.grid.finetune_seeds,
                    label_counts=params.grid.label_counts,
                    tfidf_C=params.grid.tfidf_C,
                )
            )
            tracker.log_summary(mean_values([row for some, _ in results for row in some]))
        rows += [row for some, _ in results for row in some]
        tables = [predictions for _, predictions in results]
    artifacts.write_table(RESULTS_DIR / "rows" / f"baselines-{name}.parquet", results_frame(rows))
    artifacts.write_table(
        RESULTS_DIR / "predictions" / f"baselines-{name}.parquet", build_predictions_table(tables)
    )


def main() -> None:
    run_stage("baselines", work)


if __name__ == "__main__":
    main()
