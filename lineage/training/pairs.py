"""Masked pairs of segments: what BERT reads in pretraining (Devlin et al. 2019, section 3.1 and appendix A.2).

Shapes: B items, T positions, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lineage.batch import NO_TARGET, Batch, bucketed
from lineage.randomness import generator
from lineage.text.tokenization import Reader
from lineage.text.tokens import Tokens

LONE = 0.5  # of the documents, of one sentence: with as many there is no next sentence to be told apart
SHORTEST = 8  # tokens of a sequence, the marks included


def enough(name: str, length: int | None) -> None:
    """Raise ValueError where the tokens of a sequence, if any number is given, are too few."""
    if length is not None and length < SHORTEST:
        raise ValueError(f"{name} is {length}; at least {SHORTEST} are needed, for the marks and some text")


class SentencePairs:
    """[CLS] A [SEP] B [SEP] in buckets of like length (google-research/bert, create_pretraining_data).

    Pairs and masks are new in each pass, or, with `duplicates`, in so many versions that come again (in the released data 10). Without
    `next_sentence`, or where the documents are of one sentence each, B always follows A, and no label says so.
    """

    carries = False
    BUCKET = 64  # batches sorted together by length

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed, self.version = tokens, settings, seed, 0
        self.marks, self.vocabulary = reader.marks, reader.vocabulary
        self.inside_V = np.zeros(reader.vocabulary, bool)  # pieces that go on a word
        self.inside_V[[i for piece, i in reader.tokenizer.get_vocab().items() if piece.startswith("##")]] = True
        self.sentences = _shortened(tokens.sentences, most=settings.length - 3) if settings.cut_sentences else tokens.sentences
        # Each document's sentences as a slice of them; the last entry is the end of the text.
        self.firsts = np.searchsorted(self.sentences[:-1], tokens.documents)
        # Of a lone document no pair is of two, and of lone sentences none is of one: where most are such, the label would be one thing to learn by
        # heart, and half of what is read would stand beside what has nothing to do with it.
        self.labelled = settings.next_sentence and len(tokens.documents) > 2 and bool(np.mean(np.diff(self.firsts) > 1) > LONE)
        self.pairs: list[tuple[int, int, int, int, int]] = []
        self.groups: list[np.ndarray] = []

    def start(self, passed: int) -> int:
        """Cut the documents into pairs anew, and batch them by length."""
        self.version = passed if self.settings.duplicates is None else passed % self.settings.duplicates
        rng = generator("pairs", self.seed, self.version)
        self.pairs = [pair for document in rng.permutation(len(self.firsts) - 1) for pair in self._of_document(int(document), rng)]
        lengths = np.array([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in self.pairs])
        self.groups = bucketed(lengths, batch=self.settings.batch, together=self.BUCKET, rng=rng)
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
            # a lone sentence has no second part, so its pair is always random
            if self.labelled and (end - at == 1 or rng.random() < 0.5):
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
        """(B, T) ids, those of `mask_share` of the positions corrupted; targets there, and NO_TARGET elsewhere."""
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
        rng = generator("masks", self.seed, self.version, index)
        chosen = chosen_positions(
            text, lengths, share=self.settings.mask_share, rng=rng, most=self.settings.most_masked,
            goes_on_BT=self.inside_V[ids] if self.settings.whole_word else None,
        )  # fmt: skip
        inputs, targets = corrupted(ids, chosen, become=self.settings.become, mark=self.marks["[MASK]"], vocabulary=self.vocabulary, rng=rng)
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


class MaskedWindows:
    """Windows of the joined documents between their marks, in a new order each pass: what a public masked model goes on with."""

    carries = False

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        self.tokens, self.settings, self.seed, self.passed = tokens, settings, seed, 0
        self.frame, self.vocabulary = reader.frame, reader.vocabulary
        self.inner = min(settings.length - reader.frame.round_one, len(tokens.ids))  # pieces of a window
        self.order = np.zeros(0, int)

    def start(self, passed: int) -> int:
        """Shuffle the windows."""
        self.passed = passed
        self.order = generator("windows", self.seed, passed).permutation(len(self.tokens.ids) // max(1, self.inner))
        return -(-len(self.order) // self.settings.batch)

    def batch(self, index: int) -> Batch:
        """(B, T) corrupted ids; targets at a share of the positions."""
        starts, frame = self.order[index * self.settings.batch :][: self.settings.batch] * self.inner, self.frame
        where = starts[:, None] + np.arange(self.inner)
        rows = [np.tile(np.array(some, np.int64), (len(where), 1)) for some in (frame.first, frame.last)]
        ids = np.concatenate([rows[0], self.tokens.ids[where].astype(np.int64), rows[1]], 1)
        text = np.zeros(ids.shape, bool)
        text[:, len(frame.first) : len(frame.first) + self.inner] = True
        rng = generator("masks", self.seed, self.passed, index)
        chosen = chosen_positions(text, np.full(len(ids), ids.shape[1]), share=self.settings.mask_share, rng=rng)
        assert frame.mask is not None, "the family asks"
        inputs, targets = corrupted(ids, chosen, become=self.settings.become, mark=frame.mask, vocabulary=self.vocabulary, rng=rng)
        size = int(self.tokens.bytes[where].sum(dtype=np.int64))
        mask = torch.ones(ids.shape, dtype=torch.bool)
        return Batch(torch.from_numpy(inputs), mask, torch.from_numpy(text), targets_BT=torch.from_numpy(targets), text_bytes=size, tokens=ids.size)


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


def chosen_positions(
    text_BT: np.ndarray,
    lengths_B: np.ndarray,
    *,
    share: float,
    rng: np.random.Generator,
    most: int | None = None,
    goes_on_BT: np.ndarray | None = None,
) -> np.ndarray:
    """(B, T) True at exactly max(1, round(share x length)) positions an item, at `most` so many, marks never among them but counted in its length.

    With `goes_on`, True at pieces that go on a word, whole words are chosen in random order while they fit (whole-word masking): at most as many.
    """
    wanted = np.minimum(np.maximum(1, np.rint(share * lengths_B)), text_BT.sum(1)).astype(int)
    wanted = wanted if most is None else np.minimum(wanted, most)
    keys = np.where(text_BT, rng.random(text_BT.shape), 2.0)
    if goes_on_BT is None:
        ranks = keys.argsort(1, kind="stable").argsort(1, kind="stable")
        return (ranks < wanted[:, None]) & text_BT
    chosen = np.zeros_like(text_BT)
    for row, (text, goes_on, count) in enumerate(zip(text_BT, goes_on_BT, wanted, strict=True)):
        places = np.flatnonzero(text)
        begins = np.flatnonzero(~goes_on[places] | (np.diff(places, prepend=-2) > 1))  # a text may begin within a word; a mark ends it
        words = np.split(places, begins[begins > 0])
        for word in sorted(words, key=lambda some: keys[row, some[0]] if len(some) else 2.0):
            if chosen[row].sum() + len(word) <= count:
                chosen[row, word] = True
    return chosen


def corrupted(
    ids_BT: np.ndarray, chosen_BT: np.ndarray, *, become: tuple[float, ...], mark: int, vocabulary: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupted ids and targets. Of the chosen, the first share of `become` is masked, the second a word drawn from the whole vocabulary.

    The rest stays as it is: 0.8 and 0.1 in the paper (Devlin et al. 2019, section 3.1), position by position.
    """
    targets = np.where(chosen_BT, ids_BT, NO_TARGET)
    fate, words = rng.random(ids_BT.shape), rng.integers(0, vocabulary, ids_BT.shape)
    inputs = np.where(chosen_BT & (fate < become[0]), mark, np.where(chosen_BT & (fate >= 1 - become[1]), words, ids_BT))
    return inputs, targets
