"""Pretrain a model: train, validate, record the curve, save checkpoints, and resume after a kill.

Adaptation uses the same functions.
"""

import contextlib
import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lineage.artifacts import create_artifact, is_intact
from lineage.config.params import Params
from lineage.errors import EvaluationError
from lineage.models.base import Encoder, LanguageModelFamily, Public, Static
from lineage.models.checkpoint import Checkpoint
from lineage.models.static import sample_training_text
from lineage.randomness import derive_seed
from lineage.runtime.recorder import Tracker
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.best_weights import BestWeights
from lineage.training.budget import (
    count_parameters_by_role,
    count_train_flops,
    match_parameter_budget,
)
from lineage.training.curve import CurvePoint, LearningCurve
from lineage.training.intermediate import IntermediateCheckpoints
from lineage.training.loop import Objective, StepOutput, TrainPlan, train, validate
from lineage.training.objectives import compute_lm_metrics
from lineage.training.optimizers import (
    AveragedSGD,
    build_pretraining_optimizer,
    is_averaging,
    swap_averaged_weights,
)
from lineage.training.samplers import BatchSampler, iterate_batches
from lineage.training.schedules import LR_SCHEDULES
from lineage.training.settings import BilmPretrainSettings, MaskReplacement, PretrainSettings
from lineage.training.state import RngState, TrainState, read_counters

if TYPE_CHECKING:
    from lineage.config.study import ModelConfig

RESUME_POINT = "resume_point"  # the kind of artifact
NUM_LOG_POINTS = 200  # points of the loss curve, about
NUM_VALIDATIONS = 10
VALIDATION_BATCHES = 10  # of a validation that decides nothing
ALL_BATCHES = 1_000_000  # more than any held-out text has


@dataclass(frozen=True)
class TrainContext:
    """The environment of a training run. It does not change the result."""

    device: torch.device
    tracker: Tracker
    checkpoint_dir: Path  # resume points of these inputs alone
    checkpoint_seconds: float
    report_progress: Callable[[float, str], None]


@dataclass(frozen=True)
class TrainPhase:
    """A part of a training run: its batches, those of held-out text, and its end."""

    train_sampler: BatchSampler
    validation_sampler: BatchSampler
    end_progress: float = 1.0


@dataclass(frozen=True)
class BudgetUsed:
    """The budget that a training run used; None if unknown or not applicable to the family."""

    text_bytes: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    steps: int | None = None
    body_parameters: int | None = None
    total_parameters: int | None = None
    train_flops: int | None = None
    non_padding_token_share: float | None = None


@dataclass(frozen=True)
class TrainOutput:
    """The result of a training. A failed one has the status failed and a reason."""

    model: Encoder
    curve: LearningCurve
    budget_used: BudgetUsed
    status: str = "ok"
    reason: str = ""
    intermediate_folders: tuple[Path, ...] = ()  # in the resume folder; empty if it failed


def build_checkpoint(
    model: "ModelConfig",
    params: Params,
    tokenizer: Tokenizer,
    *,
    seed: int,
    public_folder: Path | None = None,
) -> tuple[Checkpoint, Encoder | None]:
    """Return the untrained model, as wide as the budget allows, and a public checkpoint's model.

    `seed` is one of grid.pretrain_seeds. `public_folder` holds the public checkpoint, if the model
    is one.
    """
    architecture = match_parameter_budget(
        model.family,
        model.architecture,
        vocab_size=tokenizer.vocab_size,
        body_parameters=params.budget.body_parameters,
    )
    settings = model.pretrain
    public_model = None
    if isinstance(model.family, Public):
        assert public_folder is not None, "the study was checked"
        head_generator = None
        if model.family.reads_corpus(settings):
            head_generator = torch.Generator()
            head_generator.manual_seed(derive_seed("new head", params.seed, seed))
        architecture, public_model = model.family.load_pretrained(
            public_folder, architecture, head_generator=head_generator
        )
        settings = settings.with_default_seq_len(architecture.max_positions)
    checkpoint = Checkpoint(
        model.name,
        model.family,
        architecture,
        settings,
        tokenizer,
        seed=derive_seed(params.seed, seed),
    )
    return checkpoint, public_model


