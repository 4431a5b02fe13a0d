"""What pretraining and adaptation share: a language-model training that validates, draws its curve, saves, and goes on after a kill."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lineage.config.params import Params
from lineage.errors import EvaluationError
from lineage.models.base import Encoder
from lineage.models.checkpoint import Checkpoint
from lineage.models.static import sample_training_text
from lineage.randomness import derive_seed
from lineage.runtime.recorder import Tracker
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.training.budget import count_parameters_by_role, count_train_flops
from lineage.training.curve import LearningCurve
from lineage.training.loop import (
    Objective,
    RngState,
    StepOutput,
    TrainPlan,
    TrainState,
    train,
    validate,
)
from lineage.training.objectives import compute_lm_metrics
from lineage.training.optimizers import (
    LR_SCHEDULES,
    AveragedSGD,
    build_pretraining_optimizer,
    is_averaging,
    swap_averaged_weights,
)
from lineage.training.samplers import BatchSampler, iterate_batches

NUM_LOG_POINTS, NUM_VALIDATIONS = (
    200,
    10,
)  # points of the loss curve, about, and of the validation curve
VALIDATION_BATCHES = 10  # of a look on the way, where it chooses nothing
ALL_BATCHES = 1_000_000  # batches


@dataclass(frozen=True)
class TrainContext:
    """Where a training runs and who is told of it. Nothing here changes a result."""

    device: torch.device
    tracker: Tracker
    checkpoint_dir: Path  # the folder of resume points, of these inputs alone
    checkpoint_seconds: float
    report_progress: Callable[[float, str], None]


@dataclass(frozen=True)
class TrainPhase:
    """A part of a training: its batches, held text cut in the same way, and the progress at which it ends."""

    train_sampler: BatchSampler
    validation_sampler: BatchSampler
    end_progress: float = 1.0


def train_language_model(
    state: TrainState,
    objective: Objective,
    phases: Sequence[TrainPhase],
    plan: TrainPlan,
    context: TrainContext,
    curve: LearningCurve,
) -> None:
    """Train to the end of the plan, drawing `curve`, from the last checkpoint if there is one. Raises CellError on a loss that is not finite.

    No checkpoint is made by the last step of a part, so that what was spent tells to which part a checkpoint's place in the stream belongs.
    Where the optimizer has averaged the weights, their means are what is left in the end.
    """
    newest = max(context.checkpoint_dir.glob("step-*"), key=lambda p: int(p.name[5:]), default=None)
    if newest is not None:
        state.load(newest / "run")
        curve.load(newest)
        for point in curve.points:  # the run in MLflow may be another one's, as after a commit in between; it has no point twice
            _log_point(point, context.tracker)
    last_saved, start_time, start_tokens = time.monotonic(), time.monotonic(), state.counters.tokens
    for phase, step in _iterate_steps(state, objective, phases, plan):
        if _record_point(curve, step, state, objective, phase.validation_sampler, plan.precision):
            _log_point(curve.points[-1], context.tracker)
        tokens_per_second = (step.counters.tokens - start_tokens) / max(
            time.monotonic() - start_time, 1e-9
        )
        context.report_progress(
            step.progress, f"{_format_metrics(curve)} {tokens_per_second:,.0f} tokens/s"
        )
        if (
            time.monotonic() - last_saved >= context.checkpoint_seconds
            and step.progress < phase.end_progress
        ):
            _save_checkpoint(
                state, curve, context.checkpoint_dir, seconds=time.monotonic() - start_time
            )
            context.tracker.flush()
            last_saved = time.monotonic()
    swap_averaged_weights(state.optimizer)


def _log_point(point: Mapping[str, float], tracker: Tracker) -> None:
    values = {key: value for key, value in point.items() if key not in ("step", "text_bytes")}
    tracker.log_metrics(values, step=int(point["step"]), text_bytes=int(point["text_bytes"]))


def _iterate_steps(
    state: TrainState, objective: Objective, phases: Sequence[TrainPhase], plan: TrainPlan
) -> Iterator[tuple[TrainPhase, StepOutput]]:
    """The steps of every part that is not done yet; the next one's stream begins at its beginning."""
    for phase in phases:
        if plan.progress(state.counters) < phase.end_progress:
            yield from (
                (phase, step)
                for step in train(
                    state,
                    objective,
                    phase.train_sampler,
                    replace(plan, end_progress=phase.end_progress),
                )
            )
            state.epoch = state.batch_index = 0


