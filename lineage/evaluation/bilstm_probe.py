"""Task networks over frozen features, as the papers' tables have them: a scalar mix of the layers, LSTMs of both directions, a linear layer.

Of a text the highest value of each unit is read, of two texts u and v these with |u - v| and u v (Conneau et al. 2017, section 3), of an asked word,
of a context too, its own; the tags of a sentence are those of a CRF (Peters et al. 2017, section 2.1; Peters et al. 2018, appendix A).
With `join`, of features beside static vectors the first LSTMs read the static vector alone, and what is a language model's is joined to what one of
them makes of it, [h_1; LM] (TagLM, Peters et al. 2017, section 2; where is best, section 3).
Shapes: N items, B readings, T positions, W words, M answers that are asked for, L layers, D width, H units of both directions, K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.evaluation.answers import Answer, TagsAnswer
from lineage.evaluation.encoding import (
    EncodedItem,
    answer_rows,
    batch_by_length,
    collate_items,
    pool_words,
)
from lineage.evaluation.finetuning import ItemBatches
from lineage.evaluation.linear_probe import layer_mean_and_std, select_layers
from lineage.evaluation.settings import BilstmProbeSettings, resolve_num_epochs
from lineage.models.base import Encoder, LossOutput
from lineage.models.batch import Batch, gather_positions, reversed_positions
from lineage.models.layers.crf import LinearChainCRF
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import slanted_triangular_schedule
from lineage.training.state import RngState, TrainState

MIN_STD = 1e-6  # the deviation of float32 numbers up to which one says nothing


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch with what a frozen encoder makes of it."""

    layers_BTLD: torch.Tensor | None = None


