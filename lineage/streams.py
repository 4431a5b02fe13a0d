"""Ids -> training batches. A stream can be entered at any batch of any pass: every choice comes from a generator named by seed, pass and
batch, so resuming needs two numbers and no saved state.

Shapes: B items, T positions.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from lineage.batch import NO_TARGET, Batch
from lineage.errors import CellError
from lineage.randomness import generator
from lineage.tokenization import Reader, trimmed
from lineage.tokens import Tokens


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
        self.order = generator("windows", self.seed, passed).permutation(max(1, n // T))
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


class Lanes:
    """B lanes that run through the documents, with state carried; windows of `length` positions, or of about that where it varies.

    Varied as in AWD-LSTM (Merity et al. 2018, section 4.1): one in twenty is of half the length, a normal of deviation 5 is added, at least 5; the
    rate goes with the length.
    """

    carries = True

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed = tokens, settings, seed
        self.vocabulary, self.unknown = reader.vocabulary, reader.marks["<unk>"]
        self.ids = self.sizes = np.zeros((1, 0), int)
        self.cuts = np.zeros(1, int)

    def start(self, passed: int) -> int:
        """Shuffle the documents, cut them into lanes, and the lanes into windows."""
        rng = generator("lanes", self.seed, passed)
        spans = [(self.tokens.documents[d], self.tokens.documents[d + 1]) for d in rng.permutation(len(self.tokens.documents) - 1)]
        B, T = min(self.settings.batch, max(1, len(self.tokens.ids) // (2 * self.settings.length))), self.settings.length
        self.ids, self.sizes = (
            joined[: len(joined) // B * B].reshape(B, -1)
            for joined in (np.concatenate([array[a:b] for a, b in spans]) for array in (self.tokens.ids, self.tokens.bytes))
        )
        length = self.ids.shape[1] - 1
        steps = np.full(-(-length // max(T, 1)), T)
        if self.settings.vary_length:
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
        share = float(end - first) / self.settings.length if self.settings.vary_length else 1.0
        return Batch(ids[:, :-1], mask, mask, targets_BT=ids[:, 1:], text_bytes=size, tokens=mask.numel(), rate_share=share)


class TwoWayLanes:
    """B lanes that run through the documents, and B more that run through them backwards in another order, both with state carried.

    As in bilm-tf the two directions are independent: a step does not see the same sentences twice. A text that has been read once each
    way counts once.
    """

    carries = True

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed = tokens, settings, seed
        self.vocabulary, self.unknown = reader.vocabulary, reader.marks["<unk>"]
        self.lanes: list[tuple[np.ndarray, np.ndarray]] = []

    def start(self, passed: int) -> int:
        """Shuffle the documents, for each direction on its own, and cut them into lanes."""
        count, size = len(self.tokens.documents) - 1, len(self.tokens.ids)
        B = min(self.settings.batch, max(1, size // (2 * self.settings.length)))  # fewer lanes where there is little text
        self.lanes = []
        for way in ("forward", "backward"):
            order = generator("lanes", way, self.seed, passed).permutation(count)
            spans = [(self.tokens.documents[d], self.tokens.documents[d + 1]) for d in order]
            both = [np.concatenate([array[a:b] for a, b in spans]) for array in (self.tokens.ids, self.tokens.bytes)]
            if way == "backward":
                both = [array[::-1] for array in both]
            length = len(both[0]) // B
            self.lanes.append((both[0][: B * length].reshape(B, length), both[1][: B * length].reshape(B, length)))
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


class SentencePairs:
    """[CLS] A [SEP] B [SEP] with masks that are new in each pass, in buckets of like length (google-research/bert, create_pretraining_data)."""

    carries = False
    BUCKET = 64  # batches sorted together by length

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed, self.passed = tokens, settings, seed, 0
        self.marks, self.vocabulary = reader.marks, reader.vocabulary
        self.sentences = _shortened(tokens.sentences, most=settings.length - 3)
        # Each document's sentences as a slice of them; the last entry is the end of the text.
        self.firsts = np.searchsorted(self.sentences[:-1], tokens.documents)
        # Where no pair can be of one document, or none of two, its label would be one thing to learn by heart.
        self.labelled = len(tokens.documents) > 2 and bool((np.diff(self.firsts) > 1).any())
        self.pairs: list[tuple[int, int, int, int, int]] = []
        self.groups: list[np.ndarray] = []

    def start(self, passed: int) -> int:
        """Cut the documents into pairs anew, and batch them by length."""
        rng = generator("pairs", self.seed, passed)
        self.passed = passed
        self.pairs = [pair for document in rng.permutation(len(self.firsts) - 1) for pair in self._of_document(int(document), rng)]
        lengths, B = np.array([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in self.pairs]), self.settings.batch
        order = rng.permutation(len(self.pairs))
        chunks = [order[i : i + B * self.BUCKET] for i in range(0, len(order), B * self.BUCKET)]
        alike = [chunk[np.argsort(lengths[chunk], kind="stable")] for chunk in chunks]
        groups = [chunk[i : i + B] for chunk in alike for i in range(0, len(chunk), B)]
        self.groups = [groups[i] for i in rng.permutation(len(groups))]
        return len(self.groups)

    def _of_document(self, document: int, rng: np.random.Generator) -> Iterator[tuple[int, int, int, int, int]]:
        """(A start, A end, B start, B end, 1 if B is from another document), as positions in the ids."""
        bounds, first, last = self.sentences, self.firsts[document], self.firsts[document + 1]
        most, at = self.settings.length - 3, first
        target = most if rng.random() >= self.settings.short_share else int(rng.integers(2, most + 1))
        while at < last:
            end = at + 1
            while end < last and bounds[end] - bounds[at] < target:
                end += 1
            cut = at + (int(rng.integers(1, end - at)) if end - at > 1 else 1)
            a0, a1 = int(bounds[at]), int(bounds[cut])
            if end - at == 1 or rng.random() < 0.5:  # a lone sentence has no second part, so its pair is always random
                b0, b1 = self._elsewhere(document, target - (a1 - a0), rng)
                random, at = 1, cut  # what was not used comes again
            else:
                b0, b1, random, at = a1, int(bounds[end]), 0, end
            yield (*_truncated(a0, a1, b0, b1, most, rng), random)

    def _elsewhere(self, document: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
        """Sentences from a random place of another document."""
        count = len(self.firsts) - 1
        other = int(rng.integers(count - 1)) if count > 1 else document
        other += int(count > 1 and other >= document)
        first, last = self.firsts[other], self.firsts[other + 1]
        start = int(rng.integers(first, last)) if last > first else int(first)
        end = min(start + 1, last)
        while end < last and self.sentences[end] - self.sentences[start] < target:
            end += 1
        return int(self.sentences[start]), int(self.sentences[end])

    def batch(self, index: int) -> Batch:
        """(B, T) corrupted ids; targets at 15 % of the positions."""
        pairs = [self.pairs[i] for i in self.groups[index]]
        longest = max(a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in pairs) + 3
        ids, segments = np.full((len(pairs), longest), self.marks["[PAD]"]), np.zeros((len(pairs), longest), np.int64)
        text = np.zeros((len(pairs), longest), bool)
        for row, (a0, a1, b0, b1, _) in enumerate(pairs):
            a, b = self.tokens.ids[a0:a1], self.tokens.ids[b0:b1]
            sep = self.marks["[SEP]"]
            line = np.concatenate([[self.marks["[CLS]"]], a, [sep], b, [sep]])
            ids[row, : len(line)], segments[row, len(a) + 2 : len(line)] = line, 1
            text[row, 1 : len(line) - 1] = True
            text[row, len(a) + 1] = False
        lengths = np.array([a1 - a0 + b1 - b0 + 3 for a0, a1, b0, b1, _ in pairs])
        mask = np.arange(longest) < lengths[:, None]
        size = sum(int(self.tokens.bytes[x:y].sum(dtype=np.int64)) for a0, a1, b0, b1, _ in pairs for x, y in ((a0, a1), (b0, b1)))
        rng = generator("masks", self.seed, self.passed, index)
        inputs, targets = masked(ids, text, lengths, share=self.settings.mask_share, mark=self.marks["[MASK]"], vocabulary=self.vocabulary, rng=rng)
        return Batch(
            torch.from_numpy(inputs),
            torch.from_numpy(mask),
            torch.from_numpy(text),
            torch.from_numpy(segments),
            targets_BT=torch.from_numpy(targets),
            next_B=torch.tensor([p[4] for p in pairs]) if self.labelled else None,
            text_bytes=size,
            tokens=int(mask.sum()),
        )


def _shortened(sentences: np.ndarray, *, most: int) -> np.ndarray:
    """The sentences' bounds, with those that alone would overfill a pair cut into halves of a pair: else most of their text would never be read."""
    long = np.flatnonzero(np.diff(sentences) > most)
    return np.unique(np.concatenate([sentences, *(np.arange(sentences[i], sentences[i + 1], max(1, most // 2)) for i in long)]))


def _truncated(a0: int, a1: int, b0: int, b1: int, most: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Take pieces off the longer segment, at its front or its back by the toss of a coin, until both fit."""
    while a1 - a0 + b1 - b0 > most:
        front = rng.random() < 0.5
        if a1 - a0 > b1 - b0:
            a0, a1 = (a0 + 1, a1) if front else (a0, a1 - 1)
        else:
            b0, b1 = (b0 + 1, b1) if front else (b0, b1 - 1)
    return a0, a1, b0, b1


def masked(
    ids_BT: np.ndarray, text_BT: np.ndarray, lengths_B: np.ndarray, *, share: float, mark: int, vocabulary: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupted ids and targets: exactly max(1, round(share x length)) positions an item, marks never among them but counted in its length.

    Of the chosen, 80 % become the mask, 10 % a word drawn from the whole vocabulary, and 10 % stay (Devlin et al. 2019, section 3.1).
    """
    wanted = np.minimum(np.maximum(1, np.rint(share * lengths_B)), text_BT.sum(1)).astype(int)
    keys = np.where(text_BT, rng.random(ids_BT.shape), 2.0)
    ranks = keys.argsort(1, kind="stable").argsort(1, kind="stable")
    chosen = (ranks < wanted[:, None]) & text_BT
    targets = np.where(chosen, ids_BT, NO_TARGET)
    fate, words = rng.random(ids_BT.shape), rng.integers(0, vocabulary, ids_BT.shape)
    inputs = np.where(chosen & (fate < 0.8), mark, np.where(chosen & (fate >= 0.9), words, ids_BT))
    return inputs, targets
