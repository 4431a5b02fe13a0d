"""SetFit: an encoder is fine-tuned on pairs of labelled texts, and a linear probe reads its vectors.

See Tunstall et al. 2022, "Efficient Few-Shot Learning Without Prompts", section 3.1. The vectors of
two texts with the same label are drawn together, those of two labels apart, so that a few labels
give many training examples. Pairs, loss and optimizer are those of the released code at the time of
the paper (setfit 0.1).

Shapes: N labelled texts, C classes among them, P pairs, H pairs of one label or as many of two,
B pairs or texts of a batch, M texts, D width, K labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.evaluation.early_stopping import CurvePoint, steps_between_validations
from lineage.evaluation.encoding import EncodedItem, batch_by_length, collate_items
from lineage.evaluation.settings import SetfitSettings
from lineage.models.base import Encoder, LossOutput
from lineage.models.batch import Batch, masked_mean
from lineage.randomness import derive_seed, generator
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import linear_schedule_with_warmup
from lineage.training.state import RngState, TrainState

# The released code has the first, and the defaults of sentence-transformers.
WARMUP_RATIO = 0.1
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0


class Pairs(NamedTuple):
    """Pairs of labelled texts, in random order."""

    indices_P2: np.ndarray
    same_label_P: np.ndarray  # float32: 1 or 0


def sample_pairs(labels_N: np.ndarray, num_pairs: int, rng: np.random.Generator) -> Pairs:
    """Draw pairs of texts: each text comes first equally often, or once more than others.

    Half of the pairs have the same label: the second text is any with the label of the first,
    which may be the first itself. The others have two labels. Raises EvaluationError if all texts
    have one label.
    """
    names, classes_N, counts_C = np.unique(labels_N, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise EvaluationError(
            "all labelled texts have the same label, and SetFit learns from pairs with two; raise "
            "label_counts"
        )
    N = len(labels_N)
    rounds = [rng.permutation(N) for _ in range(-(-num_pairs // (2 * N)))]
    first_H = np.concatenate(rounds)[: num_pairs // 2]
    # The texts of a class follow each other in `sorted_N`, from `starts_C` on.
    sorted_N = np.argsort(classes_N, kind="stable")
    starts_C = np.cumsum(counts_C) - counts_C
    start_H = starts_C[classes_N[first_H]]
    count_H = counts_C[classes_N[first_H]]
    positive_H = sorted_N[start_H + rng.integers(count_H)]
    place_H = rng.integers(N - count_H)  # among the texts of all other classes
    negative_H = sorted_N[np.where(place_H < start_H, place_H, place_H + count_H)]
    second_P = np.concatenate([positive_H, negative_H])
    indices_P2 = np.column_stack([np.tile(first_H, 2), second_P])
    same_label_P = np.repeat(np.array([1, 0], np.float32), len(first_H))
    order = rng.permutation(len(indices_P2))
    return Pairs(indices_P2[order], same_label_P[order])


@dataclass(frozen=True)
class PairBatch(Batch):
    """The distinct texts of a batch of pairs."""

    rows_2B: torch.Tensor = field(kw_only=True)  # the rows of the first and of the second texts
    same_label_B: torch.Tensor = field(kw_only=True)  # 1 or 0


class PairBatches:
    """Pairs in their order.

    A text that occurs in several pairs of a batch is read once, so with 16 labels a batch has 14
    texts instead of 32. The released code reads it once for each pair, with other units dropped
    out.
    """

    carries_state = False

    def __init__(
        self, tokenizer: Tokenizer, items: Sequence[EncodedItem], pairs: Pairs, *, batch_size: int
    ) -> None:
        self.tokenizer = tokenizer
        self.items = items
        self.pairs = pairs
        self.batch_size = batch_size

    def set_epoch(self, epoch: int) -> int:
        """Return the number of batches; there is one epoch."""
        return -(-len(self.pairs.indices_P2) // self.batch_size)  # rounded up

    def get_batch(self, index: int) -> PairBatch:
        """Return one batch."""
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        texts, rows_2B = np.unique(self.pairs.indices_P2[part].T, return_inverse=True)
        batch = collate_items(self.tokenizer, [self.items[i] for i in texts])
        return PairBatch(
            **vars(batch),
            rows_2B=torch.from_numpy(rows_2B.reshape(2, -1)),
            same_label_B=torch.from_numpy(self.pairs.same_label_P[part]),
        )


class SentenceEncoder(nn.Module):
    """An encoder that gives the vector of a text that fine-tuning also reads.

    That is the family's own, or with `uses_mean_pooling` the mean of the top layer over the text's
    pieces.
    """

    def __init__(self, encoder: Encoder, *, uses_mean_pooling: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.uses_mean_pooling = uses_mean_pooling

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return (B, D) vectors of texts."""
        layers = self.encoder.encode(batch)
        if self.uses_mean_pooling:
            assert batch.text_mask_BT is not None
            return masked_mean(layers[-1], batch.text_mask_BT)
        return self.encoder.pool(layers, batch)


