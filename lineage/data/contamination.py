"""Find the items of a task that occur in a text that models were trained on.

As in GPT-3 (Brown et al. 2020, appendix C) an item is contaminated if it shares a run of 13 words
with the text, ignoring case and punctuation. A shorter item must occur as a whole, and have at
least 8 words. Where a word is a character (`lineage.language`) the numbers are 20 and 12.

Shapes: N items, M words, R runs of words.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice

import numpy as np

from lineage.language import is_spaceless, split_words

MAX_NGRAM_WORDS, MIN_NGRAM_WORDS = 13, 8
MAX_NGRAM_CHARACTERS, MIN_NGRAM_CHARACTERS = 20, 12
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, well mixed: 2^64 over the golden ratio
UNKNOWN_WORD = 0  # a word of no item, or a boundary between documents: no run crosses it
DOCUMENTS_PER_BATCH = 1000


class NgramIndex:
    """The word n-grams of a task's items, by length."""

    def __init__(self, texts: Sequence[Sequence[str]], language: str) -> None:
        """Index the items. `texts` has a list of (N,) texts for each text that an item has."""
        self._language = language
        if is_spaceless(language):
            self._max_n, self._min_n = MAX_NGRAM_CHARACTERS, MIN_NGRAM_CHARACTERS
        else:
            self._max_n, self._min_n = MAX_NGRAM_WORDS, MIN_NGRAM_WORDS
        self._word_hashes: dict[str, int] = {}
        hashes: dict[int, list[np.ndarray]] = {}
        rows: dict[int, list[np.ndarray]] = {}
        for column in texts:
            for row, text in enumerate(column):
                words = self._tokenize(text)
                for word in words:
                    # An odd number of 64 bits differs from UNKNOWN_WORD.
                    digest = blake2b(word.encode(), digest_size=8).digest()
                    self._word_hashes[word] = int.from_bytes(digest, "little") | 1
                if len(words) < self._min_n:
                    continue
                n = min(len(words), self._max_n)
                ngrams = ngram_hashes(self._hash_words([words]), n)
                hashes.setdefault(n, []).append(ngrams)
                rows.setdefault(n, []).append(np.full(len(ngrams), row))
        self._item_rows = {n: np.concatenate(parts) for n, parts in rows.items()}
        self._ngrams = {
            n: np.unique(np.concatenate(parts), return_inverse=True) for n, parts in hashes.items()
        }
        num_items = max(map(len, texts), default=0)
        self.long_enough_N = np.zeros(num_items, bool)
        for item_rows in self._item_rows.values():
            self.long_enough_N[item_rows] = True

    def find_items(self, documents: Iterable[str]) -> np.ndarray:
        """Return (N,) whether each item occurs in one of the documents."""
        is_found = {n: np.zeros(len(distinct), bool) for n, (distinct, _) in self._ngrams.items()}
        iterator = iter(documents)
        while batch := list(islice(iterator, DOCUMENTS_PER_BATCH)):
            words_M = self._hash_words([self._tokenize(document) for document in batch])
            for n, (distinct, _) in self._ngrams.items():
                ngrams_R = ngram_hashes(words_M, n)
                places_R = np.minimum(np.searchsorted(distinct, ngrams_R), len(distinct) - 1)
                is_found[n][places_R[distinct[places_R] == ngrams_R]] = True
        found_N = np.zeros(len(self.long_enough_N), bool)
        for n, (_, distinct_index) in self._ngrams.items():
            found_N[self._item_rows[n][is_found[n][distinct_index]]] = True
        return found_N

    def _tokenize(self, text: str) -> list[str]:
        """Return the words in lower case, without punctuation."""
        words = split_words(text.casefold(), self._language)
        return [word for word in words if len(word) > 1 or word.isalnum()]

    def _hash_words(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Return (M,) hashes of the words of all texts, with UNKNOWN_WORD between two texts."""
        hashes: list[int] = []
        for words in texts:
            hashes.extend(self._word_hashes.get(word, UNKNOWN_WORD) for word in words)
            hashes.append(UNKNOWN_WORD)
        return np.array(hashes[:-1], np.uint64)


def ngram_hashes(values_M: np.ndarray, n: int) -> np.ndarray:
    """Return (R,) a hash of each run of `n` words: a polynomial, equal for equal runs."""
    hashes_R = np.zeros(max(len(values_M) - n + 1, 0), np.uint64)
    for place in range(n):
        hashes_R *= HASH_MULTIPLIER
        hashes_R += values_M[place : place + len(hashes_R)]
    return hashes_R
