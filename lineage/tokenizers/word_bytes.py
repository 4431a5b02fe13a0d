"""The bytes of words, for character encoders.

Byte ids are those of AllenNLP's ELMo: 0 is padding beyond a sentence, and a byte b is b + 1.
Shapes: U words, C bytes per word.
"""

import functools
from collections.abc import Iterable

import numpy as np

BEGIN_SENTENCE = 257
END_SENTENCE = 258
BEGIN_WORD = 259
END_WORD = 260
PAD_BYTE = 261  # padding of a word
NUM_BYTE_IDS = 262
MAX_WORD_BYTES_RANGE = range(16, 10_001)


@functools.lru_cache(maxsize=200_000)
def word_byte_ids(word: str, max_word_bytes: int) -> np.ndarray:
    """(C,): a word's UTF-8 bytes between begin and end, cut to `max_word_bytes` in all.

    <S> and </S> are single byte ids of their own.
    """
    if word == "<S>":
        inner = [BEGIN_SENTENCE]
    elif word == "</S>":
        inner = [END_SENTENCE]
    else:
        inner = [byte + 1 for byte in word.encode()[: max_word_bytes - 2]]
    row = np.full(max_word_bytes, PAD_BYTE, np.int64)
    row[: len(inner) + 2] = [BEGIN_WORD, *inner, END_WORD]
    return row


def word_byte_table(words: Iterable[str], max_word_bytes: int) -> np.ndarray:
    """(U, C) uint16: the byte ids of each word, in order."""
    return np.stack([word_byte_ids(word, max_word_bytes) for word in words]).astype(np.uint16)


def trim_padding(table_UC: np.ndarray) -> np.ndarray:
    """Drop columns of padding that no word reaches, but some: the maximum must see padding."""
    is_byte_UC = (table_UC != PAD_BYTE) & (table_UC != 0)
    longest = int(is_byte_UC.sum(1).max(initial=1))
    return np.ascontiguousarray(table_UC[:, : max(longest + 8, 16)])
