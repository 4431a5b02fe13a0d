"""Device, training and output of the stages that train language models."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lineage.artifacts import create_artifact, file_digest, write_json, write_table
from lineage.config.params import Params
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.recorder import Tracker
from lineage.runtime.settings import read_runtime_settings
from lineage.runtime.stage import Stage
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.training.devices import configure_torch, select_device
from lineage.training.pretrain import TrainOutput
from lineage.training.train_run import TrainContext


def prepare_torch(stage: Stage, params: Params, *, on_cpu: bool = False) -> torch.device:
    """Configure torch for a stage, and return its device, which is noted in the metadata."""
    configure_torch(params.threads)
    requested = "cpu" if on_cpu else params.device
    device = select_device(requested, read_runtime_settings().device_index)
    stage.metadata["device"] = str(device)
    return device


@contextlib.contextmanager
def open_training(
    stage: Stage, part: str, device: torch.device, tracker: Tracker, resume_dir: Path
) -> Iterator[TrainContext]:
    """Show the progress of a training, and give it what it needs of the stage."""
    seconds = read_runtime_settings().checkpoint_seconds
    with stage.show_progress(part, 1.0) as report:
        yield TrainContext(device, tracker, resume_dir, seconds, report, stage.work)


def write_training(
    stage: Stage,
    folder: Path,
    checkpoint: Checkpoint,
    output: TrainOutput,
    *,
    extra_files: Mapping[str, Any] | None = None,
    running_text: Path | None = None,
) -> None:
    """Write the model with its intermediate checkpoints, the budget that it used, and its curve.

    `extra_files` are further JSON files of the model's folder. `running_text` is the tokenized
    corpus of a model that continues with it in fine-tuning.
    """
    files = {"spent.json": dataclasses.asdict(output.budget_used), **(extra_files or {})}
    with create_artifact(folder, "model", status=output.status, reason=output.reason) as draft:
        checkpoint.save(draft, output.model)
        for name, content in files.items():
            write_json(draft / name, content)
        for kept in output.intermediate_folders:
            shutil.copytree(kept, draft / kept.name)
        if running_text is not None:
            TokenizedCorpus.load(running_text, "train").save(draft, "train")
    curve_path = Path(f"artifacts/results/curves/{stage.file_name}.parquet")
    write_table(curve_path, output.curve.to_frame())
    stage.metadata["curve_sha256"] = file_digest(curve_path)
    stage.earlier_seconds = output.curve.previous_seconds
    stage.earlier_own_seconds = output.curve.previous_own_seconds
