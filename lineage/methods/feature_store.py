"""Frozen features in float16: one copy of a table's features for all heads of an encoder.

They are centered and scaled before they are rounded, and many are kept in a temporary file.

Shapes: R rows (positions, words, or answers and their choices), L layers, D features.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lineage.errors import EvaluationError
from lineage.methods.encoding import MAX_BATCH_POSITIONS, EncodedItem

STORED_DTYPE = np.dtype(np.float16)
LARGEST = float(np.finfo(STORED_DTYPE).max)
MAX_MEMORY_BYTES = 1 << 30  # a table whose stored features take more is kept in a file
CHUNK_BYTES = 1 << 27  # float32 features that are computed before they are stored
CONVERTED_SIZE = 1 << 20  # numbers that are converted together, so that they fit a CPU's cache
# Features whose standard deviation is a smaller share of their layer's mean one are scaled by this
# share: another item may differ more than those that give the scale.
MIN_RELATIVE_SCALE = 0.01
# Names of the tensors of a saved scaling.
MEAN_TENSOR = "feature_mean"
SCALE_TENSOR = "feature_scale"


@dataclass(frozen=True)
class FeatureScaling:
    """The center and scale of stored features, (L, D) float64, which only serve the rounding."""

    mean_LD: np.ndarray
    scale_LD: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray) -> "FeatureScaling":
        """Take the statistics of some features (..., L, D)."""
        features_RLD = torch.from_numpy(features).flatten(0, -3)
        mean_LD, std_LD = mean_and_std(features_RLD[rows] for rows in _split_rows(features_RLD))
        floor_L1 = MIN_RELATIVE_SCALE * std_LD.mean(-1, keepdims=True)
        scale_LD = np.maximum(std_LD, floor_L1)
        scale_LD = np.where(scale_LD > 0, scale_LD, 1.0)
        # Rounded, so that encoding can compute in float32 and decoding undoes exactly that.
        return cls(
            mean_LD.astype(np.float32).astype(np.float64),
            scale_LD.astype(np.float32).astype(np.float64),
        )

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "FeatureScaling":
        """Return the scaling (L, D) of features that are stored as they are."""
        return cls(np.zeros(shape), np.ones(shape))

    def encode(self, features: np.ndarray, stored: np.ndarray) -> None:
        """Write features (..., L, D) into an array of float16; what is not finite stays so."""
        mean_LD = torch.from_numpy(self.mean_LD).float()
        scale_LD = torch.from_numpy(self.scale_LD).float()
        for rows in _split_rows(features):
            x = (torch.from_numpy(features[rows]) - mean_LD).div_(scale_LD)
            clipped = torch.where(x.isfinite(), x.clamp(-LARGEST, LARGEST), x)
            torch.from_numpy(np.asarray(stored[rows])).copy_(clipped)

    def scale_statistics(
        self, mean_LD: np.ndarray, std_LD: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Convert the mean and standard deviation of features to those of stored ones."""
        return (mean_LD - self.mean_LD) / self.scale_LD, std_LD / self.scale_LD

    def unscale_statistics(
        self, mean_LD: np.ndarray, std_LD: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Convert the mean and standard deviation of stored features to those of features."""
        return mean_LD * self.scale_LD + self.mean_LD, std_LD * self.scale_LD


def scaling_to_tensors(scaling: FeatureScaling) -> dict[str, torch.Tensor]:
    """Return a scaling as tensors to be saved with those of a head."""
    return {
        MEAN_TENSOR: torch.from_numpy(scaling.mean_LD),
        SCALE_TENSOR: torch.from_numpy(scaling.scale_LD),
    }


def pop_scaling(tensors: dict[str, torch.Tensor]) -> FeatureScaling:
    """Remove the scaling from the saved tensors of a head, and return it."""
    return FeatureScaling(tensors.pop(MEAN_TENSOR).numpy(), tensors.pop(SCALE_TENSOR).numpy())


def _split_rows(features: np.ndarray | torch.Tensor) -> Iterator[slice]:
    num_rows = max(1, CONVERTED_SIZE // max(1, math.prod(features.shape[1:])))
    for first in range(0, len(features), num_rows):
        yield slice(first, first + num_rows)


def mean_and_std(chunks: Iterable[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation (L, D) over the rows of chunks (R, L, D), float64."""
    count = 0
    origin_LD = sums_LD = squares_LD = torch.zeros((), dtype=torch.double)
    for chunk_RLD in chunks:
        if count == 0:
            origin_LD = chunk_RLD[:1].double().sum(0)  # zeros if there are no rows
        x_RLD = chunk_RLD.double() - origin_LD
        count += len(x_RLD)
        sums_LD = sums_LD + x_RLD.sum(0)
        squares_LD = squares_LD + x_RLD.square().sum(0)
    mean_LD = sums_LD / max(1, count)
    variance_LD = (squares_LD / max(1, count) - mean_LD.square()).clamp_min(0)
    return (origin_LD + mean_LD).numpy(), variance_LD.sqrt().numpy()


def allocate_features(shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    """Return an array for stored features: in memory or, if they are many, in a temporary file.

    The file, in `folder` or the system's own, has no name, so it is gone as soon as the array is.
    Raises EvaluationError if there is no room on the disk.
    """
    num_bytes = math.prod(shape) * STORED_DTYPE.itemsize
    if num_bytes <= MAX_MEMORY_BYTES:
        return np.zeros(shape, STORED_DTYPE)
    with tempfile.TemporaryFile(prefix="lineage-", dir=folder) as file:
        try:
            file.truncate(num_bytes)
            # Writing to a mapped file on a full disk would kill the process, so the disk is
            # reserved. macOS has no call for that.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            raise EvaluationError(
                f"frozen features need {num_bytes / 1e9:.1f} GB of disk in "
                f"{folder or tempfile.gettempdir()} ({error.strerror}); free some space there"
            ) from error
        return np.memmap(file, STORED_DTYPE, "r+", shape=shape)


def store_features(
    chunks: Iterable[np.ndarray],
    num_rows: int,
    *,
    scaling: FeatureScaling | None,
    folder: Path | None,
) -> tuple[np.ndarray, FeatureScaling]:
    """Store chunks of features, (rows, ..., L, D) each; `scaling`: else of the first chunk."""
    stored: np.ndarray | None = None
    first_row = 0
    for features in chunks:
        if scaling is None:
            scaling = FeatureScaling.fit(features)
        if stored is None:
            stored = allocate_features((num_rows, *features.shape[1:]), folder)
        end_row = first_row + len(features)
        scaling.encode(features, stored[first_row:end_row])
        first_row = end_row
    assert stored is not None
    assert scaling is not None
    assert first_row == num_rows
    return stored, scaling


def split_rows(
    stored_RLD: np.ndarray, lengths: Sequence[Sequence[int]]
) -> list[tuple[np.ndarray, ...]]:
    """Return views of the rows of each item, one for each of its lengths."""
    rows = np.asarray(stored_RLD)  # a view of a memmap would take longer to make and to index
    views: list[tuple[np.ndarray, ...]] = []
    first = 0
    for item_lengths in lengths:
        ends = first + np.cumsum(item_lengths)
        views.append(
            tuple(rows[end - length : end] for end, length in zip(ends, item_lengths, strict=True))
        )
        first = int(ends[-1])
    return views


def split_items(items: Sequence[EncodedItem], bytes_per_position: int) -> Iterator[slice]:
    """Split items into parts whose float32 features take about CHUNK_BYTES."""
    max_positions = max(MAX_BATCH_POSITIONS, CHUNK_BYTES // bytes_per_position)
    first = 0
    num_positions = 0
    for number, item in enumerate(items):
        item_positions = sum(len(encoding.ids) for encoding in item.encodings)
        if number > first and num_positions + item_positions > max_positions:
            yield slice(first, number)
            first = number
            num_positions = 0
        num_positions += item_positions
    yield slice(first, len(items))


def statistics_of_parts(
    mean_LD: np.ndarray,
    std_LD: np.ndarray,
    static_size: int,
    compute: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Compute statistics of the layers and, separately, of the static vectors after them."""
    num_contextual = mean_LD.shape[-1] - static_size
    parts = (slice(num_contextual), slice(num_contextual, None))
    statistics = [
        compute(mean_LD[:, part], std_LD[:, part]) for part in parts if mean_LD[:, part].size
    ]
    means, stds = zip(*statistics, strict=True)
    return np.concatenate(means, -1), np.concatenate(stds, -1)


def layer_mean_and_std(
    mean_LD: np.ndarray, std_LD: np.ndarray, *, min_std: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation of all numbers of a layer, (L, D) each."""
    varies_LD = varying_features(std_LD, min_std=min_std)
    mean_L1 = mean_LD.mean(-1, keepdims=True, where=varies_LD)
    squares_LD = std_LD**2 + (mean_LD - mean_L1) ** 2
    std_L1 = np.sqrt(squares_LD.mean(-1, keepdims=True, where=varies_LD))
    return np.where(varies_LD, mean_L1, 0), np.broadcast_to(std_L1 + 1e-6, mean_LD.shape)


def varying_features(std_LD: np.ndarray, *, min_std: float = 0.0) -> np.ndarray:
    """Return (L, D), false at constants such as the padding of narrow layers."""
    all_constant_L1 = std_LD.max(-1, keepdims=True) <= min_std
    varies_LD: np.ndarray = (std_LD > min_std) | all_constant_L1
    return varies_LD
