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

from lineage.batch import Batch, reversal, turned
from lineage.family import Encoder, LossOut
from lineage.layers.crf import LinearChain
from lineage.layers.mix import ScalarMix
from lineage.randomness import seed_of
from lineage.text.tokenization import Reader
from lineage.training.optim import adamw, decayed_groups, slanted_triangular
from lineage.training.train import Course, Draws, Run, autocast, train
from lineage.transfer.answers import Answer, Tags
from lineage.transfer.frozen import one_a_layer, read_layers
from lineage.transfer.reading import Item, collate, read_batches, rows_of, word_vectors
from lineage.transfer.settings import NetworkSettings, epochs_of
from lineage.transfer.tuning import ItemStream

LEAST = 1e-6  # the deviation of float32 numbers up to which one says nothing


@dataclass(frozen=True)
class Layers(Batch):
    """A batch with what a frozen encoder makes of it."""

    layers_BTLD: torch.Tensor | None = None


@dataclass(frozen=True)
class Remembered:
    """Items, and all layers of their readings: (T, L, D) each, float32, D of the widest layer, narrower ones end in zeros."""

    reader: Reader
    items: Sequence[Item]
    layers: list[tuple[np.ndarray, ...]]
    read_word: str  # which of a word's pieces stands for it, see Encoder
    static: int = 0  # how many of the last D are a static vector of another model's, the same in all layers, see lineage.transfer.joined

    def some(self, chosen: np.ndarray) -> "Remembered":
        """These items alone."""
        return replace(self, items=[self.items[i] for i in chosen], layers=[self.layers[i] for i in chosen])

    def batch(self, chosen: np.ndarray, gold_M: np.ndarray | None = None) -> Layers:
        """These items as one batch."""
        plain = collate(self.reader, [self.items[i] for i in chosen], gold_M)
        readings = [layers for i in chosen for layers in self.layers[i]]
        found = np.zeros((*plain.ids_BT.shape, *readings[0].shape[1:]), np.float32)
        for row, layers in enumerate(readings):
            found[row, : len(layers)] = layers
        return Layers(**vars(plain), layers_BTLD=torch.from_numpy(found))

    def read(self, settings: NetworkSettings) -> "Remembered":
        """The layers that are read alone; of features that stand beside no static vectors yet. Raises CellError where there are no such layers."""
        return replace(self, layers=[tuple(np.ascontiguousarray(read_layers(layers, settings)) for layers in readings) for readings in self.layers])

    def scale(self, *, layer_norm: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation, (L, D) each, over all positions, a number a feature; with `layer_norm` one a layer, and one for a static vector."""
        count, total, squares = 0, 0.0, 0.0
        for readings in self.layers:
            for layers_TLD in readings:
                x = layers_TLD.astype(np.float64)
                count, total, squares = count + len(x), total + x.sum(0), squares + np.square(x).sum(0)
        mean = np.asarray(total) / count
        deviation = np.sqrt(np.maximum(np.asarray(squares) / count - np.square(mean), 0))
        scale: tuple[np.ndarray, ...] = mean, np.where(deviation > LEAST, deviation, 1.0)
        if layer_norm:
            parts = [some for some in np.split(np.stack([mean, deviation]), [mean.shape[-1] - self.static], -1) if some.size]
            scale = tuple(np.concatenate(both, -1) for both in zip(*(one_a_layer(*some, least=LEAST) for some in parts), strict=True))
        return tuple(torch.from_numpy(value).float() for value in scale)  # type: ignore[return-value]


@torch.inference_mode()
def remember(model: Encoder, reader: Reader, items: Sequence[Item], *, precision: str) -> Remembered:
    """All layers of all readings of the items."""
    model.eval()
    device, widest = next(model.parameters()).device, max(model.widths())
    layers: list[tuple[np.ndarray, ...]] = [()] * len(items)
    for some in read_batches(items):
        batch = collate(reader, [items[i] for i in some]).to(device)
        with autocast(device, precision):
            stacked = torch.stack([F.pad(x.float(), (0, widest - x.shape[-1])) for x in model.encode(batch)], 2)
        rows = iter(stacked.cpu().numpy())
        for i in some:
            layers[i] = tuple(next(rows)[: len(reading.ids)].copy() for reading in items[i].readings)
    return Remembered(reader, items, layers, model.read_word)


class Network(nn.Module):
    """The reader; its inputs are centred and scaled by the training items, so that one rate suits every family."""

    def __init__(self, answer: Answer, settings: NetworkSettings, like: Remembered, *, seed: int) -> None:
        super().__init__()
        item, (L, D) = like.items[0], like.layers[0][0].shape[1:]
        self.answer, self.dropout, self.read_word = answer, settings.dropout, like.read_word
        self.readings, self.choices, self.paired = len(item.readings), item.choices, item.encoded.segments is not None and not item.pieces
        self.mean_LD, self.deviation_LD = (nn.Buffer(value) for value in like.scale(layer_norm=settings.layer_norm))
        self.mix, self.mix_l2 = ScalarMix(L, gamma=settings.gamma, static=like.static), settings.mix_l2
        self.below = settings.below_join if like.static else 0  # LSTMs that read the static vector, before the model's own features are joined
        self.late = D - like.static if self.below else 0
        H = 2 * settings.cells
        # two LSTMs a layer, the second of which reads items turned round: one of both directions takes packed items, twice as slowly (DECISIONS.md)
        widths = [(H if number else D - self.late) + (self.late if number == self.below else 0) for number in range(settings.layers + 1)]
        self.ahead, self.back = (nn.ModuleList(nn.LSTM(width, settings.cells, batch_first=True) for width in widths[:-1]) for _ in range(2))
        self.out = nn.Linear(widths[-1] * (4 if self.paired else 1), answer.outputs)
        self.crf = LinearChain(answer.outputs) if isinstance(answer, Tags) else None
        start = torch.Generator().manual_seed(seed_of("task network", seed))
        for weight in (*self.ahead.parameters(), *self.back.parameters()):
            nn.init.uniform_(weight, -(settings.cells**-0.5), settings.cells**-0.5, generator=start)
        nn.init.normal_(self.out.weight, std=0.02, generator=start)
        nn.init.zeros_(self.out.bias)

    def forward(self, batch: Layers) -> torch.Tensor:
        """(M, K) scores; of tags those of each word alone, which the CRF goes on with."""
        assert batch.layers_BTLD is not None and batch.text_BT is not None
        x_BTLD = (batch.layers_BTLD - self.mean_LD) / self.deviation_LD
        x_BTD = self.mix(x_BTLD.unbind(2))
        x_BTD = torch.cat([x_BTD[..., : self.late], F.dropout(x_BTD[..., self.late :], self.dropout, self.training)], -1)
        if isinstance(self.answer, Tags):
            y_MH = self._over_words(word_vectors(self, x_BTD, batch), batch)
        elif batch.asked_P2 is not None:
            y_MH = word_vectors(self, self._read(x_BTD, batch.mask_BT), batch)
        else:
            y_MH = self._of_texts(self._read(x_BTD, batch.mask_BT), batch)
        y_MH = F.dropout(y_MH, self.dropout, self.training)
        if self.choices:
            return self.out(y_MH).view(-1, self.readings)
        return self.out(y_MH if batch.asked_P2 is not None else y_MH.view(-1, self.readings, y_MH.shape[-1]).sum(1))

    def _read(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, H): what the layers, in both directions, make of the real positions; at padding, which stands last, anything."""
        turn_BT, late_BTE, y_BTH = reversal(mask_BT), x_BTD[..., : self.late], x_BTD[..., self.late :]
        for number, (ahead, back) in enumerate(zip(self.ahead, self.back, strict=True), 1):
            y_BTH = torch.cat([ahead(y_BTH)[0], turned(back(turned(y_BTH, turn_BT))[0], turn_BT)], -1)
            if number == self.below:
                y_BTH = torch.cat([y_BTH, late_BTE], -1)
            if number < len(self.ahead):  # what the last one gives is dropped where it is read
                y_BTH = F.dropout(y_BTH, self.dropout, self.training)
        return y_BTH

    def _over_words(self, x_MD: torch.Tensor, batch: Batch) -> torch.Tensor:
        mask_NW = words_mask(batch)
        x_NWD = x_MD.new_zeros(*mask_NW.shape, x_MD.shape[-1]).masked_scatter(mask_NW[..., None], x_MD)
        return self._read(x_NWD, mask_NW)[mask_NW]

    def _of_texts(self, y_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.text_BT is not None
        if not self.paired:
            return _highest(y_BTH, batch.text_BT)
        assert batch.segments_BT is not None
        u, v = (_highest(y_BTH, batch.text_BT & (batch.segments_BT == place)) for place in (0, 1))
        return torch.cat([u, v, (u - v).abs(), u * v], -1)

    def loss(self, batch: Layers) -> torch.Tensor:
        """Summed nats, or errors, of the gold answers."""
        assert batch.gold_M is not None
        scores_MK = self(batch)
        if self.crf is None:
            return self.answer.loss(scores_MK, batch.gold_M)
        mask_NW = words_mask(batch)
        gold_NW = batch.gold_M.new_zeros(mask_NW.shape).masked_scatter(mask_NW, batch.gold_M)
        return self.crf.nats(_laid_out(scores_MK, mask_NW), mask_NW, gold_NW).sum()

    def read(self, batch: Layers) -> tuple[np.ndarray, np.ndarray | None]:
        """(M, K) what the answer makes of the scores, and, of tags, the (M,) likeliest ones of each sentence as a whole."""
        scores_MK = self(batch)
        if self.crf is None:
            return self.answer.read(scores_MK), None
        mask_NW = words_mask(batch)
        scores_NWK = _laid_out(scores_MK, mask_NW).float()
        return self.crf.marginals(scores_NWK, mask_NW)[mask_NW].double().cpu().numpy(), self.crf.best(scores_NWK, mask_NW)[mask_NW].cpu().numpy()


def words_mask(batch: Batch) -> torch.Tensor:
    """(N, W): where an item has a word."""
    lengths_N = torch.tensor(batch.asked_by_item, device=batch.ids_BT.device)
    return torch.arange(int(lengths_N.max()), device=lengths_N.device) < lengths_N[:, None]


def _laid_out(scores_MK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
    return scores_MK.new_zeros(*mask_NW.shape, scores_MK.shape[-1]).masked_scatter(mask_NW[..., None], scores_MK)


def _highest(y_BTH: torch.Tensor, where_BT: torch.Tensor) -> torch.Tensor:
    """(B, H): the highest value of each unit where a piece of text stands, zero where there is none."""
    found = y_BTH.masked_fill(~where_BT[..., None], float("-inf")).amax(1)
    return torch.where(where_BT.any(1)[:, None], found, 0.0)


class _Stream(ItemStream):
    """Remembered items with their gold answers."""

    def __init__(self, items: Remembered, gold_M: np.ndarray, *, batch: int, seed: int) -> None:
        super().__init__(items.reader, items.items, gold_M, batch=batch, seed=seed)
        self.remembered = items

    def batch(self, index: int) -> Batch:
        """One batch of the epoch."""
        some = self.groups[index]
        return self.remembered.batch(some, self.gold_M[np.concatenate([self.rows[i] for i in some])])


def objective(model: Network, batch: Layers, carry: Any = None) -> LossOut:
    """The mean over answers, and the L2 of the mix's raw weights (Peters et al. 2018, section 3.3)."""
    total, count = model.loss(batch), batch.answers(by_item=model.answer.by_item)
    loss = total / count + model.mix_l2 * model.mix.penalty() if model.mix_l2 else total / count
    return LossOut(loss, {"task": total.detach()}, {"task": count}, carry)


def fit_network(items: Remembered, gold_M: np.ndarray, answer: Answer, settings: NetworkSettings, *, seed: int, device: torch.device) -> Network:
    """A network learned from these items, by Adam with a slanted triangle; the last epoch's is taken: nothing is chosen on any split."""
    model = Network(answer, settings, items, seed=seed).to(device)
    stream = _Stream(items, gold_M, batch=settings.batch, seed=seed)
    steps = stream.start(0)
    epochs = epochs_of(settings, steps)
    run = Run(model, adamw(decayed_groups([[*model.parameters()]], weight_decay=settings.weight_decay)), Draws(seed_of("fit network", seed)))
    course = Course(
        progress=lambda spent: spent.steps / (epochs * steps),
        rate=slanted_triangular(settings.cut_share, settings.ratio, steps=epochs * steps),
        highest=settings.rate,
        clip_norm=settings.clip_norm,
        precision="fp32",
        passes=epochs,
    )
    for _ in train(run, objective, stream, course):
        pass
    return model


@torch.no_grad()
def read_network(model: Network, items: Remembered) -> tuple[np.ndarray, np.ndarray | None]:
    """(M, K) what is made of the scores of all items, and of tags the (M,) likeliest ones."""
    model.eval()
    rows, device = rows_of(items.items), model.out.weight.device
    found = []
    for some in read_batches(items.items):
        batch = items.batch(some).to(device)
        assert isinstance(batch, Layers)
        found.append((np.concatenate([rows[i] for i in some]), *model.read(batch)))
    order = np.argsort(np.concatenate([where for where, _, _ in found]))
    best = None if model.crf is None else np.concatenate([best for _, _, best in found if best is not None])[order]
    return np.concatenate([read for _, read, _ in found])[order], best
