"""A task's items are batched for fine-tuning and for reading with little padding.

No item is lost or read twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lineage.methods import encoding
from lineage.methods.encoding import EncodedItem, batch_by_length
from lineage.methods.item_batches import ItemBatches
from lineage.networks.batch import bucket_by_length
from lineage.tokenizers.tokenizer import Encoding


def build_items(lengths: Sequence[int], *, num_encodings: int = 1) -> list[EncodedItem]:
    """Return items with these numbers of positions."""
    encoded = [
        Encoding(np.zeros(length, np.int64), np.zeros((length, 2), np.int64)) for length in lengths
    ]
    return [
        EncodedItem(encoding, other_encodings=(encoding,) * (num_encodings - 1))
        for encoding in encoded
    ]


def non_padding_share(batches: Sequence[np.ndarray], items: Sequence[EncodedItem]) -> float:
    """Return the share of positions that are not padding in batches padded to their longest."""
    num_real = 0
    num_padded = 0
    for indices in batches:
        lengths = [len(encoding.ids) for i in indices for encoding in items[i].encodings]
        num_real += sum(lengths)
        num_padded += len(lengths) * max(lengths)
    return num_real / num_padded


def sample_phrase_lengths(count: int) -> list[int]:
    """Return lengths like those of SST-2's training phrases: mean 9 and a long tail."""
    return np.random.default_rng(5).geometric(0.11, count).clip(1, 52).tolist()


def build_sampler(items: Sequence[EncodedItem], batch_size: int) -> ItemBatches:
    """Return the fine-tuning batches of the items, with one label for each."""
    unused_tokenizer: Any = None
    return ItemBatches(unused_tokenizer, items, np.zeros(len(items)), batch_size=batch_size, seed=2)


@pytest.mark.parametrize("batch_size", [13, 16])
def test_fine_tuning_on_short_texts_reads_hardly_any_padding(batch_size: int) -> None:
    items = build_items(sample_phrase_lengths(2048))
    sampler = build_sampler(items, batch_size)
    sampler.set_epoch(0)
    assert non_padding_share(sampler.batch_indices, items) > 0.95
    sizes = [len(indices) for indices in sampler.batch_indices]
    assert sizes.count(batch_size) >= len(sizes) - 1, "only the last batch may be smaller"
    assert sorted(np.concatenate(sampler.batch_indices)) == list(range(len(items)))
    first = [indices.tolist() for indices in sampler.batch_indices]
    sampler.set_epoch(1)
    assert [indices.tolist() for indices in sampler.batch_indices] != first, (
        "each epoch must have a new order"
    )


@pytest.mark.parametrize("num_encodings", [1, 2])
def test_items_that_are_only_encoded_are_batched_with_little_padding(num_encodings: int) -> None:
    items = build_items(sample_phrase_lengths(2000), num_encodings=num_encodings)
    batches = batch_by_length(items)
    assert non_padding_share(batches, items) > 0.9
    assert sorted(np.concatenate(batches)) == list(range(len(items)))
    positions = []
    for indices in batches:
        longest = max(items[i].length for i in indices)
        positions.append(num_encodings * len(indices) * longest)
    assert max(positions) <= encoding.MAX_BATCH_POSITIONS
    assert min(positions[:-1]) > encoding.MIN_BATCH_POSITIONS / 2, "a batch is too small"


def test_texts_of_equal_length_fill_their_batches() -> None:
    items = build_items([32] * 1000)
    assert [len(indices) for indices in batch_by_length(items)] == [256, 256, 256, 232]


def test_a_text_longer_than_a_batch_has_its_own_batch() -> None:
    items = build_items([20_000, 3, 9000, 4])
    assert [indices.tolist() for indices in batch_by_length(items)] == [[0], [2], [3, 1]]


def test_batches_of_similar_length_have_a_random_order() -> None:
    first_items = [
        int(batch.min())
        for batch in bucket_by_length(
            np.arange(64), batch_size=4, batches_per_chunk=16, rng=np.random.default_rng(0)
        )
    ]
    assert first_items != sorted(first_items)
