"""An interpolated bigram model over a language model's own pieces: what counting alone makes of the same text.

Shapes: N pairs of a piece and the one after it, D distinct pairs, V vocabulary.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

ROUNDS, ENOUGH = 200, 1e-9  # of expectation maximisation; nats a piece that a round has to be worth


@dataclass(frozen=True)
class Bigrams:
    """p(w | v) = a c(v, w) / c(v) + b c(w) / n + (1 - a - b) / V (Jelinek and Mercer 1980); where v was never seen, the second term has a's share."""

    pairs_D: np.ndarray  # V v + w, sorted
    count_D: np.ndarray
    before_V: np.ndarray  # c(v): how often a piece has one after it
    after_V: np.ndarray  # c(w): how often it is the one after
    weights: tuple[float, float, float] = (0.6, 0.3, 0.1)  # bigram, unigram, uniform

    @classmethod
    def counted(cls, before_N: np.ndarray, after_N: np.ndarray, vocabulary: int) -> "Bigrams":
        """Counts of the pieces and of those after them."""
        pairs_D, count_D = np.unique(
            before_N.astype(np.int64) * vocabulary + after_N, return_counts=True
        )
        return cls(
            pairs_D,
            count_D,
            *(np.bincount(some, minlength=vocabulary) for some in (before_N, after_N)),
        )

    def fitted(self, before_N: np.ndarray, after_N: np.ndarray) -> "Bigrams":
        """The same counts with the weights under which these held pairs are likeliest, by expectation maximisation."""
        terms_3N = self._terms(before_N, after_N)
        weights_3, last = np.array(self.weights), math.inf
        for _ in range(ROUNDS):
            parts_3N = weights_3[:, None] * terms_3N
            whole_N = parts_3N.sum(0)
            if last - (nats := -float(np.log(whole_N).mean())) < ENOUGH:
                break
            weights_3, last = (parts_3N / whole_N).mean(1), nats
        bigram, unigram, uniform = weights_3.tolist()
        return replace(self, weights=(bigram, unigram, uniform))

    def probabilities(self, before_N: np.ndarray, after_N: np.ndarray) -> np.ndarray:
        """(N,) of each piece given the one before it."""
        return np.array(self.weights) @ self._terms(before_N, after_N)

    def _terms(self, before_N: np.ndarray, after_N: np.ndarray) -> np.ndarray:
        """(3, N): the three distributions that are mixed, at these pieces."""
        V = len(self.before_V)
        keys_N = before_N.astype(np.int64) * V + after_N
        place_N = np.minimum(np.searchsorted(self.pairs_D, keys_N), len(self.pairs_D) - 1)
        together_N = np.where(self.pairs_D[place_N] == keys_N, self.count_D[place_N], 0)
        seen_N, unigram_N = self.before_V[before_N], self.after_V[after_N] / self.after_V.sum()
        bigram_N = np.where(seen_N > 0, together_N / np.maximum(seen_N, 1), unigram_N)
        return np.stack([bigram_N, unigram_N, np.full(len(keys_N), 1 / V)])
