"""All layers of the positions of items, for probes that read sequences.

Shapes: N items, B encodings, T positions, W words, M answers, L layers, D features, R rows: the
positions, or words, of all items.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from lineage.methods.encoding import (
    EncodedItem,
    batch_by_length,
    collate_items,
    collate_positions,
    collate_words,
    pool_words,
)
from lineage.methods.feature_store import (
    FeatureScaling,
    layer_mean_and_std,
    mean_and_std,
    statistics_of_parts,
)
from lineage.methods.stored_features import Features, select_layers
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast

STATISTICS_ITEMS = 16  # whose features are converted to float64 together
MIN_STD = 1e-6  # float32 features with a smaller standard deviation carry no information


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch with frozen features of its positions, or of its items' words, and without ids."""

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
    # lineage.methods.joined.
    static_size: int = 0
    is_per_word: bool = False
    scaling: FeatureScaling | None = None  # None: the layers are not scaled, and float32

    @property
    def num_bytes(self) -> int:
        return sum(layers.nbytes for encodings in self.layers for layers in encodings)

    def select(self, indices: np.ndarray) -> "CachedFeatures":
        return replace(
            self, items=[self.items[i] for i in indices], layers=[self.layers[i] for i in indices]
        )

    def select_layers(self, selected: Features) -> "CachedFeatures":
        """Keep some layers, before static vectors are added. Raises EvaluationError without any."""
        kept = [
            tuple(
                np.ascontiguousarray(select_layers(layers, selected, block="bilstm_probe"))
                for layers in encodings
            )
            for encodings in self.layers
        ]
        return replace(self, layers=kept)

    def sequence_lengths(self, item: EncodedItem) -> list[int]:
        """Return the rows of each of an item's arrays: positions, or words."""
        if self.is_per_word:
            return [item.num_answers]
        return [len(encoding.ids) for encoding in item.encodings]

    def rows(self) -> np.ndarray:
        """Return the features of all items in one array (R, L, D)."""
        return np.concatenate([layers for encodings in self.layers for layers in encodings])

    def pool_words(self) -> "CachedFeatures":
        """Replace the vectors of pieces by those of the words that the task asks about."""
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
        """Return mean and standard deviation over all positions or words, (L, D) each."""
        mean_LD, std_LD = mean_and_std(self._iterate_rows())
        scaling = self.scaling or FeatureScaling.none(mean_LD.shape)
        mean_LD, std_LD = scaling.unscale_statistics(mean_LD, std_LD)
        if layer_norm:
            compute = partial(layer_mean_and_std, min_std=MIN_STD)
            mean_LD, std_LD = statistics_of_parts(mean_LD, std_LD, self.static_size, compute)
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