def pretrain(
    checkpoint: Checkpoint,
    folder: Path,
    params: Params,
    context: TrainContext,
    *,
    public_model: Encoder | None = None,
) -> TrainOutput:
    """Train a new model, or a public one, on a folder of token ids within the budget."""
    family = checkpoint.family
    tokens = TokenizedCorpus.load(folder, "train")
    if isinstance(family, Static):
        budget_bytes = params.budget.text_bytes
        return fit_static(checkpoint, family, tokens, budget_bytes, context.report_progress)
    validation_tokens = TokenizedCorpus.load(folder, "valid")
    training = build_training(
        checkpoint, tokens, validation_tokens, params, context.device, public_model=public_model
    )
    intermediate = IntermediateCheckpoints(
        checkpoint, params.grid.text_shares, context.checkpoint_dir
    )
    return run_training(
        training.state,
        checkpoint,
        training.phases,
        training.plan,
        context,
        corpus_bytes=tokens.text_bytes,
        intermediate=intermediate,
    )


@dataclass(frozen=True)
class Training:
    """A model to train, its batches and the plan."""

    state: TrainState
    phases: list[TrainPhase]
    plan: TrainPlan


def build_training(
    checkpoint: Checkpoint,
    tokens: TokenizedCorpus,
    validation_tokens: TokenizedCorpus,
    params: Params,
    device: torch.device,
    *,
    public_model: Encoder | None = None,
) -> Training:
    """Build the model, its optimizer, its batches and the plan of its training.

    A `public_model` continues with its own weights; otherwise the model is new.
    """
    settings = checkpoint.pretrain
    budget_bytes = params.budget.text_bytes
    if public_model is None:
        model = checkpoint.build(device, load_weights=False)
    else:
        model = public_model.to(device)
    state = TrainState(
        model,
        build_pretraining_optimizer([*model.parameters()], settings),
        RngState(derive_seed("pretrain", checkpoint.seed)),
    )
    lr_schedule = LR_SCHEDULES[settings.schedule](settings.warmup_ratio)
    plan = TrainPlan(
        progress=lambda counters: counters.text_bytes / budget_bytes,
        lr_schedule=lambda progress: lr_schedule(settings.schedule_progress(progress)),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=params.precision,
        grad_accum_steps=settings.grad_accum_steps,
        loss_scale=_loss_scale(settings),
        clip_groups=model.grad_clip_groups(),
    )
    return Training(state, _build_phases(checkpoint, tokens, validation_tokens), plan)


def _build_phases(
    checkpoint: Checkpoint, tokens: TokenizedCorpus, validation_tokens: TokenizedCorpus
) -> list[TrainPhase]:
    family = checkpoint.family
    assert isinstance(family, LanguageModelFamily)
    build_sampler = family.batch_sampler
    phases = []
    for index, (end_progress, settings) in enumerate(checkpoint.pretrain.phases):
        seed = checkpoint.seed
        if index > 0:  # with the same seed, pairs and masks would repeat
            seed = derive_seed("part", index, checkpoint.seed)
        train_sampler = build_sampler(tokens, checkpoint.tokenizer, settings, seed=seed)
        validation_sampler = build_sampler(
            validation_tokens, checkpoint.tokenizer, to_validation_settings(settings), seed=0
        )
        phases.append(TrainPhase(train_sampler, validation_sampler, end_progress))
    return phases


def _loss_scale(settings: PretrainSettings) -> float:
    if isinstance(settings, BilmPretrainSettings) and settings.scale_loss_by_seq_len:
        return settings.seq_len
    return 1.0


def to_validation_settings(settings: Any) -> Any:
    """Return a block `pretrain` for held-out text.

    All models are validated with the masks of Devlin et al. 2019, section 3.1, so that their losses
    are comparable. Short sequences are off, since all or none of a few held-out documents would be
    short. Next-sentence prediction stays as it is.
    """
    overrides = {
        "mlm_probability": 0.15,
        "mask_replacement": MaskReplacement(),
        "whole_word_masking": False,
        "max_predictions_per_seq": None,
        "short_seq_prob": 0.0,
    }
    applicable = {name: value for name, value in overrides.items() if hasattr(settings, name)}
    return replace(settings, **applicable)


