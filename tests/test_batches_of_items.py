"""How a task's items are batched, in tuning and where they are only read: nearly all positions are real, and no item is lost or read twice."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lineage.batch import bucketed
from lineage.text.tokenization import Encoded
from lineage.transfer import reading
from lineage.transfer.reading import Item, read_batches
from lineage.transfer.tuning import ItemStream


def items_of(lengths: Sequence[int], *, readings: int = 1) -> list[Item]:
    """Items of so many positions."""
    encoded = [Encoded(np.zeros(length, np.int64), np.zeros((length, 2), np.int64)) for length in lengths]
    return [Item(one, others=(one,) * (readings - 1)) for one in encoded]


def real_share(batches: Sequence[np.ndarray], items: Sequence[Item]) -> float:
    """Of all positions of the batches, padded to their longest, those that are real."""
    each = [[len(reading.ids) for i in some for reading in items[i].readings] for some in batches]
    return sum(map(sum, each)) / sum(len(lengths) * max(lengths) for lengths in each)


def like_phrases(count: int) -> list[int]:
    """Lengths as those of SST-2's training phrases: a mean of 9 words and a long tail."""
    return np.random.default_rng(5).geometric(0.11, count).clip(1, 52).tolist()


def stream(items: Sequence[Item], batch: int) -> ItemStream:
    """The items in tuning, one answer each."""
    unread: Any = None
    return ItemStream(unread, items, np.zeros(len(items)), batch=batch, seed=2)


@pytest.mark.parametrize("batch", [13, 16])
def test_tuning_on_short_texts_reads_hardly_any_padding(batch: int) -> None:
    items = items_of(like_phrases(2048))
    tuned = stream(items, batch)
    tuned.start(0)
    assert real_share(tuned.groups, items) > 0.95
    sizes = [len(some) for some in tuned.groups]
    assert sizes.count(batch) >= len(sizes) - 1, "all batches but the last are whole"
    assert sorted(np.concatenate(tuned.groups)) == list(range(len(items)))
    first = [some.tolist() for some in tuned.groups]
    tuned.start(1)
    assert [some.tolist() for some in tuned.groups] != first, "a new order each epoch"


@pytest.mark.parametrize("readings", [1, 2])
def test_what_is_only_read_is_batched_with_little_padding(readings: int) -> None:
    items = items_of(like_phrases(2000), readings=readings)
    batches = read_batches(items)
    assert real_share(batches, items) > 0.9
    assert sorted(np.concatenate(batches)) == list(range(len(items)))
    of_one_batch = [rows * max(items[i].length for i in some) for some in batches if (rows := readings * len(some))]
    assert max(of_one_batch) <= reading.READ_POSITIONS
    assert min(of_one_batch[:-1]) > reading.FEW_POSITIONS / 2, "no batch is too small to be worth one"


def test_texts_of_one_length_are_read_in_whole_batches() -> None:
    items = items_of([32] * 1000)
    assert [len(some) for some in read_batches(items)] == [256, 256, 256, 232]


def test_a_text_longer_than_a_batch_is_read_alone() -> None:
    items = items_of([20_000, 3, 9000, 4])
    assert [some.tolist() for some in read_batches(items)] == [[0], [2], [3, 1]]


def test_batches_of_like_length_come_in_a_random_order() -> None:
    firsts = [int(batch.min()) for batch in bucketed(np.arange(64), batch=4, together=16, rng=np.random.default_rng(0))]
    assert firsts != sorted(firsts)
