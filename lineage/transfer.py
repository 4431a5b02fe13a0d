"""From a pretrained encoder to a task: the settings of every way, items as batches, and frozen features under a linear reader.

Shapes: N items, L layers, D width, B items of a batch, T positions, K labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from lineage.batch import Batch, last_positions, mean_over
from lineage.family import Encoder
from lineage.mix import ScalarMix
from lineage.randomness import seed_of
from lineage.records import positive, share
from lineage.tokenization import Encoded, Reader
from lineage.train import autocast

READ_POSITIONS = 8192  # positions, padding included, of a batch that is only read


@dataclass(frozen=True)
class NewWords:
    """Words of the target's text that join a closed vocabulary."""

    most: int
    minimum_count: int  # in the text that is adapted to

    def __post_init__(self) -> None:
        positive(self, "most", "minimum_count")


@dataclass(frozen=True)
class AdaptSettings:
    """The block `adapt`: the language model's own objective on the target's text (Howard and Ruder 2018, section 3.2)."""

    rate: float  # of the top layer
    layer_decay: float  # each layer below has the rate of the one above divided by this
    cut_share: float
    ratio: float
    weight_decay: float
    clip_norm: float
    new_words: NewWords | None = None  # none: they stay unknown

    def __post_init__(self) -> None:
        positive(self, "rate", "layer_decay", "cut_share", "ratio", "clip_norm")
        share(self, "cut_share")


@dataclass(frozen=True)
class FrozenSettings:
    """A linear reader of frozen features, fitted by L-BFGS."""

    l2: float
    iterations: int

    def __post_init__(self) -> None:
        positive(self, "l2", "iterations")


@dataclass(frozen=True)
class TunedSettings:
    """Fine-tuning of the whole network; each of ULMFiT's techniques is off at layer_decay 1, ratio 1, unfreeze_share 0."""

    epochs: int
    batch: int
    rate: float
    layer_decay: float
    cut_share: float
    ratio: float
    unfreeze_share: float  # of all steps, over which the layers are unfrozen one by one from the top
    weight_decay: float
    dropout: float
    clip_norm: float
    window: int | None = None  # positions after which no gradient goes back, in texts that are classified (BPT3C); none: whole texts
    pooled: int | None = None  # the last positions, in whole windows, that are pooled and learned from; none: all

    def __post_init__(self) -> None:
        positive(self, "epochs", "batch", "rate", "layer_decay", "cut_share", "ratio", "clip_norm", "window", "pooled")
        share(self, "cut_share", "unfreeze_share", "dropout")
        if self.pooled is not None and (self.window is None or self.pooled < self.window):
            raise ValueError(f"pooled is {self.pooled}; it needs a window, and holds one at least")

    @property
    def recipe(self) -> str:
        """The techniques that are on, joined by +."""
        on = {"discriminative": self.layer_decay != 1, "slanted": self.ratio != 1, "gradual": self.unfreeze_share > 0}
        return "+".join(name for name, is_on in on.items() if is_on) or "plain"


@dataclass(frozen=True)
class EvaluateSettings:
    """The block `evaluate`."""

    frozen: FrozenSettings
    tuned: TunedSettings


@dataclass(frozen=True)
class Item:
    """A task's item as a family reads it: ids, and, where the task asks about a word, that word's positions."""

    encoded: Encoded
    target: np.ndarray | None = None


def collate(reader: Reader, items: Sequence[Item], labels: np.ndarray | None = None) -> Batch:
    """Items, and their labels where given, as one batch."""
    batch = reader.collate([item.encoded for item in items])
    target = None
    if items[0].target is not None:
        target = torch.zeros_like(batch.mask_BT)
        for row, item in enumerate(items):
            target[row, item.target] = True
    gold = None if labels is None else torch.from_numpy(np.array(labels, np.int64))
    return Batch(**{**vars(batch), "target_BT": target, "labels_B": gold})


def read_batches(items: Sequence[Item]) -> list[np.ndarray]:
    """Indices of items in batches of like length."""
    order = np.argsort([-len(item.encoded.ids) for item in items], kind="stable")
    found, first = [], 0
    while first < len(order):
        size = max(1, READ_POSITIONS // len(items[order[first]].encoded.ids))
        found.append(order[first : first + size])
        first += size
    return found


def word_vector(model: Encoder, x_BTD: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
    """(B, D): the word's pieces as one vector; a causal model's last piece, the only one that has read the whole word."""
    if model.read_word == "mean":
        return mean_over(x_BTD, target_BT)
    return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), last_positions(target_BT)]


@torch.inference_mode()
def frozen_features(model: Encoder, reader: Reader, items: Sequence[Item], *, precision: str) -> np.ndarray:
    """(N, L, D) float32: each layer's vector of the asked word, or the mean over the text's pieces; D of the widest, narrower ones end in zeros."""
    model.eval()
    device = next(model.parameters()).device
    widest = max(model.widths())
    found = np.zeros((len(items), len(model.widths()), widest), np.float32)
    for some in read_batches(items):
        batch = collate(reader, [items[i] for i in some]).to(device)
        with autocast(device, precision):
            layers = model.encode(batch)
        assert batch.text_BT is not None
        read = [word_vector(model, x, batch.target_BT) if batch.target_BT is not None else mean_over(x, batch.text_BT) for x in layers]
        found[some] = torch.stack([F.pad(x.float(), (0, widest - x.shape[-1])) for x in read], 1).cpu().numpy()
    return found


def _deviation(features_NLD: np.ndarray) -> np.ndarray:
    """(L, D), with a floor: a feature that hardly varies in training is not blown up, else one unseen form would decide by it alone."""
    deviation = features_NLD.std(0)
    real = (deviation > 0) | (deviation.max(-1, keepdims=True) == 0)  # what only fills up a narrow layer does not count
    return np.maximum(deviation, 0.01 * deviation.mean(-1, keepdims=True, where=real) + 1e-6)


def fit_frozen(
    features_NLD: np.ndarray, labels_N: np.ndarray, classes: int, settings: FrozenSettings, *, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """A scalar mix of the layers (Peters et al. 2018, equation 1) and a linear classifier; gives (N, L, D) -> (N, K) probabilities.

    Features are centred and scaled by the training items, so that one strength of l2 suits every family.
    """
    mean, deviation = features_NLD.mean(0), _deviation(features_NLD)

    def scaled(x_NLD: np.ndarray) -> torch.Tensor:
        return torch.from_numpy((x_NLD - mean) / deviation).double()

    _, L, D = features_NLD.shape
    start = torch.Generator().manual_seed(seed_of("frozen head", seed))
    mix = ScalarMix(L, gamma=False).double()  # a linear reader scales by itself
    weight_DK = torch.empty(D, classes, dtype=torch.double).normal_(std=0.01, generator=start).requires_grad_()
    bias_K = torch.zeros(classes, dtype=torch.double, requires_grad=True)
    x_NLD, y_N = scaled(features_NLD), torch.from_numpy(np.array(labels_N, np.int64))
    optimizer = torch.optim.LBFGS([mix.weights, weight_DK, bias_K], max_iter=settings.iterations, line_search_fn="strong_wolfe")

    def logits(x: torch.Tensor) -> torch.Tensor:
        return mix(x.unbind(1)) @ weight_DK + bias_K

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
