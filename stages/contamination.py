"""Stage contamination@T: the scored items of a task that stand in the corpus, or in the task's own unlabelled text -> their ids."""

from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.config.params import read_params
from lineage.data.contamination import NgramIndex
from lineage.data.task_data import TaskData, fold_numbers
from lineage.runtime.stage import Stage, run_stage
from lineage.tasks.base import load_kind

RESULTS_DIR = Path("artifacts/results/contamination")


def work(stage: Stage) -> None:
    """Look for the items of every test set; with report.split validation for those of validation, and the test file is not read."""
    (name,) = stage.arguments
    params, folder = read_params(), Path("artifacts/tasks") / name
    task = TaskData.load(folder, split=params.report.split)
    read = {
        "corpus": Path("artifacts/corpora") / params.budget.corpus / "train.parquet",
        "unlabelled": folder / "unlabelled.parquet",
    }
    documents = {
        text: artifacts.read_table(path, ["text"])["text"]
        for text, path in read.items()
        if path.is_file()
    }
    scored = params.report.split if fold_numbers(task.info) == [None] else "train"
    tables = [pd.DataFrame(columns=["test_set", "id", "long_enough", *documents])]
    for part in task.split_items(seed=0, fold=None):
        if part.split == scored:
            items = task.select_items(part)
            index = NgramIndex(
                load_kind(task.info["kind"]).extract_texts(items, task.info["language"]),
                task.info["language"],
            )
            found = {text: index.find_items(some) for text, some in documents.items()}
            tables.append(
                pd.DataFrame(
                    {
                        "test_set": part.test_set,
                        "id": items["id"],
                        "long_enough": index.long_enough_N,
                    }
                    | found
                )
            )
    artifacts.write_table(
        RESULTS_DIR / f"contamination-{name}.parquet",
        pd.concat(tables[1:] or tables).assign(task=name),
    )


def main() -> None:
    """Run the stage."""
    run_stage("contamination", work)


if __name__ == "__main__":
    main()