@dataclass(frozen=True)
class CachedFeatures:
    """Items, and all layers of their readings: (T, L, D) each, float32, D of the widest layer, narrower ones end in zeros."""

    tokenizer: Tokenizer
    items: Sequence[EncodedItem]
    layers: list[tuple[np.ndarray, ...]]
    word_pooling: str  # which of a word's pieces stands for it, see Encoder
    static_size: int = 0  # how many of the last D are a static vector of another model's, the same in all layers, see lineage.evaluation.joined

    def select(self, indices: np.ndarray) -> "CachedFeatures":
        """These items alone."""
        return replace(
            self, items=[self.items[i] for i in indices], layers=[self.layers[i] for i in indices]
        )

    def make_batch(self, indices: np.ndarray, labels_M: np.ndarray | None = None) -> FeatureBatch:
        """These items as one batch."""
        plain = collate_items(self.tokenizer, [self.items[i] for i in indices], labels_M)
        readings = [layers for i in indices for layers in self.layers[i]]
        found = np.zeros((*plain.ids_BT.shape, *readings[0].shape[1:]), np.float32)
        for row, layers in enumerate(readings):
            found[row, : len(layers)] = layers
        return FeatureBatch(**vars(plain), layers_BTLD=torch.from_numpy(found))

    def select_layers(self, settings: BilstmProbeSettings) -> "CachedFeatures":
        """The layers that are read alone; of features that stand beside no static vectors yet. Raises CellError where there are no such layers."""
        return replace(
            self,
            layers=[
                tuple(np.ascontiguousarray(select_layers(layers, settings)) for layers in readings)
                for readings in self.layers
            ],
        )

    def mean_and_std(self, *, layer_norm: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation, (L, D) each, over all positions, a number a feature; with `layer_norm` one a layer, and one for a static vector."""
        count, total, squares = 0, 0.0, 0.0
        for readings in self.layers:
            for layers_TLD in readings:
                x = layers_TLD.astype(np.float64)
                count, total, squares = (
                    count + len(x),
                    total + x.sum(0),
                    squares + np.square(x).sum(0),
                )
        mean = np.asarray(total) / count
        deviation = np.sqrt(np.maximum(np.asarray(squares) / count - np.square(mean), 0))
        scale: tuple[np.ndarray, ...] = mean, np.where(deviation > MIN_STD, deviation, 1.0)
        if layer_norm:
            parts = [
                some
                for some in np.split(
                    np.stack([mean, deviation]), [mean.shape[-1] - self.static_size], -1
                )
                if some.size
            ]
            scale = tuple(
                np.concatenate(both, -1)
                for both in zip(
                    *(layer_mean_and_std(*some, min_std=MIN_STD) for some in parts), strict=True
                )
            )
        return tuple(torch.from_numpy(value).float() for value in scale)  # type: ignore[return-value]


@torch.inference_mode()
def cache_features(
    model: Encoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> CachedFeatures:
    """All layers of all readings of the items."""
    model.eval()
    device, widest = next(model.parameters()).device, max(model.hidden_sizes())
    layers: list[tuple[np.ndarray, ...]] = [()] * len(items)
    for some in batch_by_length(items):
        batch = collate_items(tokenizer, [items[i] for i in some]).to(device)
        with autocast(device, precision):
            stacked = torch.stack(
                [F.pad(x.float(), (0, widest - x.shape[-1])) for x in model.encode(batch)], 2
            )
        rows = iter(stacked.cpu().numpy())
        for i in some:
            layers[i] = tuple(
                next(rows)[: len(reading.ids)].copy() for reading in items[i].encodings
            )
    return CachedFeatures(tokenizer, items, layers, model.word_pooling)


class BilstmProbe(nn.Module):
    """The reader; its inputs are centred and scaled by the training items, so that one rate suits every family."""

    def __init__(
        self,
        answer: Answer,
        settings: BilstmProbeSettings,
        train_features: CachedFeatures,
        *,
        seed: int,
    ) -> None:
        super().__init__()
        item, (L, D) = train_features.items[0], train_features.layers[0][0].shape[1:]
        self.answer, self.dropout, self.word_pooling = (
            answer,
            settings.dropout,
            train_features.word_pooling,
        )
        self.num_encodings, self.is_multiple_choice, self.is_text_pair = (
            len(item.encodings),
            item.is_multiple_choice,
            item.encoded.token_type_ids is not None and not item.word_pieces,
        )
        self.mean_LD, self.std_LD = (
            nn.Buffer(value)
            for value in train_features.mean_and_std(layer_norm=settings.layer_norm)
        )
        self.scalar_mix, self.scalar_mix_l2 = (
            ScalarMix(L, gamma=settings.learn_gamma, static_size=train_features.static_size),
            settings.scalar_mix_l2,
        )
        self.layers_below_join = (
            settings.layers_below_join if train_features.static_size else 0
        )  # LSTMs that read the static vector, before the model's own features are joined
        self.late_size = D - train_features.static_size if self.layers_below_join else 0
        H = 2 * settings.hidden_size
        # two LSTMs a layer, the second of which reads items turned round: one of both directions takes packed items, twice as slowly (DECISIONS.md)
        widths = [
            (H if number else D - self.late_size)
            + (self.late_size if number == self.layers_below_join else 0)
            for number in range(settings.num_layers + 1)
        ]
        self.forward_lstms, self.backward_lstms = (
            nn.ModuleList(
                nn.LSTM(width, settings.hidden_size, batch_first=True) for width in widths[:-1]
            )
            for _ in range(2)
        )
        self.output_layer = nn.Linear(
            widths[-1] * (4 if self.is_text_pair else 1), answer.num_outputs
        )
        self.crf = LinearChainCRF(answer.num_outputs) if isinstance(answer, TagsAnswer) else None
        start = torch.Generator().manual_seed(derive_seed("task network", seed))
        for weight in (*self.forward_lstms.parameters(), *self.backward_lstms.parameters()):
            nn.init.uniform_(
                weight, -(settings.hidden_size**-0.5), settings.hidden_size**-0.5, generator=start
            )
        nn.init.normal_(self.output_layer.weight, std=0.02, generator=start)
        nn.init.zeros_(self.output_layer.bias)

    def forward(self, batch: FeatureBatch) -> torch.Tensor:
        """(M, K) scores; of tags those of each word alone, which the CRF goes on with."""
        assert batch.layers_BTLD is not None and batch.text_mask_BT is not None
        x_BTLD = (batch.layers_BTLD - self.mean_LD) / self.std_LD
        x_BTD = self.scalar_mix(x_BTLD.unbind(2))
        x_BTD = torch.cat(
            [
                x_BTD[..., : self.late_size],
                F.dropout(x_BTD[..., self.late_size :], self.dropout, self.training),
            ],
            -1,
        )
        if isinstance(self.answer, TagsAnswer):
            y_MH = self._encode_words(pool_words(self, x_BTD, batch), batch)
        elif batch.answer_pieces_P2 is not None:
            y_MH = pool_words(self, self._run_lstms(x_BTD, batch.mask_BT), batch)
        else:
            y_MH = self._pool_texts(self._run_lstms(x_BTD, batch.mask_BT), batch)
        y_MH = F.dropout(y_MH, self.dropout, self.training)
        if self.is_multiple_choice:
            return self.output_layer(y_MH).view(-1, self.num_encodings)
        return self.output_layer(
            y_MH
            if batch.answer_pieces_P2 is not None
            else y_MH.view(-1, self.num_encodings, y_MH.shape[-1]).sum(1)
        )

    def _run_lstms(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, H): what the layers, in both directions, make of the real positions; at padding, which stands last, anything."""
        turn_BT, late_BTE, y_BTH = (
            reversed_positions(mask_BT),
            x_BTD[..., : self.late_size],
            x_BTD[..., self.late_size :],
        )
        for number, (ahead, back) in enumerate(
            zip(self.forward_lstms, self.backward_lstms, strict=True), 1
        ):
            y_BTH = torch.cat(
                [
                    ahead(y_BTH)[0],
                    gather_positions(back(gather_positions(y_BTH, turn_BT))[0], turn_BT),
                ],
                -1,
            )
            if number == self.layers_below_join:
                y_BTH = torch.cat([y_BTH, late_BTE], -1)
            if number < len(
                self.forward_lstms
            ):  # what the last one gives is dropped where it is read
                y_BTH = F.dropout(y_BTH, self.dropout, self.training)
        return y_BTH

    def _encode_words(self, x_MD: torch.Tensor, batch: Batch) -> torch.Tensor:
        mask_NW = make_word_mask(batch)
        x_NWD = x_MD.new_zeros(*mask_NW.shape, x_MD.shape[-1]).masked_scatter(
            mask_NW[..., None], x_MD
        )
        return self._run_lstms(x_NWD, mask_NW)[mask_NW]

    def _pool_texts(self, y_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.text_mask_BT is not None
        if not self.is_text_pair:
            return _max_pool(y_BTH, batch.text_mask_BT)
        assert batch.segment_ids_BT is not None
        u, v = (
            _max_pool(y_BTH, batch.text_mask_BT & (batch.segment_ids_BT == place))
            for place in (0, 1)
        )
        return torch.cat([u, v, (u - v).abs(), u * v], -1)

    def loss(self, batch: FeatureBatch) -> torch.Tensor:
        """Summed nats, or errors, of the gold answers."""
        assert batch.labels_M is not None
        scores_MK = self(batch)
        if self.crf is None:
            return self.answer.loss(scores_MK, batch.labels_M)
        mask_NW = make_word_mask(batch)
        gold_NW = batch.labels_M.new_zeros(mask_NW.shape).masked_scatter(mask_NW, batch.labels_M)
        return self.crf.neg_log_likelihood(_pad_words(scores_MK, mask_NW), mask_NW, gold_NW).sum()

    def predict(self, batch: FeatureBatch) -> tuple[np.ndarray, np.ndarray | None]:
        """(M, K) what the answer makes of the scores, and, of tags, the (M,) likeliest ones of each sentence as a whole."""
        scores_MK = self(batch)
        if self.crf is None:
            return self.answer.postprocess(scores_MK), None
        mask_NW = make_word_mask(batch)
        scores_NWK = _pad_words(scores_MK, mask_NW).float()
        return self.crf.marginals(scores_NWK, mask_NW)[
            mask_NW
        ].double().cpu().numpy(), self.crf.viterbi_decode(scores_NWK, mask_NW)[
            mask_NW
        ].cpu().numpy()


def make_word_mask(batch: Batch) -> torch.Tensor:
    """(N, W): where an item has a word."""
    lengths_N = torch.tensor(batch.answers_per_item, device=batch.ids_BT.device)
    return torch.arange(int(lengths_N.max()), device=lengths_N.device) < lengths_N[:, None]


def _pad_words(scores_MK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
    return scores_MK.new_zeros(*mask_NW.shape, scores_MK.shape[-1]).masked_scatter(
        mask_NW[..., None], scores_MK
    )


def _max_pool(y_BTH: torch.Tensor, where_BT: torch.Tensor) -> torch.Tensor:
    """(B, H): the highest value of each unit where a piece of text stands, zero where there is none."""
    found = y_BTH.masked_fill(~where_BT[..., None], float("-inf")).amax(1)
    return torch.where(where_BT.any(1)[:, None], found, 0.0)


class _FeatureBatches(ItemBatches):
    """Remembered items with their gold answers."""

    def __init__(
        self, items: CachedFeatures, labels_M: np.ndarray, *, batch_size: int, seed: int
    ) -> None:
        super().__init__(items.tokenizer, items.items, labels_M, batch_size=batch_size, seed=seed)
        self.features = items

    def get_batch(self, index: int) -> Batch:
        """One batch of the epoch."""
        some = self.batch_indices[index]
        return self.features.make_batch(
            some, self.labels_M[np.concatenate([self.answer_rows[i] for i in some])]
        )


def bilstm_probe_objective(
    model: BilstmProbe, batch: FeatureBatch, recurrent_state: Any = None
) -> LossOutput:
    """The mean over answers, and the L2 of the mix's raw weights (Peters et al. 2018, section 3.3)."""
    total, count = model.loss(batch), batch.loss_denominator(per_item=model.answer.mean_over_items)
    loss = (
        total / count + model.scalar_mix_l2 * model.scalar_mix.l2_penalty()
        if model.scalar_mix_l2
        else total / count
    )
    return LossOutput(loss, {"task": total.detach()}, {"task": count}, recurrent_state)


def fit_bilstm_probe(
    items: CachedFeatures,
    labels_M: np.ndarray,
    answer: Answer,
    settings: BilstmProbeSettings,
    *,
    seed: int,
    device: torch.device,
) -> BilstmProbe:
    """A network learned from these items, by Adam with a slanted triangle; the last epoch's is taken: nothing is chosen on any split."""
    model = BilstmProbe(answer, settings, items, seed=seed).to(device)
    stream = _FeatureBatches(items, labels_M, batch_size=settings.batch_size, seed=seed)
    steps = stream.set_epoch(0)
    epochs = resolve_num_epochs(settings, steps)
    state = TrainState(
        model,
        build_adamw(
            build_param_groups([[*model.parameters()]], weight_decay=settings.weight_decay)
        ),
        RngState(derive_seed("fit network", seed)),
    )
    plan = TrainPlan(
        progress=lambda spent: spent.steps / (epochs * steps),
        lr_schedule=slanted_triangular_schedule(
            settings.cut_frac, settings.ratio, steps=epochs * steps
        ),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision="fp32",
        max_epochs=epochs,
    )
    for _ in train(state, bilstm_probe_objective, stream, plan):
        pass
    return model


@torch.no_grad()
def predict_bilstm_probe(
    model: BilstmProbe, items: CachedFeatures
) -> tuple[np.ndarray, np.ndarray | None]:
    """(M, K) what is made of the scores of all items, and of tags the (M,) likeliest ones."""
    model.eval()
    rows, device = answer_rows(items.items), model.output_layer.weight.device
    found = []
    for indices in batch_by_length(items.items):
        batch = items.make_batch(indices).to(device)
        assert isinstance(batch, FeatureBatch)
        found.append((np.concatenate([rows[i] for i in indices]), *model.predict(batch)))
    order = np.argsort(np.concatenate([where for where, _, _ in found]))
    best = (
        None
        if model.crf is None
        else np.concatenate([best for _, _, best in found if best is not None])[order]
    )
    return np.concatenate([read for _, read, _ in found])[order], best
