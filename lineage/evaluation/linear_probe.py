"""Frozen features, and a linear reader of them.

Shapes: N items, M rows of answers (an item, or each of its words), L layers, D width, B rows of a batch, T positions, K outputs.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.evaluation.answers import ITEM_START, Answer
from lineage.evaluation.encoding import (
    EncodedItem,
    answer_rows,
    batch_by_length,
    collate_items,
    pool_words,
)
from lineage.evaluation.settings import BilstmProbeSettings, LinearProbeSettings
from lineage.models.base import Encoder
from lineage.models.batch import Batch, masked_mean
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast

CHUNK_SIZE = 1 << 20  # numbers that are float64 at a time: 8 MiB, which a processor's cache holds


def pool_features(model: Encoder, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(M, D): the asked words, or (B, D) the mean over the text's pieces; of two texts (B, 4 D): both means u and v, |u - v| and u v.

    Of the words of a context beside a question (M, 2 D): each word v, and u v, u the mean of the question's pieces: without it no linear reader of
    static vectors could ask whether they match. The rest of the four is left out, since a context has a hundred words and more.
    These four are what linear readers of pairs have been given since Conneau et al. 2017 (section 3.1): a mean over both texts could not say how they
    stand to one another. The two are read together all the same, so that a contextual model has seen the other one.
    """
    assert batch.text_mask_BT is not None
    if batch.answer_pieces_P2 is not None:
        v_MD = pool_words(model, x_BTD, batch)
        return (
            v_MD
            if batch.segment_ids_BT is None
            else torch.cat([v_MD, v_MD * _pool_question(x_BTD, batch)], -1)
        )
    if batch.segment_ids_BT is None:
        return masked_mean(x_BTD, batch.text_mask_BT)
    u, v = (
        masked_mean(x_BTD, batch.text_mask_BT & (batch.segment_ids_BT == place)) for place in (0, 1)
    )
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


