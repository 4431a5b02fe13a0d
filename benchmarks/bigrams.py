"""An interpolated bigram model over the tokens of a language model: a baseline that only counts.

Shapes: N pairs of a token and the token that follows it, D distinct pairs, V vocabulary.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

MAX_EM_ITERATIONS = 200
MIN_EM_GAIN_NATS = 1e-9  # per token: expectation maximization stops at a smaller gain


@dataclass(frozen=True)
class BigramModel:
    """p(w | v) = a c(v, w) / c(v) + b c(w) / n + (1 - a - b) / V (Jelinek and Mercer 1980).

    If v does not occur as a first token, the unigram term replaces the bigram term.
    """

    pair_keys_D: np.ndarray  # V v + w, sorted
    pair_counts_D: np.ndarray
    first_counts_V: np.ndarray  # c(v): how often each token is the first of a pair
    second_counts_V: np.ndarray  # c(w): how often each token is the second of a pair
    weights: tuple[float, float, float] = (0.6, 0.3, 0.1)  # bigram, unigram, uniform

    @classmethod
    def from_pairs(
        cls, first_ids_N: np.ndarray, second_ids_N: np.ndarray, *, vocab_size: int
    ) -> "BigramModel":
        """Count the pairs and both of their tokens."""
        keys_N = first_ids_N.astype(np.int64) * vocab_size + second_ids_N
        pair_keys_D, pair_counts_D = np.unique(keys_N, return_counts=True)
        return cls(
            pair_keys_D,
            pair_counts_D,
            np.bincount(first_ids_N, minlength=vocab_size),
            np.bincount(second_ids_N, minlength=vocab_size),
        )

    def fit_weights(self, first_ids_N: np.ndarray, second_ids_N: np.ndarray) -> "BigramModel":
        """Return the same counts with the weights that make these held-out pairs most likely."""
        terms_3N = self._terms(first_ids_N, second_ids_N)
        weights_3 = np.array(self.weights)
        previous_nats = math.inf
        for _ in range(MAX_EM_ITERATIONS):
            weighted_3N = weights_3[:, None] * terms_3N
            total_N = weighted_3N.sum(0)
            nats = -float(np.log(total_N).mean())
            if previous_nats - nats < MIN_EM_GAIN_NATS:
                break
            weights_3 = (weighted_3N / total_N).mean(1)
            previous_nats = nats
        bigram, unigram, uniform = weights_3.tolist()
        return replace(self, weights=(bigram, unigram, uniform))

    def probabilities(self, first_ids_N: np.ndarray, second_ids_N: np.ndarray) -> np.ndarray:
        """Return the probability of each second token given its first token, (N,)."""
        return np.array(self.weights) @ self._terms(first_ids_N, second_ids_N)

    def _terms(self, first_ids_N: np.ndarray, second_ids_N: np.ndarray) -> np.ndarray:
        """Return the bigram, unigram and uniform probabilities of the second tokens, (3, N)."""
        V = len(self.first_counts_V)
        keys_N = first_ids_N.astype(np.int64) * V + second_ids_N
        index_N = np.searchsorted(self.pair_keys_D, keys_N)
        index_N = np.minimum(index_N, len(self.pair_keys_D) - 1)
        is_known_N = self.pair_keys_D[index_N] == keys_N
        pair_counts_N = np.where(is_known_N, self.pair_counts_D[index_N], 0)
        first_counts_N = self.first_counts_V[first_ids_N]
        unigram_N = self.second_counts_V[second_ids_N] / self.second_counts_V.sum()
        bigram_N = np.where(
            first_counts_N > 0, pair_counts_N / np.maximum(first_counts_N, 1), unigram_N
        )
        return np.stack([bigram_N, unigram_N, np.full(len(keys_N), 1 / V)])
