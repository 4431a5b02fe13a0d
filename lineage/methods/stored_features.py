"""The frozen features of items for linear probes, and the layers that a probe selects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.methods.encoding import EncodedItem, answer_rows, batch_by_length, collate_items
from lineage.methods.feature_store import FeatureScaling
from lineage.methods.pooling import pool_features, pooled_width
from lineage.networks.base import Encoder
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast

# The frozen features of a probe: the scalar mix of all layers, or the layers that were tried with
# BERT as a feature extractor (Devlin et al. 2019, section 5.3).
Features = Literal["scalar_mix", "last", "second_to_last", "concat_last_4", "embeddings"]
LAYER_SLICES = {
    "scalar_mix": slice(None),
    "last": slice(-1, None),
    "second_to_last": slice(-2, -1),
    "embeddings": slice(1),
}
CHUNK_SIZE = 1 << 20  # features converted to float64 at a time: 8 MiB, which fit a CPU's cache


@torch.inference_mode()
def extract_features(
    model: Encoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """Return (M, L, D) float32: every layer after `pool_features`; choices give (N, C, L, D).

    Narrow layers are padded with zeros to D. The features of an item's encodings are summed.
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
    if items[0].is_multiple_choice:
        return features
    return features.sum(1)


def select_layers(features: np.ndarray, selected: Features, *, block: str) -> np.ndarray:
    """Select layers of (..., L, D); `block` of `evaluate` asks for them.

    concat_last_4 gives (..., 1, 4 D), or less if there are fewer than four layers. Raises
    EvaluationError if there is no second to last layer.
    """
    if selected == "second_to_last" and features.shape[-2] < 2:
        raise EvaluationError(
            "the model has one layer, so none is second to last; "
            f"set evaluate.{block}.features to scalar_mix or last"
        )
    if selected == "concat_last_4":
        last = features[..., -4:, :]
        return last.reshape(*last.shape[:-2], 1, -1)
    return features[..., LAYER_SLICES[selected], :]


@dataclass(frozen=True)
class StoredFeatures:
    """Frozen features of answers, float16, or arrays of any type that are stored as they are."""

    stored: np.ndarray  # (M, L, D), or (N, C, L, D) of choices
    scaling: FeatureScaling
    # The last features are the static vectors of another model, see lineage.methods.joined.
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

    @property
    def num_bytes(self) -> int:
        return int(self.stored.nbytes)

    def __len__(self) -> int:
        return len(self.stored) if self.rows is None else len(self.rows)

    def select(self, rows: np.ndarray) -> "StoredFeatures":
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
        """Yield the rows to convert to float64 together."""
        num_rows = max(1, CHUNK_SIZE // self.stored[0].size)
        first = 0
        while first < len(self):
            end = min(first + num_rows, len(self))
            if boundaries is not None:
                end = int(boundaries[np.searchsorted(boundaries, end)])
            yield slice(first, end)
            first = end
