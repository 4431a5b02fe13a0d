"""The whole network tuned on a task, with ULMFiT's techniques (Howard and Ruder 2018, section 3.3).

Shapes: N items, B rows of a batch, R readings of an item, M answers that are asked for, D width, K outputs.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.evaluation.answers import Answer, SpanAnswer
from lineage.evaluation.encoding import (
    EncodedItem,
    answer_rows,
    batch_by_length,
    collate_items,
    pool_words,
)
from lineage.evaluation.settings import FinetuneSettings, resolve_num_epochs
from lineage.models import weights
from lineage.models.base import Encoder, LossOutput, build_linear_head
from lineage.models.batch import Batch, bucket_by_length, masked_mean
from lineage.randomness import derive_seed, generator
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.state import RngState, TrainState


class FinetunedModel(nn.Module):
    """An encoder, and a head: the family's own on its vector of the text, or a linear one at the asked words or on the mean of the text's pieces.

    `like` is any of the items: readings of two texts in both orders are summed before the head, and choices have one score each. With `linear_gain`
    items that are read once, as wholes, learn from every position; what is read of them is the last one's, as without it. With `word_norm`
    asked words are normed below the head.
    """

    def __init__(
        self,
        encoder: Encoder,
        answer: Answer,
        settings: FinetuneSettings,
        *,
        seed: int,
        example_item: EncodedItem,
    ) -> None:
        super().__init__()
        self.encoder, self.answer, self.num_encodings, self.is_multiple_choice = (
            encoder,
            answer,
            len(example_item.encodings),
            example_item.is_multiple_choice,
        )
        self.uses_mean_pooling, self.bptt_window, self.pooled_positions = (
            settings.pooling == "mean",
            settings.bptt_window,
            settings.pooled_positions,
        )
        self.word_layer_norm = settings.word_layer_norm and bool(example_item.word_pieces)
        self.linear_label_gain = (
            settings.linear_label_gain and self.num_encodings == 1 and not example_item.word_pieces
        )
        device = next(encoder.parameters()).device
        linear = bool(example_item.word_pieces) or self.uses_mean_pooling
        make = (
            partial(build_linear_head, encoder.hidden_sizes()[-1])
            if linear
            else partial(encoder.build_head, hidden_dropout=settings.classifier_hidden_dropout)
        )
        self.head = make(answer.num_outputs, dropout=settings.dropout)
        encoder.init_head(self.head, torch.Generator().manual_seed(derive_seed("tuned head", seed)))
        self.head.to(device)

    def forward(self, batch: Batch) -> torch.Tensor:
        """(M, K) scores."""
        pooled, _ = self.pooled_vectors(batch)
        return self.apply_head(pooled, batch)

    def pooled_vectors(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The vector of every reading, (B, D), or of every asked word, (M, D), and the top layer that it is of, where texts are read as wholes."""
        if batch.answer_pieces_P2 is None and self.bptt_window is not None:
            return self.encoder.pool_windows(
                batch, window=self.bptt_window, pooled_positions=self.pooled_positions
            ), None
        layers = self.encoder.encode(batch)
        if batch.answer_pieces_P2 is not None:
            return pool_words(self.encoder, layers[-1], batch), layers[-1]
        if self.uses_mean_pooling:
            assert batch.text_mask_BT is not None
            return masked_mean(layers[-1], batch.text_mask_BT), layers[-1]
        return self.encoder.pool(layers, batch), layers[-1]

    def apply_head(self, pooled: torch.Tensor, batch: Batch) -> torch.Tensor:
        """(B, D) or (M, D) -> (M, K): a score for each choice, or the head at each word or over the sum of an item's readings."""
        scores: torch.Tensor = self.head(self.head_inputs(pooled, batch))
        return scores.view(-1, self.num_encodings) if self.is_multiple_choice else scores

    def head_inputs(self, pooled: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the head reads: each choice's, each word's, or the sum of an item's readings."""
        if (
            self.word_layer_norm
        ):  # untrained vectors of words may be as small as 0.001, far below torch's own epsilon
            return F.layer_norm(pooled, pooled.shape[-1:], eps=1e-12)
        return (
            pooled
            if self.is_multiple_choice or batch.answer_pieces_P2 is not None
            else pooled.view(-1, self.num_encodings, pooled.shape[-1]).sum(1)
        )


def linear_label_gain_loss(
    model: FinetunedModel, top_BTD: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """The loss of each text's answer after every one of its positions, a mean by weights that grow linearly from 0 at its first to 1 at its last.

    Linear label gain (Dai and Le 2015, section 3), weighted and averaged over the batch as in the released code (adversarial_text, data_utils.py and
    layers.py); a text of one position has the weight 1.
    """
    assert batch.labels_M is not None and not isinstance(model.answer, SpanAnswer)
    where_BT, lengths_B1 = batch.mask_BT, batch.mask_BT.sum(1, keepdim=True)
    gain_BT = (where_BT.cumsum(1) - 1).double() / (lengths_B1 - 1).clamp_min(1)
    weights_N = torch.where(lengths_B1 > 1, gain_BT, 1.0)[where_BT]
    gold_N = batch.labels_M[:, None].expand_as(where_BT)[where_BT]
    loss = model.answer.loss(model.head(top_BTD[where_BT]), gold_N, weights_M=weights_N)
    return loss / weights_N.sum().to(loss.dtype)


def finetuning_objective(
    model: FinetunedModel,
    batch: Batch,
    recurrent_state: Any = None,
    *,
    aux_lm_weight: float = 0.0,
    auxiliary_loss: Callable[..., torch.Tensor] | None = None,
) -> LossOutput:
    """The loss of the gold answers, a mean over them, and `lm_weight` times the family's own on the texts (Radford et al. 2018, equation 5)."""
    assert batch.labels_M is not None
    pooled, top_BTD = model.pooled_vectors(batch)
    count = batch.loss_denominator(per_item=model.answer.mean_over_items)
    if model.linear_label_gain:
        assert top_BTD is not None, "settings refuse windows beside it"
        loss = linear_label_gain_loss(model, top_BTD, batch)
        nats = loss * count
    else:
        nats = model.answer.loss(model.apply_head(pooled, batch), batch.labels_M)
        loss = nats / count
    if aux_lm_weight:
        assert top_BTD is not None and auxiliary_loss is not None, (
            "settings refuse windows beside it, and families that have none"
        )
        loss = loss + aux_lm_weight * auxiliary_loss(model.encoder, top_BTD, batch)
    return LossOutput(loss, {"task": nats.detach()}, {"task": count}, recurrent_state)


class ItemBatches:
    """Labelled items in a new order each epoch, in buckets of like length."""

    carries_state = False
    BUCKET_SIZE = 1024  # items sorted together by length, in whole batches

    def __init__(
        self,
        tokenizer: Tokenizer,
        items: Sequence[EncodedItem],
        labels_M: np.ndarray,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.tokenizer, self.items, self.labels_M, self.batch_size, self.seed = (
            tokenizer,
            items,
            labels_M,
            batch_size,
            seed,
        )
        self.answer_rows = answer_rows(items)
        self.batch_indices: list[np.ndarray] = []

    def set_epoch(self, epoch: int) -> int:
        """Shuffle."""
        rng = generator("items", self.seed, epoch)
        lengths = np.array([item.length for item in self.items])
        self.batch_indices = bucket_by_length(
            lengths,
            batch_size=self.batch_size,
            batches_per_chunk=max(1, self.BUCKET_SIZE // self.batch_size),
            rng=rng,
        )
        return len(self.batch_indices)

    def get_batch(self, index: int) -> Batch:
        """One batch of the epoch."""
        some = self.batch_indices[index]
        return collate_items(
            self.tokenizer,
            [self.items[i] for i in some],
            self.labels_M[np.concatenate([self.answer_rows[i] for i in some])],
        )


def finetune(
    encoder: Encoder,
    tokenizer: Tokenizer,
    items: Sequence[EncodedItem],
    labels_M: np.ndarray,
    answer: Answer,
    settings: FinetuneSettings,
    *,
    seed: int,
    precision: str,
    auxiliary_loss: Callable[..., torch.Tensor] | None = None,
) -> FinetunedModel:
    """Tune the encoder, in place, with a new head: the rates of layers and of steps that the settings ask for, gradual unfreezing.

    The last epoch's network is taken: nothing is chosen on any split.
    """
    model = FinetunedModel(encoder, answer, settings, seed=seed, example_item=items[0])
    optimizer = settings.build_optimizer([*encoder.layer_groups(), [*model.head.parameters()]])
    stream = ItemBatches(tokenizer, items, labels_M, batch_size=settings.batch_size, seed=seed)
    steps = stream.set_epoch(0)
    epochs = resolve_num_epochs(settings, steps)
    for (
        parameter
    ) in encoder.parameters():  # what no group holds (a head of pretraining) has no part in this
        parameter.requires_grad_(False)
    state = TrainState(model, optimizer, RngState(derive_seed("tune", seed)))
    unfreeze_layers(state.optimizer, Fraction(0), settings.gradual_unfreezing)
    plan = TrainPlan(
        progress=lambda spent: spent.steps / (epochs * steps),
        lr_schedule=settings.lr_schedule(epochs * steps),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=precision,
        max_epochs=epochs,
    )
    for step in train(
        state,
        partial(
            finetuning_objective,
            aux_lm_weight=settings.aux_lm_weight,
            auxiliary_loss=auxiliary_loss,
        ),
        stream,
        plan,
    ):
        unfreeze_layers(
            state.optimizer,
            Fraction(step.counters.steps, epochs * steps),
            settings.gradual_unfreezing,
        )
    update_batch_norm(model, tokenizer, items, precision=precision)
    return model


@torch.no_grad()
def update_batch_norm(
    model: FinetunedModel, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> None:
    """Take the statistics of batch norms anew, over the training items and the tuned weights, without dropout.

    Running ones (momentum 0.1) hold, after the 20 steps of 100 labels, a ninth of the variance of 1 that they started from, and trail the weights.
    All items go through the head together: batches of like length are unlike each other, and a mean over theirs would lose that part of the variance.
    """
    norms = [part for part in model.head.modules() if isinstance(part, nn.BatchNorm1d)]
    model.eval()
    if not norms:
        return
    device = next(model.parameters()).device
    with autocast(device, precision):
        batches = (
            collate_items(tokenizer, [items[i] for i in some]).to(device)
            for some in batch_by_length(items)
        )
        head_inputs = torch.cat(
            [model.head_inputs(model.pooled_vectors(batch)[0], batch) for batch in batches]
        )
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = 1.0
            norm.train()
        model.head(head_inputs)


def unfreeze_layers(
    optimizer: torch.optim.Optimizer, progress: Fraction, unfreeze_share: float
) -> None:
    """Let the layers learn one by one from the top, all of them after `share` of the steps (Howard and Ruder 2018, section 3.3).

    A frozen parameter has no gradient, so that the optimizer passes over it: not even weight decay touches it. The shares are exact, `share` as it is
    written: of floats 0.8 x 3/4 is more than 3/5, and the layer would thaw a step late.
    """
    deepest = max(group["depth"] for group in optimizer.param_groups) or 1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.requires_grad_(
                progress >= Fraction(str(unfreeze_share)) * group["depth"] / deepest
            )


def save_weights(model: nn.Module, path: Path | None) -> None:
    """Write a tuned network's weights, where there is a place for them."""
    if path is not None:
        weights.save_tensors(model.state_dict(), path)


@torch.inference_mode()
def predict_finetuned(
    model: FinetunedModel, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """(M, K) what the model's answer makes of its scores, such as probabilities."""
    model.eval()
    device, rows, found = (
        next(model.parameters()).device,
        answer_rows(items),
        list[tuple[np.ndarray, np.ndarray]](),
    )
    for indices in batch_by_length(items):
        with autocast(device, precision):
            scores = model(collate_items(tokenizer, [items[i] for i in indices]).to(device))
        found.append((np.concatenate([rows[i] for i in indices]), model.answer.postprocess(scores)))
    where, read = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return read[np.argsort(where)]
