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

from lineage import weights
from lineage.batch import Batch, bucketed, mean_over
from lineage.family import Encoder, LossOut, linear_head
from lineage.randomness import generator, seed_of
from lineage.text.tokenization import Reader
from lineage.training.train import Course, Draws, Run, autocast, train
from lineage.transfer.answers import Answer, Span
from lineage.transfer.reading import Item, collate, read_batches, rows_of, word_vectors
from lineage.transfer.settings import TunedSettings, epochs_of


class Tuned(nn.Module):
    """An encoder, and a head: the family's own on its vector of the text, or a linear one at the asked words or on the mean of the text's pieces.

    `like` is any of the items: readings of two texts in both orders are summed before the head, and choices have one score each. With `linear_gain`
    items that are read once, as wholes, learn from every position; what is read of them is the last one's, as without it. With `word_norm`
    asked words are normed below the head.
    """

    def __init__(self, encoder: Encoder, answer: Answer, settings: TunedSettings, *, seed: int, like: Item) -> None:
        super().__init__()
        self.encoder, self.answer, self.readings, self.choices = encoder, answer, len(like.readings), like.choices
        self.mean, self.window, self.pooled = settings.pool == "mean", settings.window, settings.pooled
        self.word_norm = settings.word_norm and bool(like.pieces)
        self.linear_gain = settings.linear_gain and self.readings == 1 and not like.pieces
        device = next(encoder.parameters()).device
        linear = bool(like.pieces) or self.mean
        make = partial(linear_head, encoder.widths()[-1]) if linear else partial(encoder.head, inner_dropout=settings.inner_dropout)
        self.head = make(answer.outputs, dropout=settings.dropout)
        encoder.begin_head(self.head, torch.Generator().manual_seed(seed_of("tuned head", seed)))
        self.head.to(device)

    def forward(self, batch: Batch) -> torch.Tensor:
        """(M, K) scores."""
        pooled, _ = self.vectors(batch)
        return self.scores(pooled, batch)

    def vectors(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The vector of every reading, (B, D), or of every asked word, (M, D), and the top layer that it is of, where texts are read as wholes."""
        if batch.asked_P2 is None and self.window is not None:
            return self.encoder.pool_windows(batch, window=self.window, pooled=self.pooled), None
        layers = self.encoder.encode(batch)
        if batch.asked_P2 is not None:
            return word_vectors(self.encoder, layers[-1], batch), layers[-1]
        if self.mean:
            assert batch.text_BT is not None
            return mean_over(layers[-1], batch.text_BT), layers[-1]
        return self.encoder.pool(layers, batch), layers[-1]

    def scores(self, pooled: torch.Tensor, batch: Batch) -> torch.Tensor:
        """(B, D) or (M, D) -> (M, K): a score for each choice, or the head at each word or over the sum of an item's readings."""
        scores: torch.Tensor = self.head(self.asked(pooled, batch))
        return scores.view(-1, self.readings) if self.choices else scores

    def asked(self, pooled: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the head reads: each choice's, each word's, or the sum of an item's readings."""
        if self.word_norm:  # untrained vectors of words may be as small as 0.001, far below torch's own epsilon
            return F.layer_norm(pooled, pooled.shape[-1:], eps=1e-12)
        return pooled if self.choices or batch.asked_P2 is not None else pooled.view(-1, self.readings, pooled.shape[-1]).sum(1)


def gained_loss(model: Tuned, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The loss of each text's answer after every one of its positions, a mean by weights that grow linearly from 0 at its first to 1 at its last.

    Linear label gain (Dai and Le 2015, section 3), weighted and averaged over the batch as in the released code (adversarial_text, data_utils.py and
    layers.py); a text of one position has the weight 1.
    """
    assert batch.gold_M is not None and not isinstance(model.answer, Span)
    where_BT, lengths_B1 = batch.mask_BT, batch.mask_BT.sum(1, keepdim=True)
    gain_BT = (where_BT.cumsum(1) - 1).double() / (lengths_B1 - 1).clamp_min(1)
    weights_N = torch.where(lengths_B1 > 1, gain_BT, 1.0)[where_BT]
    gold_N = batch.gold_M[:, None].expand_as(where_BT)[where_BT]
    loss = model.answer.loss(model.head(top_BTD[where_BT]), gold_N, weights_M=weights_N)
    return loss / weights_N.sum().to(loss.dtype)


def task_objective(
    model: Tuned, batch: Batch, carry: Any = None, *, lm_weight: float = 0.0, auxiliary: Callable[..., torch.Tensor] | None = None
) -> LossOut:
    """The loss of the gold answers, a mean over them, and `lm_weight` times the family's own on the texts (Radford et al. 2018, equation 5)."""
    assert batch.gold_M is not None
    pooled, top_BTD = model.vectors(batch)
    count = batch.answers(by_item=model.answer.by_item)
    if model.linear_gain:
        assert top_BTD is not None, "settings refuse windows beside it"
        loss = gained_loss(model, top_BTD, batch)
        nats = loss * count
    else:
        nats = model.answer.loss(model.scores(pooled, batch), batch.gold_M)
        loss = nats / count
    if lm_weight:
        assert top_BTD is not None and auxiliary is not None, "settings refuse windows beside it, and families that have none"
        loss = loss + lm_weight * auxiliary(model.encoder, top_BTD, batch)
    return LossOut(loss, {"task": nats.detach()}, {"task": count}, carry)


class ItemStream:
    """Labelled items in a new order each epoch, in buckets of like length."""

    carries = False
    BUCKET = 1024  # items sorted together by length, in whole batches

    def __init__(self, reader: Reader, items: Sequence[Item], gold_M: np.ndarray, *, batch: int, seed: int) -> None:
        self.reader, self.items, self.gold_M, self.size, self.seed = reader, items, gold_M, batch, seed
        self.rows = rows_of(items)
        self.groups: list[np.ndarray] = []

    def start(self, passed: int) -> int:
        """Shuffle."""
        rng = generator("items", self.seed, passed)
        lengths = np.array([item.length for item in self.items])
        self.groups = bucketed(lengths, batch=self.size, together=max(1, self.BUCKET // self.size), rng=rng)
        return len(self.groups)

    def batch(self, index: int) -> Batch:
        """One batch of the epoch."""
        some = self.groups[index]
        return collate(self.reader, [self.items[i] for i in some], self.gold_M[np.concatenate([self.rows[i] for i in some])])


def fine_tune(
    encoder: Encoder,
    reader: Reader,
    items: Sequence[Item],
    gold_M: np.ndarray,
    answer: Answer,
    settings: TunedSettings,
    *,
    seed: int,
    precision: str,
    auxiliary: Callable[..., torch.Tensor] | None = None,
) -> Tuned:
    """Tune the encoder, in place, with a new head: the rates of layers and of steps that the settings ask for, gradual unfreezing.

    The last epoch's network is taken: nothing is chosen on any split.
    """
    model = Tuned(encoder, answer, settings, seed=seed, like=items[0])
    optimizer = settings.optimizer([*encoder.layer_groups(), [*model.head.parameters()]])
    stream = ItemStream(reader, items, gold_M, batch=settings.batch, seed=seed)
    steps = stream.start(0)
    epochs = epochs_of(settings, steps)
    for parameter in encoder.parameters():  # what no group holds (a head of pretraining) has no part in this
        parameter.requires_grad_(False)
    run = Run(model, optimizer, Draws(seed_of("tune", seed)))
    unfreeze(run.optimizer, Fraction(0), settings.unfreeze_share)
    course = Course(
        progress=lambda spent: spent.steps / (epochs * steps),
        rate=settings.course(epochs * steps),
        highest=settings.rate,
        clip_norm=settings.clip_norm,
        precision=precision,
        passes=epochs,
    )
    for step in train(run, partial(task_objective, lm_weight=settings.lm_weight, auxiliary=auxiliary), stream, course):
        unfreeze(run.optimizer, Fraction(step.spent.steps, epochs * steps), settings.unfreeze_share)
    settle(model, reader, items, precision=precision)
    return model


@torch.no_grad()
def settle(model: Tuned, reader: Reader, items: Sequence[Item], *, precision: str) -> None:
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
        batches = (collate(reader, [items[i] for i in some]).to(device) for some in read_batches(items))
        asked = torch.cat([model.asked(model.vectors(batch)[0], batch) for batch in batches])
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = 1.0
            norm.train()
        model.head(asked)


def unfreeze(optimizer: torch.optim.Optimizer, progress: Fraction, share: float) -> None:
    """Let the layers learn one by one from the top, all of them after `share` of the steps (Howard and Ruder 2018, section 3.3).

    A frozen parameter has no gradient, so that the optimizer passes over it: not even weight decay touches it. The shares are exact, `share` as it is
    written: of floats 0.8 x 3/4 is more than 3/5, and the layer would thaw a step late.
    """
    deepest = max(group["depth"] for group in optimizer.param_groups) or 1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.requires_grad_(progress >= Fraction(str(share)) * group["depth"] / deepest)


def keep_weights(model: nn.Module, path: Path | None) -> None:
    """Write a tuned network's weights, where there is a place for them."""
    if path is not None:
        weights.save(model.state_dict(), path)


@torch.inference_mode()
def predict(model: Tuned, reader: Reader, items: Sequence[Item], *, precision: str) -> np.ndarray:
    """(M, K) what the model's answer makes of its scores, such as probabilities."""
    model.eval()
    device, rows, found = next(model.parameters()).device, rows_of(items), list[tuple[np.ndarray, np.ndarray]]()
    for some in read_batches(items):
        with autocast(device, precision):
            scores = model(collate(reader, [items[i] for i in some]).to(device))
        found.append((np.concatenate([rows[i] for i in some]), model.answer.read(scores)))
    where, read = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return read[np.argsort(where)]
