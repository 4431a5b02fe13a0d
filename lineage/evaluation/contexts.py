"""Open a trained model and a task, for the stages that evaluate the model or fit it again."""

from pathlib import Path

from lineage.artifacts import check_intact, read_json, read_manifest
from lineage.config.params import Params
from lineage.data.task_data import TaskData
from lineage.methods.encoder import EvalContext
from lineage.methods.registry import EvaluateSettings
from lineage.networks.base import Public
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.settings import read_runtime_settings
from lineage.training.devices import select_device


def pretrained_dir(name: str, seed: str) -> Path:
    return Path(f"artifacts/pretrained/{name}/{seed}")


def read_text_bytes(model_dir: Path) -> int | None:
    """Return the bytes of text that a training run has read; None if it read none."""
    text_bytes: int | None = read_json(model_dir / "spent.json")["text_bytes"]
    return text_bytes


def open_context(
    params: Params,
    settings: EvaluateSettings,
    *,
    source_dir: Path,
    model_dir: Path,
    task: TaskData,
    seed: int,
) -> EvalContext:
    """Load a model, to be used on a task. Raises InputError if its files are damaged."""
    check_intact(model_dir)
    checkpoint = Checkpoint.load(model_dir)
    text_bytes = read_text_bytes(model_dir)
    if isinstance(checkpoint.family, Public):
        text_bytes = None  # nobody knows how much its first training has read
    elif model_dir.is_relative_to("artifacts/adapted") and text_bytes is not None:
        pretrained_bytes = read_text_bytes(source_dir)
        text_bytes = None if pretrained_bytes is None else pretrained_bytes + text_bytes
    runtime = read_runtime_settings()
    return EvalContext(
        checkpoint=checkpoint,
        task=task,
        settings=settings,
        pretrain_seed=seed,
        text_bytes=text_bytes,
        precision=params.precision,
        device=select_device(params.device, runtime.device_index),
        tokens_dir=model_dir,
        failure_reason=read_manifest(model_dir, "model")["reason"],
        checkpoint_seconds=runtime.checkpoint_seconds,
    )
