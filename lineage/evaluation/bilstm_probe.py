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
F = L D, H units of both directions, K outputs. For tags B is N and T is W.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.answers.base import HeadAnswer
from lineage.evaluation.bilstm import BiLstm
from lineage.evaluation.early_stopping import ValidatedTraining, Validation
from lineage.evaluation.encoding import (
    EncodedItem,
    answer_rows,
    batch_by_length,
    collate_items,
    collate_positions,
    collate_words,
    pool_words,
)
from lineage.evaluation.feature_store import FeatureScaling, mean_and_std
from lineage.evaluation.finetuning import ItemBatches
from lineage.evaluation.linear_probe import (
    combine_pair,
    layer_mean_and_std,
    pair_width,
    select_layers,
)
from lineage.evaluation.settings import BilstmProbeSettings
from lineage.models.base import Encoder, LossOutput
from lineage.models.batch import Batch
from lineage.models.layers.crf import LinearChainCRF
from lineage.models.layers.dropout import fast_dropout
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState

STATISTICS_ITEMS = 16  # whose features are converted to float64 together
MIN_STD = 1e-6  # float32 features with a smaller standard deviation carry no information


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch with the features of a frozen encoder, and without ids.

    If the features are those of words, the sequences are the words of the items.
    """

    layers_LBTD: torch.Tensor | None = None  # as they are stored
    has_pieces_BT: torch.Tensor | None = None  # False at words without pieces
    word_rows_M: torch.Tensor | None = None  # the rows of the words among all B T


@dataclass(frozen=True)
class CachedFeatures:
    """Items and all layers of their encodings."""

    tokenizer: Tokenizer
    items: Sequence[EncodedItem]
    # For each item and encoding (T, L, D). D is that of the widest layer; narrower ones are padded
    # with zeros. If `is_per_word` is set, they are for each item (W, L, D).
    layers: list[tuple[np.ndarray, ...]]
    word_pooling: str  # which pieces give a word's vector, see Encoder
    # The last features are a static vector of another model, equal in all layers, see
    # lineage.evaluation.joined.
    static_size: int = 0
    is_per_word: bool = False
    scaling: FeatureScaling | None = None  # None: the layers are not scaled, and float32

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

    def sequence_lengths(self, item: EncodedItem) -> list[int]:
        """Return the rows of each of an item's arrays: positions, or words."""
        if self.is_per_word:
            return [item.num_answers]
        return [len(encoding.ids) for encoding in item.encodings]

    def rows(self) -> np.ndarray:
        """Return the features of all items in one array (R, L, D)."""
        return np.concatenate([layers for encodings in self.layers for layers in encodings])

    def pool_words(self) -> "CachedFeatures":
        """Replace the vectors of pieces by those of the words that the task asks about.

        A probe of tags reads nothing else. Words without pieces have zeros.
        """
        L, D = self.layers[0][0].shape[1:]
        pooled: list[tuple[np.ndarray, ...]] = []
        for index in range(len(self.items)):
            batch = self.make_batch(np.array([index]))
            assert batch.layers_LBTD is not None
            x_BTF = batch.layers_LBTD.permute(1, 2, 0, 3).flatten(2)
            pooled.append((pool_words(self, x_BTF, batch).view(-1, L, D).numpy(),))
        return replace(self, layers=pooled, is_per_word=True)

    def make_batch(self, indices: np.ndarray, labels_M: np.ndarray | None = None) -> FeatureBatch:
        """Build one batch of these items."""
        items = [self.items[i] for i in indices]
        sequences = [layers_TLD for i in indices for layers_TLD in self.layers[i]]
        batch = (collate_words if self.is_per_word else collate_positions)(items, labels_M)
        _, L, D = sequences[0].shape
        padded_LBTD = np.zeros((L, *batch.mask_BT.shape, D), sequences[0].dtype)
        for row, layers_TLD in enumerate(sequences):
            padded_LBTD[:, row, : len(layers_TLD)] = layers_TLD.swapaxes(0, 1)
        feature_batch = FeatureBatch(**vars(batch), layers_LBTD=torch.from_numpy(padded_LBTD))
        if not self.is_per_word:
            return feature_batch
        has_pieces_BT = torch.zeros_like(batch.mask_BT)
        for row, item in enumerate(items):
            has_pieces_BT[row, torch.from_numpy(item.covered_words)] = True
        word_rows_M = batch.mask_BT.flatten().nonzero().flatten()
        return replace(feature_batch, has_pieces_BT=has_pieces_BT, word_rows_M=word_rows_M)

    def mean_and_std(self, *, layer_norm: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and standard deviation over all positions or words, (L, D) each.

        They are those of the stored layers. Each feature has its own, or with `layer_norm` each
        layer and each static vector has one.
        """
        mean_LD, std_LD = mean_and_std(self._iterate_rows())
        scaling = self.scaling or FeatureScaling.none(mean_LD.shape)
        mean_LD, std_LD = scaling.unscale_statistics(mean_LD, std_LD)
        if layer_norm:
            mean_LD, std_LD = self._layer_mean_and_std(mean_LD, std_LD)
        else:
            std_LD = np.where(std_LD > MIN_STD, std_LD, 1.0)
        mean_LD, std_LD = scaling.scale_statistics(mean_LD, std_LD)
        return torch.from_numpy(mean_LD).float(), torch.from_numpy(std_LD).float()

    def _iterate_rows(self) -> Iterator[torch.Tensor]:
        """Yield the layers of a few items at a time, without words that have no pieces."""
        for first in range(0, len(self.items), STATISTICS_ITEMS):
            rows = []
            for i in range(first, min(first + STATISTICS_ITEMS, len(self.items))):
                covered = self.items[i].covered_words if self.is_per_word else slice(None)
                rows += [layers_TLD[covered] for layers_TLD in self.layers[i]]
            yield torch.from_numpy(np.concatenate(rows))

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
        answer: HeadAnswer,
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
        self.crf = LinearChainCRF(answer.num_outputs) if answer.decodes_sequences else None
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
        """Return the summed loss of the labels."""
        assert batch.labels_M is not None
        if self.crf is None:
            return self.answer.loss(scores_MK, batch.labels_M)
        scores_NWK = _pad_words(scores_MK, batch)
        labels_NW = _pad_words(batch.labels_M, batch)
        return self.crf.neg_log_likelihood(scores_NWK, batch.mask_BT, labels_NW).sum()

    def predict(self, batch: FeatureBatch) -> ProbeOutput:
        """Postprocess the scores; a CRF gives marginal probabilities and the best tag sequences.

        The loss is the sum over the batch.
        """
        scores_MK = self(batch)
        loss = math.nan if batch.labels_M is None else float(self.loss(scores_MK, batch))
        if self.crf is None:
            return ProbeOutput(self.answer.postprocess(scores_MK), None, loss)
        mask_NW = batch.mask_BT
        scores_NWK = _pad_words(scores_MK, batch).float()
        marginals_MK = self.crf.marginals(scores_NWK, mask_NW)[mask_NW]
        decoded_M = self.crf.viterbi_decode(scores_NWK, mask_NW)[mask_NW]
        return ProbeOutput(marginals_MK.double().cpu().numpy(), decoded_M.cpu().numpy(), loss)


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
    answer: HeadAnswer,
    settings: BilstmProbeSettings,
    *,
    seed: int,
    device: torch.device,
) -> BilstmProbe:
    """Train a probe for all its epochs, without validation."""
    training = start_bilstm_probe(
        features, labels_M, answer, settings, seed=seed, device=device, validate=None
    )
    training.train_to_end()
    return training.model


def start_bilstm_probe(
    features: CachedFeatures,
    labels_M: np.ndarray,
    answer: HeadAnswer,
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
