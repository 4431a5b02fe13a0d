"""A linear probe on the frozen features of an encoder.

Shapes: N items, C choices, M rows of answers (an item, or each of its words), L layers, D width,
K outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch.nn import functional as F

from lineage.answers.base import ITEM_START, HeadAnswer
from lineage.config.records import check_non_negative, check_positive
from lineage.data.task_data import SplitItems
from lineage.methods.base import RunItems
from lineage.methods.encoder import EncoderUnderTest, Subject, TaskContext, Transfer, under_test
from lineage.methods.encoding import EncodedItem, answer_rows
from lineage.methods.feature_store import (
    FeatureScaling,
    layer_mean_and_std,
    mean_and_std,
    pop_scaling,
    scaling_to_tensors,
    statistics_of_parts,
    varying_features,
)
from lineage.methods.head_method import HeadMethod, PredictItems
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.methods.saved import SavedSystem
from lineage.methods.stored_features import Features, StoredFeatures
from lineage.methods.trials import DEFAULT_L2_TRIALS, Trial
from lineage.networks.layers.scalar_mix import ScalarMix
from lineage.randomness import derive_seed
from lineage.results import Note
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo

LBFGS_PASSES = 100  # over the training items, in a fit
# Features that are converted to float64 once in a fit (256 MiB). Converting them in each pass
# takes a sixth to two thirds of its time.
MAX_CONVERTED = 1 << 25


@dataclass(frozen=True, kw_only=True)
class LinearProbeMethod(HeadMethod):
    """The block `linear_probe`: a linear layer on frozen features, fitted by L-BFGS.

    The fit ends when no derivative of the mean loss is larger than `tolerance`. A fit that needs
    more than `max_iter` iterations is reported.
    """

    name: ClassVar[str] = "linear_probe"
    transfer: ClassVar[Transfer] = "frozen"
    titles: ClassVar[Mapping[str, str]] = {"linear": "frozen"}
    meanings: ClassVar[Mapping[str, str]] = {
        "linear": "the model stays as it is, and a linear classifier learns from its vectors"
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        "linear": "A linear probe on frozen features of {model}."
    }
    noun: ClassVar[str] = "a linear probe"
    keeps_network: ClassVar[bool] = False
    reads_frozen_features: ClassVar[bool] = True

    # Not used if the block sets l2.
    trials: tuple[Trial, ...] = DEFAULT_L2_TRIALS
    l2: float = 0.001  # times the squared weights, added to the mean loss
    max_iter: int = 1000
    tolerance: float = 1e-4  # largest derivative of the mean loss at which the fit ends
    features: Features = "scalar_mix"
    learn_gamma: bool = False  # scale of the mix; a linear layer can scale by itself
    # Scale each layer by one mean and variance, as in ELMo's mix, instead of each feature. Both
    # come from the training items.
    layer_norm: bool = False
    # L2 of the mix's raw weights, which pulls the mix to the mean of the layers. None: as `l2`.
    scalar_mix_l2: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "l2", "max_iter", "tolerance")
        check_non_negative(self, "scalar_mix_l2")

    @property
    def relative_mix_l2(self) -> float:
        """The L2 of the mix as a multiple of `l2`."""
        return 1.0 if self.scalar_mix_l2 is None else self.scalar_mix_l2 / self.l2

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return super().suits(kind, info) and self.head in info.probes

    def features_name(self, context: TaskContext) -> str:
        return self.features

    def count_fits(self, tried: Sequence[Self], items: RunItems) -> float:
        """Count the iterations of L-BFGS, whose number changes little with the items."""
        return len(tried) * LBFGS_PASSES * items.train

    def shorten(self) -> Self:
        return replace(self, label_counts=())

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        """Fit the probe at once. Raises EvaluationError if there are no such layers."""
        encoder = under_test(subject)
        probe = fit_linear_probe(
            self._select(encoder, "train", problem.train_rows),
            problem.labels_M,
            problem.answer,
            self,
            seed=seed,
        )

        def predict(part: SplitItems) -> HeadOutput:
            return probe(self._select(encoder, part.table, part.rows_N)), None

        def get_tensors() -> dict[str, torch.Tensor]:
            scaling = self.stored_features(encoder)["train"].scaling
            weight, bias_K = probe.fold(scaling)  # (K, L D)
            return {"weight": weight, "bias": bias_K} | scaling_to_tensors(scaling)

        notes = [] if probe.has_converged else [Note("not_converged", self.max_iter)]
        return StartedHead(FittedHead(predict, get_tensors, notes=notes))

    def stored_features(self, encoder: EncoderUnderTest) -> dict[str, StoredFeatures]:
        """Return each table's features: layers, and static vectors that are joined."""
        folder = encoder.scratch_dir
        return encoder.share(
            self.name, lambda extractor: extractor.store(self.features, folder=folder)
        )

    def _select(self, encoder: EncoderUnderTest, table: str, rows_N: np.ndarray) -> StoredFeatures:
        return select_answers(encoder, self.stored_features(encoder), table, rows_N)

    def load_head(self, saved: SavedSystem) -> PredictItems:
        """Return the function that applies a kept probe to the features of items."""
        encoder = saved.build_encoder()
        scaling = pop_scaling(saved.tensors)
        answer = saved.record.answer

        @torch.no_grad()
        def predict(items: list[EncodedItem]) -> HeadOutput:
            scores: list[torch.Tensor] = []
            for extractor in saved.extractors(encoder, items):
                features = extractor.store(self.features, folder=None, scaling=scaling)["new"]
                scores += score_linearly(features, saved.tensors)
            return answer.postprocess(torch.cat(scores)), None

        return predict


