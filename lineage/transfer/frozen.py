"""Frozen features, and a linear reader of them.

Shapes: N items, M rows of answers (an item, or each of its words), L layers, D width, B rows of a batch, T positions, K outputs.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from lineage.batch import Batch, mean_over
from lineage.errors import CellError
from lineage.family import Encoder
from lineage.layers.mix import ScalarMix
from lineage.randomness import seed_of
from lineage.text.tokenization import Reader
from lineage.training.train import autocast
from lineage.transfer.answers import FIRST, Answer
from lineage.transfer.reading import Item, collate, read_batches, rows_of, word_vectors
from lineage.transfer.settings import FrozenSettings, NetworkSettings

PART = 1 << 20  # numbers that are float64 at a time: 8 MiB, which a processor's cache holds


def frozen_vector(model: Encoder, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(M, D): the asked words, or (B, D) the mean over the text's pieces; of two texts (B, 4 D): both means u and v, |u - v| and u v.

    Of the words of a context beside a question (M, 2 D): each word v, and u v, u the mean of the question's pieces: without it no linear reader of
    static vectors could ask whether they match. The rest of the four is left out, since a context has a hundred words and more.
    These four are what linear readers of pairs have been given since Conneau et al. 2017 (section 3.1): a mean over both texts could not say how they
    stand to one another. The two are read together all the same, so that a contextual model has seen the other one.
    """
    assert batch.text_BT is not None
    if batch.asked_P2 is not None:
        v_MD = word_vectors(model, x_BTD, batch)
        return v_MD if batch.segments_BT is None else torch.cat([v_MD, v_MD * _question(x_BTD, batch)], -1)
    if batch.segments_BT is None:
        return mean_over(x_BTD, batch.text_BT)
    u, v = (mean_over(x_BTD, batch.text_BT & (batch.segments_BT == place)) for place in (0, 1))
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


