"""How a task's items are batched, in tuning and where they are only read: nearly all positions are real, and no item is lost or read twice."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lineage.evaluation import encoding
from lineage.evaluation.encoding import EncodedItem, batch_by_length
from lineage.evaluation.finetuning import ItemBatches
from lineage.models.batch import bucket_by_length
from lineage.tokenizers.tokenizer import Encoding


def items_of(lengths: Sequence[int], *, readings: int = 1) -> list[EncodedItem]:
    """Items of so many positions."""
    encoded = [
        Encoding(np.zeros(length, np.int64), np.zeros((length, 2), np.int64)) for length in lengths
    ]
    return [EncodedItem(one, other_encodings=(one,) * (readings - 1)) for one in encoded]


def real_share(batches: Sequence[np.ndarray], items: Sequence[EncodedItem]) -> float:
    """Of all positions of the batches, padded to their longest, those that are real."""
    each = [[len(reading.ids) for i in some for reading in items[i].encodings] for some in batches]
    return sum(map(sum, each)) / sum(len(lengths) * max(lengths) for lengths in each)


def like_phrases(count: int) -> list[int]:
    """Lengths as those of SST-2's training phrases: a mean of 9 words and a long tail."""
    return np.random.default_rng(5).geometric(0.11, count).clip(1, 52).tolist()


def stream(items: Sequence[EncodedItem], batch: int) -> ItemBatches:
    """The items in tuning, one answer each."""
    unread: Any = None
    return ItemBatches(unread, items, np.zeros(len(items)), batch_size=batch, seed=2)


@pytest.mark.parametrize("batch", [13, 16])
def test_tuning_on_short_texts_reads_hardly_any_padding(batch: int) -> None:
    items = items_of(like_phrases(2048))
    tuned = stream(items, batch)
    tuned.set_epoch(0)
    assert real_share(tuned.batch_indices, items) > 0.95
    sizes = [len(some) for some in tuned.batch_indices]
    assert sizes.count(batch) >= len(sizes) - 1, "all batches but the last are whole"
    assert sorted(np.concatenate(tuned.batch_indices)) == list(range(len(items)))
    first = [some.tolist() for some in tuned.batch_indices]
    tuned.set_epoch(1)
    assert [some.tolist() for some in tuned.batch_indices] != first, "a new order each epoch"


@pytest.mark.parametrize("readings", [1, 2])
def test_what_is_only_read_is_batched_with_little_padding(readings: int) -> None:
    items = items_of(like_phrases(2000), readings=readings)
    batches = batch_by_length(items)
    assert real_share(batches, items) > 0.9
    assert sorted(np.concatenate(batches)) == list(range(len(items)))
    of_one_batch = [
        rows * max(items[i].length for i in some)
        for some in batches
        if (rows := readings * len(some))
    ]
    assert max(of_one_batch) <= encoding.MAX_BATCH_POSITIONS
    assert min(of_one_batch[:-1]) > encoding.MIN_BATCH_POSITIONS / 2, (
        "no batch is too small to be worth one"
    )


def test_texts_of_one_length_are_read_in_whole_batches() -> None:
    items = items_of([32] * 1000)
    assert [len(some) for some in batch_by_length(items)] == [256, 256, 256, 232]


def test_a_text_longer_than_a_batch_is_read_alone() -> None:
    items = items_of([20_000, 3, 9000, 4])
    assert [some.tolist() for some in batch_by_length(items)] == [[0], [2], [3, 1]]


def test_batches_of_like_length_come_in_a_random_order() -> None:
    firsts = [
        int(batch.min())
        for batch in bucket_by_length(
            np.arange(64), batch_size=4, batches_per_chunk=16, rng=np.random.default_rng(0)
        )
    ]
    assert firsts != sorted(firsts)
