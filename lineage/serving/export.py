"""Export a model to the files of another library, or a system to a folder that needs no study."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from lineage.artifacts import MANIFEST_FILE, write_json
from lineage.config.data import Task
from lineage.config.params import read_recorded_params
from lineage.errors import InputError
from lineage.families.elmo import ElmoModel
from lineage.formats import bilm, huggingface, word2vec
from lineage.methods.saved import MODEL_FOLDER, SystemRecord, locate_model
from lineage.networks.base import Encoder
from lineage.networks.checkpoint import INTERMEDIATE_PREFIX, Checkpoint
from lineage.networks.static import StaticVectors
from lineage.networks.weights import WEIGHTS_FILE
from lineage.serving.predict import TASK_FILE, describe_new_items, list_word_columns
from lineage.serving.systems import (
    KeptSystem,
    check_files,
    choose_system,
    list_systems,
    locate_trained_model,
)
from lineage.tasks.base import load_kind

FORMATS = ("transformers", "elmo", "word2vec")


def export(
    name: str, out: Path, *, file_format: str | None = None, label_count: str | None = None
) -> str:
    """Export MODEL, MODEL@TASK or TASK/SYSTEM, and return a sentence that says what was written.

    By default the format is the one that models of the family have. Raises InputError.
    """
    if file_format not in (None, *FORMATS):
        raise InputError(f"--format: '{file_format}' is not one of {', '.join(FORMATS)}")
    if out.exists():
        raise InputError(f"{out}: it exists already; give another name, or remove it")
    params = read_recorded_params()
    if "/" in name:
        if file_format is not None:
            raise InputError(
                "--format: a system is written as a folder for `lineage predict`; leave it out, or "
                "name a model"
            )
        task, system = name.split("/", 1)
        kept = choose_system(list_systems(params, task), system, label_count)
        export_system(kept, params.tasks[task], out)
        return f"{out}: {kept.record.name}, for `lineage predict --system {out}`"
    if label_count is not None:
        raise InputError("--labels: a model was not trained on labels; leave it out")
    checkpoint = Checkpoint.load(locate_trained_model(params, name))
    model = checkpoint.build(torch.device("cpu"))
    if file_format is None:
        file_format = "elmo" if isinstance(model, ElmoModel) else "transformers"
        if isinstance(model, StaticVectors):
            file_format = "word2vec"
    return _export_model(checkpoint, model, file_format, out)


def export_system(kept: KeptSystem, task: Task, out: Path) -> None:
    """Copy a system with its model and tokenizer. Raises InputError if a file is damaged."""
    record = kept.record
    check_files(kept)
    with _new_folder(out) as draft:
        shutil.copytree(kept.folder, draft, dirs_exist_ok=True)
        if record.model_folder is not None:
            _copy_model(locate_model(kept.folder, record), draft / MODEL_FOLDER, record)
        write_json(draft / TASK_FILE, _describe_columns(task, record))


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; it gets its name when it is complete."""
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copy_model(source: Path, target: Path, record: SystemRecord) -> None:
    """Copy a model; its weights only if a frozen head reads them."""
    skipped = [MANIFEST_FILE, f"{INTERMEDIATE_PREFIX}*"]
    if record.transfer != "frozen" or record.init == "random":
        skipped.append(WEIGHTS_FILE)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*skipped))


def _describe_columns(task: Task, record: SystemRecord) -> dict[str, Any]:
    """Return the keys of a task that say how new items are read."""
    kind = load_kind(record.kind)
    new_task = describe_new_items(task, kind, [])
    keys = ("kind", "language", "csv_quoting", "symmetric", "max_words", *kind.input_columns)
    values = asdict(new_task)
    if word_columns := list_word_columns(task):
        values["columns"] = word_columns
        keys = (*keys, "columns")
    # A task must name its data; that of an exported one is not there.
    return {key: values[key] for key in keys} | {"files": {"test": "new"}}


def _export_model(checkpoint: Checkpoint, model: Encoder, file_format: str, out: Path) -> str:
    tokenizer = checkpoint.tokenizer
    if file_format == "word2vec":
        vectors = word2vec.get_word_vectors(model, tokenizer)
        is_binary = out.suffix == ".bin"
        word2vec.write_word2vec(vectors, out, binary=is_binary)
        return f"{out}: {len(vectors.words):,} word vectors, {'binary' if is_binary else 'as text'}"
    if file_format == "elmo":
        with _new_folder(out) as draft:
            bilm.write_bilm(
                cast(ElmoModel, model),  # it raises InputError for other models
                draft / "options.json",
                draft / "weights.hdf5",
                max_word_bytes=tokenizer.max_word_bytes,
            )
        return f"{out}: options.json and weights.hdf5"
    with _new_folder(out) as draft:
        huggingface.write_hf_folder(model, tokenizer, draft)
    return f"{out}: a folder of transformers, for AutoModel.from_pretrained"
