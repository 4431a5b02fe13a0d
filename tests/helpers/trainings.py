"""Trainings of tiny models in the process of a test."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from safetensors.torch import save_file

from lineage.artifacts import create_artifact
from lineage.config.params import read_params
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.tracking import MlflowTracker
from lineage.training.best_weights import BestWeights
from lineage.training.curve import LearningCurve
from lineage.training.loop import TrainPlan
from lineage.training.optimizers import AdaptSettings, AveragedSGD
from lineage.training.pretrain import TrainOutput, pretrain
from lineage.training.schedules import schedule_with_warmup
from lineage.training.settings import NonMonotonicTrigger
from lineage.training.state import RngState, TrainState
from lineage.training.train_run import TrainContext, TrainPhase, TrainRun
from tests.helpers import tiny

DEMO_PARAMS = read_params(tiny.ROOT / "params.yaml")
ADAPT_SETTINGS = AdaptSettings(
    learning_rate=0.01,
    layer_lr_decay=1 / 1.3,
    cut_frac=0.1,
    ratio=32.0,
    weight_decay=0.0,
    max_grad_norm=1.0,
)


def build_train_context(resume_dir: Path, **changes: Any) -> TrainContext:
    """Return the context of a training without MLflow, which saves no resume point."""
    context = TrainContext(tiny.CPU, MlflowTracker(None), resume_dir, 99, lambda *_: None)
    return dataclasses.replace(context, **changes)


def build_saved_checkpoint(name: str, folder: Path, **overrides: Any) -> Checkpoint:
    """Return an untrained model with its weights in a file."""
    save_file(tiny.model(name).state_dict(), folder / "model.safetensors")
    return dataclasses.replace(
        tiny.checkpoint(name, **overrides), weights_path=folder / "model.safetensors"
    )


def pretrain_tiny_model(
    name: str, folder: Path, text_bytes: int, **overrides: Any
) -> tuple[TrainOutput, Checkpoint]:
    """Pretrain a tiny model in a folder, and return the output and the checkpoint."""
    checkpoint = tiny.checkpoint(name, **overrides)
    with create_artifact(folder / "tokens", "tokens") as draft:
        tiny.corpus(name).save(draft, "train")
        tiny.corpus(name).save(draft, "valid")
    budget = dataclasses.replace(DEMO_PARAMS.budget, text_bytes=text_bytes)
    params = dataclasses.replace(DEMO_PARAMS, budget=budget)
    context = build_train_context(folder / "resume")
    return pretrain(checkpoint, folder / "tokens", params, context), checkpoint


def build_averaged_run(trigger: NonMonotonicTrigger) -> tuple[TrainState, Any, Any]:
    """Return a tiny AWD-LSTM with averaged SGD, and samplers for train and validation."""
    samplers = [tiny.sampler("ulmfit", seed=seed) for seed in (1, 0)]
    model = tiny.model("ulmfit", architecture=tiny.dropout_config("ulmfit", 0.1))
    return TrainState(
        model,
        AveragedSGD(
            [{"params": [*model.parameters()], "weight_decay": 1.2e-6, "lr_scale": 1.0}], trigger
        ),
        RngState(1),
    ), *samplers


def train_to_4000_bytes(
    train_state: TrainState,
    sampler: Any,
    validation_sampler: Any,
    resume_dir: Path,
    after_step: Callable[[], None] = lambda: None,
    tracker: Any = None,
    best: BestWeights | None = None,
) -> LearningCurve:
    """Train on 4,000 bytes at a constant learning rate, and save the state after every step.

    `after_step` is called after every step.
    """
    objective, curve = tiny.model_config("ulmfit").family.objective, LearningCurve()
    assert objective is not None
    plan = TrainPlan(
        lambda counters: counters.text_bytes / 4000,
        schedule_with_warmup("constant", 0.0),
        learning_rate=2.0,
        max_grad_norm=0.25,
        precision="fp32",
    )
    context = build_train_context(
        resume_dir,
        tracker=tracker or MagicMock(),
        checkpoint_seconds=0.0,
        report_progress=lambda *_: after_step(),
    )
    phases = [TrainPhase(sampler, validation_sampler)]
    TrainRun(train_state, objective, phases, plan, context, curve, best=best).run()
    return curve
