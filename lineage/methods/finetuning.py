"""Fine-tuning of a whole encoder with ULMFiT's techniques (Howard and Ruder 2018, section 3.3).

Shapes: N items, B encodings, T positions, P positions without padding, M answers, D width, K
outputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.answers.base import HeadAnswer
from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.data.task_data import SplitItems
from lineage.methods.early_stopping import ValidatedTraining, Validation
from lineage.methods.encoder import Subject, TaskContext, Transfer, under_test
from lineage.methods.encoding import (
    EncodedItem,
    answer_rows,
    batch_by_length,
    collate_items,
    pool_words,
)
from lineage.methods.head_method import PredictItems, ValidatedHeadMethod
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.methods.item_batches import ItemBatches
from lineage.methods.pooling import pair_width, pool_pair, relate_to_predicate, related_width
from lineage.methods.saved import SavedSystem
from lineage.networks.base import Encoder, LossOutput, Trained, build_linear_head
from lineage.networks.batch import Batch, masked_mean
from lineage.randomness import derive_seed, generator
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.optimizers import DiscriminativeFinetuneSettings
from lineage.training.state import RngState, TrainState

MAX_NORM_ITEMS = 512  # training items that give the statistics of batch norm
# (encoder, top_BTD, batch) -> the loss of the language model on the texts of a task.
AuxiliaryLoss = Callable[[Encoder, torch.Tensor, Batch], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class FinetuneMethod(ValidatedHeadMethod, DiscriminativeFinetuneSettings):
    """The block `finetune`: fine-tuning of the whole network.

    ULMFiT's techniques are off with layer_lr_decay 1, ratio 1 and gradual_unfreezing 0.
    """

    name: ClassVar[str] = "finetune"
    transfer: ClassVar[Transfer] = "finetuned"
    titles: ClassVar[Mapping[str, str]] = {"linear": "fine-tuned"}
    meanings: ClassVar[Mapping[str, str]] = {
        "linear": "all weights of the model learn from the labels"
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        "linear": "The whole network of {model}, fine-tuned."
    }
    noun: ClassVar[str] = "fine-tuning"

    # Share of all steps over which the layers are unfrozen one by one from the top.
    gradual_unfreezing: float = 0.0
    dropout: float = 0.1
    # Dropout on the hidden layer of ULMFiT's classifier. None: as `dropout`.
    classifier_hidden_dropout: float | None = None
    # Positions after which the gradient of a classified text is cut (BPT3C). None: whole texts.
    bptt_window: int | None = None
    # Pool only this many last positions, and train only on their windows. None: all positions.
    pooled_positions: int | None = None
    # The vector of a text: the family's own ([CLS], the extract token, ...), or the mean of the
    # top layer over the text's pieces.
    pooling: Literal["model_default", "mean"] = "model_default"
    aux_lm_weight: float = 0.0  # of the language model's loss on the task's texts; GPT-1: 0.5
    # Layer norm without parameters before the linear head over words, because a new head hardly
    # reads small vectors (docs/decisions/0016).
    word_layer_norm: bool = False
    # Learn a text's label after every position, later ones with more weight (Dai and Le 2015,
    # section 3).
    linear_label_gain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "bptt_window", "pooled_positions")
        check_fraction(self, "gradual_unfreezing", "dropout", "classifier_hidden_dropout")
        check_non_negative(self, "aux_lm_weight")
        self._check_windows()
        if self.classifier_hidden_dropout is not None and self.pooling != "model_default":
            raise ValueError(
                "classifier_hidden_dropout belongs to the family's own classifier; "
                "remove it, or set pooling: model_default"
            )

    def _check_windows(self) -> None:
        window = self.bptt_window
        pooled = self.pooled_positions
        if pooled is not None and (window is None or pooled < window):
            raise ValueError(
                f"pooled_positions is {pooled}, but bptt_window is {window or 'not set'}; "
                f"set bptt_window to {pooled} or less"
            )
        if window is not None and (self.aux_lm_weight or self.pooling != "model_default"):
            raise ValueError(
                "bptt_window only works with the family's own vector of a text; "
                "remove it, or set pooling: model_default and aux_lm_weight: 0"
            )
        if self.linear_label_gain and (window is not None or self.pooling != "model_default"):
            raise ValueError(
                "linear_label_gain is for the last state of a text that is read whole; "
                "set it to false, or remove bptt_window and set pooling: model_default"
            )

    @property
    def recipe(self) -> str:
        """The techniques that are on, joined by +, or plain."""
        is_slanted = self.schedule == "slanted_triangular"
        techniques = {
            "discriminative": self.layer_lr_decay != 1,
            "slanted_triangular": is_slanted and self.ratio != 1,
            f"{self.schedule} rates": not is_slanted,
            "gradual": self.gradual_unfreezing > 0,
            "lm": self.aux_lm_weight > 0,
            "uncorrected": not self.bias_correction,
            "linear gain": self.linear_label_gain,
            "word norm": self.word_layer_norm,
        }
        return "+".join(name for name, is_on in techniques.items() if is_on) or "plain"

    def features_name(self, context: TaskContext) -> str:
        is_mean = self.pooling == "mean" and context.kind.unit != "word"
        return "mean" if is_mean else "last"

    def recipe_name(self, context: TaskContext) -> str:
        """Return the techniques that are on; two of them apply to single texts or words only."""
        is_one_text = context.kind.unit == "text" and not context.is_symmetric
        gain = self.linear_label_gain and is_one_text
        norm = self.word_layer_norm and context.kind.unit == "word"
        return replace(self, linear_label_gain=gain, word_layer_norm=norm).recipe

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        encoder = under_test(subject)
        context = encoder.context
        tokenizer = context.checkpoint.tokenizer
        family = context.checkpoint.family
        validation = problem.validation

        def select(table: str, rows: np.ndarray) -> list[EncodedItem]:
            items = context.items[table]
            return [items[i] for i in rows]

        def validate(model: FinetunedModel) -> Validation:
            outputs_MK, loss = score_finetuned(
                model,
                tokenizer,
                select(validation.table, validation.rows_N),
                problem.validation_labels_M,
                precision=context.precision,
            )
            return Validation(problem.score_validation(outputs_MK, None), loss)

        training = start_finetuning(
            encoder.build_encoder(body_dropout=self.body_dropout),
            tokenizer,
            select("train", problem.train_rows),
            problem.labels_M,
            problem.answer,
            self,
            seed=seed,
            precision=context.precision,
            auxiliary_loss=family.auxiliary_loss if isinstance(family, Trained) else None,
            validate=validate,
        )
        model = training.model

        def predict(part: SplitItems) -> HeadOutput:
            items = select(part.table, part.rows_N)
            return predict_finetuned(model, tokenizer, items, precision=context.precision), None

        return StartedHead(FittedHead(predict, model.state_dict), training)

    def load_head(self, saved: SavedSystem) -> PredictItems:
        """Return the function that applies a kept network; the first items show what it reads."""
        networks: list[FinetunedModel] = []  # one, once it is built
        tokenizer = saved.checkpoint.tokenizer
        precision = saved.record.precision

        def predict(items: list[EncodedItem]) -> HeadOutput:
            if not networks:
                encoder = saved.build_empty_encoder()
                answer = saved.record.answer
                network = FinetunedModel(encoder, answer, self, seed=0, example_item=items[0])
                networks.append(saved.load_weights(network))
            return predict_finetuned(networks[0], tokenizer, items, precision=precision), None

        return predict


class PooledVectors(NamedTuple):
    """The vectors of all encodings (B, D), or of the words that the task asks about (M, D)."""

    vectors: torch.Tensor
    top_BTD: torch.Tensor | None  # the top layer; None if texts are read in windows
    pairs: torch.Tensor | None = None  # what `pool_pair` makes of the two texts of each encoding


class ScoredItems(NamedTuple):
    """The postprocessed scores (M, K) of items, and the mean loss of their labels, if given."""

    outputs_MK: np.ndarray
    loss: float


class FinetunedModel(nn.Module):
    """An encoder with a head.

    Texts have the family's own pooling and head, or with `pooling: mean` a linear head on the mean
    over their pieces. Words have a linear head, which reads what `relate_to_predicate` makes of them
    if there is a predicate. For pairs of texts a second linear head reads what
    `pool_pair` makes of them, and adds its scores. The vectors of an item's encodings are summed;
    choices are scored one by one instead.
    """

    def __init__(
        self,
        encoder: Encoder,
        answer: HeadAnswer,
        settings: FinetuneMethod,
        *,
        seed: int,
        example_item: EncodedItem,
    ) -> None:
        super().__init__()
        has_words = bool(example_item.word_pieces)
        is_pair = example_item.encoded.token_type_ids is not None and not has_words
        self.encoder = encoder
        self.answer = answer
        self.num_encodings = len(example_item.encodings)
        self.is_multiple_choice = example_item.is_multiple_choice
        self.uses_mean_pooling = settings.pooling == "mean"
        # Windows are for long texts; both texts of a pair are read whole.
        self.bptt_window = None if is_pair else settings.bptt_window
        self.pooled_positions = settings.pooled_positions
        self.word_layer_norm = settings.word_layer_norm and has_words
        # Only single texts have a label to predict after every position.
        self.linear_label_gain = settings.linear_label_gain and not is_pair and not has_words
        if has_words or self.uses_mean_pooling:
            width = encoder.hidden_sizes()[-1]
            if example_item.predicate is not None:
                width = related_width(width)
            self.head = build_linear_head(width, answer.num_outputs, dropout=settings.dropout)
        else:
            self.head = encoder.build_head(
                answer.num_outputs,
                dropout=settings.dropout,
                hidden_dropout=settings.classifier_hidden_dropout,
            )
        self.pair_head: nn.Module | None = None
        if is_pair:
            self.pair_head = build_linear_head(
                pair_width(encoder.hidden_sizes()[-1]), answer.num_outputs, dropout=settings.dropout
            )
        init_rng = torch.Generator().manual_seed(derive_seed("tuned head", seed))
        for head in self.heads:
            encoder.init_head(head, init_rng)
            head.to(next(encoder.parameters()).device)

    @property
    def heads(self) -> list[nn.Module]:
        return [self.head] if self.pair_head is None else [self.head, self.pair_head]

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return (M, K) scores."""
        return self.apply_heads(self.pooled_vectors(batch), batch)

    def pooled_vectors(self, batch: Batch) -> PooledVectors:
        """Encode the batch and pool the top layer."""
        if batch.answer_pieces_P2 is None and self.bptt_window is not None:
            vectors = self.encoder.pool_windows(
                batch, window=self.bptt_window, pooled_positions=self.pooled_positions
            )
            return PooledVectors(vectors, None)
        layers = self.encoder.encode(batch)
        top_BTD = layers[-1]
        if batch.answer_pieces_P2 is not None:
            return PooledVectors(pool_words(self.encoder, top_BTD, batch), top_BTD)
        pairs = None if self.pair_head is None else pool_pair(top_BTD, batch)
        if self.uses_mean_pooling:
            assert batch.text_mask_BT is not None
            return PooledVectors(masked_mean(top_BTD, batch.text_mask_BT), top_BTD, pairs)
        return PooledVectors(self.encoder.pool(layers, batch), top_BTD, pairs)

    def apply_heads(self, pooled: PooledVectors, batch: Batch) -> torch.Tensor:
        """Return (M, K) scores of pooled vectors; choices give (N, choices)."""
        scores: torch.Tensor = self.head(self.head_inputs(pooled.vectors, batch))
        if self.pair_head is not None:
            assert pooled.pairs is not None
            scores = scores + self.pair_head(self.head_inputs(pooled.pairs, batch))
        return scores.view(-1, self.num_encodings) if self.is_multiple_choice else scores

    def head_inputs(self, vectors: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Normalize the vectors of words, or sum those of an item's encodings."""
        if self.word_layer_norm:
            # Random-init word vectors may be as small as 0.001, and torch's default is too large.
            vectors = F.layer_norm(vectors, vectors.shape[-1:], eps=1e-12)
        if batch.predicates_M is not None:
            return relate_to_predicate(vectors, batch.predicates_M)
        if self.is_multiple_choice or batch.answer_pieces_P2 is not None:
            return vectors
        return vectors.view(-1, self.num_encodings, vectors.shape[-1]).sum(1)


def linear_label_gain_loss(
    model: FinetunedModel, top_BTD: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """Return the weighted mean loss of predicting a text's label after each of its positions.

    The weights grow linearly from 0 at the first position to 1 at the last (linear label gain, Dai
    and Le 2015, section 3), and the mean is over the batch, as in the released code
    (adversarial_text, data_utils.py and layers.py). A text of one position has weight 1.
    """
    assert batch.labels_M is not None
    mask_BT = batch.mask_BT
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    gain_BT = (mask_BT.cumsum(1) - 1).double() / (lengths_B1 - 1).clamp_min(1)
    weights_P = torch.where(lengths_B1 > 1, gain_BT, 1.0)[mask_BT]
    labels_P = batch.labels_M[:, None].expand_as(mask_BT)[mask_BT]
    loss = model.answer.weighted_loss(model.head(top_BTD[mask_BT]), labels_P, weights_P)
    return loss / weights_P.sum().to(loss.dtype)


def finetuning_objective(
    model: FinetunedModel,
    batch: Batch,
    recurrent_state: None = None,
    *,
    aux_lm_weight: float = 0.0,
    auxiliary_loss: AuxiliaryLoss | None = None,
) -> LossOutput:
    """Return the loss of the labels plus `aux_lm_weight` times the language model's.

    Radford et al. 2018, equation 5.
    """
    assert batch.labels_M is not None
    pooled = model.pooled_vectors(batch)
    top_BTD = pooled.top_BTD
    count = batch.loss_denominator(per_item=model.answer.mean_over_items)
    if model.linear_label_gain:
        assert top_BTD is not None, "FinetuneMethod rejects windows with linear_label_gain"
        loss = linear_label_gain_loss(model, top_BTD, batch)
        total = loss * count
    else:
        total = model.answer.loss(model.apply_heads(pooled, batch), batch.labels_M)
        loss = total / count
    if aux_lm_weight:
        assert top_BTD is not None, "FinetuneMethod rejects windows with aux_lm_weight"
        assert auxiliary_loss is not None, "check_study rejects families without this loss"
        loss = loss + aux_lm_weight * auxiliary_loss(model.encoder, top_BTD, batch)
    return LossOutput(loss, {"task": total.detach()}, {"task": count})


def start_finetuning(
    encoder: Encoder,
    tokenizer: Tokenizer,
    items: Sequence[EncodedItem],
    labels_M: np.ndarray,
    answer: HeadAnswer,
    settings: FinetuneMethod,
    *,
    seed: int,
    precision: str,
    auxiliary_loss: AuxiliaryLoss | None = None,
    validate: Callable[[FinetunedModel], Validation],
) -> ValidatedTraining[FinetunedModel]:
    """Return a fine-tuning of the encoder, in place, with a new head, before its first step."""
    model = FinetunedModel(encoder, answer, settings, seed=seed, example_item=items[0])
    head_parameters = [parameter for head in model.heads for parameter in head.parameters()]
    optimizer = settings.build_optimizer([*encoder.layer_groups(), head_parameters])
    sampler = ItemBatches(tokenizer, items, labels_M, batch_size=settings.batch_size, seed=seed)
    # Parameters outside the layer groups, such as a pretraining head, stay frozen.
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    unfreeze_layers(optimizer, Fraction(0), settings.gradual_unfreezing)

    def after_step(step: int, num_steps: int) -> None:
        unfreeze_layers(optimizer, Fraction(step, num_steps), settings.gradual_unfreezing)

    norm_rows = np.sort(generator("batch norm", seed).permutation(len(items))[:MAX_NORM_ITEMS])
    norm_items = [items[i] for i in norm_rows]

    def update_and_validate(model: FinetunedModel) -> Validation:
        update_batch_norm(model, tokenizer, norm_items, precision=precision)
        return validate(model)

    return ValidatedTraining(
        TrainState(model, optimizer, RngState(derive_seed("tune", seed))),
        model,
        partial(
            finetuning_objective,
            aux_lm_weight=settings.aux_lm_weight,
            auxiliary_loss=auxiliary_loss,
        ),
        sampler,
        settings,
        learning_rate=settings.learning_rate,
        lr_schedule=settings.lr_schedule,
        max_grad_norm=settings.max_grad_norm,
        precision=precision,
        validate=update_and_validate,
        after_step=after_step,
    )


def unfreeze_layers(
    optimizer: torch.optim.Optimizer, progress: Fraction, unfreeze_share: float
) -> None:
    """Unfreeze layer after layer from the top, all after `unfreeze_share` of the steps.

    Howard and Ruder 2018, section 3.3. A frozen parameter has no gradient, so the optimizer skips
    it. Shares are exact fractions: in floats 0.8 * 3/4 is greater than 3/5.
    """
    deepest = max(group["depth"] for group in optimizer.param_groups) or 1
    for group in optimizer.param_groups:
        start = Fraction(str(unfreeze_share)) * group["depth"] / deepest
        for parameter in group["params"]:
            parameter.requires_grad_(progress >= start)


@torch.no_grad()
def update_batch_norm(
    model: FinetunedModel, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> None:
    """Recompute batch norm statistics over training items with the present weights.

    Running statistics lag behind the weights, in 20 steps by a ninth. All items pass through the
    head at once: an average over batches would lose the variance between batches. It is done before
    every validation, so that the model that is kept is the one that was validated.
    """
    norms = [module for module in model.head.modules() if isinstance(module, nn.BatchNorm1d)]
    model.eval()
    if not norms:
        return
    device = next(model.parameters()).device
    head_inputs = []
    with autocast(device, precision):
        for indices in batch_by_length(items):
            batch = collate_items(tokenizer, [items[i] for i in indices]).to(device)
            vectors = model.pooled_vectors(batch).vectors
            head_inputs.append(model.head_inputs(vectors, batch))
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = 1.0
            norm.train()
        model.head(torch.cat(head_inputs))


def predict_finetuned(
    model: FinetunedModel, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """Return (M, K) postprocessed scores of all items, in their order."""
    return score_finetuned(model, tokenizer, items, None, precision=precision).outputs_MK


@torch.inference_mode()
def score_finetuned(
    model: FinetunedModel,
    tokenizer: Tokenizer,
    items: Sequence[EncodedItem],
    labels_M: np.ndarray | None,
    *,
    precision: str,
) -> ScoredItems:
    """Return the postprocessed scores of all items, in their order, and their mean loss."""
    model.eval()
    device = next(model.parameters()).device
    rows = answer_rows(items)
    batch_rows: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    loss_sum = 0.0
    count = 0
    for indices in batch_by_length(items):
        rows_of_batch = np.concatenate([rows[i] for i in indices])
        labels = None if labels_M is None else labels_M[rows_of_batch]
        batch = collate_items(tokenizer, [items[i] for i in indices], labels).to(device)
        with autocast(device, precision):
            scores = model(batch)
        if batch.labels_M is not None:
            loss_sum += float(model.answer.loss(scores, batch.labels_M))
            count += batch.loss_denominator(per_item=model.answer.mean_over_items)
        batch_rows.append(rows_of_batch)
        outputs.append(model.answer.postprocess(scores))
    order = np.argsort(np.concatenate(batch_rows))
    return ScoredItems(np.concatenate(outputs)[order], loss_sum / count if count else math.nan)
