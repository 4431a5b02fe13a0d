"""Stage control@T: majority, TF-IDF with logistic regression, and the ceilings of a generated task -> rows and predictions."""

from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.controls import ceiling_rows, control_rows, data_rows, predictions_table, unscored_rows
from lineage.kind import load_kind
from lineage.params import read_params
from lineage.rows import Row, table
from lineage.stage import Stage, run

RESULTS = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Fit and score every cell; with report.split validation the test file is not read."""
    (name,) = stage.arguments
    params, folder = read_params(), Path("artifacts/tasks") / name
    artifacts.manifest(folder, "task")
    facts, split = artifacts.read_json(folder / "task.json"), params.report.split
    kind = load_kind(facts["kind"])
    rows: list[Row] = [*data_rows(facts), *(ceiling_rows(facts, facts["counts"]["test"]) if split == "test" else [])]
    tables: list[pd.DataFrame] = []
    if split not in facts["has"]:
        rows += unscored_rows(facts, split)
    else:
        train = artifacts.read_table(folder / "train.parquet") if kind.trained else None
        scored = artifacts.read_table(folder / f"{split}.parquet")
        held = artifacts.read_table(folder / "validation.parquet") if kind.trained else None
        cells = list(control_rows(kind, facts, train, scored, split=split, seeds=params.grid.seeds, labels=params.grid.labels,
                                  penalties=params.grid.tfidf, validation=held))  # fmt: skip
        rows += [row for some, _ in cells for row in some]
        tables = [predictions for _, predictions in cells]
    artifacts.write_table(RESULTS / "rows" / f"control-{name}.parquet", table(rows))
    artifacts.write_table(RESULTS / "predictions" / f"control-{name}.parquet", predictions_table(tables))


def main() -> None:
    run("control", work)


if __name__ == "__main__":
    main()
