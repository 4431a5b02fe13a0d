"""Text -> ids and spans by memory: what stands between two spaces is cut into pieces once, and looked up from then on.

The tokenizer's own answer, exactly: all that are trained here cut before a space that something follows, whatever stands around it. Texts repeat
their words, so that this is several times as fast. Where a language has no spaces there is nothing to look up.
"""

import re
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer

SEGMENT_BOUNDARY = re.compile(
    r"(?= \S)"
)  # a stretch begins at a space that something follows; further space stays with the stretch before it
MAX_SEGMENTS = 2**20  # stretches that are remembered
SEGMENTS_PER_TEXT = 1000


class TokenizationCache:
    """A tokenizer and what it said before."""

    def __init__(self, tokenizer: BackendTokenizer, *, uses_spaces: bool) -> None:
        self.tokenizer, self.uses_spaces = tokenizer, uses_spaces
        self._clear()

    def _clear(self) -> None:
        self.segment_rows: dict[str, int] = {}  # a stretch -> its row in the three below
        self.segment_lengths = self.token_counts = self.first_tokens = np.zeros(
            0, np.int64
        )  # its characters, its pieces, and where these begin
        self.tokens = np.zeros((0, 3), np.int64)  # id, start and end within the stretch

    def encode_batch(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each text's ids (T,) and spans of characters (T, 2), without marks."""
        if not self.uses_spaces:
            found = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
            return [
                (np.array(e.ids, np.int64), np.array(e.offsets, np.int64).reshape(-1, 2))
                for e in found
            ]
        if len(self.segment_rows) > MAX_SEGMENTS:
            self._clear()
        cut = [SEGMENT_BOUNDARY.split(text) for text in texts]
        if new := set().union(*cut).difference(self.segment_rows):
            self._add_segments([*new])
        return [self._look_up(some) for some in cut]

    def _add_segments(self, segments: list[str]) -> None:
        """Cut new stretches into pieces. Those that begin at a space are joined to long texts first, which costs less a stretch."""
        whole = [stretch for stretch in segments if SEGMENT_BOUNDARY.match(stretch)]
        alone = [stretch for stretch in segments if not SEGMENT_BOUNDARY.match(stretch)]
        groups = [
            *([stretch] for stretch in alone),
            *(whole[i : i + SEGMENTS_PER_TEXT] for i in range(0, len(whole), SEGMENTS_PER_TEXT)),
        ]
        found = self.tokenizer.encode_batch(
            ["".join(some) for some in groups], add_special_tokens=False
        )
        self.segment_rows.update(
            (stretch, row)
            for row, stretch in enumerate(
                (s for some in groups for s in some), len(self.segment_rows)
            )
        )
        sizes = [np.array([len(stretch) for stretch in some]) for some in groups]
        parts, counts = [self.tokens], [self.token_counts]
        for size, encoding in zip(sizes, found, strict=True):
            pieces = np.column_stack(
                [encoding.ids, np.array(encoding.offsets).reshape(-1, 2)]
            ).astype(np.int64)
            starts = np.cumsum(size) - size
            owners = np.searchsorted(starts, pieces[:, 1], side="right") - 1
            pieces[:, 1:] -= starts[owners, None]
            parts.append(pieces)
            counts.append(np.bincount(owners, minlength=len(size)))
        self.segment_lengths, self.token_counts, self.tokens = (
            np.concatenate([self.segment_lengths, *sizes]),
            np.concatenate(counts),
            np.concatenate(parts),
        )
        self.first_tokens = np.cumsum(self.token_counts) - self.token_counts

    def _look_up(self, segments: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.fromiter(map(self.segment_rows.__getitem__, segments), np.int64, len(segments))
        counts, sizes = self.token_counts[rows], self.segment_lengths[rows]
        ends = np.cumsum(counts)
        found = self.tokens[
            np.repeat(self.first_tokens[rows] - ends + counts, counts) + np.arange(ends[-1])
        ]
        return found[:, 0], found[:, 1:] + np.repeat(np.cumsum(sizes) - sizes, counts)[:, None]