def cosine_similarity_loss(
    model: SentenceEncoder, batch: PairBatch, recurrent_state: None = None
) -> LossOutput:
    """Return the mean squared difference of the cosine of two texts from 1 or 0."""
    first_BD, second_BD = model(batch).float()[batch.rows_2B]
    cosines_B = F.cosine_similarity(first_BD, second_BD, dim=-1)
    loss = F.mse_loss(cosines_B, batch.same_label_B)
    count = len(cosines_B)
    return LossOutput(loss, {"pairs": loss.detach() * count}, {"pairs": count})


@dataclass(frozen=True)
class TunedEncoder:
    """An encoder that was fine-tuned on pairs, and its learning curve."""

    model: SentenceEncoder
    learning_curve: Sequence[CurvePoint]
    # By the table and rows that a head has read: other heads of the same encoder read them too.
    vectors: dict[tuple[str, bytes], np.ndarray] = field(default_factory=dict)


def tune_encoder(
    encoder: Encoder,
    tokenizer: Tokenizer,
    items: Sequence[EncodedItem],
    labels_N: np.ndarray,
    settings: SetfitSettings,
    *,
    uses_mean_pooling: bool,
    seed: int,
    precision: str,
) -> TunedEncoder:
    """Fine-tune the encoder, in place, on pairs of labelled texts; the last weights are kept.

    `settings` have a learning rate. Raises EvaluationError if a loss is not finite, or if all texts
    have one label.
    """
    assert settings.learning_rate is not None, "EvaluateSettings.methods fills it in"
    num_pairs = settings.count_pairs(len(items))
    pairs = sample_pairs(labels_N, num_pairs, generator("setfit pairs", seed))
    model = SentenceEncoder(encoder, uses_mean_pooling=uses_mean_pooling)
    # Parameters outside the layer groups, such as a pretraining head, stay as they are.
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    groups = encoder.layer_groups()
    for group in groups:
        for parameter in group:
            parameter.requires_grad_(True)
    optimizer = build_adamw(build_param_groups(groups, weight_decay=WEIGHT_DECAY))
    num_steps = settings.count_steps(len(items))
    plan = TrainPlan(
        progress=lambda counters: counters.steps / num_steps,
        lr_schedule=linear_schedule_with_warmup(WARMUP_RATIO),
        learning_rate=settings.learning_rate,
        max_grad_norm=MAX_GRAD_NORM,
        precision=precision,
        max_epochs=1,
    )
    state = TrainState(model, optimizer, RngState(derive_seed("setfit", seed)))
    batches = PairBatches(tokenizer, items, pairs, batch_size=settings.batch_size)
    steps = train(state, cosine_similarity_loss, batches, plan)
    return TunedEncoder(model.eval(), _learning_curve([step.loss for step in steps]))


def _learning_curve(losses: Sequence[torch.Tensor]) -> list[CurvePoint]:
    """Return the mean loss between points at equal distances; nothing is validated."""
    num_steps = len(losses)
    interval = steps_between_validations(num_steps)
    values = torch.stack([*losses]).tolist()
    curve = []
    for start in range(0, num_steps, interval):
        part = values[start : start + interval]
        end = start + len(part)
        curve.append(
            CurvePoint(
                step=end,
                epoch=end / num_steps,
                train_loss=sum(part) / len(part),
                validation_loss=math.nan,
                validation_score=math.nan,
                is_kept=end == num_steps,
            )
        )
    return curve


@torch.inference_mode()
def encode_texts(
    model: SentenceEncoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """Return (M, 1, D) float32 vectors of texts, as one layer of features.

    Their length is 1, since the loss of pairs does not see it.
    """
    model.eval()
    device = next(model.parameters()).device
    batch_rows: list[np.ndarray] = []
    vectors: list[torch.Tensor] = []
    for indices in batch_by_length(items):
        batch = collate_items(tokenizer, [items[i] for i in indices]).to(device)
        with autocast(device, precision):
            vectors.append(model(batch))
        batch_rows.append(indices)
    order = np.argsort(np.concatenate(batch_rows))
    unit_vectors = F.normalize(torch.cat(vectors).float(), dim=-1)
    return unit_vectors.cpu().numpy()[order, None]