def run_training(
    state: TrainState,
    checkpoint: Checkpoint,
    phases: Sequence[TrainPhase],
    plan: TrainPlan,
    context: TrainContext,
    *,
    corpus_bytes: int,
    best: BestWeights | None = None,
    intermediate: IntermediateCheckpoints | None = None,
) -> TrainOutput:
    """Train according to a plan. A training that fails has an output too.

    For `best` and `intermediate` see `train_language_model`.
    """
    model = state.model
    family = checkpoint.family
    assert isinstance(model, Encoder) and isinstance(family, LanguageModelFamily)
    objective = family.objective
    curve = LearningCurve()
    status = "ok"
    reason = ""
    flops_per_token = 0.0
    try:
        flops_per_token = mean_flops_per_token(checkpoint, phases, model)
        train_language_model(
            state, objective, phases, plan, context, curve, best=best, intermediate=intermediate
        )
    except EvaluationError as error:
        status = "failed"
        reason = str(error)
    parameter_counts = count_parameters_by_role(model)
    counters = state.counters
    budget_used = BudgetUsed(
        text_bytes=counters.text_bytes,
        epochs=counters.text_bytes / max(corpus_bytes, 1),
        tokens=counters.tokens,
        steps=counters.steps,
        body_parameters=parameter_counts["body"],
        total_parameters=parameter_counts["total"],
        train_flops=round(flops_per_token * counters.tokens),
        non_padding_token_share=counters.tokens / max(counters.tokens_with_padding, 1),
    )
    kept_folders: tuple[Path, ...] = ()
    if intermediate is not None and status == "ok":
        kept_folders = tuple(intermediate.folders.values())
    return TrainOutput(model, curve, budget_used, status, reason, kept_folders)


def mean_flops_per_token(
    checkpoint: Checkpoint, phases: Sequence[TrainPhase], model: Encoder
) -> float:
    """Average operations per real token over the phases, weighted by the text that they read."""
    total = 0.0
    start_progress = 0.0
    for phase in phases:
        flops = _count_flops_per_token(checkpoint, phase.train_sampler, model)
        total += (phase.end_progress - start_progress) * flops
        start_progress = phase.end_progress
    return total


def _count_flops_per_token(checkpoint: Checkpoint, sampler: BatchSampler, model: Encoder) -> float:
    """Count operations per real token on the first batch."""
    _, _, batch = next(iterate_batches(sampler))
    device = next(model.parameters()).device
    with RngState(0).activate(device):
        return count_train_flops(model, checkpoint.family, batch.to(device)) / batch.num_tokens


def train_language_model(
    state: TrainState,
    objective: Objective,
    phases: Sequence[TrainPhase],
    plan: TrainPlan,
    context: TrainContext,
    curve: LearningCurve,
    *,
    best: BestWeights | None = None,
    intermediate: IntermediateCheckpoints | None = None,
) -> None:
    """Train to the end of the plan, from the newest resume point if there is one; fill `curve`.

    With `best` the training ends when validation no longer improves in its last phase, and the best
    weights of that phase are restored. With `intermediate` it writes intermediate checkpoints.

    If the optimizer has averaged the weights, their averages remain at the end. A training that
    gets SIGTERM saves a resume point first. Raises EvaluationError if a loss is not finite.
    """
    newest = _find_resume_point(context.checkpoint_dir, plan, intermediate)
    if newest is not None:
        state.load(newest / "run")
        curve.load(newest)
        if best is not None:
            best.load(newest)
        for point in curve.points:
            # MLflow's run may be another one, for example after a commit in between. Points are
            # not logged twice.
            _log_point(point, context.tracker)
    if intermediate is not None:
        intermediate.start(plan.progress(state.counters))
    with _delay_sigterm() as stop_requested:
        _train_phases(
            state, objective, phases, plan, context, curve, best, intermediate, stop_requested
        )
    swap_averaged_weights(state.optimizer)
    if best is not None:
        best.restore()


