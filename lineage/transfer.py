"""From a pretrained encoder to a task: the settings of every way, items as batches, and frozen features under a linear reader.

Shapes: N items, L layers, D width, B items of a batch, T positions, K labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F

from lineage.batch import Batch, last_positions, mean_over
from lineage.errors import CellError
from lineage.family import Encoder
from lineage.mix import ScalarMix
from lineage.optim import FineTuning
from lineage.randomness import seed_of
from lineage.records import positive, share
from lineage.tokenization import Encoded, Reader
from lineage.train import autocast
from lineage.translator import TranslateSettings

READ_POSITIONS = 8192  # positions, padding included, of a batch that is only read


@dataclass(frozen=True)
class NewWords:
    """Words of the target's text that join a closed vocabulary."""

    most: int
    minimum_count: int  # in the text that is adapted to

    def __post_init__(self) -> None:
        positive(self, "most", "minimum_count")


@dataclass(frozen=True)
class AdaptSettings(FineTuning):
    """The block `adapt`: the language model's own objective on the target's text (Howard and Ruder 2018, section 3.2)."""

    new_words: NewWords | None = field(default=None, kw_only=True)  # none: they stay unknown


@dataclass(frozen=True)
class FrozenSettings:
    """A linear reader of frozen features, fitted by L-BFGS."""

    l2: float
    iterations: int
    # What is read: the scalar mix of all layers, or the layers that BERT's feature-based use tried (Devlin et al. 2019, section 5.3)
    features: Literal["mix", "top", "second_to_last", "concat4", "embeddings"] = "mix"
    gamma: bool = False  # a scale of the mix that is learned; a linear reader scales by itself
    layer_norm: bool = False  # one mean and one variance a layer, as in ELMo's mix, instead of one a feature; both of the training items

    def __post_init__(self) -> None:
        positive(self, "l2", "iterations")


@dataclass(frozen=True)
class TunedSettings(FineTuning):
    """Fine-tuning of the whole network; each of ULMFiT's techniques is off at layer_decay 1, ratio 1, unfreeze_share 0."""

    epochs: int
    batch: int
    unfreeze_share: float  # of all steps, over which the layers are unfrozen one by one from the top
    dropout: float
    window: int | None = None  # positions after which no gradient goes back, in texts that are classified (BPT3C); none: whole texts
    pooled: int | None = None  # the last positions, in whole windows, that are pooled and learned from; none: all
    pool: Literal["own", "mean"] = "own"  # a text's vector: the family's own ([CLS], the extract mark, ...), or the mean of the top layer's pieces
    lm_weight: float = 0.0  # of the language model's loss on the task's texts; 0.5 in GPT-1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "epochs", "batch", "window", "pooled")
        share(self, "unfreeze_share", "dropout")
        if self.pooled is not None and (self.window is None or self.pooled < self.window):
            raise ValueError(f"pooled is {self.pooled}; it needs a window, and holds one at least")
        if self.lm_weight < 0:
            raise ValueError(f"lm_weight is {self.lm_weight}; it must be 0 or more")
        if self.window is not None and (self.lm_weight or self.pool != "own"):
            raise ValueError("window is for the family's own vector of a text alone; take it out, or set pool: own and lm_weight: 0")

    @property
    def recipe(self) -> str:
        """The techniques that are on, joined by +."""
        slanted = self.schedule == "slanted"
        on = {"discriminative": self.layer_decay != 1, "slanted": slanted and self.ratio != 1, f"{self.schedule} rates": not slanted,
              "gradual": self.unfreeze_share > 0, "lm": self.lm_weight > 0, "uncorrected": not self.bias_correction}  # fmt: skip
        return "+".join(name for name, is_on in on.items() if is_on) or "plain"


@dataclass(frozen=True)
class EvaluateSettings:
    """The block `evaluate`."""

    frozen: FrozenSettings
    tuned: TunedSettings
    translate: TranslateSettings | None = None  # of a family that has a translator


