"""The prepared data of a study, and a sample of its corpus."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lineage.artifacts import create_artifact, folder_bytes, read_json, read_table, write_table
from lineage.config.params import Params
from lineage.data.corpus import count_text_bytes
from lineage.data.items import task_fingerprint
from lineage.data.prepare_corpus import (
    corpus_fingerprint,
    locate_prepared_corpus,
    prepare_corpus,
)
from lineage.data.prepare_task import locate_prepared_task, prepare_task
from lineage.randomness import generator

SAMPLE_BYTES = 1_000_000  # of training text
VALID_SAMPLE_BYTES = 200_000


@dataclass(frozen=True)
class CorpusSizes:
    """Bytes and documents of a corpus, and of the sample that the probe reads."""

    train_bytes: int
    train_documents: int
    valid_bytes: int
    disk_bytes: int
    sample_bytes: int


def copy_corpus(params: Params, root: Path, scratch: Path) -> CorpusSizes:
    """Write a sample of the corpus as an artifact in the scratch folder. Raises InputError."""
    name = params.budget.corpus
    folder = _find_corpus(params, root, scratch)
    tables = {
        split: read_table(folder / f"{split}.parquet", ["text", "language"])
        for split in ("train", "valid")
    }
    limits = {"train": SAMPLE_BYTES, "valid": VALID_SAMPLE_BYTES}
    samples = {
        split: _sample_documents(table, limits[split], seed=params.seed)
        for split, table in tables.items()
    }
    with create_artifact(scratch / "corpora" / name, "corpus", name=name) as draft:
        for split, sample in samples.items():
            write_table(draft / f"{split}.parquet", sample)
    return CorpusSizes(
        train_bytes=count_text_bytes(tables["train"]),
        train_documents=len(tables["train"]),
        valid_bytes=count_text_bytes(tables["valid"]),
        disk_bytes=folder_bytes(folder),
        sample_bytes=count_text_bytes(samples["train"]),
    )


def _sample_documents(table: pd.DataFrame, max_bytes: int, *, seed: int) -> pd.DataFrame:
    """Take random documents, in their order, until they have `max_bytes`."""
    order = generator("forecast", seed).permutation(len(table))
    sizes = table["text"].str.len().to_numpy()[order].cumsum()
    num_taken = max(1, int((sizes < max_bytes).sum()))
    return table.iloc[sorted(order[:num_taken])].reset_index(drop=True)


def _find_corpus(params: Params, root: Path, scratch: Path) -> Path:
    """Return the folder with the corpus of these parameters; read it again if there is none."""
    name = params.budget.corpus
    corpus = params.corpora[name]
    where = f"params.yaml: corpora.{name}"
    fingerprint = corpus_fingerprint(corpus, root, where)
    prepared = locate_prepared_corpus(name, corpus, fingerprint, seed=params.seed)
    artifact = Path("artifacts/corpora") / name
    if prepared.folder.is_dir():
        return prepared.folder
    if prepared.measures_path.is_file() and (artifact / "counts.json").is_file():
        measures = read_json(prepared.measures_path)
        counts = read_json(artifact / "counts.json")
        is_same = counts["read"] == measures["num_read"]
        if is_same and counts["bytes"]["train"] == measures["train_bytes"]:
            return artifact
    folder = scratch / "read" / name
    folder.mkdir(parents=True)
    prepare_corpus(corpus, folder, seed=params.seed, root=root, where=where)
    return folder


def copy_task(name: str, params: Params, root: Path, scratch: Path) -> Path:
    """Write a task's artifact into the scratch folder, as the stage does. Raises InputError."""
    task = params.tasks[name]
    where = f"params.yaml: tasks.{name}"
    fingerprint = task_fingerprint(task, root, where)
    prepared = locate_prepared_task(name, task, fingerprint, seed=params.seed)
    artifact = Path("artifacts/tasks") / name
    target = scratch / "tasks" / name
    with create_artifact(target, "task", name=name) as draft:
        if prepared.folder.is_dir():
            shutil.copytree(prepared.folder, draft, dirs_exist_ok=True)
        elif prepared.measures_path.is_file() and _is_artifact_of(artifact, prepared.measures_path):
            shutil.copytree(artifact, draft, dirs_exist_ok=True)
            (draft / "manifest.json").unlink()
        else:
            prepare_task(name, task, draft, seed=params.seed, root=root, where=where)
    return target


def _is_artifact_of(artifact: Path, measures_path: Path) -> bool:
    """Tell whether an artifact of a task has the counts that were measured."""
    if not (artifact / "task.json").is_file():
        return False
    counts = read_json(artifact / "task.json")["counts"]
    return bool(counts.get("train", 0) == read_json(measures_path)["num_train"])