def _train_phases(
    state: TrainState,
    objective: Objective,
    phases: Sequence[TrainPhase],
    plan: TrainPlan,
    context: TrainContext,
    curve: LearningCurve,
    best: BestWeights | None,
    intermediate: IntermediateCheckpoints | None,
    stop_requested: Callable[[], bool],
) -> None:
    """Train from the present state to the end, record points, and save resume points."""
    start_time = time.monotonic()
    start_tokens = state.counters.tokens
    last_saved = start_time
    for phase, step in _iterate_steps(state, objective, phases, plan):
        max_batches = VALIDATION_BATCHES if best is None else ALL_BATCHES
        point = _record_point(
            curve, step, state, objective, phase.validation_sampler, max_batches, plan.precision
        )
        if point is not None:
            _log_point(point, context.tracker)
            # Another phase has validations of another length, whose losses are not comparable.
            if best is not None and point.validation and phase is phases[-1]:
                swap_averaged_weights(state.optimizer)
                best.update(point.validation_loss)
                swap_averaged_weights(state.optimizer)
                if best.is_over:
                    break
        if intermediate is not None:
            intermediate.update(state, step.progress)
        seconds = time.monotonic() - start_time
        tokens_per_second = (step.counters.tokens - start_tokens) / max(seconds, 1e-9)
        context.report_progress(
            step.progress, f"{_format_metrics(curve)} {tokens_per_second:,.0f} tokens/s"
        )
        is_stopping = stop_requested()
        is_due = is_stopping or time.monotonic() - last_saved >= context.checkpoint_seconds
        # No resume point after the last step of a phase: the counters could belong to either phase.
        if is_due and step.progress < phase.end_progress:
            seconds = time.monotonic() - start_time
            _save_resume_point(state, curve, best, context.checkpoint_dir, seconds=seconds)
            if is_stopping:
                sys.exit(1)
            context.tracker.flush()
            last_saved = time.monotonic()


@contextlib.contextmanager
def _delay_sigterm() -> Iterator[Callable[[], bool]]:
    """Delay SIGTERM to the end of the block; yield a function that tells whether it has come."""
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield lambda: False
        return
    has_come = threading.Event()
    handler = signal.signal(signal.SIGTERM, lambda *_: has_come.set())
    try:
        yield has_come.is_set
    finally:
        signal.signal(signal.SIGTERM, handler)
    if has_come.is_set():
        signal.raise_signal(signal.SIGTERM)


def _find_resume_point(
    checkpoint_dir: Path, plan: TrainPlan, intermediate: IntermediateCheckpoints | None
) -> Path | None:
    """Return the newest intact resume point; delete damaged ones.

    The intermediate checkpoints before it must be intact too: they could not be written again.
    """
    for folder in sorted(checkpoint_dir.glob("step-*"), key=_step_number, reverse=True):
        if is_intact(folder, RESUME_POINT):
            progress = plan.progress(read_counters(folder / "run"))
            if intermediate is None or intermediate.has_all_until(progress):
                return folder
        print(
            f"{folder}: this resume point is damaged, so it is deleted, and the training goes on "
            "from an older one or from the start",
            file=sys.stderr,
        )
        shutil.rmtree(folder)
    return None


