"""A BiLSTM probe on frozen features: a scalar mix of the layers, a BiLSTM and a linear layer.

The linear layer reads:
- for a text, the BiLSTM's outputs max-pooled over its pieces; for two texts, the max-pooled u and
  v, |u - v| and u * v (Conneau et al. 2017, section 3), and the cosine of u and v;
- for a word in a sentence, or in a context, the output at that word;
- for tags, the output at every word, with a CRF on top (Peters et al. 2017, section 2.1; Peters et
  al. 2018, appendix A).

If words are arguments of a predicate, the predicate is marked at the input (He et al. 2017, section
2.1), and the linear layer reads what `relate_to_predicate` makes of the output (as Shi and Lin
2019, section 3.2).

With `join` the first LSTMs read the added static vectors alone, and the language model's features
are concatenated to their output, [h_1; LM] (TagLM, Peters et al. 2017, section 2).

Shapes: N items, B encodings of a batch, T positions, W words, M answers, L layers, D features,
F = L D, H units of both directions, K outputs. For tags B is N and T is W.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from lineage.answers.base import HeadAnswer
from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.data.task_data import SplitItems
from lineage.methods.bilstm import BiLstm
from lineage.methods.cached_features import CachedFeatures, FeatureBatch
from lineage.methods.early_stopping import ValidatedTraining, Validation
from lineage.methods.encoder import (
    EncoderUnderTest,
    EvalContext,
    Subject,
    TaskContext,
    Transfer,
    under_test,
)
from lineage.methods.encoding import EncodedItem, answer_rows, batch_by_length, pool_words
from lineage.methods.feature_store import pop_scaling, scaling_to_tensors
from lineage.methods.head_method import PredictItems, ValidatedHeadMethod
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.methods.item_batches import ItemBatches
from lineage.methods.pooling import combine_pair, pair_width, relate_to_predicate, related_width
from lineage.methods.saved import SavedSystem
from lineage.methods.stored_features import Features
from lineage.networks.base import LossOutput
from lineage.networks.batch import Batch
from lineage.networks.layers.crf import LinearChainCRF
from lineage.networks.layers.dropout import fast_dropout
from lineage.networks.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo
from lineage.training.optimizers import build_adamw, build_param_groups, check_stlr_settings
from lineage.training.schedules import LrSchedule, slanted_triangular_schedule
from lineage.training.state import RngState, TrainState

JOINS = ("input", "first", "second")  # the index is the number of LSTMs below


@dataclass(frozen=True, kw_only=True)
class BilstmProbeMethod(ValidatedHeadMethod):
    """The block `bilstm_probe`: a BiLSTM on frozen features, with a CRF for tags."""

    name: ClassVar[str] = "bilstm_probe"
    transfer: ClassVar[Transfer] = "frozen"
    head: ClassVar[str] = "bilstm"
    titles: ClassVar[Mapping[str, str]] = {
        "bilstm": "frozen + BiLSTM",
        "bilstm_crf": "frozen + BiLSTM-CRF",
    }
    meanings: ClassVar[Mapping[str, str]] = {
        "bilstm": "the model stays as it is, and a small recurrent network learns from its vectors",
        "bilstm_crf": "the same, with tags that are chosen together for a sentence",
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        "bilstm": "A BiLSTM on frozen features of {model}.",
        "bilstm_crf": "A BiLSTM-CRF on frozen features of {model}.",
    }
    group_title: ClassVar[str] = "frozen + BiLSTM(-CRF)"
    noun: ClassVar[str] = "a BiLSTM probe"
    keeps_network: ClassVar[bool] = False
    reads_frozen_features: ClassVar[bool] = True

    hidden_size: int = 64  # of each direction
    learning_rate: float = 0.003
    cut_frac: float = 0.1  # share of the steps over which the learning rate rises
    ratio: float = 32.0  # highest learning rate over the lowest
    weight_decay: float = 0.0
    dropout: float = 0.2  # on the inputs of each LSTM and of the output layer
    max_grad_norm: float = 5.0
    num_layers: int = 1
    # Where the features enter if static vectors are added to them: at the input, or concatenated to
    # the output of the first or second LSTM. The LSTMs below then read static vectors alone (TagLM,
    # Peters et al. 2017, section 3). Without static vectors, features enter at the input.
    join: Literal["input", "first", "second"] = "input"
    features: Features = "scalar_mix"
    learn_gamma: bool = True  # this and `layer_norm` as for the linear probe
    layer_norm: bool = False
    # 0.001 lets the mix's weights vary, 1 makes it the mean of the layers (Peters et al. 2018,
    # section 5.1).
    scalar_mix_l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "hidden_size", "num_layers")
        check_stlr_settings(self)
        check_fraction(self, "dropout")
        check_non_negative(self, "scalar_mix_l2")
        if self.layers_below_join > self.num_layers:
            raise ValueError(
                f"join is {self.join}, and num_layers is {self.num_layers}; "
                f"set num_layers: {self.layers_below_join} or more, or join: input"
            )

    @property
    def layers_below_join(self) -> int:
        """The number of layers that read static vectors alone."""
        return JOINS.index(self.join)

    def lr_schedule(self, steps: int) -> LrSchedule:
        return slanted_triangular_schedule(self.cut_frac, self.ratio, steps=steps)

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return super().suits(kind, info) and self.head in info.probes

    def features_name(self, context: TaskContext) -> str:
        return self.features

    def head_name(self, context: TaskContext) -> str:
        return "bilstm_crf" if context.kind.answer.are_words else self.head

    def recipe_name(self, context: TaskContext) -> str:
        """List the differences from a single LSTM over its input, joined by +, or return none."""
        parts = []
        if self.num_layers > 1:
            parts.append(f"{self.num_layers} layers")
        assert isinstance(context, EvalContext)
        if context.static_context is not None and self.join != "input":
            parts.append(f"joined at {self.join}")
        return "+".join(parts) or "none"

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        """Build the probe. Raises EvaluationError if there are no such layers."""
        encoder = under_test(subject)
        validation = problem.validation

        def select(table: str, rows: np.ndarray) -> CachedFeatures:
            return self.cached_features(encoder)[table].select(rows)

        def validate(probe: BilstmProbe) -> Validation:
            features = select(validation.table, validation.rows_N)
            output = predict_bilstm_probe(probe, features, problem.validation_labels_M)
            score = problem.score_validation(output.outputs_MK, output.decoded_M)
            return Validation(score, output.loss)

        training = start_bilstm_probe(
            select("train", problem.train_rows),
            problem.labels_M,
            problem.answer,
            self,
            seed=seed,
            device=encoder.context.device,
            validate=validate,
        )
        model = training.model

        def predict(part: SplitItems) -> HeadOutput:
            output = predict_bilstm_probe(model, select(part.table, part.rows_N))
            return output.outputs_MK, output.decoded_M

        def get_tensors() -> dict[str, torch.Tensor]:
            assert model.scaling is not None
            return model.state_dict() | scaling_to_tensors(model.scaling)

        return StartedHead(FittedHead(predict, get_tensors), training)

    def cached_features(self, encoder: EncoderUnderTest) -> dict[str, CachedFeatures]:
        """Return each table's features; a probe of tags reads words."""
        is_per_word = encoder.context.kind.answer.are_words
        folder = encoder.scratch_dir
        return encoder.share(
            self.name,
            lambda extractor: extractor.store_cached(
                self.features, is_per_word=is_per_word, folder=folder
            ),
        )

    def load_head(self, saved: SavedSystem) -> PredictItems:
        """Return the function that applies a kept probe; the first items show what it reads."""
        encoder = saved.build_encoder()
        scaling = pop_scaling(saved.tensors)
        answer = saved.record.answer

        probes: list[BilstmProbe] = []  # one, once it is built

        def predict(items: list[EncodedItem]) -> HeadOutput:
            outputs = []
            decoded = []
            for extractor in saved.extractors(encoder, items):
                features = extractor.store_cached(
                    self.features, is_per_word=answer.are_words, folder=None, scaling=scaling
                )["new"]
                if not probes:
                    probe = BilstmProbe(answer, self, features, seed=0)
                    probes.append(saved.load_weights(probe))
                output = predict_bilstm_probe(probes[0], features)
                outputs.append(output.outputs_MK)
                if output.decoded_M is not None:
                    decoded.append(output.decoded_M)
            return np.concatenate(outputs), np.concatenate(decoded) if decoded else None

        return predict


