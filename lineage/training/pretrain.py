"""Pretrain a model: build it within the budget, train it, and count what it used.

Adaptation uses the same functions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lineage.config.params import Params
from lineage.errors import EvaluationError
from lineage.networks.base import Encoder, LanguageModelFamily, Objective, Public, Static
from lineage.networks.batch import BatchSampler
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.static import sample_training_text
from lineage.randomness import derive_seed
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.best_weights import BestWeights
from lineage.training.budget import (
    count_parameters_by_role,
    count_train_flops,
    match_parameter_budget,
)
from lineage.training.curve import LearningCurve
from lineage.training.intermediate import IntermediateCheckpoints
from lineage.training.loop import TrainPlan, validate
from lineage.training.objectives import compute_lm_metrics
from lineage.training.optimizers import build_pretraining_optimizer
from lineage.training.samplers import iterate_batches
from lineage.training.schedules import schedule_with_warmup
from lineage.training.settings import BilmPretrainSettings, MaskReplacement, PretrainSettings
from lineage.training.state import RngState, TrainState
from lineage.training.train_run import ALL_BATCHES, TrainContext, TrainPhase, TrainRun

if TYPE_CHECKING:
    from lineage.study.models import ModelConfig


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

    `seed` is one of grid.pretrain_seeds.
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
        text_bytes = count_static_bytes(family, budget_bytes, tokens.text_bytes)
        with context.work.measure("training", text_bytes):
            return fit_static(checkpoint, family, tokens, text_bytes, context.report_progress)
    validation_tokens = TokenizedCorpus.load(folder, "valid")
    training = build_training(
        checkpoint, tokens, validation_tokens, params, context.device, public_model=public_model
    )
    intermediate = IntermediateCheckpoints(
        checkpoint, params.grid.text_shares, context.checkpoint_dir
    )
    return run_training(
        training, checkpoint, context, corpus_bytes=tokens.text_bytes, intermediate=intermediate
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
    """Build the model, its optimizer, its batches and the plan of its training."""
    settings = checkpoint.pretrain
    budget_bytes = params.budget.text_bytes
    if public_model is None:
        model = checkpoint.build(device, load_weights=False)
    else:
        model = public_model.to(device)
    state = TrainState(
        model,
        build_pretraining_optimizer(model, settings),
        RngState(derive_seed("pretrain", checkpoint.seed)),
    )
    lr_schedule = schedule_with_warmup(settings.schedule, settings.warmup_ratio)
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
    """Build the parts of a training; those with batches of one shape are one reading of the text."""
    phases = []
    seed = checkpoint.seed
    shape = None
    for index, (end_progress, settings) in enumerate(checkpoint.pretrain.phases):
        continues = shape == (settings.batch_size, settings.seq_len)
        if index > 0 and not continues:  # with the same seed, pairs and masks would repeat
            seed = derive_seed("part", index, checkpoint.seed)
        phase = build_phase(checkpoint, settings, tokens, validation_tokens, seed=seed)
        phases.append(replace(phase, end_progress=end_progress, continues=continues))
        shape = settings.batch_size, settings.seq_len
    return phases


def build_phase(
    checkpoint: Checkpoint,
    settings: PretrainSettings,
    tokens: TokenizedCorpus,
    validation_tokens: TokenizedCorpus,
    *,
    seed: int,
) -> TrainPhase:
    """Build the batches of both texts; held-out text has the same ones in every training."""
    assert isinstance(checkpoint.family, LanguageModelFamily), "the study was checked"
    build_sampler = checkpoint.family.batch_sampler
    return TrainPhase(
        build_sampler(tokens, checkpoint.tokenizer, settings, seed=seed),
        build_sampler(
            validation_tokens, checkpoint.tokenizer, to_validation_settings(settings), seed=0
        ),
    )


def _loss_scale(settings: PretrainSettings) -> float:
    if isinstance(settings, BilmPretrainSettings) and settings.scale_loss_by_seq_len:
        return settings.seq_len
    return 1.0


def to_validation_settings(settings: Any) -> Any:
    """Return a block `pretrain` for held-out text.

    All models are validated with the masks of Devlin et al. 2019, section 3.1, so that their losses
    are comparable. Short sequences are off, since all or none of a few documents would be short.
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
    training: Training,
    checkpoint: Checkpoint,
    context: TrainContext,
    *,
    corpus_bytes: int,
    best: BestWeights | None = None,
    intermediate: IntermediateCheckpoints | None = None,
) -> TrainOutput:
    """Train according to a plan. A training that fails has an output too."""
    model = training.state.model
    family = checkpoint.family
    assert isinstance(model, Encoder) and isinstance(family, LanguageModelFamily)
    status = "ok"
    reason = ""
    flops_per_token = 0.0
    run = TrainRun(
        training.state,
        family.objective,
        training.phases,
        training.plan,
        context,
        best=best,
        intermediate=intermediate,
    )
    try:
        flops_per_token = mean_flops_per_token(checkpoint, training.phases, model)
        run.run()
    except EvaluationError as error:
        status = "failed"
        reason = str(error)
    parameter_counts = count_parameters_by_role(model)
    counters = training.state.counters
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
    return TrainOutput(model, run.curve, budget_used, status, reason, kept_folders)


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


def compute_held_out_metrics(
    model: nn.Module, objective: Objective, sampler: BatchSampler, *, precision: str
) -> dict[str, float]:
    """Compute bits per byte, or nats per target, on a held-out text; drop non-finite values."""
    sums = validate(model, objective, sampler, max_batches=ALL_BATCHES, precision=precision)
    metrics = compute_lm_metrics(sums)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def count_static_bytes(family: Static, budget_bytes: int, corpus_bytes: int) -> int:
    """Return the bytes that static vectors read: counting a text twice would change nothing."""
    return min(budget_bytes, corpus_bytes) if family.uses_cooccurrence_counts else budget_bytes


def fit_static(
    checkpoint: Checkpoint,
    family: Static,
    tokens: TokenizedCorpus,
    text_bytes: int,
    report_progress: Callable[[float, str], None],
) -> TrainOutput:
    """Train static vectors with the family's own method. There is no curve and no resuming."""
    model = checkpoint.build(torch.device("cpu"), load_weights=False)
    text = sample_training_text(
        tokens, checkpoint.tokenizer, seed=checkpoint.seed, text_bytes=text_bytes
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
