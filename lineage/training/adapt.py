"""Adaptation to a target's own text: a pretrained model goes on with its objective there (Howard and Ruder 2018, section 3.2)."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from lineage.artifacts import read_json, read_manifest, read_table
from lineage.config.params import AdaptationBudget, Params
from lineage.data.language import byte_count
from lineage.errors import EvaluationError
from lineage.evaluation.settings import AdaptSettings
from lineage.models.base import Encoder
from lineage.models.checkpoint import Checkpoint
from lineage.randomness import derive_seed, generator
from lineage.tasks.base import load_kind
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.curve import LearningCurve
from lineage.training.loop import RngState, TrainPlan, TrainState
from lineage.training.pretrain import (
    TrainContext,
    TrainOutput,
    TrainPhase,
    compute_held_out_metrics,
    run_training,
    to_validation_settings,
)


def split_target_texts(
    folder: Path, settings: AdaptationBudget, *, seed: int
) -> tuple[list[str], list[str]]:
    """The target's text for adaptation, and what is held out: of its unlabelled texts, else of those of its training items, in the order of the data.

    No more than the budget reads, and its share of that, since a target may have a thousand times as much: which texts, the seed says.
    """
    read_manifest(folder, "task")
    task_record = read_json(folder / "task.json")
    path = folder / "unlabelled.parquet"
    if path.is_file():
        texts = read_table(path)["text"].tolist()
    else:
        texts = [
            *itertools.chain(
                *load_kind(task_record["kind"]).extract_texts(
                    read_table(folder / "train.parquet"), task_record["language"]
                )
            )
        ]
    texts = list(dict.fromkeys(texts))  # a text that is there twice must not stand on both sides
    assert len(texts) >= 2, "the sources stage refuses less"
    order = generator("held", seed, task_record["name"]).permutation(len(texts))
    num_held_out = min(max(1, round(settings.heldout_share * len(texts))), len(texts) - 1)
    splits = (
        (order[num_held_out:], settings.text_bytes),
        (order[:num_held_out], settings.heldout_share * settings.text_bytes),
    )
    train_texts, held_out = (
        [texts[i] for i in np.sort(_take_bytes(texts, some, most))] for some, most in splits
    )
    return train_texts, held_out


def _take_bytes(texts: Sequence[str], order: np.ndarray, max_bytes: float) -> np.ndarray:
    """The first of the order that have so many bytes together, the one with the last of them included."""
    cumulative_bytes = np.cumsum([0, *(byte_count(texts[i]) for i in order[:-1])])
    return order[cumulative_bytes < max_bytes]


def find_new_words(
    texts: Sequence[str], tokenizer: Tokenizer, *, max_words: int, min_frequency: int
) -> list[str]:
    """The most frequent words of a target's texts that the vocabulary lacks; equal counts in alphabetical order."""
    unk_id, counts = tokenizer.special_token_ids["<unk>"], Counter[str]()
    for tokenized in tokenizer.tokenize(texts):
        counts.update(
            tokenizer.surface_form(tokenized.normalized_text, *span)
            for span in tokenized.normalized_offsets[tokenized.ids == unk_id]
        )
    return sorted(
        (word for word, count in counts.items() if count >= min_frequency),
        key=lambda word: (-counts[word], word),
    )[:max_words]


def adapt(
    checkpoint: Checkpoint,
    settings: AdaptSettings,
    texts: list[str],
    held_out_texts: list[str],
    params: Params,
    context: TrainContext,
    *,
    failure_reason: str = "",
) -> tuple[TrainOutput, dict[str, dict[str, float]]]:
    """Go on with the family's own objective on the target's text (Howard and Ruder 2018, section 3.2): discriminative rates, slanted triangle.

    Gives the outcome, and the measures on held target text before and after. A model whose pretraining `failed` is not adapted.
    """
    if failure_reason:
        return TrainOutput(
            checkpoint.build(context.device, load_weights=False),
            LearningCurve(),
            {"text_bytes": 0},
            "failed",
            failure_reason,
        ), {"before": {}, "after": {}}
    family = checkpoint.family
    assert family.batch_sampler is not None and family.objective is not None, (
        "the study was checked"
    )
    tokens, held_out_tokens = (
        encode_corpus(some, checkpoint.tokenizer) for some in (texts, held_out_texts)
    )
    train_sampler = family.batch_sampler(
        tokens,
        checkpoint.tokenizer,
        checkpoint.pretrain,
        seed=derive_seed("adapt", checkpoint.seed),
    )
    held_out_sampler = family.batch_sampler(
        held_out_tokens, checkpoint.tokenizer, to_validation_settings(checkpoint.pretrain), seed=0
    )
    model = checkpoint.build(context.device, body_dropout=settings.body_dropout)
    state = TrainState(
        model,
        settings.build_optimizer(_group_with_lm_heads(model)),
        RngState(derive_seed("adapt draws", checkpoint.seed)),
    )
    text_bytes = min(params.adapt.text_bytes, params.adapt.max_epochs * tokens.text_bytes)
    plan = TrainPlan(
        progress=lambda spent: spent.text_bytes / text_bytes,
        lr_schedule=settings.lr_schedule(),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=params.precision,
        grad_accum_steps=checkpoint.pretrain.grad_accum_steps,
        clip_groups=model.grad_clip_groups(),
    )
    try:
        before = compute_held_out_metrics(
            model, family.objective, held_out_sampler, precision=params.precision
        )
    except EvaluationError as error:
        return TrainOutput(model, LearningCurve(), {"text_bytes": 0}, "failed", str(error)), {
            "before": {},
            "after": {},
        }
    outcome = run_training(
        state,
        checkpoint,
        [TrainPhase(train_sampler, held_out_sampler)],
        plan,
        context,
        corpus_bytes=tokens.text_bytes,
    )
    after = (
        compute_held_out_metrics(
            model, family.objective, held_out_sampler, precision=params.precision
        )
        if outcome.status == "ok"
        else {}
    )
    return outcome, {"before": before, "after": after}


def _group_with_lm_heads(model: Encoder) -> list[list[nn.Parameter]]:
    """The layers' groups; the heads of pretraining learn with the top layer, at the full rate, also where their weights are those of the embedding.

    Howard and Ruder 2018, section 3.2, leave open whose layer a tied table is. In their scripts (imdb_scripts, finetune_lm.py) the last LSTM has the
    full rate, and table and softmax half of it; in fastai since version 1 they are a group above that LSTM, which then learns more slowly.
    """
    tied = {id(p) for p in model.tied_parameters()}
    layers = [[p for p in layer if id(p) not in tied] for layer in model.layer_groups()]
    grouped = {id(p) for layer in layers for p in layer}
    return [*layers[:-1], [*layers[-1], *(p for p in model.parameters() if id(p) not in grouped)]]
