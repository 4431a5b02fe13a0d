"""Frozen features of an encoder, and a linear probe on them.

Shapes: N items, C choices, M rows of answers (an item, or each of its words), L layers, D width,
B rows of a batch, T positions, K outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F

from lineage.answers.base import HeadAnswer
from lineage.answers.span import ITEM_START
from lineage.errors import EvaluationError
from lineage.evaluation.encoding import (
    EncodedItem,
    HasWordPooling,
    answer_rows,
    batch_by_length,
    collate_items,
    pool_words,
)
from lineage.evaluation.feature_store import FeatureScaling, mean_and_std
from lineage.evaluation.settings import BilstmProbeSettings, LinearProbeSettings
from lineage.models.base import Encoder
from lineage.models.batch import Batch, masked_mean
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast

CHUNK_SIZE = 1 << 20  # features converted to float64 at a time: 8 MiB, which fit a CPU's cache
LAYER_SLICES = {
    "scalar_mix": slice(None),
    "last": slice(-1, None),
    "second_to_last": slice(-2, -1),
    "embeddings": slice(1),
}


def pool_features(model: HasWordPooling, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Pool one layer into the features of the rows that the task asks about.

    - A text: (B, D), the mean over its pieces.
    - A pair of texts: (B, 4 D + 1), see `pool_pair`.
    - Words: (M, D), see `pool_words`.
    - Words of a context with a question: (M, 2 D), v and u * v for each word v, where u is the
      mean over the question. Without u * v a linear probe on static vectors could not match a word
      with the question. u and |u - v| are left out, because a context has a hundred words or more.
    """
    assert batch.text_mask_BT is not None
    if batch.answer_pieces_P2 is not None:
        v_MD = pool_words(model, x_BTD, batch)
        if batch.segment_ids_BT is None:
            return v_MD
        return torch.cat([v_MD, v_MD * _pool_question(x_BTD, batch)], -1)
    if batch.segment_ids_BT is None:
        return masked_mean(x_BTD, batch.text_mask_BT)
    return pool_pair(x_BTD, batch)