def _record_point(
    curve: LearningCurve,
    step: StepOutput,
    state: TrainState,
    objective: Objective,
    validation_sampler: BatchSampler,
    precision: str,
) -> bool:
    """Add a point where progress passes a mark; where it passes a mark of validation, validate. The marks depend on progress alone.

    What NT-ASGD has to remember, the losses of its checks, is in the curve, and is kept with it in each checkpoint.
    """
    curve.pending_losses.append(step.loss)
    previous_progress = curve.points[-1]["progress"] if curve.points else 0.0
    averaging_optimizer = state.optimizer if isinstance(state.optimizer, AveragedSGD) else None
    num_validations, max_batches = (
        (averaging_optimizer.trigger.checks, ALL_BATCHES)
        if averaging_optimizer
        else (NUM_VALIDATIONS, VALIDATION_BATCHES)
    )
    is_validation_step = math.floor(step.progress * num_validations) > math.floor(
        previous_progress * num_validations
    )
    if (
        not is_validation_step
        and math.floor(step.progress * NUM_LOG_POINTS)
        == math.floor(previous_progress * NUM_LOG_POINTS)
        and step.progress < 1
    ):
        return False
    state.run_finite_checks()
    losses = curve.pending_loss_values()  # of all steps since the last point
    point = {
        "step": step.step,
        "progress": step.progress,
        "text_bytes": step.counters.text_bytes,
        "loss": sum(losses) / len(losses),
        "rate": step.learning_rate,
    }
    if is_validation_step:
        if is_averaging(state.optimizer):
            point["averaged"] = 1.0
        swap_averaged_weights(state.optimizer)
        metrics = compute_lm_metrics(
            *validate(
                state.model,
                objective,
                validation_sampler,
                max_batches=max_batches,
                precision=precision,
            )
        )
        swap_averaged_weights(state.optimizer)
        point |= {f"validation_{name}": value for name, value in metrics.items()}
        if not all(math.isfinite(value) for value in metrics.values()):
            raise EvaluationError(
                f"validation is not finite at step {step.step}: {metrics}; lower the rate"
            )
    curve.points.append(point)
    curve.pending_losses = []
    if is_validation_step and averaging_optimizer:
        averaging_optimizer.update_trigger(curve.validation_losses)
    return True


def _format_metrics(curve: LearningCurve) -> str:
    """The last point's loss and the last validation. The loss of the step itself would have to be waited for on a GPU."""
    last_validation = next(
        (
            point
            for point in reversed(curve.points)
            if any(name.startswith("validation_") for name in point)
        ),
        {},
    )
    metrics = {"loss": curve.points[-1]["loss"]} if curve.points else {}
    metrics |= {
        name.removeprefix("validation_"): value
        for name, value in last_validation.items()
        if name.startswith("validation_")
    }
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def _save_checkpoint(
    state: TrainState, curve: LearningCurve, checkpoint_dir: Path, *, seconds: float
) -> None:
    """Save beside the older one, which goes only when the new one is whole."""
    folder = checkpoint_dir / f"step-{state.counters.steps}"
    draft = checkpoint_dir / ".draft"
    shutil.rmtree(draft, ignore_errors=True)
    state.save(draft / "run")
    curve.save(draft, seconds=seconds)
    draft.rename(folder)
    for old in checkpoint_dir.glob("step-*"):
        if old != folder:
            shutil.rmtree(old)


def compute_held_out_metrics(
    model: nn.Module, objective: Objective, sampler: BatchSampler, *, precision: str
) -> dict[str, float]:
    """Bits per byte, or nats a masked target, on a held text, of windows without its last words that fill none; what is not finite is left out."""
    metrics = compute_lm_metrics(
        *validate(model, objective, sampler, max_batches=ALL_BATCHES, precision=precision)
    )
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


@dataclass(frozen=True)
class TrainOutput:
    """A training that ended: well, or failed for good with its reason."""

    model: Encoder
    curve: LearningCurve
    budget_used: dict[str, float | None]  # None where a family has no such thing
    status: str = "ok"
    reason: str = ""


def pretrain(
    checkpoint: Checkpoint, folder: Path, params: Params, context: TrainContext
) -> TrainOutput:
    """Train a new model on a folder of ids within the budget."""
    family, settings, budget = checkpoint.family, checkpoint.pretrain, params.budget
    if family.fit_static is not None:
        return _fit_static(
            checkpoint,
            TokenizedCorpus.load(folder, "train"),
            budget.text_bytes,
            context.report_progress,
        )
    assert family.batch_sampler is not None
    tokens = {split: TokenizedCorpus.load(folder, split) for split in ("train", "valid")}
    phases = []
    for phase_index, (end_progress, phase_settings) in enumerate(settings.parts):
        seed = (
            derive_seed("part", phase_index, checkpoint.seed) if phase_index else checkpoint.seed
        )  # else its pairs and masks would be the same draws
        train_sampler = family.batch_sampler(
            tokens["train"], checkpoint.tokenizer, phase_settings, seed=seed
        )
        phases.append(
            TrainPhase(
                train_sampler,
                family.batch_sampler(
                    tokens["valid"],
                    checkpoint.tokenizer,
                    to_validation_settings(phase_settings),
                    seed=0,
                ),
                end_progress,
            )
        )
    model = checkpoint.build(context.device, load_weights=False)
    state = TrainState(
        model,
        build_pretraining_optimizer([*model.parameters()], settings),
        RngState(derive_seed("pretrain", checkpoint.seed)),
    )
    lr_schedule = LR_SCHEDULES[settings.schedule](settings.warmup_ratio)
    plan = TrainPlan(
        progress=lambda spent: spent.text_bytes / budget.text_bytes,
        lr_schedule=lambda progress: lr_schedule(settings.schedule_progress(progress)),
        learning_rate=settings.rate,
        max_grad_norm=settings.max_grad_norm,
        precision=params.precision,
        grad_accum_steps=settings.grad_accum_steps,
        loss_scale=settings.length if getattr(settings, "loss_by_length", False) else 1.0,
        clip_groups=model.grad_clip_groups(),
    )
    return run_training(
        state, checkpoint, phases, plan, context, corpus_bytes=tokens["train"].text_bytes
    )


