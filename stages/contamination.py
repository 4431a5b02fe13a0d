"""Stage contamination@TASK: the ids of scored items that occur in the corpus."""

from pathlib import Path

import pandas as pd

from lineage.artifacts import check_intact, read_table, write_table
from lineage.config.params import read_recorded_params
from lineage.data.contamination import NgramIndex
from lineage.data.task_data import TaskData
from lineage.language import byte_count
from lineage.runtime.stage import Stage, run_stage
from lineage.tasks.base import load_kind


def work(stage: Stage) -> None:
    """Look for the items of every test set, or of validation if that is the split of the report."""
    (name,) = stage.arguments
    params = read_recorded_params()
    task_dir = Path("artifacts/tasks") / name
    corpus_dir = Path("artifacts/corpora") / params.budget.corpus
    check_intact(corpus_dir, "train.parquet")
    check_intact(task_dir, "unlabelled.parquet")
    task = TaskData.load(task_dir, split=params.report.split)
    language = task.info.language
    kind = load_kind(task.info.kind)
    documents = {}
    for column, path in (
        ("corpus", corpus_dir / "train.parquet"),
        ("unlabelled", task_dir / "unlabelled.parquet"),
    ):
        if path.is_file():
            documents[column] = read_table(path, ["text"])["text"]
    scored_split = params.report.split if not task.info.folds else "train"
    tables = []
    for part in task.split_items(seed=0, fold=None):
        if part.split != scored_split:
            continue
        items = task.select_items(part)
        index = NgramIndex(kind.extract_texts(items, language), language)
        columns: dict[str, object] = {
            "test_set": part.test_set,
            "id": items["id"],
            "long_enough": index.long_enough_N,
        }
        for column, texts in documents.items():
            with stage.work.measure(column, sum(map(byte_count, texts))):
                columns[column] = index.find_items(texts)
        tables.append(pd.DataFrame(columns))
    if not tables:
        tables = [pd.DataFrame(columns=["test_set", "id", "long_enough", *documents])]
    write_table(
        Path(f"artifacts/results/contamination/{stage.file_name}.parquet"),
        pd.concat(tables).assign(task=name),
    )


if __name__ == "__main__":
    run_stage("contamination", work)