def _step_number(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _log_point(point: CurvePoint, tracker: Tracker) -> None:
    tracker.log_metrics(point.metrics(), step=point.step, text_bytes=point.text_bytes)


def _iterate_steps(
    state: TrainState, objective: Objective, phases: Sequence[TrainPhase], plan: TrainPlan
) -> Iterator[tuple[TrainPhase, StepOutput]]:
    """Yield the steps of every phase that is not finished; each phase starts at epoch 0."""
    for phase in phases:
        if plan.progress(state.counters) >= phase.end_progress:
            continue
        phase_plan = replace(plan, end_progress=phase.end_progress)
        for step in train(state, objective, phase.train_sampler, phase_plan):
            yield phase, step
        state.epoch = 0
        state.batch_index = 0


def _record_point(
    curve: LearningCurve,
    step: StepOutput,
    state: TrainState,
    objective: Objective,
    validation_sampler: BatchSampler,
    max_batches: int,
    precision: str,
) -> CurvePoint | None:
    """Add a point, with a validation, where they are due, and return it; None if none is due.

    This depends on progress alone. NT-ASGD has to remember its validation losses; they are part of
    the curve and saved with it.
    """
    curve.pending_losses.append(step.loss)
    previous_progress = curve.points[-1].progress if curve.points else 0.0

    def is_due(count: int) -> bool:
        return math.floor(step.progress * count) > math.floor(previous_progress * count)

    averaging = state.optimizer if isinstance(state.optimizer, AveragedSGD) else None
    is_validation_due = is_due(averaging.trigger.checks if averaging else NUM_VALIDATIONS)
    if not is_validation_due and not is_due(NUM_LOG_POINTS) and step.progress < 1:
        return None
    state.run_finite_checks()
    losses = curve.pending_loss_values()
    point = CurvePoint(
        step.step,
        step.progress,
        step.counters.text_bytes,
        sum(losses) / len(losses),
        step.learning_rate,
    )
    if is_validation_due:
        if averaging:
            max_batches = ALL_BATCHES
        validation = _validate(state, objective, validation_sampler, max_batches, precision)
        point = replace(
            point, weights_averaged=is_averaging(state.optimizer), validation=validation
        )
    curve.points.append(point)
    curve.pending_losses = []
    if is_validation_due and averaging:
        averaging.update_trigger(curve.validation_losses())
    return point


def _validate(
    state: TrainState,
    objective: Objective,
    sampler: BatchSampler,
    max_batches: int,
    precision: str,
) -> dict[str, float]:
    """Validate the averaged weights if there are any, else the weights.

    Raises EvaluationError if a metric is not finite.
    """
    swap_averaged_weights(state.optimizer)
    sums = validate(state.model, objective, sampler, max_batches=max_batches, precision=precision)
    swap_averaged_weights(state.optimizer)
    metrics = compute_lm_metrics(sums)
    if not all(math.isfinite(value) for value in metrics.values()):
        raise EvaluationError(
            f"validation is not finite at step {state.counters.steps}: {metrics}; "
            "lower the learning rate"
        )
    return metrics


def _format_metrics(curve: LearningCurve) -> str:
    """Show the last point's loss and the last validation.

    The loss of the current step would have to be waited for on a GPU.
    """
    metrics = {}
    if curve.points:
        metrics["loss"] = curve.points[-1].loss
    validations = (point.validation for point in reversed(curve.points) if point.validation)
    metrics |= next(validations, {})
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def _save_resume_point(
    state: TrainState,
    curve: LearningCurve,
    best: BestWeights | None,
    checkpoint_dir: Path,
    *,
    seconds: float,
) -> None:
    """Save a resume point, and keep the one before it, in case the new one is damaged."""
    older = sorted(checkpoint_dir.glob("step-*"), key=_step_number)
    with create_artifact(checkpoint_dir / f"step-{state.counters.steps}", RESUME_POINT) as draft:
        state.save(draft / "run")
        curve.save(draft, seconds=seconds)
        if best is not None:
            best.save(draft)
    for folder in older[:-1]:
        shutil.rmtree(folder)


def compute_held_out_metrics(
    model: nn.Module, objective: Objective, sampler: BatchSampler, *, precision: str
) -> dict[str, float]:
    """Compute bits per byte, or nats per target, on a held-out text; drop non-finite values.

    Last words that fill no window are not read.
    """
    sums = validate(model, objective, sampler, max_batches=ALL_BATCHES, precision=precision)
    metrics = compute_lm_metrics(sums)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def fit_static(
    checkpoint: Checkpoint,
    family: Static,
    tokens: TokenizedCorpus,
    budget_bytes: int,
    report_progress: Callable[[float, str], None],
) -> TrainOutput:
    """Train static vectors with the family's own method. There is no curve and no resuming.

    The budget used is the text that was read.
    """
    model = checkpoint.build(torch.device("cpu"), load_weights=False)
    max_bytes = budget_bytes
    if family.uses_cooccurrence_counts:  # counting the text twice would change nothing
        max_bytes = min(budget_bytes, tokens.text_bytes)
    text = sample_training_text(
        tokens, checkpoint.tokenizer, seed=checkpoint.seed, text_bytes=max_bytes
    )
    family.fit_static(
        model,
        text,
        checkpoint.tokenizer,
        checkpoint.pretrain,
        seed=checkpoint.seed,
        report=report_progress,
    )
    parameter_counts = count_parameters_by_role(model)
    budget_used = BudgetUsed(
        text_bytes=text.text_bytes,
        epochs=text.epochs,
        tokens=text.tokens,
        body_parameters=parameter_counts["body"],
        total_parameters=parameter_counts["total"],
    )
    if all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        return TrainOutput(model, LearningCurve(), budget_used)
    reason = "the vectors are not finite; lower the learning rate"
    return TrainOutput(model, LearningCurve(), budget_used, "failed", reason)


def wrap_public_model(model: Encoder) -> TrainOutput:
    """Return a public model as it is. Its budget of text is unknown and not matched."""
    parameter_counts = count_parameters_by_role(model)
    budget_used = BudgetUsed(
        body_parameters=parameter_counts["body"], total_parameters=parameter_counts["total"]
    )
    return TrainOutput(model, LearningCurve(), budget_used)
