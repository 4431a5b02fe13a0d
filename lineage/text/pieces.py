"""Text -> ids and spans by memory: what stands between two spaces is cut into pieces once, and looked up from then on.

The tokenizer's own answer, exactly: all that are trained here cut before a space that something follows, whatever stands around it. Texts repeat
their words, so that this is several times as fast. Where a language has no spaces there is nothing to look up.
"""

import re
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

STRETCH = re.compile(r"(?= \S)")  # a stretch begins at a space that something follows; further space stays with the stretch before it
MOST = 2**20  # stretches that are remembered
JOINED = 1000


class Pieces:
    """A tokenizer and what it said before."""

    def __init__(self, tokenizer: Tokenizer, *, spaced: bool) -> None:
        self.tokenizer, self.spaced = tokenizer, spaced
        self._forget()

    def _forget(self) -> None:
        self.known: dict[str, int] = {}  # a stretch -> its row in the three below
        self.sizes = self.counts = self.firsts = np.zeros(0, np.int64)  # its characters, its pieces, and where these begin
        self.pieces = np.zeros((0, 3), np.int64)  # id, start and end within the stretch

    def encode(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each text's ids (T,) and spans of characters (T, 2), without marks."""
        if not self.spaced:
            found = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
            return [(np.array(e.ids, np.int64), np.array(e.offsets, np.int64).reshape(-1, 2)) for e in found]
        if len(self.known) > MOST:
            self._forget()
        cut = [STRETCH.split(text) for text in texts]
        if new := set().union(*cut).difference(self.known):
            self._learn([*new])
        return [self._looked_up(some) for some in cut]

    def _learn(self, stretches: list[str]) -> None:
        """Cut new stretches into pieces. Those that begin at a space are joined to long texts first, which costs less a stretch."""
        whole = [stretch for stretch in stretches if STRETCH.match(stretch)]
        alone = [stretch for stretch in stretches if not STRETCH.match(stretch)]
        groups = [*([stretch] for stretch in alone), *(whole[i : i + JOINED] for i in range(0, len(whole), JOINED))]
        found = self.tokenizer.encode_batch(["".join(some) for some in groups], add_special_tokens=False)
        self.known.update((stretch, row) for row, stretch in enumerate((s for some in groups for s in some), len(self.known)))
        sizes = [np.array([len(stretch) for stretch in some]) for some in groups]
        parts, counts = [self.pieces], [self.counts]
        for size, encoding in zip(sizes, found, strict=True):
            pieces = np.column_stack([encoding.ids, np.array(encoding.offsets).reshape(-1, 2)]).astype(np.int64)
            starts = np.cumsum(size) - size
            owners = np.searchsorted(starts, pieces[:, 1], side="right") - 1
            pieces[:, 1:] -= starts[owners, None]
            parts.append(pieces)
            counts.append(np.bincount(owners, minlength=len(size)))
        self.sizes, self.counts, self.pieces = np.concatenate([self.sizes, *sizes]), np.concatenate(counts), np.concatenate(parts)
        self.firsts = np.cumsum(self.counts) - self.counts

    def _looked_up(self, stretches: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.fromiter(map(self.known.__getitem__, stretches), np.int64, len(stretches))
        counts, sizes = self.counts[rows], self.sizes[rows]
        ends = np.cumsum(counts)
        found = self.pieces[np.repeat(self.firsts[rows] - ends + counts, counts) + np.arange(ends[-1])]
        return found[:, 0], found[:, 1:] + np.repeat(np.cumsum(sizes) - sizes, counts)[:, None]
