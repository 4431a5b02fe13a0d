"""The frozen features of a task's tables, computed part by part and stored in float16.

Shapes: M answers, L layers, D features of a model and of the static vectors joined with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lineage.methods.cached_features import CachedFeatures, cache_features
from lineage.methods.encoding import EncodedItem
from lineage.methods.feature_store import FeatureScaling, split_items, split_rows, store_features
from lineage.methods.joined import add_static_vectors, concatenate_static
from lineage.methods.pooling import pooled_width
from lineage.methods.stored_features import (
    Features,
    StoredFeatures,
    extract_features,
    select_layers,
)
from lineage.networks.base import Encoder
from lineage.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class FeatureExtractor:
    """An encoder and the items that it reads."""

    model: Encoder
    tokenizer: Tokenizer
    tables: Mapping[str, Sequence[EncodedItem]]
    precision: str
    static: "FeatureExtractor | None" = None  # the model whose static vectors are joined

    def compute(self, table: str, part: slice, features: Features) -> np.ndarray:
        """Return (M, L, D) float32 of some items: the layers that a linear probe reads."""
        items = self.tables[table][part]
        layers = extract_features(self.model, self.tokenizer, items, precision=self.precision)
        selected = select_layers(layers, features, block="linear_probe")
        if self.static is None:
            return selected
        return concatenate_static(selected, self.static.compute(table, part, features))

    def compute_cached(self, table: str, part: slice, features: Features) -> CachedFeatures:
        """Return the layers of some items that a BiLSTM probe reads, float32."""
        items = self.tables[table][part]
        layers = cache_features(self.model, self.tokenizer, items, precision=self.precision)
        selected = layers.select_layers(features)
        if self.static is None:
            return selected
        return add_static_vectors(
            selected, self.static.model, self.static.tokenizer, precision=self.precision
        )

    def store(
        self, features: Features, *, folder: Path | None, scaling: FeatureScaling | None = None
    ) -> dict[str, StoredFeatures]:
        """Store the features of each table's answers, in `folder` if they take much memory."""
        static_size = 0
        if self.static is not None:
            static_width = max(self.static.model.hidden_sizes())
            static_size = pooled_width(self.static.tables["train"][0], static_width)
        stored_features: dict[str, StoredFeatures] = {}
        for table, items in self._ordered_tables():
            stored, scaling = store_features(
                (self.compute(table, part, features) for part in self.parts(items)),
                sum(item.num_answers for item in items),
                scaling=scaling,
                folder=folder,
            )
            stored_features[table] = StoredFeatures(stored, scaling, static_size)
        return stored_features

    def store_cached(
        self,
        features: Features,
        *,
        is_per_word: bool,
        folder: Path | None,
        scaling: FeatureScaling | None = None,
    ) -> dict[str, CachedFeatures]:
        """Store the features of each table's positions, or of its words, as `store` does."""
        empty = CachedFeatures(
            self.tokenizer,
            items=[],
            layers=[],
            word_pooling=self.model.word_pooling,
            static_size=0 if self.static is None else self.static.model.hidden_sizes()[0],
            is_per_word=is_per_word,
        )

        def compute_rows(table: str, items: Sequence[EncodedItem]) -> Iterator[np.ndarray]:
            for part in self.parts(items):
                cached = self.compute_cached(table, part, features)
                yield (cached.pool_words() if is_per_word else cached).rows()

        cached_features: dict[str, CachedFeatures] = {}
        for table, items in self._ordered_tables():
            lengths = [empty.sequence_lengths(item) for item in items]
            num_rows = sum(map(sum, lengths))
            stored, scaling = store_features(
                compute_rows(table, items), num_rows, scaling=scaling, folder=folder
            )
            layers = split_rows(stored, lengths)
            cached_features[table] = replace(empty, items=items, layers=layers, scaling=scaling)
        return cached_features

    def _ordered_tables(self) -> list[tuple[str, Sequence[EncodedItem]]]:
        return sorted(self.tables.items(), key=lambda table: table[0] != "train")

    def parts(self, items: Sequence[EncodedItem]) -> Iterator[slice]:
        sizes = self.model.hidden_sizes()
        return split_items(items, np.dtype(np.float32).itemsize * len(sizes) * max(sizes))
