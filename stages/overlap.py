"""Stage overlap@T: the scored items of a task that stand in the corpus, or in the task's own unlabelled text -> their ids."""

from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.kind import load_kind
from lineage.loading.taskdata import TaskData, folds_of
from lineage.params import read_params
from lineage.running.stage import Stage, run
from lineage.text.overlap import Sought

RESULTS = Path("artifacts/results/overlap")


def work(stage: Stage) -> None:
    """Look for the items of every test set; with report.split validation for those of validation, and the test file is not read."""
    (name,) = stage.arguments
    params, folder = read_params(), Path("artifacts/tasks") / name
    task = TaskData.load(folder, split=params.report.split)
    read = {"corpus": Path("artifacts/corpora") / params.budget.corpus / "train.parquet", "unlabelled": folder / "unlabelled.parquet"}
    documents = {text: artifacts.read_table(path, ["text"])["text"] for text, path in read.items() if path.is_file()}
    scored = params.report.split if folds_of(task.facts) == [None] else "train"
    tables = [pd.DataFrame(columns=["test_set", "id", "long_enough", *documents])]
    for part in task.parts(seed=0, fold=None):
        if part.split == scored:
            items = task.items(part)
            sought = Sought(load_kind(task.facts["kind"]).texts(items, task.facts["language"]), task.facts["language"])
            found = {text: sought.look(some) for text, some in documents.items()}
            tables.append(pd.DataFrame({"test_set": part.test_set, "id": items["id"], "long_enough": sought.long_enough_N} | found))
    artifacts.write_table(RESULTS / f"overlap-{name}.parquet", pd.concat(tables[1:] or tables).assign(task=name))


def main() -> None:
    """Run the stage."""
    run("overlap", work)


if __name__ == "__main__":
    main()
