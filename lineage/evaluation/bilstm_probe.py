"""A BiLSTM probe on frozen features.

It is a scalar mix of the layers, a BiLSTM and a linear layer. The linear layer reads:

- for a text, the BiLSTM's outputs max-pooled over its pieces; for two texts, the max-pooled u and
  v, |u - v| and u * v (Conneau et al. 2017, section 3), and the cosine of u and v;
- for a word in a sentence, or in a context, the output at that word;
- for tags, the output at every word, with a CRF on top (Peters et al. 2017, section 2.1; Peters et
  al. 2018, appendix A).

If static vectors are added to the features, `join` can let the first LSTMs read the static vectors
alone. The language model's features are then concatenated to their output, [h_1; LM] (TagLM,
Peters et al. 2017, section 2; section 3 compares where to join).

Shapes: N items, B encodings of a batch, T positions, W words, M answers, L layers, D features,
H units of both directions, K outputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.evaluation.answers import Answer, TagsAnswer
from lineage.evaluation.early_stopping import CurvePoint, ValidatedTraining, Validation
from lineage.evaluation.encoding import (
    EncodedItem,
    answer_rows,
    batch_by_length,
    collate_items,
    pool_words,
)
from lineage.evaluation.finetuning import ItemBatches
from lineage.evaluation.linear_probe import (
    combine_pair,
    layer_mean_and_std,
    pair_width,
    select_layers,
)
from lineage.evaluation.settings import BilstmProbeSettings
from lineage.evaluation.translator import init_uniform
from lineage.models.base import Encoder, LossOutput
from lineage.models.batch import Batch, gather_positions, reversed_positions
from lineage.models.layers.crf import LinearChainCRF
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState

MIN_STD = 1e-6  # float32 features with a smaller standard deviation carry no information


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch with the features of a frozen encoder."""

    layers_BTLD: torch.Tensor | None = None


