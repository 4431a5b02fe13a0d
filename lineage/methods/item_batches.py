"""Labelled items in batches of similar length, shuffled in each epoch."""

from collections.abc import Sequence

import numpy as np

from lineage.methods.encoding import EncodedItem, answer_rows, collate_items
from lineage.networks.batch import Batch, bucket_by_length
from lineage.randomness import generator
from lineage.tokenizers.tokenizer import Tokenizer


class ItemBatches:
    """Labelled items, shuffled in each epoch, in batches of similar length."""

    carries_state = False
    CHUNK_SIZE = 1024  # items that are sorted by length together, in whole batches

    def __init__(
        self,
        tokenizer: Tokenizer,
        items: Sequence[EncodedItem],
        labels_M: np.ndarray,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.items = items
        self.labels_M = labels_M
        self.batch_size = batch_size
        self.seed = seed
        self.answer_rows = answer_rows(items)
        self.batch_indices: list[np.ndarray] = []

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the items for an epoch and return its number of batches."""
        lengths = np.array([item.length for item in self.items])
        self.batch_indices = bucket_by_length(
            lengths,
            batch_size=self.batch_size,
            batches_per_chunk=max(1, self.CHUNK_SIZE // self.batch_size),
            rng=generator("items", self.seed, epoch),
        )
        return len(self.batch_indices)

    def get_batch(self, index: int) -> Batch:
        indices = self.batch_indices[index]
        items = [self.items[i] for i in indices]
        return collate_items(self.tokenizer, items, self.labels_of(indices))

    def labels_of(self, indices: np.ndarray) -> np.ndarray:
        return self.labels_M[np.concatenate([self.answer_rows[i] for i in indices])]
