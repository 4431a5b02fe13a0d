"""A cache for tokenizing: each stretch of text between spaces is tokenized once.

The result equals the tokenizer's own, and texts repeat their words. A language without spaces is
not cached.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer

# A segment begins at a space that something follows; further spaces stay with the one before.
SEGMENT_BOUNDARY = re.compile(r"(?= \S)")
MAX_CHARACTERS = 2**23  # in the cache: about a million segments
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
        self.segment_rows: dict[str, int] = {}  # segment -> its row in `segments`
        # Characters, tokens, and the row of the first token in `tokens`. Both arrays have room.
        self.segments = np.zeros((0, 3), np.int64)
        self.tokens = np.zeros((0, 3), np.int64)  # id, start and end within the segment
        self.num_tokens = 0
        self.num_characters = 0

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
        if self.num_characters > MAX_CHARACTERS:
            self._clear()
        segments_by_text = [SEGMENT_BOUNDARY.split(text) for text in texts]
        distinct = set(chain.from_iterable(segments_by_text))
        # `distinct - keys()` would read all keys.
        new = [segment for segment in distinct if segment not in self.segment_rows]
        if new:
            self._add_segments(new)
        return [self._look_up(segments) for segments in segments_by_text]

    def _add_segments(self, segments: list[str]) -> None:
        """Tokenize new segments."""
        groups = [[segment] for segment in segments if not SEGMENT_BOUNDARY.match(segment)]
        joinable = [segment for segment in segments if SEGMENT_BOUNDARY.match(segment)]
        firsts = range(0, len(joinable), SEGMENTS_PER_TEXT)
        groups += [joinable[first : first + SEGMENTS_PER_TEXT] for first in firsts]
        texts = ["".join(group) for group in groups]
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        all_tokens = []
        all_segments = []
        num_tokens = self.num_tokens
        for group, encoding in zip(groups, encodings, strict=True):
            lengths = np.array([len(segment) for segment in group])
            offsets = np.array(encoding.offsets).reshape(-1, 2)
            tokens = np.column_stack([encoding.ids, offsets]).astype(np.int64)
            starts = np.cumsum(lengths) - lengths
            segment_indices = np.searchsorted(starts, tokens[:, 1], side="right") - 1
            tokens[:, 1:] -= starts[segment_indices, None]
            counts = np.bincount(segment_indices, minlength=len(lengths))
            first_tokens = num_tokens + np.cumsum(counts) - counts
            all_tokens.append(tokens)
            all_segments.append(np.column_stack([lengths, counts, first_tokens]))
            num_tokens += len(tokens)
            self.num_characters += int(lengths.sum())
        num_segments = len(self.segment_rows)
        self.segments = _append(self.segments, num_segments, np.concatenate(all_segments))
        self.tokens = _append(self.tokens, self.num_tokens, np.concatenate(all_tokens))
        self.num_tokens = num_tokens
        for row, segment in enumerate(chain.from_iterable(groups), num_segments):
            self.segment_rows[segment] = row

    def _look_up(self, segments: list[str]) -> TokenIdsAndOffsets:
        """Return the tokens of the text that consists of these segments, which the cache has."""
        rows = np.array([self.segment_rows[segment] for segment in segments], np.int64)
        lengths, counts, first_tokens = self.segments[rows].T
        ends = np.cumsum(counts)
        starts = ends - counts
        # For each token of the text, the row in `self.tokens` that it is copied from.
        token_rows = np.repeat(first_tokens - starts, counts) + np.arange(ends[-1])
        tokens = self.tokens[token_rows]
        segment_starts = np.repeat(np.cumsum(lengths) - lengths, counts)
        return TokenIdsAndOffsets(tokens[:, 0], tokens[:, 1:] + segment_starts[:, None])


def _append(array: np.ndarray, num_used: int, rows: np.ndarray) -> np.ndarray:
    """Return the array with rows after its first `num_used`; a full one doubles."""
    num_needed = num_used + len(rows)
    if num_needed > len(array):
        grown = np.zeros((2 * num_needed, *array.shape[1:]), array.dtype)
        grown[:num_used] = array[:num_used]
        array = grown
    array[num_used:num_needed] = rows
    return array