def _fit_static(
    checkpoint: Checkpoint,
    tokens: TokenizedCorpus,
    text_bytes: int,
    report_progress: Callable[[float, str], None],
) -> TrainOutput:
    """A model that its family trains in its own way. It has no loss to draw, and nothing to resume: it begins again.

    What is spent is what was read: of a budget of several passes one, where the family counts.
    """
    assert checkpoint.family.fit_static is not None
    model = checkpoint.build(torch.device("cpu"), load_weights=False)
    max_bytes = (
        min(text_bytes, tokens.text_bytes)
        if checkpoint.family.uses_cooccurrence_counts
        else text_bytes
    )
    text = sample_training_text(
        tokens, checkpoint.tokenizer, seed=checkpoint.seed, text_bytes=max_bytes
    )
    checkpoint.family.fit_static(
        model,
        text,
        checkpoint.tokenizer,
        checkpoint.pretrain,
        seed=checkpoint.seed,
        report=report_progress,
    )
    parameter_counts = count_parameters_by_role(model)
    budget_used: dict[str, float | None] = {
        "text_bytes": text.text_bytes,
        "passes": text.epochs,
        "tokens": text.tokens,
        "steps": None,
        "body_parameters": parameter_counts["body"],
        "total_parameters": parameter_counts["total"],
        "train_flops": None,
        "real_token_share": None,
    }
    if all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        return TrainOutput(model, LearningCurve(), budget_used)
    return TrainOutput(
        model, LearningCurve(), budget_used, "failed", "the vectors are not finite; lower the rate"
    )


def wrap_public_model(model: Encoder) -> TrainOutput:
    """A public model as it came. What was spent on it nobody here knows: it is large as it is, and not matched."""
    parameter_counts, unknown = (
        count_parameters_by_role(model),
        ("text_bytes", "passes", "tokens", "steps", "train_flops", "real_token_share"),
    )
    sizes = {
        "body_parameters": parameter_counts["body"],
        "total_parameters": parameter_counts["total"],
    }
    return TrainOutput(model, LearningCurve(), {**dict.fromkeys(unknown), **sizes})


def to_validation_settings(settings: Any) -> Any:
    """The block `pretrain` for held text: whatever a variant learns from, it is asked about the masks of Devlin et al. 2019, section 3.1, so that
    losses compare. Short sequences are off, since all or none of a few held documents would be such; second segments stay the variant's own.
    """
    overrides = {
        "mask_share": 0.15,
        "become": (0.8, 0.1),
        "whole_word": False,
        "most_masked": None,
        "short_share": 0.0,
    }
    return replace(
        settings, **{name: value for name, value in overrides.items() if hasattr(settings, name)}
    )


def run_training(
    state: TrainState,
    checkpoint: Checkpoint,
    phases: Sequence[TrainPhase],
    plan: TrainPlan,
    context: TrainContext,
    *,
    corpus_bytes: int,
) -> TrainOutput:
    """Train along a course, and say what was spent. A training that fails for good is an outcome too."""
    model, objective = state.model, checkpoint.family.objective
    assert isinstance(model, Encoder) and objective is not None
    start_progresses, flops_per_token = [0.0, *(phase.end_progress for phase in phases)], 0.0
    status, reason, curve = "ok", "", LearningCurve()
    try:
        flops_per_token = sum(
            (phase.end_progress - start)
            * _count_flops_per_token(checkpoint, phase.train_sampler, model)
            for start, phase in zip(start_progresses, phases, strict=False)
        )
        train_language_model(state, objective, phases, plan, context, curve)
    except EvaluationError as error:
        status, reason = "failed", str(error)
    parameter_counts, counters = count_parameters_by_role(model), state.counters
    budget_used: dict[str, float | None] = {
        "text_bytes": counters.text_bytes,
        "passes": counters.text_bytes / max(corpus_bytes, 1),
        "tokens": counters.tokens,
        "steps": counters.steps,
        "body_parameters": parameter_counts["body"],
        "total_parameters": parameter_counts["total"],
        "train_flops": round(flops_per_token * counters.tokens),
        "real_token_share": counters.tokens / max(counters.tokens_with_padding, 1),
    }
    return TrainOutput(model, curve, budget_used, status, reason)


def _count_flops_per_token(checkpoint: Checkpoint, sampler: BatchSampler, model: Encoder) -> float:
    """Operations a real token, from the first batch."""
    _, _, batch = next(iterate_batches(sampler))
    device = next(model.parameters()).device
    with RngState(0).activate(device):
        return count_train_flops(model, checkpoint.family, batch.to(device)) / batch.num_tokens
