"""A cache for tokenizing: each stretch of text between spaces is tokenized once.

The result equals the tokenizer's own, since every tokenizer that is trained here splits before a
space that something follows, whatever the context. Texts repeat their words, so this is several
times faster. A language without spaces is not cached.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer

# A segment begins at a space that something follows; further spaces stay with the one before.
SEGMENT_BOUNDARY = re.compile(r"(?= \S)")
MAX_SEGMENTS = 2**20  # in the cache
SEGMENTS_PER_TEXT = 1000


class TokenIdsAndOffsets(NamedTuple):
    """The tokens of one text, without special tokens."""

    ids: np.ndarray  # (T,)
    offsets: np.ndarray  # (T, 2) characters


class TokenizationCache:
    """A tokenizer that remembers the tokens of text segments."""

    def __init__(self, tokenizer: BackendTokenizer, *, uses_spaces: bool) -> None:
        self.tokenizer = tokenizer
        self.uses_spaces = uses_spaces
        self._clear()

    def _clear(self) -> None:
        self.segment_rows: dict[str, int] = {}  # segment -> its row in the next three
        self.segment_lengths = np.zeros(0, np.int64)  # characters
        self.token_counts = np.zeros(0, np.int64)
        self.first_tokens = np.zeros(0, np.int64)  # rows of `tokens`
        self.tokens = np.zeros((0, 3), np.int64)  # id, start and end within the segment

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIdsAndOffsets]:
        """Tokenize texts, without special tokens."""
        if not self.uses_spaces:
            encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
            return [
                TokenIdsAndOffsets(
                    np.array(encoding.ids, np.int64),
                    np.array(encoding.offsets, np.int64).reshape(-1, 2),
                )
                for encoding in encodings
            ]
        if len(self.segment_rows) > MAX_SEGMENTS:
            self._clear()
        segments_by_text = [SEGMENT_BOUNDARY.split(text) for text in texts]
        new = set(chain.from_iterable(segments_by_text)) - self.segment_rows.keys()
        if new:
            self._add_segments([*new])
        return [self._look_up(segments) for segments in segments_by_text]

    def _add_segments(self, segments: list[str]) -> None:
        """Tokenize new segments.

        Those that begin at a space are joined into long texts first, which is faster per segment.
        """
        groups = [[segment] for segment in segments if not SEGMENT_BOUNDARY.match(segment)]
        joinable = [segment for segment in segments if SEGMENT_BOUNDARY.match(segment)]
        firsts = range(0, len(joinable), SEGMENTS_PER_TEXT)
        groups += [joinable[first : first + SEGMENTS_PER_TEXT] for first in firsts]
        texts = ["".join(group) for group in groups]
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        for row, segment in enumerate(chain.from_iterable(groups), len(self.segment_rows)):
            self.segment_rows[segment] = row
        all_lengths = [self.segment_lengths]
        all_tokens = [self.tokens]
        all_counts = [self.token_counts]
        for group, encoding in zip(groups, encodings, strict=True):
            lengths = np.array([len(segment) for segment in group])
            offsets = np.array(encoding.offsets).reshape(-1, 2)
            tokens = np.column_stack([encoding.ids, offsets]).astype(np.int64)
            starts = np.cumsum(lengths) - lengths
            segment_indices = np.searchsorted(starts, tokens[:, 1], side="right") - 1
            tokens[:, 1:] -= starts[segment_indices, None]
            all_lengths.append(lengths)
            all_tokens.append(tokens)
            all_counts.append(np.bincount(segment_indices, minlength=len(lengths)))
        self.segment_lengths = np.concatenate(all_lengths)
        self.tokens = np.concatenate(all_tokens)
        self.token_counts = np.concatenate(all_counts)
        self.first_tokens = np.cumsum(self.token_counts) - self.token_counts

    def _look_up(self, segments: list[str]) -> TokenIdsAndOffsets:
        """Return the tokens of the text that consists of these segments, which the cache has."""
        rows = np.array([self.segment_rows[segment] for segment in segments], np.int64)
        counts = self.token_counts[rows]
        lengths = self.segment_lengths[rows]
        ends = np.cumsum(counts)
        starts = ends - counts
        # For each token of the text, the row in `self.tokens` that it is copied from.
        token_rows = np.repeat(self.first_tokens[rows] - starts, counts) + np.arange(ends[-1])
        tokens = self.tokens[token_rows]
        segment_starts = np.repeat(np.cumsum(lengths) - lengths, counts)
        return TokenIdsAndOffsets(tokens[:, 0], tokens[:, 1:] + segment_starts[:, None])
