"""Ids -> training batches. A stream can be entered at any batch of any pass: every choice comes from a generator named by seed, pass and
batch, so resuming needs two numbers and no saved state.

Shapes: B items, T positions.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
import torch

from lineage.batch import Batch
from lineage.errors import CellError
from lineage.randomness import generator
from lineage.text.tokenization import Reader, trimmed
from lineage.text.tokens import Tokens


class Stream(Protocol):
    """Batches of one pass after another."""

    carries: bool  # whether a batch goes on where the one before it stopped, so that recurrent state is carried

    def start(self, passed: int) -> int:
        """Lay out pass number `passed`, and say how many batches it has."""

    def batch(self, index: int) -> Batch:
        """One batch of the pass laid out last."""


def batches(stream: Stream, *, passed: int = 0, index: int = 0, passes: int | None = 1) -> Iterator[tuple[int, int, Batch]]:
    """(pass, index, batch) from any place to the end of the last pass, or without end where `passes` is None.

    Raises CellError where a pass is empty.
    """
    for number in itertools.count(passed) if passes is None else range(passed, passes):
        count = stream.start(number)
        if count == 0:
            raise CellError("the text is too short for a single batch; add text, or lower the batch and the length")
        for place in range(index, count):
            yield number, place, stream.batch(place)
        index = 0


class Windows:
    """Windows of T tokens of the joined documents, in a new order each pass; the target of a position is the token after it."""

    carries = False

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed = tokens, settings, seed
        self.order = np.zeros(0, int)

    def start(self, passed: int) -> int:
        """Shuffle the windows."""
        T, n = self.settings.length, len(self.tokens.ids) - 1
        self.order = generator("windows", self.seed, passed).permutation(max(min(n, 1), n // T))
        return -(-len(self.order) // self.settings.batch)

    def batch(self, index: int) -> Batch:
        """(B, T) ids and targets."""
        B, T = self.settings.batch, self.settings.length
        starts = self.order[index * B : (index + 1) * B] * T
        T = min(T, len(self.tokens.ids) - 1)
        where = starts[:, None] + np.arange(T + 1)
        ids = torch.from_numpy(self.tokens.ids[where].astype(np.int64))
        mask = torch.ones(len(starts), T, dtype=torch.bool)
        size = int(self.tokens.bytes[where[:, :-1]].sum(dtype=np.int64))
        return Batch(ids[:, :-1], mask, mask, targets_BT=ids[:, 1:], text_bytes=size, tokens=mask.numel())


def _lanes(tokens: Tokens, settings: Any, rng: np.random.Generator, *, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(B, L) ids and their bytes: the documents in random order, forwards or backwards, cut into B lanes, or fewer where there is little text."""
    spans = [(tokens.documents[d], tokens.documents[d + 1]) for d in rng.permutation(len(tokens.documents) - 1)]
    B = min(settings.batch, max(1, len(tokens.ids) // (2 * settings.length)))
    ids, sizes = (np.concatenate([array[a:b] for a, b in spans])[::step] for array in (tokens.ids, tokens.bytes))
    length = len(ids) // B
    return ids[: B * length].reshape(B, length), sizes[: B * length].reshape(B, length)


class Lanes:
    """B lanes that run through the documents, with state carried; windows of `length` positions, or of about that where it varies.

    Varied as in AWD-LSTM (Merity et al. 2018, section 4.1): one in twenty is of half the length, a normal of deviation 5 is added, at least 5; the
    rate goes with the length.
    """

    carries = True

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed, self.backward = tokens, settings, seed, reader.direction == "backward"
        self.vocabulary, self.unknown = reader.vocabulary, reader.marks.get("<unk>", 0)  # pieces of bytes are never unknown
        self.ids = self.sizes = np.zeros((1, 0), int)
        self.cuts = np.zeros(1, int)
        self.varied = getattr(settings, "vary_length", False)

    def start(self, passed: int) -> int:
        """Shuffle the documents, cut them into lanes, and the lanes into windows."""
        rng = generator("lanes", self.seed, passed)
        self.ids, self.sizes = _lanes(self.tokens, self.settings, rng)
        length, T = self.ids.shape[1] - 1, self.settings.length
        steps = np.full(-(-length // max(T, 1)), T)
        if self.varied:
            base = np.where(rng.random(4 * len(steps) + 4) < 0.95, T, T / 2)
            steps = np.maximum(5, rng.normal(base, 5).astype(int))
        self.cuts = np.unique(np.minimum(np.concatenate([[0], np.cumsum(steps)]), max(length, 0)))
        return len(self.cuts) - 1

    def batch(self, index: int) -> Batch:
        """(B, T) ids and targets."""
        first, end = self.cuts[index : index + 2]
        seen = self.ids[:, first : end + 1]
        ids = torch.from_numpy(np.where(seen < self.vocabulary, seen, self.unknown).astype(np.int64))
        mask = torch.ones(len(ids), end - first, dtype=torch.bool)
        size = int(self.sizes[:, first:end].sum(dtype=np.int64))
        share = float(end - first) / self.settings.length if self.varied else 1.0
        return Batch(ids[:, :-1], mask, mask, targets_BT=ids[:, 1:], text_bytes=size, tokens=mask.numel(), rate_share=share, backward=self.backward)


class TwoWayLanes:
    """B lanes that run through the documents, and B more that run through them backwards in another order, with state carried where `stateful`.

    As in bilm-tf the two directions are independent: a step does not see the same sentences twice. A text that has been read once each way counts
    once; below a pass the directions have, for the most part, read different ones, and the mean of both is what counts.
    """

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed = tokens, settings, seed
        self.carries = settings.stateful
        self.vocabulary, self.unknown = reader.vocabulary, reader.marks["<unk>"]
        self.lanes: list[tuple[np.ndarray, np.ndarray]] = []

    def start(self, passed: int) -> int:
        """Shuffle the documents, for each direction on its own, and cut them into lanes."""
        self.lanes = [
            _lanes(self.tokens, self.settings, generator("lanes", way, self.seed, passed), step=step)
            for way, step in (("forward", 1), ("backward", -1))
        ]
        return max(0, -(-(self.lanes[0][0].shape[1] - 1) // self.settings.length))

    def batch(self, index: int) -> Batch:
        """(2 B, T): the forward lanes' windows, then the backward lanes'."""
        first, T = index * self.settings.length, self.settings.length
        ids = np.concatenate([lane[:, first : first + T + 1] for lane, _ in self.lanes])
        sizes = np.concatenate([size[:, first : first + T + 1] for _, size in self.lanes])
        inputs, targets = ids[:, :-1], ids[:, 1:]
        assert self.tokens.types_UC is not None
        distinct, words = np.unique(inputs, return_inverse=True)
        characters = trimmed(self.tokens.types_UC[distinct].astype(np.int64))
        known = np.where(targets < self.vocabulary, targets, self.unknown).astype(np.int64)
        mask = torch.ones(inputs.shape, dtype=torch.bool)
        return Batch(
            torch.from_numpy(np.where(inputs < self.vocabulary, inputs, self.unknown).astype(np.int64)),
            mask,
            mask,
            characters_UC=torch.from_numpy(characters),
            words_BT=torch.from_numpy(words.reshape(inputs.shape)),
            targets_BT=torch.from_numpy(known),
            text_bytes=(int(sizes[:, :-1].sum(dtype=np.int64)) + 1) // 2,
            tokens=inputs.size // 2,
        )


class Spans:
    """Sentences, or documents, cut every `length` positions, each from a cold start; a batch holds spans of one length, so that none is padded.

    (As in context2vec's own reader.) What is to be predicted are the span's own ids.
    """

    carries = False

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int, unit: Literal["sentences", "documents"]) -> None:
        self.tokens, self.settings, self.seed, self.passed = tokens, settings, seed, 0
        self.vocabulary, self.unknown = reader.vocabulary, reader.marks["<unk>"]
        self.marks = [number for mark, number in reader.marks.items() if mark != "<unk>"]
        bounds, T = getattr(tokens, unit).astype(np.int64), settings.length
        pieces = -(-np.diff(bounds) // T)
        within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self.firsts = np.repeat(bounds[:-1], pieces) + T * within
        self.lengths = np.minimum(self.firsts + T, np.repeat(bounds[1:], pieces)) - self.firsts
        self.groups: list[np.ndarray] = []

    def start(self, passed: int) -> int:
        """Shuffle the spans, put those of one length together, and shuffle the batches."""
        self.passed, rng, B = passed, generator("spans", self.seed, passed), self.settings.batch
        order = rng.permutation(np.flatnonzero(self.lengths > 1))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        alike = np.split(order, np.flatnonzero(np.diff(self.lengths[order])) + 1)
        groups = [some[i : i + B] for some in alike for i in range(0, len(some), B)]
        self.groups = [groups[i] for i in rng.permutation(len(groups))]
        return len(self.groups)

    def batch(self, index: int) -> Batch:
        """(B, T) ids, which are the targets too."""
        some = self.groups[index]
        where = self.firsts[some][:, None] + np.arange(self.lengths[some[0]])
        seen = self.tokens.ids[where].astype(np.int64)
        ids = torch.from_numpy(np.where(seen < self.vocabulary, seen, self.unknown))
        text = torch.from_numpy(~np.isin(seen, self.marks))
        size = int(self.tokens.bytes[where].sum(dtype=np.int64))
        return Batch(ids, torch.ones_like(text), text, targets_BT=ids, text_bytes=size, tokens=ids.numel())