def pool_pair(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return (B, 4 D + 1): the means u and v of two texts, |u - v|, u * v, and their cosine.

    Probes of pairs have had the first four since Conneau et al. 2017 (section 3.1), because a mean
    over both texts cannot tell how they relate. The texts are still encoded together, so that a
    contextual model has seen both.
    """
    text_mask_BT = batch.text_mask_BT
    segment_ids_BT = batch.segment_ids_BT
    assert text_mask_BT is not None
    assert segment_ids_BT is not None
    u_BD = masked_mean(x_BTD, text_mask_BT & (segment_ids_BT == 0))
    v_BD = masked_mean(x_BTD, text_mask_BT & (segment_ids_BT == 1))
    return combine_pair(u_BD, v_BD)


def combine_pair(u_BD: torch.Tensor, v_BD: torch.Tensor) -> torch.Tensor:
    """Return (B, 4 D + 1): u, v, |u - v|, u * v, and the cosine."""
    cosine_B1 = F.cosine_similarity(u_BD, v_BD, dim=-1).unsqueeze(-1)
    return torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD, cosine_B1], -1)


def pair_width(hidden_size: int) -> int:
    """Return the width of `combine_pair`."""
    return 4 * hidden_size + 1


def _pool_question(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return (M, D): for each word the mean over the question in the encoding that has the word.

    Words without pieces get the question of the batch's first encoding.
    """
    assert batch.answer_pieces_P2 is not None
    assert batch.segment_ids_BT is not None
    assert batch.text_mask_BT is not None
    position_P, word_P = batch.answer_pieces_P2.unbind(1)
    first_row_M = position_P.new_zeros(batch.num_answers)
    row_M = first_row_M.scatter_reduce(0, word_P, position_P // x_BTD.shape[1], "amax")
    question_BD = masked_mean(x_BTD, batch.text_mask_BT & (batch.segment_ids_BT == 0))
    return question_BD[row_M]


@torch.inference_mode()
def extract_features(
    model: Encoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """Return (M, L, D) float32: every layer after `pool_features`; choices give (N, C, L, D).

    D is the width of the widest layer; narrower layers are padded with zeros. The features of
    several encodings of an item are summed.
    """
    model.eval()
    device = next(model.parameters()).device
    rows = answer_rows(items)
    num_rows = rows[-1][-1] + 1
    num_encodings = 1 if items[0].word_pieces else len(items[0].encodings)
    num_layers = len(model.hidden_sizes())
    layer_width = max(model.hidden_sizes())
    width = pooled_width(items[0], layer_width)
    features = np.zeros((num_rows, num_encodings, num_layers, width), np.float32)
    for indices in batch_by_length(items):
        batch = collate_items(tokenizer, [items[i] for i in indices]).to(device)
        with autocast(device, precision):
            layers = model.encode(batch)
        padded = [F.pad(x_BTD, (0, layer_width - x_BTD.shape[-1])) for x_BTD in layers]
        pooled = [pool_features(model, x_BTD, batch).float() for x_BTD in padded]
        stacked = torch.stack(pooled, 1).view(-1, num_encodings, num_layers, width)
        features[np.concatenate([rows[i] for i in indices])] = stacked.cpu().numpy()
    return features if items[0].is_multiple_choice else features.sum(1)


def pooled_width(item: EncodedItem, hidden_size: int) -> int:
    """Return the width of `pool_features`."""
    if item.encoded.token_type_ids is None:
        return hidden_size
    return 2 * hidden_size if item.word_pieces else pair_width(hidden_size)


def select_layers(
    features: np.ndarray, settings: LinearProbeSettings | BilstmProbeSettings
) -> np.ndarray:
    """Select the layers of (..., L, D) that the settings ask for.

    concat_last_4 gives (..., 1, 4 D), or less if there are fewer than four layers. Raises
    EvaluationError if there is no second to last layer.
    """
    if settings.features == "second_to_last" and features.shape[-2] < 2:
        block = "linear_probe" if isinstance(settings, LinearProbeSettings) else "bilstm_probe"
        raise EvaluationError(
            "the model has one layer, so none is second to last; "
            f"set evaluate.{block}.features to scalar_mix or last"
        )
    if settings.features == "concat_last_4":
        last = features[..., -4:, :]
        return last.reshape(*last.shape[:-2], 1, -1)
    return features[..., LAYER_SLICES[settings.features], :]


@dataclass(frozen=True)
class StoredFeatures:
    """Frozen features of answers, float16, or arrays of any type that are stored as they are."""

    stored: np.ndarray  # (M, L, D), or (N, C, L, D) of choices
    scaling: FeatureScaling
    # The last features are the static vectors of another model, see lineage.evaluation.joined.
    static_size: int = 0
    rows: np.ndarray | None = None  # those that are selected; None: all

    @classmethod
    def wrap(
        cls, features: "np.ndarray | StoredFeatures", *, static_size: int = 0
    ) -> "StoredFeatures":
        """Return the features themselves, or those of a plain array."""
        if isinstance(features, StoredFeatures):
            return features
        return cls(features, FeatureScaling.none(features.shape[-2:]), static_size)

    def __len__(self) -> int:
        """The number of answers, or of items with choices."""
        return len(self.stored) if self.rows is None else len(self.rows)

    def select(self, rows: np.ndarray) -> "StoredFeatures":
        """Keep only these of all answers."""
        return replace(self, rows=rows)

    def chunk(self, rows: slice) -> torch.Tensor:
        """Return (R, [C,] L, D) stored features, float64."""
        selected = torch.from_numpy(
            np.asarray(self.stored[rows if self.rows is None else self.rows[rows]])
        )
        if selected.dtype == torch.float16:
            selected = selected.float()  # the direct conversion takes twice as long
        return selected.double()

    def chunks(self, boundaries: np.ndarray | None = None) -> Iterator[slice]:
        """Yield the rows to convert to float64 together.

        Only the increasing `boundaries` may end a chunk; without them every row may.
        """
        num_rows = max(1, CHUNK_SIZE // self.stored[0].size)
        first = 0
        while first < len(self):
            end = min(first + num_rows, len(self))
            if boundaries is not None:
                end = int(boundaries[np.searchsorted(boundaries, end)])
            yield slice(first, end)
            first = end


@dataclass(frozen=True)
class Standardizer:
    """The mean and standard deviation of the features of the training items, float64.

    With standardized features one value of `l2` suits all families.
    """

    mean_LD: np.ndarray
    std_LD: np.ndarray

    @classmethod
    def fit(cls, features: StoredFeatures, *, layer_norm: bool) -> "Standardizer":
        """Compute the statistics of the layers and, separately, of the static vectors after them.

        The scales of the two models are unrelated.
        """
        L, D = features.stored.shape[-2:]
        chunks = (features.chunk(rows).view(-1, L, D) for rows in features.chunks())
        mean_LD, std_LD = features.scaling.unscale_statistics(*mean_and_std(chunks))
        parts = (slice(D - features.static_size), slice(D - features.static_size, D))
        statistics = [
            _floored_mean_and_std(mean_LD[:, part], std_LD[:, part], layer_norm=layer_norm)
            for part in parts
            if mean_LD[:, part].size
        ]
        means, stds = zip(*statistics, strict=True)
        return cls(np.concatenate(means, -1), np.concatenate(stds, -1))

    def fold_into_linear(
        self, weight_LDK: torch.Tensor, bias_K: torch.Tensor, scaling: FeatureScaling
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and bias that map stored features to the linear layer's output."""
        mean_LD, std_LD = scaling.scale_statistics(self.mean_LD, self.std_LD)
        scaled_LDK = weight_LDK / torch.from_numpy(std_LD)[..., None]
        return scaled_LDK, bias_K - torch.tensordot(torch.from_numpy(mean_LD), scaled_LDK, 2)


def _floored_mean_and_std(
    mean_LD: np.ndarray, std_LD: np.ndarray, *, layer_norm: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation, (L, D) each, for each feature or for each layer.

    The standard deviation has a floor. Otherwise a feature that hardly varies in training could
    dominate the score of an item where it differs.
    """
    if layer_norm:
        return layer_mean_and_std(mean_LD, std_LD)
    mean_std = std_LD.mean(-1, keepdims=True, where=_varying_features(std_LD))
    return mean_LD, np.maximum(std_LD, 0.01 * mean_std + 1e-6)


def layer_mean_and_std(
    mean_LD: np.ndarray, std_LD: np.ndarray, *, min_std: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation of all numbers of a layer, (L, D) each.

    They are computed from those of its features. Features with a standard deviation of at most
    `min_std` do not count.
    """
    varies_LD = _varying_features(std_LD, min_std=min_std)
    mean_L1 = mean_LD.mean(-1, keepdims=True, where=varies_LD)
    squares_LD = std_LD**2 + (mean_LD - mean_L1) ** 2
    std_L1 = np.sqrt(squares_LD.mean(-1, keepdims=True, where=varies_LD))
    return np.where(varies_LD, mean_L1, 0), np.broadcast_to(std_L1 + 1e-6, mean_LD.shape)


def _varying_features(std_LD: np.ndarray, *, min_std: float = 0.0) -> np.ndarray:
    """Return (L, D), false at constants such as the padding of narrow layers.

    If a layer has only constants, they all count.
    """
    all_constant_L1 = std_LD.max(-1, keepdims=True) <= min_std
    varies_LD: np.ndarray = (std_LD > min_std) | all_constant_L1
    return varies_LD


class LinearProbe:
    """A scalar mix of the layers (Peters et al. 2018, equation 1) and a linear layer, in float64.

    The C choices of an item, (N, C, L, D), have one score each by the same weights. Static vectors
    are not mixed.
    """

    def __init__(
        self,
        features: StoredFeatures,
        answer: HeadAnswer,
        settings: LinearProbeSettings,
        *,
        seed: int,
    ) -> None:
        L, D = features.stored.shape[-2:]
        self.answer = answer
        self.standardizer = Standardizer.fit(features, layer_norm=settings.layer_norm)
        self.static_size = features.static_size
        self.mix = ScalarMix(L, gamma=settings.learn_gamma, static_size=self.static_size).double()
        init_rng = torch.Generator().manual_seed(derive_seed("frozen head", seed))
        weight_DK = torch.empty(D, answer.num_outputs, dtype=torch.double)
        self.weight_DK = weight_DK.normal_(std=0.01, generator=init_rng).requires_grad_()
        self.bias_K = torch.zeros(answer.num_outputs, dtype=torch.double, requires_grad=True)
        self.has_converged = False

    def parameters(self) -> list[torch.Tensor]:
        """Return all parameters."""
        return [*self.mix.parameters(), self.weight_DK, self.bias_K]

    def fold(self, scaling: FeatureScaling) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (K, L D) weights and (K,) biases that map stored features to scores.

        The mix and the standardizing are folded into the weights, because one product over all
        layers reads the features only once, and no standardized copy is needed.
        """
        weight_LDK = self.mix.fold_into_linear(self.weight_DK)
        weight_LDK, bias_K = self.standardizer.fold_into_linear(weight_LDK, self.bias_K, scaling)
        return weight_LDK.flatten(0, 1).T.contiguous(), bias_K

    def scores(self, features: StoredFeatures, rows: slice) -> torch.Tensor:
        """Return (M, K) scores of some rows, or (N, C) of choices."""
        return linear_scores(features, rows, *self.fold(features.scaling))

    @torch.no_grad()
    def __call__(self, features: np.ndarray | StoredFeatures) -> np.ndarray:
        """Return the postprocessed scores of features, such as probabilities."""
        stored = StoredFeatures.wrap(features, static_size=self.static_size)
        scores = torch.cat([self.scores(stored, rows) for rows in stored.chunks()])
        return self.answer.postprocess(scores)


def linear_scores(
    features: StoredFeatures, rows: slice, weight_KF: torch.Tensor, bias_K: torch.Tensor
) -> torch.Tensor:
    """Return (M, K) scores of some rows by folded weights, or (N, C) of choices.

    `F.linear` takes the weights as (K, L D): a CPU multiplies a matrix that is much taller than
    wide several times faster from that side.
    """
    scores = F.linear(features.chunk(rows).flatten(-2), weight_KF, bias_K)
    return scores.squeeze(-1) if features.stored.ndim == 4 else scores


def fit_linear_probe(
    features: np.ndarray | StoredFeatures,
    labels_M: np.ndarray,
    answer: HeadAnswer,
    settings: LinearProbeSettings,
    *,
    seed: int,
) -> LinearProbe:
    """Fit a linear probe by L-BFGS on the mean loss plus an L2 penalty."""
    stored = StoredFeatures.wrap(features)
    probe = LinearProbe(stored, answer, settings, seed=seed)
    y_M = torch.from_numpy(np.array(labels_M))
    num_answers = len(y_M)
    boundaries: np.ndarray | None = None
    if answer.mean_over_items:  # the words of an item share a softmax, so they stay together
        first_rows = np.flatnonzero(labels_M & ITEM_START)
        num_answers = len(first_rows)
        boundaries = np.append(first_rows[1:], len(y_M))
    chunks = [*stored.chunks(boundaries)]
    optimizer = torch.optim.LBFGS(
        probe.parameters(),
        max_iter=settings.max_iter,
        max_eval=2 * settings.max_iter,
        tolerance_grad=settings.tolerance,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        mix_penalty = settings.relative_mix_l2 * probe.mix.l2_penalty()
        loss = settings.l2 * (probe.weight_DK.square().sum() + mix_penalty)
        loss.backward()
        for rows in chunks:
            chunk_loss = answer.loss(probe.scores(stored, rows), y_M[rows]) / num_answers
            chunk_loss.backward()
            loss = loss.detach() + chunk_loss.detach()
        return loss

    optimizer.step(closure)
    closure()
    largest = max(float(p.grad.abs().max()) for p in probe.parameters() if p.grad is not None)
    probe.has_converged = largest <= settings.tolerance
    return probe