@dataclass(frozen=True)
class CachedFeatures:
    """Items and all layers of their encodings."""

    tokenizer: Tokenizer
    items: Sequence[EncodedItem]
    # For each item and encoding (T, L, D) float32. D is that of the widest layer; narrower ones
    # are padded with zeros.
    layers: list[tuple[np.ndarray, ...]]
    word_pooling: str  # which pieces give a word's vector, see Encoder
    # The last features are a static vector of another model, equal in all layers, see
    # lineage.evaluation.joined.
    static_size: int = 0

    def select(self, indices: np.ndarray) -> "CachedFeatures":
        """Keep only these items."""
        return replace(
            self,
            items=[self.items[i] for i in indices],
            layers=[self.layers[i] for i in indices],
        )

    def select_layers(self, settings: BilstmProbeSettings) -> "CachedFeatures":
        """Keep only the layers that the settings ask for, before static vectors are added.

        Raises EvaluationError if there are no such layers.
        """
        selected = [
            tuple(np.ascontiguousarray(select_layers(layers, settings)) for layers in encodings)
            for encodings in self.layers
        ]
        return replace(self, layers=selected)

    def make_batch(self, indices: np.ndarray, labels_M: np.ndarray | None = None) -> FeatureBatch:
        """Build one batch of these items."""
        batch = collate_items(self.tokenizer, [self.items[i] for i in indices], labels_M)
        encodings = [layers_TLD for i in indices for layers_TLD in self.layers[i]]
        padded = np.zeros((*batch.ids_BT.shape, *encodings[0].shape[1:]), np.float32)
        for row, layers_TLD in enumerate(encodings):
            padded[row, : len(layers_TLD)] = layers_TLD
        return FeatureBatch(**vars(batch), layers_BTLD=torch.from_numpy(padded))

    def mean_and_std(self, *, layer_norm: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and standard deviation over all positions, (L, D) each.

        Each feature has its own, or with `layer_norm` each layer and each static vector has one.
        """
        shape = self.layers[0][0].shape[1:]
        count = 0
        sums_LD = np.zeros(shape)
        squares_LD = np.zeros(shape)
        for layers_TLD in chain.from_iterable(self.layers):
            x_TLD = layers_TLD.astype(np.float64)
            count += len(x_TLD)
            sums_LD = sums_LD + x_TLD.sum(0)
            squares_LD = squares_LD + np.square(x_TLD).sum(0)
        mean_LD = sums_LD / count
        std_LD = np.sqrt(np.maximum(squares_LD / count - np.square(mean_LD), 0))
        if layer_norm:
            mean_LD, std_LD = self._layer_mean_and_std(mean_LD, std_LD)
        else:
            std_LD = np.where(std_LD > MIN_STD, std_LD, 1.0)
        return torch.from_numpy(mean_LD).float(), torch.from_numpy(std_LD).float()

    def _layer_mean_and_std(
        self, mean_LD: np.ndarray, std_LD: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        num_contextual = mean_LD.shape[-1] - self.static_size
        means = []
        stds = []
        for part in (slice(num_contextual), slice(num_contextual, None)):
            if mean_LD[:, part].size:
                mean, std = layer_mean_and_std(mean_LD[:, part], std_LD[:, part], min_std=MIN_STD)
                means.append(mean)
                stds.append(std)
        return np.concatenate(means, -1), np.concatenate(stds, -1)


@torch.inference_mode()
def cache_features(
    model: Encoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> CachedFeatures:
    """Compute all layers of all encodings of the items."""
    model.eval()
    device = next(model.parameters()).device
    width = max(model.hidden_sizes())
    layers: list[tuple[np.ndarray, ...]] = [()] * len(items)
    for indices in batch_by_length(items):
        batch = collate_items(tokenizer, [items[i] for i in indices]).to(device)
        with autocast(device, precision):
            padded = [F.pad(x.float(), (0, width - x.shape[-1])) for x in model.encode(batch)]
        rows = iter(torch.stack(padded, 2).cpu().numpy())
        for i in indices:
            lengths = [len(encoding.ids) for encoding in items[i].encodings]
            layers[i] = tuple(next(rows)[:length].copy() for length in lengths)
    return CachedFeatures(tokenizer, items, layers, model.word_pooling)


class BiLstm(nn.Module):
    """Layers of forward and backward LSTMs with dropout between the layers.

    The first `late_size` inputs skip the first `layers_below_join` layers. They are concatenated
    to the output of the last of these.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        dropout: float,
        late_size: int = 0,
        layers_below_join: int = 0,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.late_size = late_size
        self.layers_below_join = layers_below_join
        sizes = [input_size - late_size] + [2 * hidden_size] * num_layers
        sizes[layers_below_join] += late_size
        self.output_size = sizes[-1]
        # The backward LSTMs read reversed sequences. torch's bidirectional LSTM would need packed
        # sequences, which take twice the time (docs/decisions/0018).
        self.forward_lstms = nn.ModuleList(
            nn.LSTM(size, hidden_size, batch_first=True) for size in sizes[:-1]
        )
        self.backward_lstms = nn.ModuleList(
            nn.LSTM(size, hidden_size, batch_first=True) for size in sizes[:-1]
        )

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw all parameters from U(-1 / sqrt(hidden size), 1 / sqrt(hidden size))."""
        init_uniform([self.forward_lstms, self.backward_lstms], self.hidden_size, generator)

    def forward(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return (B, T, H). Padding must be on the right; the output there is arbitrary."""
        reversed_BT = reversed_positions(mask_BT)
        late_BTE = x_BTD[..., : self.late_size]
        y_BTH = x_BTD[..., self.late_size :]
        num_layers = len(self.forward_lstms)
        for layer in range(num_layers):
            forward_BTH, _ = self.forward_lstms[layer](y_BTH)
            backward_BTH, _ = self.backward_lstms[layer](gather_positions(y_BTH, reversed_BT))
            y_BTH = torch.cat([forward_BTH, gather_positions(backward_BTH, reversed_BT)], -1)
            if layer + 1 == self.layers_below_join:
                y_BTH = torch.cat([y_BTH, late_BTE], -1)
            if layer + 1 < num_layers:
                y_BTH = F.dropout(y_BTH, self.dropout, self.training)
        return y_BTH


class ProbeOutput(NamedTuple):
    """The postprocessed scores (M, K), and the best tag sequences (M,) of a CRF."""

    outputs_MK: np.ndarray
    decoded_M: np.ndarray | None
    loss: float = math.nan  # the mean loss of the labels, if given


class BilstmProbe(nn.Module):
    """A scalar mix, a BiLSTM and an output layer, with a CRF for tags.

    The inputs are centered and scaled by the statistics of the training items, so that one
    learning rate suits all families.
    """

    def __init__(
        self,
        answer: Answer,
        settings: BilstmProbeSettings,
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
        self.num_encodings = len(item.encodings)
        self.is_multiple_choice = item.is_multiple_choice
        self.is_text_pair = item.encoded.token_type_ids is not None and not item.word_pieces
        mean_LD, std_LD = train_features.mean_and_std(layer_norm=settings.layer_norm)
        self.mean_LD = nn.Buffer(mean_LD)
        self.std_LD = nn.Buffer(std_LD)
        static_size = train_features.static_size
        self.scalar_mix = ScalarMix(L, gamma=settings.learn_gamma, static_size=static_size)
        self.scalar_mix_l2 = settings.scalar_mix_l2
        layers_below_join = settings.layers_below_join if static_size else 0
        self.late_size = D - static_size if layers_below_join else 0
        self.bilstm = BiLstm(
            D,
            settings.hidden_size,
            settings.num_layers,
            dropout=settings.dropout,
            late_size=self.late_size,
            layers_below_join=layers_below_join,
        )
        output_size = self.bilstm.output_size
        if self.is_text_pair:
            output_size = pair_width(output_size)
        self.output_layer = nn.Linear(output_size, answer.num_outputs)
        self.crf = LinearChainCRF(answer.num_outputs) if isinstance(answer, TagsAnswer) else None
        self.learning_curve: list[CurvePoint] = []
        self.init_weights(torch.Generator().manual_seed(derive_seed("task network", seed)))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the LSTMs' weights and those of the output layer; the CRF starts from zeros."""
        self.bilstm.init_weights(generator)
        nn.init.normal_(self.output_layer.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.output_layer.bias)

    def forward(self, batch: FeatureBatch) -> torch.Tensor:
        """Return (M, K) scores, without the CRF."""
        y_MH = self._encode(self._mix_layers(batch), batch)
        y_MH = F.dropout(y_MH, self.dropout, self.training)
        if self.is_multiple_choice:
            return self.output_layer(y_MH).view(-1, self.num_encodings)
        if batch.answer_pieces_P2 is None:
            y_MH = y_MH.view(-1, self.num_encodings, y_MH.shape[-1]).sum(1)
        return self.output_layer(y_MH)

    def _mix_layers(self, batch: FeatureBatch) -> torch.Tensor:
        """Return (B, T, D): the scalar mix, with dropout on the inputs of the first LSTMs."""
        assert batch.layers_BTLD is not None
        x_BTLD = (batch.layers_BTLD - self.mean_LD) / self.std_LD
        x_BTD = self.scalar_mix(x_BTLD.unbind(2))
        late_BTE = x_BTD[..., : self.late_size]
        input_BTD = F.dropout(x_BTD[..., self.late_size :], self.dropout, self.training)
        return torch.cat([late_BTE, input_BTD], -1)

    def _encode(self, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return a vector for each word that the task asks about, or for each encoding."""
        if isinstance(self.answer, TagsAnswer):
            mask_NW = _word_mask(batch)
            x_NWD = _pad_words(pool_words(self, x_BTD, batch), mask_NW)
            return self.bilstm(x_NWD, mask_NW)[mask_NW]
        y_BTH = self.bilstm(x_BTD, batch.mask_BT)
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
        """Return the summed loss of the labels."""
        assert batch.labels_M is not None
        if self.crf is None:
            return self.answer.loss(scores_MK, batch.labels_M)
        mask_NW = _word_mask(batch)
        labels_NW = batch.labels_M.new_zeros(mask_NW.shape).masked_scatter(mask_NW, batch.labels_M)
        scores_NWK = _pad_words(scores_MK, mask_NW)
        return self.crf.neg_log_likelihood(scores_NWK, mask_NW, labels_NW).sum()

    def predict(self, batch: FeatureBatch) -> ProbeOutput:
        """Postprocess the scores; a CRF gives marginal probabilities and the best tag sequences.

        The loss is the sum over the batch.
        """
        scores_MK = self(batch)
        loss = math.nan if batch.labels_M is None else float(self.loss(scores_MK, batch))
        if self.crf is None:
            return ProbeOutput(self.answer.postprocess(scores_MK), None, loss)
        mask_NW = _word_mask(batch)
        scores_NWK = _pad_words(scores_MK, mask_NW).float()
        marginals_MK = self.crf.marginals(scores_NWK, mask_NW)[mask_NW]
        decoded_M = self.crf.viterbi_decode(scores_NWK, mask_NW)[mask_NW]
        return ProbeOutput(marginals_MK.double().cpu().numpy(), decoded_M.cpu().numpy(), loss)


def _word_mask(batch: Batch) -> torch.Tensor:
    """Return (N, W), true where an item has a word."""
    lengths_N = torch.tensor(batch.answers_per_item, device=batch.ids_BT.device)
    return torch.arange(int(lengths_N.max()), device=lengths_N.device) < lengths_N[:, None]


def _pad_words(x_MD: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
    """Return (N, W, D), zeros at padding."""
    padded_NWD = x_MD.new_zeros(*mask_NW.shape, x_MD.shape[-1])
    return padded_NWD.masked_scatter(mask_NW[..., None], x_MD)


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
        """Return one batch of the epoch."""
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


def fit_bilstm_probe(
    features: CachedFeatures,
    labels_M: np.ndarray,
    answer: Answer,
    settings: BilstmProbeSettings,
    *,
    seed: int,
    device: torch.device,
    validate: Callable[[BilstmProbe], Validation] | None = None,
) -> BilstmProbe:
    """Train a probe, and keep the best weights on validation.

    Without `validate` the training takes all its epochs, and the last weights are kept.
    """
    training = start_bilstm_probe(
        features, labels_M, answer, settings, seed=seed, device=device, validate=validate
    )
    training.train_to_end()
    training.keep_best()
    training.model.learning_curve = training.curve
    return training.model


def start_bilstm_probe(
    features: CachedFeatures,
    labels_M: np.ndarray,
    answer: Answer,
    settings: BilstmProbeSettings,
    *,
    seed: int,
    device: torch.device,
    validate: Callable[[BilstmProbe], Validation] | None,
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
        precision="fp32",
        validate=None if validate is None else partial(validate, model),
    )


@torch.no_grad()
def predict_bilstm_probe(
    model: BilstmProbe, features: CachedFeatures, labels_M: np.ndarray | None = None
) -> ProbeOutput:
    """Predict all items, in their order."""
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