def _pool_question(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(M, D): for every asked word the mean of the pieces of the question beside which it was read; of a word without pieces that of any."""
    assert (
        batch.answer_pieces_P2 is not None
        and batch.segment_ids_BT is not None
        and batch.text_mask_BT is not None
    )
    place_P, word_P = batch.answer_pieces_P2.unbind(1)
    reading_M = place_P.new_zeros(batch.num_answers).scatter_reduce(
        0, word_P, place_P // x_BTD.shape[1], "amax"
    )
    return masked_mean(x_BTD, batch.text_mask_BT & (batch.segment_ids_BT == 0))[reading_M]


@torch.inference_mode()
def extract_features(
    model: Encoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """(M, L, D) float32: each layer's `frozen_vector`, D of the widest layer, narrower ones end in zeros; of choices (N, choices, L, D)."""
    model.eval()
    device, rows = next(model.parameters()).device, answer_rows(items)
    readings = 1 if items[0].word_pieces else len(items[0].encodings)
    widest = max(model.hidden_sizes()) * (
        1 if items[0].encoded.token_type_ids is None else 2 if items[0].word_pieces else 4
    )
    found = np.zeros((rows[-1][-1] + 1, readings, len(model.hidden_sizes()), widest), np.float32)
    for some in batch_by_length(items):
        batch = collate_items(tokenizer, [items[i] for i in some]).to(device)
        with autocast(device, precision):
            layers = model.encode(batch)
        read = [pool_features(model, x, batch).float() for x in layers]
        stacked = torch.stack([F.pad(x, (0, widest - x.shape[-1])) for x in read], 1)
        found[np.concatenate([rows[i] for i in some])] = (
            stacked.view(-1, readings, *stacked.shape[1:]).cpu().numpy()
        )
    return found if items[0].is_multiple_choice else found.sum(1)


def select_layers(
    features: np.ndarray, settings: LinearProbeSettings | BilstmProbeSettings
) -> np.ndarray:
    """(..., L, D) -> the layers that are read: (..., L, D) again, or (..., 1, 4 D) for the last four joined, fewer where there are fewer.

    Raises CellError where there is no second to last.
    """
    count, which = features.shape[-2], settings.features
    if which == "second_to_last" and count < 2:
        block = "linear_probe" if isinstance(settings, LinearProbeSettings) else "bilstm_probe"
        raise EvaluationError(
            f"the model has one layer, and none is second to last; set evaluate.{block}.features to scalar_mix or last"
        )
    if which == "concat_last_4":
        last = features[..., -4:, :]
        return last.reshape(*last.shape[:-2], 1, -1)
    return features[
        ...,
        {
            "scalar_mix": slice(None),
            "last": slice(-1, None),
            "second_to_last": slice(-2, -1),
            "embeddings": slice(1),
        }[which],
        :,
    ]


def _mean_and_std(features_NLD: np.ndarray, *, layer_norm: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the training items, (L, D) each, a number a feature; with `layer_norm` one a layer.

    A deviation has a floor: a feature that hardly varies in training is not blown up, else one unseen form would decide by it alone.
    """
    mean, deviation = features_NLD.mean(0), features_NLD.std(0)
    if layer_norm:
        return layer_mean_and_std(mean, deviation)
    return mean, np.maximum(
        deviation,
        0.01 * deviation.mean(-1, keepdims=True, where=_varying_features(deviation)) + 1e-6,
    )


def layer_mean_and_std(
    mean_LD: np.ndarray, std_LD: np.ndarray, *, min_std: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """(L, D) each: the mean and deviation of all of a layer's numbers, made of each one's; those that deviate by `least` or less do not count."""
    real = _varying_features(std_LD, min_std=min_std)
    centre = mean_LD.mean(-1, keepdims=True, where=real)
    spread = np.sqrt((std_LD**2 + (mean_LD - centre) ** 2).mean(-1, keepdims=True, where=real))
    return np.where(real, centre, 0), np.broadcast_to(spread + 1e-6, mean_LD.shape)


def _varying_features(std_LD: np.ndarray, *, min_std: float = 0.0) -> np.ndarray:
    """(L, D) where a number counts: what only fills up a narrow layer does not."""
    real: np.ndarray = (std_LD > min_std) | (std_LD.max(-1, keepdims=True) <= min_std)
    return real


def _mean_and_std_with_static(
    features_NLD: np.ndarray, *, static_size: int, layer_norm: bool
) -> tuple[np.ndarray, np.ndarray]:
    """`_scale` of the layers, and of the static vectors behind them: neither model's deviations say what counts as small in the other's."""
    own = features_NLD.shape[-1] - static_size
    parts = [
        _mean_and_std(some, layer_norm=layer_norm)
        for some in (features_NLD[..., :own], features_NLD[..., own:])
        if some.shape[-1]
    ]
    mean, deviation = (np.concatenate(some, -1) for some in zip(*parts, strict=True))
    return mean, deviation


def _chunk_rows(x_MLD: torch.Tensor, *, single_chunk: bool) -> list[slice]:
    """Rows that are float64 together; `whole`: all of them, since words that one softmax tells apart cannot be parted."""
    rows = len(x_MLD) if single_chunk else max(1, CHUNK_SIZE // x_MLD[0].numel())
    return [slice(first, first + rows) for first in range(0, len(x_MLD), rows)]


def _standardize(mean_LD: np.ndarray, std_LD: np.ndarray, x_MLD: np.ndarray) -> torch.Tensor:
    """float32, as the features are: float64 is made of a part at a time."""
    return torch.from_numpy((x_MLD - mean_LD) / std_LD)


def _apply_weights(x: torch.Tensor, weight_LDK: torch.Tensor, bias_K: torch.Tensor) -> torch.Tensor:
    """(..., L, D) -> (..., K): all layers in one product, in the place of a mix of them first: features are read once, and need no gradients.

    K stands first, since a CPU multiplies a matrix that is much higher than wide several times faster from that side.
    """
    return F.linear(x.double().flatten(-2), weight_LDK.flatten(0, 1).T.contiguous(), bias_K)


def fit_linear_probe(
    features_MLD: np.ndarray,
    labels_M: np.ndarray,
    answer: Answer,
    settings: LinearProbeSettings,
    *,
    seed: int,
    static_size: int = 0,
) -> Callable[..., np.ndarray]:
    """A scalar mix of the layers (Peters et al. 2018, equation 1) and a linear reader; gives (M, L, D) -> what `answer.read` makes of the scores.

    Of C choices, (N, C, L, D), each has one score by the same weights. Features are centred and scaled by the training items, so that one strength
    of l2 suits every family. The last `static` of them are another model's (see `lineage.evaluation.joined`), scaled for themselves and never mixed.
    """
    choices, (L, D) = features_MLD.ndim == 4, features_MLD.shape[-2:]
    standardize = partial(
        _standardize,
        *_mean_and_std_with_static(
            features_MLD.reshape(-1, L, D), static_size=static_size, layer_norm=settings.layer_norm
        ),
    )
    init_rng = torch.Generator().manual_seed(derive_seed("frozen head", seed))
    mix = ScalarMix(L, gamma=settings.learn_gamma, static_size=static_size).double()
    weight_DK = (
        torch.empty(D, answer.num_outputs, dtype=torch.double)
        .normal_(std=0.01, generator=init_rng)
        .requires_grad_()
    )
    bias_K = torch.zeros(answer.num_outputs, dtype=torch.double, requires_grad=True)
    x_MLD, y_M = standardize(features_MLD), torch.from_numpy(np.array(labels_M))
    answers = int(((y_M & ITEM_START) > 0).sum()) if answer.mean_over_items else len(y_M)
    optimizer = torch.optim.LBFGS(
        [*mix.parameters(), weight_DK, bias_K],
        max_iter=settings.max_iter,
        line_search_fn="strong_wolfe",
    )

    def scores(x: torch.Tensor) -> torch.Tensor:
        found = _apply_weights(x, mix.fold_into_linear(weight_DK), bias_K)
        return found.squeeze(-1) if choices else found

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = settings.l2 * (
            weight_DK.square().sum() + settings.relative_mix_l2 * mix.l2_penalty()
        )
        loss.backward()
        for some in _chunk_rows(x_MLD, single_chunk=answer.mean_over_items):
            own = answer.loss(scores(x_MLD[some]), y_M[some]) / answers
            own.backward()
            loss = loss.detach() + own.detach()
        return loss

    optimizer.step(closure)

    @torch.no_grad()
    def read(x: np.ndarray) -> np.ndarray:
        x_MLD = standardize(x)
        return answer.postprocess(
            torch.cat(
                [
                    scores(x_MLD[some])
                    for some in _chunk_rows(x_MLD, single_chunk=answer.mean_over_items)
                ]
            )
        )

    return read