@dataclass(frozen=True)
class Item:
    """A task's item as a family reads it: ids, and, where the task asks about a word, that word's positions.

    An item may be read several times: two texts in both orders, whose vectors are summed, or a text with each of its choices, which are scored one
    by one (Radford et al. 2018, section 3.3). All items of a task have as many readings.
    """

    encoded: Encoded
    target: np.ndarray | None = None
    others: tuple[Encoded, ...] = ()  # readings after the first
    choices: bool = False

    @property
    def readings(self) -> tuple[Encoded, ...]:
        """All of them, in order."""
        return (self.encoded, *self.others)

    @property
    def cut(self) -> bool:
        """Whether any of them was longer than the limit."""
        return any(reading.cut for reading in self.readings)

    @property
    def length(self) -> int:
        """Positions of the longest."""
        return max(len(reading.ids) for reading in self.readings)


def collate(reader: Reader, items: Sequence[Item], labels: np.ndarray | None = None) -> Batch:
    """Items, and their labels where given, as one batch: a row for each reading, those of an item one after another."""
    readings = [reading for item in items for reading in item.readings]
    batch = reader.collate(readings)
    target = segments = None
    if readings[0].segments is not None:
        segments = torch.zeros_like(batch.ids_BT)
        for row, reading in enumerate(readings):
            assert reading.segments is not None
            segments[row, : len(reading.ids)] = torch.from_numpy(reading.segments)
    if items[0].target is not None:
        target = torch.zeros_like(batch.mask_BT)
        for row, item in enumerate(items):
            target[row, item.target] = True
    gold = None if labels is None else torch.from_numpy(np.array(labels, np.int64))
    return Batch(**{**vars(batch), "segments_BT": segments, "target_BT": target, "labels_B": gold})


def read_batches(items: Sequence[Item]) -> list[np.ndarray]:
    """Indices of items in batches of like length."""
    order = np.argsort([-item.length for item in items], kind="stable")
    found, first = [], 0
    while first < len(order):
        longest = items[order[first]]
        size = max(1, READ_POSITIONS // (longest.length * len(longest.readings)))
        found.append(order[first : first + size])
        first += size
    return found


def word_vector(model: Encoder, x_BTD: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
    """(B, D): the word's pieces as one vector; a causal model's last piece, the only one that has read the whole word."""
    if model.read_word == "mean":
        return mean_over(x_BTD, target_BT)
    return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), last_positions(target_BT)]