def _question(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(M, D): for every asked word the mean of the pieces of the question beside which it was read; of a word without pieces that of any."""
    assert batch.asked_P2 is not None and batch.segments_BT is not None and batch.text_BT is not None
    place_P, word_P = batch.asked_P2.unbind(1)
    reading_M = place_P.new_zeros(batch.asked).scatter_reduce(0, word_P, place_P // x_BTD.shape[1], "amax")
    return mean_over(x_BTD, batch.text_BT & (batch.segments_BT == 0))[reading_M]


@torch.inference_mode()
def frozen_features(model: Encoder, reader: Reader, items: Sequence[Item], *, precision: str) -> np.ndarray:
    """(M, L, D) float32: each layer's `frozen_vector`, D of the widest layer, narrower ones end in zeros; of choices (N, choices, L, D)."""
    model.eval()
    device, rows = next(model.parameters()).device, rows_of(items)
    readings = 1 if items[0].pieces else len(items[0].readings)
    widest = max(model.widths()) * (1 if items[0].encoded.segments is None else 2 if items[0].pieces else 4)
    found = np.zeros((rows[-1][-1] + 1, readings, len(model.widths()), widest), np.float32)
    for some in read_batches(items):
        batch = collate(reader, [items[i] for i in some]).to(device)
        with autocast(device, precision):
            layers = model.encode(batch)
        read = [frozen_vector(model, x, batch).float() for x in layers]
        stacked = torch.stack([F.pad(x, (0, widest - x.shape[-1])) for x in read], 1)
        found[np.concatenate([rows[i] for i in some])] = stacked.view(-1, readings, *stacked.shape[1:]).cpu().numpy()
    return found if items[0].choices else found.sum(1)


def read_layers(features: np.ndarray, settings: FrozenSettings | NetworkSettings) -> np.ndarray:
    """(..., L, D) -> the layers that are read: (..., L, D) again, or (..., 1, 4 D) for the last four joined, fewer where there are fewer.

    Raises CellError where there is no second to last.
    """
    count, which = features.shape[-2], settings.features
    if which == "second_to_last" and count < 2:
        block = "frozen" if isinstance(settings, FrozenSettings) else "network"
        raise CellError(f"the model has one layer, and none is second to last; set evaluate.{block}.features to mix or top")
    if which == "concat4":
        last = features[..., -4:, :]
        return last.reshape(*last.shape[:-2], 1, -1)
    return features[..., {"mix": slice(None), "top": slice(-1, None), "second_to_last": slice(-2, -1), "embeddings": slice(1)}[which], :]


def _scale(features_NLD: np.ndarray, *, layer_norm: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the training items, (L, D) each, a number a feature; with `layer_norm` one a layer.

    A deviation has a floor: a feature that hardly varies in training is not blown up, else one unseen form would decide by it alone.
    """
    mean, deviation = features_NLD.mean(0), features_NLD.std(0)
    if layer_norm:
        return one_a_layer(mean, deviation)
    return mean, np.maximum(deviation, 0.01 * deviation.mean(-1, keepdims=True, where=_real(deviation)) + 1e-6)


def one_a_layer(mean_LD: np.ndarray, deviation_LD: np.ndarray, *, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(L, D) each: the mean and deviation of all of a layer's numbers, made of each one's; those that deviate by `least` or less do not count."""
    real = _real(deviation_LD, least=least)
    centre = mean_LD.mean(-1, keepdims=True, where=real)
    spread = np.sqrt((deviation_LD**2 + (mean_LD - centre) ** 2).mean(-1, keepdims=True, where=real))
    return np.where(real, centre, 0), np.broadcast_to(spread + 1e-6, mean_LD.shape)


def _real(deviation_LD: np.ndarray, *, least: float = 0.0) -> np.ndarray:
    """(L, D) where a number counts: what only fills up a narrow layer does not."""
    real: np.ndarray = (deviation_LD > least) | (deviation_LD.max(-1, keepdims=True) <= least)
    return real


def _scales(features_NLD: np.ndarray, *, static: int, layer_norm: bool) -> tuple[np.ndarray, np.ndarray]:
    """`_scale` of the layers, and of the static vectors behind them: neither model's deviations say what counts as small in the other's."""
    own = features_NLD.shape[-1] - static
    parts = [_scale(some, layer_norm=layer_norm) for some in (features_NLD[..., :own], features_NLD[..., own:]) if some.shape[-1]]
    mean, deviation = (np.concatenate(some, -1) for some in zip(*parts, strict=True))
    return mean, deviation


def _parts(x_MLD: torch.Tensor, *, whole: bool) -> list[slice]:
    """Rows that are float64 together; `whole`: all of them, since words that one softmax tells apart cannot be parted."""
    rows = len(x_MLD) if whole else max(1, PART // x_MLD[0].numel())
    return [slice(first, first + rows) for first in range(0, len(x_MLD), rows)]


def _scaled(mean_LD: np.ndarray, deviation_LD: np.ndarray, x_MLD: np.ndarray) -> torch.Tensor:
    """float32, as the features are: float64 is made of a part at a time."""
    return torch.from_numpy((x_MLD - mean_LD) / deviation_LD)


def _product(x: torch.Tensor, weight_LDK: torch.Tensor, bias_K: torch.Tensor) -> torch.Tensor:
    """(..., L, D) -> (..., K): all layers in one product, in the place of a mix of them first: features are read once, and need no gradients.

    K stands first, since a CPU multiplies a matrix that is much higher than wide several times faster from that side.
    """
    return F.linear(x.double().flatten(-2), weight_LDK.flatten(0, 1).T.contiguous(), bias_K)


def fit_frozen(
    features_MLD: np.ndarray, gold_M: np.ndarray, answer: Answer, settings: FrozenSettings, *, seed: int, static: int = 0
) -> Callable[..., np.ndarray]:
    """A scalar mix of the layers (Peters et al. 2018, equation 1) and a linear reader; gives (M, L, D) -> what `answer.read` makes of the scores.

    Of C choices, (N, C, L, D), each has one score by the same weights. Features are centred and scaled by the training items, so that one strength
    of l2 suits every family. The last `static` of them are another model's (see `lineage.transfer.joined`), scaled for themselves and never mixed.
    """
    choices, (L, D) = features_MLD.ndim == 4, features_MLD.shape[-2:]
    scaled = partial(_scaled, *_scales(features_MLD.reshape(-1, L, D), static=static, layer_norm=settings.layer_norm))
    start = torch.Generator().manual_seed(seed_of("frozen head", seed))
    mix = ScalarMix(L, gamma=settings.gamma, static=static).double()
    weight_DK = torch.empty(D, answer.outputs, dtype=torch.double).normal_(std=0.01, generator=start).requires_grad_()
    bias_K = torch.zeros(answer.outputs, dtype=torch.double, requires_grad=True)
    x_MLD, y_M = scaled(features_MLD), torch.from_numpy(np.array(gold_M))
    answers = int(((y_M & FIRST) > 0).sum()) if answer.by_item else len(y_M)
    optimizer = torch.optim.LBFGS([*mix.parameters(), weight_DK, bias_K], max_iter=settings.iterations, line_search_fn="strong_wolfe")

    def scores(x: torch.Tensor) -> torch.Tensor:
        found = _product(x, mix.folded(weight_DK), bias_K)
        return found.squeeze(-1) if choices else found

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = settings.l2 * (weight_DK.square().sum() + settings.mix_share * mix.penalty())
        loss.backward()
        for some in _parts(x_MLD, whole=answer.by_item):
            own = answer.loss(scores(x_MLD[some]), y_M[some]) / answers
            own.backward()
            loss = loss.detach() + own.detach()
        return loss

    optimizer.step(closure)

    @torch.no_grad()
    def read(x: np.ndarray) -> np.ndarray:
        x_MLD = scaled(x)
        return answer.read(torch.cat([scores(x_MLD[some]) for some in _parts(x_MLD, whole=answer.by_item)]))

    return read
