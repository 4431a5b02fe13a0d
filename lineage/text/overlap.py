"""Which of a task's items stand in a text that models have read: what is known by heart says little of what was learned.

As GPT-3 was checked (Brown et al. 2020, appendix C): 13 words in a row, without case and punctuation, that an item and the text share are no
chance. A shorter item is found where all of it stands there, from 8 words on; of one that is shorter still nothing can be told. Where a word is a
character (`lineage.text.language`) it takes 20, and 12.

Shapes: N items, M words, R runs of words.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, islice

import numpy as np

from lineage.text.language import spaceless, words

LONGEST, SHORTEST = 13, 8  # words of a run; characters:
LONGEST_SPACELESS, SHORTEST_SPACELESS = 20, 12
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits all over: 2^64 over the golden ratio
NO_WORD = 0  # of no item, or between two documents: no run goes across it
DOCUMENTS = 1000  # that are looked through at once


class Sought:
    """The runs of words by which items are told."""

    def __init__(self, texts: Sequence[Sequence[str]], language: str) -> None:
        """`texts`: what is read of the items, (N,) for each text that an item has."""
        self._language = language
        self._longest, self._shortest = (LONGEST_SPACELESS, SHORTEST_SPACELESS) if spaceless(language) else (LONGEST, SHORTEST)
        self._numbers: dict[str, int] = {}
        own = [(row, self._words(text)) for column in texts for row, text in enumerate(column)]
        for word in chain.from_iterable(some for _, some in own):
            self._numbers.setdefault(word, int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little") | 1)
        runs: dict[int, list[tuple[int, np.ndarray]]] = {}
        for row, some in own:
            if len(some) >= self._shortest:
                length = min(len(some), self._longest)
                runs.setdefault(length, []).append((row, hashes(self._values([some]), length)))
        self._rows = {length: np.concatenate([np.full(len(found), row) for row, found in every]) for length, every in runs.items()}
        self._runs = {length: np.unique(np.concatenate([found for _, found in every]), return_inverse=True) for length, every in runs.items()}
        self.long_enough_N = np.zeros(max(map(len, texts), default=0), bool)
        for rows in self._rows.values():
            self.long_enough_N[rows] = True

    def look(self, documents: Iterable[str]) -> np.ndarray:
        """(N,) whether each item stands in one of the documents."""
        met = {length: np.zeros(len(distinct), bool) for length, (distinct, _) in self._runs.items()}
        ahead = iter(documents)
        while some := list(islice(ahead, DOCUMENTS)):
            values_M = self._values(map(self._words, some))
            for length, (distinct, _) in self._runs.items():
                here = hashes(values_M, length)
                places = np.minimum(np.searchsorted(distinct, here), len(distinct) - 1)
                met[length][places[distinct[places] == here]] = True
        found_N = np.zeros(len(self.long_enough_N), bool)
        for length, (_, which) in self._runs.items():
            found_N[self._rows[length][met[length][which]]] = True
        return found_N

    def _words(self, text: str) -> list[str]:
        return [word for word in words(text.casefold(), self._language) if len(word) > 1 or word.isalnum()]

    def _values(self, texts: Iterable[Sequence[str]]) -> np.ndarray:
        return np.fromiter((self._numbers.get(word, NO_WORD) for some in texts for word in (*some, "")), np.uint64)[:-1]


def hashes(values_M: np.ndarray, length: int) -> np.ndarray:
    """(R,) a number for each run of `length` of these (M,) numbers of 64 bits: a polynomial, the same for the same run wherever it stands."""
    found_R = np.zeros(max(len(values_M) - length + 1, 0), np.uint64)
    for place in range(length):
        found_R *= FACTOR
        found_R += values_M[place : place + len(found_R)]
    return found_R
