"""Stage control@T: majority, TF-IDF with logistic regression, and the ceilings of a generated task -> rows and predictions."""

from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.evaluation.celltable import means
from lineage.evaluation.controls import ceiling_rows, control_rows, data_rows, fold_rows, predictions_table, unscored_rows
from lineage.kind import load_kind
from lineage.loading.taskdata import TaskData
from lineage.params import read_params
from lineage.rows import Row, table
from lineage.running.stage import Stage, run

RESULTS = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Fit and score every cell; with report.split validation the test file is not read."""
    (name,) = stage.arguments
    params, folder = read_params(), Path("artifacts/tasks") / name
    task, split = TaskData.load(folder, split=params.report.split), params.report.split
    facts = task.facts
    kind = load_kind(facts["kind"])
    rows: list[Row] = [*data_rows(facts), *fold_rows(task, params.grid.seeds)]
    rows += ceiling_rows(facts, facts["counts"]["test"]) if split == "test" and facts["ceilings"] else []
    tables: list[pd.DataFrame] = []
    if split not in task.scored:
        rows += unscored_rows(facts, split)
    else:
        about = {"tfidf": params.grid.tfidf, "labels": params.grid.labels, "seeds": params.grid.seeds, "split": split}
        with stage.tracked(parameters=about, inputs=[folder], task=name) as tracker:
            cells = list(control_rows(kind, task, split=split, seeds=params.grid.seeds, labels=params.grid.labels, penalties=params.grid.tfidf))
            tracker.summary(means([row for some, _ in cells for row in some]))
        rows += [row for some, _ in cells for row in some]
        tables = [predictions for _, predictions in cells]
    artifacts.write_table(RESULTS / "rows" / f"control-{name}.parquet", table(rows))
    artifacts.write_table(RESULTS / "predictions" / f"control-{name}.parquet", predictions_table(tables))


def main() -> None:
    run("control", work)


if __name__ == "__main__":
    main()