def select_answers(
    encoder: EncoderUnderTest,
    features: Mapping[str, StoredFeatures],
    table: str,
    rows_N: np.ndarray,
) -> StoredFeatures:
    """Return the features of all answers of some items of a table."""
    rows_by_item = answer_rows(encoder.context.items[table])
    if len(rows_N) == len(rows_by_item):
        return features[table]
    return features[table].select(np.concatenate([rows_by_item[i] for i in rows_N]))


@dataclass(frozen=True)
class Standardizer:
    """The mean and standard deviation of the features of the training items, float64."""

    mean_LD: np.ndarray
    std_LD: np.ndarray

    @classmethod
    def fit(cls, features: StoredFeatures, *, layer_norm: bool) -> "Standardizer":
        """Compute the statistics of all features."""
        L, D = features.stored.shape[-2:]
        chunks = (features.chunk(rows).view(-1, L, D) for rows in features.chunks())
        mean_LD, std_LD = features.scaling.unscale_statistics(*mean_and_std(chunks))
        compute = layer_mean_and_std if layer_norm else _floored_mean_and_std
        return cls(*statistics_of_parts(mean_LD, std_LD, features.static_size, compute))

    def fold_into_linear(
        self, weight_LDK: torch.Tensor, bias_K: torch.Tensor, scaling: FeatureScaling
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and bias that map stored features to the linear layer's output."""
        mean_LD, std_LD = scaling.scale_statistics(self.mean_LD, self.std_LD)
        scaled_LDK = weight_LDK / torch.from_numpy(std_LD)[..., None]
        return scaled_LDK, bias_K - torch.tensordot(torch.from_numpy(mean_LD), scaled_LDK, 2)


def _floored_mean_and_std(mean_LD: np.ndarray, std_LD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each feature; the latter has a floor.

    Else a feature that hardly varies in training could dominate the score of another item.
    """
    mean_std = std_LD.mean(-1, keepdims=True, where=varying_features(std_LD))
    return mean_LD, np.maximum(std_LD, 0.01 * mean_std + 1e-6)


class LinearProbe:
    """A scalar mix of the layers (Peters et al. 2018, equation 1) and a linear layer, in float64.

    The C choices of an item, (N, C, L, D), are scored by the same weights; static vectors stay out
    of the mix.
    """

    def __init__(
        self,
        features: StoredFeatures,
        answer: HeadAnswer,
        settings: "LinearProbeMethod",
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
        return [*self.mix.parameters(), self.weight_DK, self.bias_K]

    def fold(self, scaling: FeatureScaling) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (K, L D) weights and (K,) biases that map stored features to scores.

        Mix and standardizing are folded into them, so that one product reads the features once.
        """
        weight_LDK = self.mix.fold_into_linear(self.weight_DK)
        weight_LDK, bias_K = self.standardizer.fold_into_linear(weight_LDK, self.bias_K, scaling)
        return weight_LDK.flatten(0, 1).T.contiguous(), bias_K

    def scores(self, chunk: torch.Tensor, scaling: FeatureScaling) -> torch.Tensor:
        """Return (M, K) scores of some rows of stored features, or (N, C) of choices."""
        return linear_scores(chunk, *self.fold(scaling))

    @torch.no_grad()
    def __call__(self, features: np.ndarray | StoredFeatures) -> np.ndarray:
        """Return the postprocessed scores of features, such as probabilities."""
        stored = StoredFeatures.wrap(features, static_size=self.static_size)
        chunks = map(stored.chunk, stored.chunks())
        scores = torch.cat([self.scores(chunk, stored.scaling) for chunk in chunks])
        return self.answer.postprocess(scores)


def linear_scores(
    chunk: torch.Tensor, weight_KF: torch.Tensor, bias_K: torch.Tensor
) -> torch.Tensor:
    """Return (M, K) scores of rows (M, L, D) by folded weights, or (N, C) of (N, C, L, D)."""
    scores = F.linear(chunk.flatten(-2), weight_KF, bias_K)
    return scores.squeeze(-1) if chunk.ndim == 4 else scores


def score_linearly(
    features: StoredFeatures, tensors: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Return the (M, K) scores of kept weights, in parts."""
    weight_KF = tensors["weight"]
    bias_K = tensors["bias"]
    chunks = map(features.chunk, features.chunks())
    return [linear_scores(chunk, weight_KF, bias_K) for chunk in chunks]


def fit_linear_probe(
    features: np.ndarray | StoredFeatures,
    labels_M: np.ndarray,
    answer: HeadAnswer,
    settings: LinearProbeMethod,
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
    num_converted = len(stored) * stored.stored[0].size
    converted = [*map(stored.chunk, chunks)] if num_converted <= MAX_CONVERTED else None
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
        for rows, chunk in zip(chunks, converted or map(stored.chunk, chunks), strict=True):
            scores = probe.scores(chunk, stored.scaling)
            chunk_loss = answer.loss(scores, y_M[rows]) / num_answers
            chunk_loss.backward()
            loss = loss.detach() + chunk_loss.detach()
        return loss

    optimizer.step(closure)
    closure()
    largest = max(float(p.grad.abs().max()) for p in probe.parameters() if p.grad is not None)
    probe.has_converged = largest <= settings.tolerance
    return probe