def frozen_vector(model: Encoder, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(B, D): the asked word, or the mean over the text's pieces; of two texts (B, 4 D): both means u and v, |u - v| and u v.

    These four are what linear readers of pairs have been given since Conneau et al. 2017 (section 3.1): a mean over both texts could not say how they
    stand to one another. The two are read together all the same, so that a contextual model has seen the other one.
    """
    assert batch.text_BT is not None
    if batch.target_BT is not None:
        return word_vector(model, x_BTD, batch.target_BT)
    if batch.segments_BT is None:
        return mean_over(x_BTD, batch.text_BT)
    u, v = (mean_over(x_BTD, batch.text_BT & (batch.segments_BT == place)) for place in (0, 1))
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


@torch.inference_mode()
def frozen_features(model: Encoder, reader: Reader, items: Sequence[Item], *, precision: str) -> np.ndarray:
    """(N, L, D) float32: each layer's `frozen_vector`, D of the widest layer, narrower ones end in zeros; of choices (N, choices, L, D)."""
    model.eval()
    device = next(model.parameters()).device
    readings = len(items[0].readings)
    widest = max(model.widths()) * (1 if items[0].encoded.segments is None else 4)
    found = np.zeros((len(items), readings, len(model.widths()), widest), np.float32)
    for some in read_batches(items):
        batch = collate(reader, [items[i] for i in some]).to(device)
        with autocast(device, precision):
            layers = model.encode(batch)
        read = [frozen_vector(model, x, batch).float() for x in layers]
        stacked = torch.stack([F.pad(x, (0, widest - x.shape[-1])) for x in read], 1)
        found[some] = stacked.view(len(some), readings, *stacked.shape[1:]).cpu().numpy()
    return found if items[0].choices else found.sum(1)


def read_layers(features: np.ndarray, which: str) -> np.ndarray:
    """(..., L, D) -> the layers that are read: (..., L, D) again, or (..., 1, 4 D) for the last four joined, fewer where there are fewer.

    Raises CellError where there is no second to last.
    """
    count = features.shape[-2]
    if which == "second_to_last" and count < 2:
        raise CellError("the model has one layer, and none is second to last")
    if which == "concat4":
        last = features[..., -4:, :]
        return last.reshape(*last.shape[:-2], 1, -1)
    return features[..., {"mix": slice(None), "top": slice(-1, None), "second_to_last": slice(-2, -1), "embeddings": slice(1)}[which], :]


def _scale(features_NLD: np.ndarray, *, layer_norm: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the training items, (L, D) each, a number a feature; with `layer_norm` one a layer.

    A deviation has a floor: a feature that hardly varies in training is not blown up, else one unseen form would decide by it alone.
    """
    mean, deviation = features_NLD.mean(0), features_NLD.std(0)
    real = (deviation > 0) | (deviation.max(-1, keepdims=True) == 0)  # what only fills up a narrow layer does not count
    if layer_norm:
        centre = mean.mean(-1, keepdims=True, where=real)
        spread = np.sqrt((deviation**2 + (mean - centre) ** 2).mean(-1, keepdims=True, where=real))
        return np.where(real, centre, 0), np.broadcast_to(spread + 1e-6, mean.shape)
    return mean, np.maximum(deviation, 0.01 * deviation.mean(-1, keepdims=True, where=real) + 1e-6)


def fit_frozen(
    features_NLD: np.ndarray, labels_N: np.ndarray, classes: int, settings: FrozenSettings, *, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """A scalar mix of the layers (Peters et al. 2018, equation 1) and a linear classifier; gives (N, L, D) -> (N, K) probabilities.

    Of K choices, (N, K, L, D), each has one score by the same weights, and a softmax is taken over them. Features are centred and scaled by the
    training items, so that one strength of l2 suits every family.
    """
    choices, (L, D) = features_NLD.ndim == 4, features_NLD.shape[-2:]
    mean, deviation = _scale(features_NLD.reshape(-1, L, D), layer_norm=settings.layer_norm)

    def scaled(x_NLD: np.ndarray) -> torch.Tensor:
        return torch.from_numpy((x_NLD - mean) / deviation).double()

    scores = 1 if choices else classes
    start = torch.Generator().manual_seed(seed_of("frozen head", seed))
    mix = ScalarMix(L, gamma=settings.gamma).double()
    weight_DK = torch.empty(D, scores, dtype=torch.double).normal_(std=0.01, generator=start).requires_grad_()
    bias_K = torch.zeros(scores, dtype=torch.double, requires_grad=True)
    x_NLD, y_N = scaled(features_NLD), torch.from_numpy(np.array(labels_N, np.int64))
    optimizer = torch.optim.LBFGS([*mix.parameters(), weight_DK, bias_K], max_iter=settings.iterations, line_search_fn="strong_wolfe")

    def logits(x: torch.Tensor) -> torch.Tensor:
        found = mix(x.unbind(-2)) @ weight_DK + bias_K
        return found.squeeze(-1) if choices else found

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(x_NLD), y_N) + settings.l2 * (weight_DK.square().sum() + mix.penalty())
        loss.backward()
        return loss

    optimizer.step(closure)

    def probabilities(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(logits(scaled(x)), -1).numpy()

    return probabilities
