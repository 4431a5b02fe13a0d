"""Which of a task's items stand in a text that models have read: what is known by heart says little of what was learned.

As GPT-3 was checked (Brown et al. 2020, appendix C): 13 words in a row, without case and punctuation, that an item and the text share are no
chance. A shorter item is found where all of it stands there, from 8 words on; of one that is shorter still nothing can be told. Where a word is a
character (`lineage.data.language`) it takes 20, and 12.

Shapes: N items, M words, R runs of words.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, islice

import numpy as np

from lineage.data.language import is_spaceless, split_words

MAX_NGRAM_WORDS, MIN_NGRAM_WORDS = 13, 8  # words of a run; characters:
MAX_NGRAM_CHARACTERS, MIN_NGRAM_CHARACTERS = 20, 12
HASH_MULTIPLIER = np.uint64(
    0x9E3779B97F4A7C15
)  # odd, with bits all over: 2^64 over the golden ratio
UNKNOWN_WORD = 0  # of no item, or between two documents: no run goes across it
DOCUMENTS_PER_BATCH = 1000  # that are looked through at once


class NgramIndex:
    """The runs of words by which items are told."""

    def __init__(self, texts: Sequence[Sequence[str]], language: str) -> None:
        """`texts`: what is read of the items, (N,) for each text that an item has."""
        self._language = language
        self._max_n, self._min_n = (
            (MAX_NGRAM_CHARACTERS, MIN_NGRAM_CHARACTERS)
            if is_spaceless(language)
            else (MAX_NGRAM_WORDS, MIN_NGRAM_WORDS)
        )
        self._word_hashes: dict[str, int] = {}
        own = [(row, self._tokenize(text)) for column in texts for row, text in enumerate(column)]
        for word in chain.from_iterable(some for _, some in own):
            self._word_hashes.setdefault(
                word, int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little") | 1
            )
        runs: dict[int, list[tuple[int, np.ndarray]]] = {}
        for row, some in own:
            if len(some) >= self._min_n:
                length = min(len(some), self._max_n)
                runs.setdefault(length, []).append(
                    (row, ngram_hashes(self._hash_words([some]), length))
                )
        self._item_rows = {
            length: np.concatenate([np.full(len(found), row) for row, found in every])
            for length, every in runs.items()
        }
        self._ngrams = {
            length: np.unique(np.concatenate([found for _, found in every]), return_inverse=True)
            for length, every in runs.items()
        }
        self.long_enough_N = np.zeros(max(map(len, texts), default=0), bool)
        for rows in self._item_rows.values():
            self.long_enough_N[rows] = True

    def find_items(self, documents: Iterable[str]) -> np.ndarray:
        """(N,) whether each item stands in one of the documents."""
        found_ngrams = {
            length: np.zeros(len(distinct), bool) for length, (distinct, _) in self._ngrams.items()
        }
        ahead = iter(documents)
        while some := list(islice(ahead, DOCUMENTS_PER_BATCH)):
            values_M = self._hash_words(map(self._tokenize, some))
            for length, (distinct, _) in self._ngrams.items():
                here = ngram_hashes(values_M, length)
                places = np.minimum(np.searchsorted(distinct, here), len(distinct) - 1)
                found_ngrams[length][places[distinct[places] == here]] = True
        found_N = np.zeros(len(self.long_enough_N), bool)
        for length, (_, which) in self._ngrams.items():
            found_N[self._item_rows[length][found_ngrams[length][which]]] = True
        return found_N

    def _tokenize(self, text: str) -> list[str]:
        return [
            word
            for word in split_words(text.casefold(), self._language)
            if len(word) > 1 or word.isalnum()
        ]

    def _hash_words(self, texts: Iterable[Sequence[str]]) -> np.ndarray:
        return np.fromiter(
            (self._word_hashes.get(word, UNKNOWN_WORD) for some in texts for word in (*some, "")),
            np.uint64,
        )[:-1]


def ngram_hashes(values_M: np.ndarray, n: int) -> np.ndarray:
    """(R,) a number for each run of `length` of these (M,) numbers of 64 bits: a polynomial, the same for the same run wherever it stands."""
    found_R = np.zeros(max(len(values_M) - n + 1, 0), np.uint64)
    for place in range(n):
        found_R *= HASH_MULTIPLIER
        found_R += values_M[place : place + len(found_R)]
    return found_R