class ProbeOutput(NamedTuple):
    """The postprocessed scores (M, K), and the best tag sequences (M,) of a CRF."""

    outputs_MK: np.ndarray
    decoded_M: np.ndarray | None
    loss: float = math.nan  # the mean loss of the labels, if given


class BilstmProbe(nn.Module):
    """A scalar mix, a BiLSTM and an output layer, with a CRF for tags; inputs are standardized."""

    def __init__(
        self,
        answer: HeadAnswer,
        settings: BilstmProbeMethod,
        train_features: CachedFeatures,
        *,
        seed: int,
    ) -> None:
        super().__init__()
        item = train_features.items[0]
        L, D = train_features.layers[0][0].shape[1:]
        self.answer = answer
        self.dropout = settings.dropout
        self.word_pooling = train_features.word_pooling
        assert train_features.is_per_word == answer.are_words
        self.scaling = train_features.scaling
        self.num_encodings = len(item.encodings)
        self.has_words = bool(item.word_pieces)
        self.is_multiple_choice = item.is_multiple_choice
        self.is_text_pair = item.encoded.token_type_ids is not None and not self.has_words
        mean_LD, std_LD = train_features.mean_and_std(layer_norm=settings.layer_norm)
        self.mean_LD = nn.Buffer(mean_LD)
        self.std_LD = nn.Buffer(std_LD)
        static_size = train_features.static_size
        self.scalar_mix = ScalarMix(L, gamma=settings.learn_gamma, static_size=static_size)
        self.scalar_mix_l2 = settings.scalar_mix_l2
        layers_below_join = settings.layers_below_join if static_size else 0
        self.late_size = D - static_size if layers_below_join else 0
        self.bilstm = BiLstm(
            D + (item.predicate is not None),
            settings.hidden_size,
            settings.num_layers,
            dropout=settings.dropout,
            late_size=self.late_size,
            layers_below_join=layers_below_join,
        )
        output_size = self.bilstm.output_size
        if self.is_text_pair:
            output_size = pair_width(output_size)
        if item.predicate is not None:
            output_size = related_width(output_size)
        self.output_layer = nn.Linear(output_size, answer.num_outputs)
        self.crf = LinearChainCRF(answer.num_outputs) if answer.are_words else None
        self.init_weights(torch.Generator().manual_seed(derive_seed("task network", seed)))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the LSTMs' weights and those of the output layer; the CRF starts from zeros."""
        self.bilstm.init_weights(generator)
        nn.init.normal_(self.output_layer.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.output_layer.bias)

    def forward(self, batch: FeatureBatch) -> torch.Tensor:
        """Return (M, K) scores, without the CRF."""
        y_MH = self._encode(self._mix_layers(batch), batch)
        y_MH = fast_dropout(y_MH, self.dropout, self.training)
        if batch.predicates_M is not None:
            y_MH = relate_to_predicate(y_MH, batch.predicates_M)
        if self.is_multiple_choice:
            return self.output_layer(y_MH).view(-1, self.num_encodings)
        if not self.has_words:
            y_MH = y_MH.view(-1, self.num_encodings, y_MH.shape[-1]).sum(1)
        return self.output_layer(y_MH)

    def _mix_layers(self, batch: FeatureBatch) -> torch.Tensor:
        """Return (B, T, D): the scalar mix, with dropout on the inputs of the first LSTMs."""
        assert batch.layers_LBTD is not None
        scale_LD = 1 / self.std_LD
        shift_LD = -self.mean_LD * scale_LD
        x_LBTD = batch.layers_LBTD.to(scale_LD.dtype)
        x_BTD = self.scalar_mix(
            torch.addcmul(shift_LD[:, None, None], x_LBTD, scale_LD[:, None, None])
        )
        if batch.has_pieces_BT is not None:
            x_BTD = x_BTD * batch.has_pieces_BT[..., None]
        if not self.late_size:
            return fast_dropout(x_BTD, self.dropout, self.training)
        input_BTD = fast_dropout(x_BTD[..., self.late_size :], self.dropout, self.training)
        return torch.cat([x_BTD[..., : self.late_size], input_BTD], -1)

    def _encode(self, x_BTD: torch.Tensor, batch: FeatureBatch) -> torch.Tensor:
        """Return a vector for each word that the task asks about, or for each encoding."""
        if batch.predicates_M is not None:
            x_BTD = torch.cat([x_BTD, _mark_predicates(batch).to(x_BTD.dtype)], -1)
        y_BTH = self.bilstm(x_BTD, batch.mask_BT)
        if batch.word_rows_M is not None:
            return y_BTH.flatten(0, 1).index_select(0, batch.word_rows_M)
        if batch.answer_pieces_P2 is not None:
            return pool_words(self, y_BTH, batch)
        return self._pool_texts(y_BTH, batch)

    def _pool_texts(self, y_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.text_mask_BT is not None
        if not self.is_text_pair:
            return _max_pool(y_BTH, batch.text_mask_BT)
        assert batch.segment_ids_BT is not None
        u_BH = _max_pool(y_BTH, batch.text_mask_BT & (batch.segment_ids_BT == 0))
        v_BH = _max_pool(y_BTH, batch.text_mask_BT & (batch.segment_ids_BT == 1))
        return combine_pair(u_BH, v_BH)

    def loss(self, scores_MK: torch.Tensor, batch: FeatureBatch) -> torch.Tensor:
        assert batch.labels_M is not None
        if self.crf is None:
            return self.answer.loss(scores_MK, batch.labels_M)
        scores_NWK = _pad_words(scores_MK, batch)
        labels_NW = _pad_words(batch.labels_M, batch)
        return self.crf.neg_log_likelihood(scores_NWK, batch.mask_BT, labels_NW).sum()

    def predict(self, batch: FeatureBatch) -> ProbeOutput:
        """Postprocess the scores; a CRF gives marginals and the best tags. The loss is a sum."""
        scores_MK = self(batch)
        loss = math.nan if batch.labels_M is None else float(self.loss(scores_MK, batch))
        if self.crf is None:
            return ProbeOutput(self.answer.postprocess(scores_MK), None, loss)
        mask_NW = batch.mask_BT
        scores_NWK = _pad_words(scores_MK, batch).float()
        marginals_MK = self.crf.marginals(scores_NWK, mask_NW)[mask_NW]
        decoded_M = self.crf.viterbi_decode(scores_NWK, mask_NW)[mask_NW]
        return ProbeOutput(marginals_MK.double().cpu().numpy(), decoded_M.cpu().numpy(), loss)


def _mark_predicates(batch: FeatureBatch) -> torch.Tensor:
    """Return (B, T, 1): True at the predicate of each item."""
    assert batch.predicates_M is not None
    words_M = torch.arange(len(batch.predicates_M), device=batch.predicates_M.device)
    return _pad_words(words_M == batch.predicates_M, batch)[..., None]


def _pad_words(x_M: torch.Tensor, batch: FeatureBatch) -> torch.Tensor:
    """Return (N, W, ...) from (M, ...), zeros at padding."""
    assert batch.word_rows_M is not None
    N, W = batch.mask_BT.shape
    padded = x_M.new_zeros(N * W, *x_M.shape[1:])
    return padded.index_copy(0, batch.word_rows_M, x_M).view(N, W, *x_M.shape[1:])


def _max_pool(y_BTH: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (B, H): the maximum over the masked positions, zeros if there are none."""
    max_BH = y_BTH.masked_fill(~mask_BT[..., None], float("-inf")).amax(1)
    return torch.where(mask_BT.any(1)[:, None], max_BH, 0.0)


class FeatureBatches(ItemBatches):
    """Cached features with their labels, shuffled in each epoch."""

    def __init__(
        self, features: CachedFeatures, labels_M: np.ndarray, *, batch_size: int, seed: int
    ) -> None:
        super().__init__(
            features.tokenizer, features.items, labels_M, batch_size=batch_size, seed=seed
        )
        self.features = features

    def get_batch(self, index: int) -> Batch:
        indices = self.batch_indices[index]
        return self.features.make_batch(indices, self.labels_of(indices))


def bilstm_probe_objective(
    model: BilstmProbe, batch: FeatureBatch, recurrent_state: None = None
) -> LossOutput:
    """Return the mean loss plus the L2 penalty of the mix (Peters et al. 2018, section 3.3)."""
    total = model.loss(model(batch), batch)
    count = batch.loss_denominator(per_item=model.answer.mean_over_items)
    loss = total / count
    if model.scalar_mix_l2:
        loss = loss + model.scalar_mix_l2 * model.scalar_mix.l2_penalty()
    return LossOutput(loss, {"task": total.detach()}, {"task": count})


def start_bilstm_probe(
    features: CachedFeatures,
    labels_M: np.ndarray,
    answer: HeadAnswer,
    settings: BilstmProbeMethod,
    *,
    seed: int,
    device: torch.device,
    validate: Callable[[BilstmProbe], Validation],
) -> ValidatedTraining[BilstmProbe]:
    """Return a training of a probe, with Adam and a slanted triangle, before its first step."""
    model = BilstmProbe(answer, settings, features, seed=seed).to(device)
    sampler = FeatureBatches(features, labels_M, batch_size=settings.batch_size, seed=seed)
    groups = build_param_groups([[*model.parameters()]], weight_decay=settings.weight_decay)
    return ValidatedTraining(
        TrainState(model, build_adamw(groups), RngState(derive_seed("fit network", seed))),
        model,
        bilstm_probe_objective,
        sampler,
        settings,
        learning_rate=settings.learning_rate,
        lr_schedule=settings.lr_schedule,
        max_grad_norm=settings.max_grad_norm,
        precision="fp32",
        validate=validate,
    )


@torch.no_grad()
def predict_bilstm_probe(
    model: BilstmProbe, features: CachedFeatures, labels_M: np.ndarray | None = None
) -> ProbeOutput:
    """Predict all items, in their order."""
    assert features.scaling is model.scaling
    model.eval()
    device = model.output_layer.weight.device
    rows = answer_rows(features.items)
    batch_rows: list[np.ndarray] = []
    outputs: list[ProbeOutput] = []
    count = 0
    for indices in batch_by_length(features.items):
        rows_of_batch = np.concatenate([rows[i] for i in indices])
        labels = None if labels_M is None else labels_M[rows_of_batch]
        batch = features.make_batch(indices, labels).to(device)
        assert isinstance(batch, FeatureBatch)
        batch_rows.append(rows_of_batch)
        outputs.append(model.predict(batch))
        count += batch.loss_denominator(per_item=model.answer.mean_over_items)
    order = np.argsort(np.concatenate(batch_rows))
    outputs_MK = np.concatenate([output.outputs_MK for output in outputs])[order]
    decoded = [output.decoded_M for output in outputs if output.decoded_M is not None]
    return ProbeOutput(
        outputs_MK,
        np.concatenate(decoded)[order] if decoded else None,
        sum(output.loss for output in outputs) / count,
    )
