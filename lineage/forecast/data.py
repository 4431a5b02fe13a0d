"""The prepared data of a study, and small samples of them for a rehearsal."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lineage.artifacts import create_artifact, read_json, read_table, write_table
from lineage.config.params import Params
from lineage.data.corpus import count_text_bytes, locate_corpus
from lineage.data.prepare_task import locate_task
from lineage.data.prepared import PreparedData
from lineage.data.splits import nested_stratified_subset, stratification_labels
from lineage.language import byte_count
from lineage.randomness import generator
from lineage.tasks.info import TaskInfo

CORPUS_BYTES = {"train": 1_000_000, "valid": 40_000}  # of the sample
UNLABELLED_BYTES = 300_000
MAX_SCORED_ITEMS = 64  # of each table that is not trained on, if the task has one that is
MAX_FOLDS = 3  # fewer cannot be made of groups


def copy_corpus(params: Params, root: Path, scratch: Path) -> Path:
    """Copy the corpus of these parameters, or read it again. Raises InputError."""
    name = params.budget.corpus
    where = f"params.yaml: corpora.{name}"
    corpus = locate_corpus(name, params.corpora[name], seed=params.seed, root=root, where=where)
    return _copy(corpus, Path("corpora") / name, scratch, _is_corpus_of)


def copy_task(name: str, params: Params, root: Path, scratch: Path) -> Path:
    """Copy the task of these parameters, or read it again. Raises InputError."""
    where = f"params.yaml: tasks.{name}"
    task = locate_task(name, params.tasks[name], seed=params.seed, root=root, where=where)
    return _copy(task, Path("tasks") / name, scratch, _is_task_of)


def _copy(
    prepared: PreparedData, folder: Path, scratch: Path, is_same: Callable[[Path, Path], bool]
) -> Path:
    """Copy prepared data, or the artifact in which they are already; else build them."""
    artifact = "artifacts" / folder
    with create_artifact(scratch / folder, prepared.stage, name=prepared.name) as draft:
        if prepared.folder.is_dir():
            shutil.copytree(prepared.folder, draft, dirs_exist_ok=True)
        elif prepared.measures_path.is_file() and is_same(artifact, prepared.measures_path):
            shutil.copytree(artifact, draft, dirs_exist_ok=True)
            (draft / "manifest.json").unlink()
        else:
            prepared.build(draft)
    return scratch / folder


def _is_corpus_of(artifact: Path, measures_path: Path) -> bool:
    """Tell whether an artifact of a corpus has the counts that were measured."""
    if not (artifact / "counts.json").is_file():
        return False
    measures = read_json(measures_path)
    counts = read_json(artifact / "counts.json")
    is_same = counts["read"] == measures["num_read"]
    return bool(is_same and counts["bytes"]["train"] == measures["train_bytes"])


def _is_task_of(artifact: Path, measures_path: Path) -> bool:
    """Tell whether an artifact of a task has the counts that were measured."""
    if not (artifact / "task.json").is_file():
        return False
    counts = read_json(artifact / "task.json")["counts"]
    return bool(counts.get("train", 0) == read_json(measures_path)["num_train"])


def sample_corpus(folder: Path, target: Path, *, seed: int) -> None:
    """Write random documents of a corpus as an artifact."""
    with create_artifact(target, "corpus", name=target.name) as draft:
        for split, max_bytes in CORPUS_BYTES.items():
            table = read_table(folder / f"{split}.parquet")
            write_table(draft / f"{split}.parquet", _sample_texts(table, max_bytes, seed=seed))


def sample_task(folder: Path, target: Path, *, max_train_items: int, seed: int) -> None:
    """Write some items of each table of a task as an artifact: of each label, in train."""
    has_train = (folder / "train.parquet").is_file()
    max_scored_items = min(MAX_SCORED_ITEMS, max_train_items) if has_train else max_train_items
    with create_artifact(target, "task", name=target.name) as draft:
        for path in folder.glob("*.parquet"):
            table = read_table(path)
            if path.stem == "unlabelled":
                sample = _sample_texts(table, UNLABELLED_BYTES, seed=seed)
            else:
                is_train = path.stem == "train"
                max_items = max_train_items if is_train else max_scored_items
                labels = stratification_labels(table) if is_train else np.zeros(len(table))
                sample = table.iloc[nested_stratified_subset(labels, max_items, seed=seed)]
            write_table(draft / path.name, sample)
        info = TaskInfo.read(folder)
        folds = info.folds and min(info.folds, MAX_FOLDS)
        replace(info, folds=folds).write(draft)


def _sample_texts(table: pd.DataFrame, max_bytes: int, *, seed: int) -> pd.DataFrame:
    """Take random rows, in their order, until their texts have `max_bytes`."""
    order = generator("forecast", seed).permutation(len(table))
    sizes = np.array([byte_count(text) for text in table["text"]])[order].cumsum()
    num_taken = max(2, int((sizes < max_bytes).sum()))
    return table.iloc[sorted(order[:num_taken])]


def measure_corpus(folder: Path) -> dict[str, int]:
    """Return the bytes of text of each split of a corpus."""
    return {
        split: count_text_bytes(read_table(folder / f"{split}.parquet", ["text"]))
        for split in CORPUS_BYTES
    }
