"""Adapt a pretrained model to a target's own text (Howard and Ruder 2018, section 3.2)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lineage.artifacts import check_intact, read_manifest, read_table
from lineage.config.params import Params
from lineage.errors import EvaluationError
from lineage.language import byte_count
from lineage.networks.base import Encoder, LanguageModelFamily
from lineage.networks.checkpoint import Checkpoint
from lineage.randomness import derive_seed, generator
from lineage.tasks.base import load_kind
from lineage.tasks.info import INFO_FILE, TaskInfo
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.best_weights import BestWeights
from lineage.training.curve import LearningCurve, total_loss
from lineage.training.loop import TrainPlan
from lineage.training.optimizers import AdaptSettings
from lineage.training.pretrain import (
    BudgetUsed,
    Training,
    TrainOutput,
    build_phase,
    compute_held_out_metrics,
    run_training,
)
from lineage.training.state import RngState, TrainState
from lineage.training.train_run import TrainContext

# Held-out text is validated ten times. This much has a loss that is exact enough.
MAX_HELD_OUT_BYTES = 500_000


def split_target_texts(
    folder: Path, params: Params, *, max_bytes: int
) -> tuple[list[str], list[str]]:
    """Return the target's texts for training and those held out, each in the order of the data.

    They are the unlabelled texts, or else those of the training items; at most `max_bytes`, taken
    at random. Raises InputError if a file is damaged.
    """
    settings = params.adapt
    read_manifest(folder, "task")
    check_intact(folder, INFO_FILE, "unlabelled.parquet", "train.parquet")
    info = TaskInfo.read(folder)
    texts = _read_target_texts(folder, info)
    assert len(texts) >= 2, "the sources stage refuses fewer"
    order = generator("held", params.seed, info.name).permutation(len(texts))
    num_held_out = min(max(1, round(settings.heldout_share * len(texts))), len(texts) - 1)
    held_out_bytes = min(settings.heldout_share * max_bytes, MAX_HELD_OUT_BYTES)
    held_out_indices = _take_bytes(texts, order[:num_held_out], held_out_bytes)
    train_indices = _take_bytes(texts, order[len(held_out_indices) :], max_bytes)
    train_texts = [texts[i] for i in np.sort(train_indices)]
    held_out_texts = [texts[i] for i in np.sort(held_out_indices)]
    return train_texts, held_out_texts


def _read_target_texts(folder: Path, info: TaskInfo) -> list[str]:
    """Read each text once: a repeated text must not be both in training and held out."""
    path = folder / "unlabelled.parquet"
    if path.is_file():
        return list(dict.fromkeys(read_table(path)["text"]))
    items = read_table(folder / "train.parquet")
    texts_by_item = load_kind(info.kind).extract_texts(items, info.language)
    return list(dict.fromkeys(text for texts in texts_by_item for text in texts))


def _take_bytes(texts: Sequence[str], order: np.ndarray, max_bytes: float) -> np.ndarray:
    """Take texts in this order until they have `max_bytes`, including the last one."""
    cumulative_bytes = np.cumsum([0, *(byte_count(texts[i]) for i in order[:-1])])
    return order[cumulative_bytes < max_bytes]


def find_new_words(
    texts: Sequence[str], tokenizer: Tokenizer, *, max_words: int, min_frequency: int
) -> list[str]:
    """Return the most frequent words that the vocabulary lacks; ties in alphabetical order."""
    unk_id = tokenizer.special_token_ids["<unk>"]
    counts = Counter[str]()
    for tokenized in tokenizer.tokenize(texts):
        counts.update(
            tokenizer.surface_form(tokenized.normalized_text, *span)
            for span in tokenized.normalized_offsets[tokenized.ids == unk_id]
        )
    frequent = [word for word, count in counts.items() if count >= min_frequency]
    frequent.sort(key=lambda word: (-counts[word], word))
    return frequent[:max_words]


@dataclass(frozen=True)
class HeldOutMetrics:
    """Metrics on held-out target text; empty if they were not computed."""

    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)


def adapt(
    checkpoint: Checkpoint,
    settings: AdaptSettings,
    texts: list[str],
    held_out_texts: list[str],
    params: Params,
    context: TrainContext,
    *,
    failure_reason: str = "",
) -> tuple[TrainOutput, HeldOutMetrics]:
    """Continue with the family's own objective on the target's text.

    Learning rates are discriminative and follow a slanted triangle (Howard and Ruder 2018, section
    3.2). The weights with the lowest loss on the held-out text are kept. A model whose pretraining
    failed is not adapted; `failure_reason` says why.
    """
    if failure_reason:
        untrained = checkpoint.build(context.device, load_weights=False)
        return _failed_output(untrained, failure_reason), HeldOutMetrics()
    family = checkpoint.family
    assert isinstance(family, LanguageModelFamily), "the study was checked"
    tokens = encode_corpus(texts, checkpoint.tokenizer)
    held_out_tokens = encode_corpus(held_out_texts, checkpoint.tokenizer)
    training = build_adaptation(
        checkpoint, settings, tokens, held_out_tokens, params, context.device
    )
    (phase,) = training.phases
    model = training.state.model
    assert isinstance(model, Encoder)

    def evaluate() -> dict[str, float]:
        return compute_held_out_metrics(
            model, family.objective, phase.validation_sampler, precision=params.precision
        )

    try:
        before = evaluate()
    except EvaluationError as error:
        return _failed_output(model, str(error)), HeldOutMetrics()
    if not before:
        reason = "the loss on held-out target text is not finite before adaptation"
        return _failed_output(model, reason), HeldOutMetrics()
    output = run_training(
        training,
        checkpoint,
        context,
        corpus_bytes=tokens.text_bytes,
        best=BestWeights(model, total_loss(before), params.adapt.patience),
    )
    after = evaluate() if output.status == "ok" else {}
    return output, HeldOutMetrics(before, after)


def build_adaptation(
    checkpoint: Checkpoint,
    settings: AdaptSettings,
    tokens: TokenizedCorpus,
    held_out_tokens: TokenizedCorpus,
    params: Params,
    device: torch.device,
) -> Training:
    """Build the pretrained model, its optimizer, its batches and the plan of its adaptation."""
    seed = derive_seed("adapt", checkpoint.seed)
    phase = build_phase(checkpoint, checkpoint.pretrain, tokens, held_out_tokens, seed=seed)
    model = checkpoint.build(device, body_dropout=settings.body_dropout)
    state = TrainState(
        model,
        settings.build_optimizer(_group_with_lm_heads(model)),
        RngState(derive_seed("adapt draws", checkpoint.seed)),
    )
    budget_bytes = min(params.max_adaptation_bytes, params.adapt.max_epochs * tokens.text_bytes)
    plan = TrainPlan(
        progress=lambda counters: counters.text_bytes / budget_bytes,
        lr_schedule=settings.lr_schedule(),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=params.precision,
        grad_accum_steps=checkpoint.pretrain.grad_accum_steps,
        clip_groups=model.grad_clip_groups(),
    )
    return Training(state, [phase], plan)


def _failed_output(model: Encoder, reason: str) -> TrainOutput:
    return TrainOutput(model, LearningCurve(), BudgetUsed(text_bytes=0), "failed", reason)


def _group_with_lm_heads(model: Encoder) -> list[list[nn.Parameter]]:
    """Return the layer groups, with the pretraining heads in the top one.

    The heads then learn at the full rate, including weights that are tied to the embedding. Howard
    and Ruder 2018, section 3.2, do not say to which layer a tied table belongs.
    """
    tied = {id(p) for p in model.tied_parameters()}
    layers = [[p for p in layer if id(p) not in tied] for layer in model.layer_groups()]
    grouped = {id(p) for layer in layers for p in layer}
    heads = [p for p in model.parameters() if id(p) not in grouped]
    return [*layers[:-1], [*layers[-1], *heads]]
