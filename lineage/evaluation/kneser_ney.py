"""A 5-gram language model with interpolated modified Kneser-Ney smoothing.

The estimates are those of Chen and Goodman 1999 (section 3) and of KenLM's lmplz without pruning
(Heafield et al. 2013, section 3).

Shapes: N tokens, V vocabulary, G distinct n-grams of one order, C contexts (n-grams one shorter), E
ends of n-grams in a text, M positions whose probabilities are computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ORDER = 5
# The discounts of an order whose counts of counts cannot give them, as in lmplz
# --discount_fallback.
FALLBACK_DISCOUNTS = (0.0, 0.5, 1.0, 1.5)


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order. An n-gram's key is the index of its context times V plus its token.

    A probability is discounted; `backoff_C` is what the discounts leave for the order below.
    """

    keys_G: np.ndarray  # sorted
    probabilities_G: np.ndarray
    backoff_C: np.ndarray


@dataclass(frozen=True)
class KneserNey:
    """A fitted model over token ids.

    The token `boundary_id` ends a sequence and begins the next one: it is predicted like any
    other, and no context reaches back beyond it.
    """

    vocab_size: int
    boundary_id: int
    unigrams_V: np.ndarray
    orders: tuple[_Order, ...]  # from bigrams to 5-grams

    def log_probs(
        self, ids_N: np.ndarray, is_start_N: np.ndarray, *, predicts_starts: bool = False
    ) -> np.ndarray:
        """Return (N,) nats: the log-probability of each token given the four before it or fewer.

        A context begins at the last boundary or the last token of `is_start_N`. Such a first token
        has the value 0, or with `predicts_starts` its log-probability without a context.
        """
        probabilities_N = self.unigrams_V[ids_N]
        for one in self._match_orders(ids_N, is_start_N):
            higher = np.where(one.is_known_E, one.order.probabilities_G[one.places_E], 0.0)
            lower = one.order.backoff_C[one.contexts_E] * probabilities_N[one.ends_E]
            probabilities_N[one.ends_E] = higher + lower
        log_probs_N = np.log(probabilities_N)
        return log_probs_N if predicts_starts else np.where(is_start_N, 0.0, log_probs_N)

    def distributions(
        self, ids_N: np.ndarray, is_start_N: np.ndarray, positions_M: np.ndarray
    ) -> np.ndarray:
        """Return (M, V): the probability of each token at some positions, given those before it.

        The tokens at the positions themselves are not read. Contexts are those of `log_probs`.
        """
        rows_N = np.full(len(ids_N), -1)
        rows_N[positions_M] = np.arange(len(positions_M))
        probabilities_MV = np.tile(self.unigrams_V, (len(positions_M), 1))
        for one in self._match_orders(ids_N, is_start_N):
            is_asked_E = rows_N[one.ends_E] >= 0
            rows = rows_N[one.ends_E[is_asked_E]]
            contexts = one.contexts_E[is_asked_E]
            order = one.order
            probabilities_MV[rows] *= order.backoff_C[contexts, None]
            firsts = np.searchsorted(order.keys_G, contexts * self.vocab_size)
            lasts = np.searchsorted(order.keys_G, (contexts + 1) * self.vocab_size)
            for row, context, first, last in zip(rows, contexts, firsts, lasts, strict=True):
                tokens = order.keys_G[first:last] - context * self.vocab_size
                probabilities_MV[row, tokens] += order.probabilities_G[first:last]
        return probabilities_MV

    def _match_orders(self, ids_N: np.ndarray, is_start_N: np.ndarray) -> Iterator["_Match"]:
        """Find the n-grams of a text among the known ones, from bigrams to 5-grams."""
        lengths_N = _context_lengths(ids_N, is_start_N, self.boundary_id)
        ngrams_N = ids_N.astype(np.int64)  # of the order below, ending at each token; -1: not known
        for n, order in enumerate(self.orders, start=2):
            if not len(order.keys_G):
                return  # no sequence of the text is that long
            ends = np.flatnonzero(lengths_N >= n - 1)
            ends = ends[ngrams_N[ends - 1] >= 0]
            contexts = ngrams_N[ends - 1]
            keys = contexts * self.vocab_size + ids_N[ends]
            places = np.minimum(np.searchsorted(order.keys_G, keys), len(order.keys_G) - 1)
            is_known = order.keys_G[places] == keys
            yield _Match(order, ends, contexts, places, is_known)
            ngrams_N = np.full(len(ids_N), -1)
            ngrams_N[ends[is_known]] = places[is_known]


@dataclass(frozen=True)
class _Match:
    """The places of a text whose context is a known n-gram of the order below."""

    order: _Order
    ends_E: np.ndarray  # positions in the text
    contexts_E: np.ndarray  # the n-grams before them
    places_E: np.ndarray  # the n-gram that ends there, if it is known
    is_known_E: np.ndarray


def fit_kneser_ney(ids_N: np.ndarray, *, vocab_size: int, boundary_id: int) -> KneserNey:
    """Count the n-grams of a text and estimate their probabilities."""
    if not len(ids_N) or ids_N[0] != boundary_id:
        ids_N = np.concatenate([[boundary_id], ids_N])
    ids_N = ids_N.astype(np.int64)
    is_start_N = np.zeros(len(ids_N), bool)
    is_start_N[0] = True
    lengths_N = _context_lengths(ids_N, is_start_N, boundary_id)
    counted = _count_ngrams(ids_N, lengths_N, vocab_size)
    continuations_V = np.bincount(counted[0].suffixes_G, minlength=vocab_size)
    unigrams_V = _discounted(continuations_V) / max(1, continuations_V.sum())
    unigrams_V += (1.0 - unigrams_V.sum()) / vocab_size
    orders = []
    num_contexts = vocab_size
    for n, ngrams in enumerate(counted, start=2):
        counts_G = ngrams.counts_G
        if n < ORDER:
            continuations_G = np.bincount(counted[n - 1].suffixes_G, minlength=len(counts_G))
            # Nothing precedes a boundary, so its n-grams have no continuations to count.
            counts_G = np.where(ngrams.begins_sequence_G, counts_G, continuations_G)
        orders.append(_estimate_order(ngrams.keys_G, counts_G, vocab_size, num_contexts))
        num_contexts = len(counts_G)
    return KneserNey(vocab_size, boundary_id, unigrams_V, tuple(orders))


def _context_lengths(ids_N: np.ndarray, is_start_N: np.ndarray, boundary_id: int) -> np.ndarray:
    """Return (N,): how many tokens before each one belong to its context; 0 at a start."""
    positions_N = np.arange(len(ids_N))
    begins_context_N = is_start_N | (ids_N == boundary_id)
    last_begin_N = np.maximum.accumulate(np.where(begins_context_N, positions_N, 0))
    lengths_N = np.zeros(len(ids_N), np.int64)
    lengths_N[1:] = np.minimum(positions_N[1:] - last_begin_N[:-1], ORDER - 1)
    lengths_N[is_start_N] = 0
    return lengths_N


@dataclass(frozen=True)
class _CountedNgrams:
    """The distinct n-grams of one order in a text."""

    keys_G: np.ndarray
    counts_G: np.ndarray
    suffixes_G: np.ndarray  # the n-gram of the order below without the first token
    begins_sequence_G: np.ndarray  # its first token is a boundary


def _count_ngrams(
    ids_N: np.ndarray, lengths_N: np.ndarray, vocab_size: int
) -> list[_CountedNgrams]:
    counted = []
    ngrams_N = ids_N  # the index of the n-gram of the order below that ends at each token
    for n in range(2, ORDER + 1):
        ends = np.flatnonzero(lengths_N >= n - 1)
        keys_G, firsts_G, index, counts_G = np.unique(
            ngrams_N[ends - 1] * vocab_size + ids_N[ends],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        first_ends_G = ends[firsts_G]
        counted.append(
            _CountedNgrams(
                keys_G,
                counts_G.astype(np.int32),
                suffixes_G=ngrams_N[first_ends_G].astype(np.int32),
                begins_sequence_G=lengths_N[first_ends_G] == n - 1,
            )
        )
        ngrams_N = np.full(len(ids_N), -1)
        ngrams_N[ends] = index
    return counted


def _estimate_order(
    keys_G: np.ndarray, counts_G: np.ndarray, vocab_size: int, num_contexts: int
) -> _Order:
    """Discount the counts of one order, and leave the rest to the order below."""
    contexts_G = keys_G // vocab_size
    totals_C = np.bincount(contexts_G, weights=counts_G, minlength=num_contexts)
    probabilities_G = _discounted(counts_G) / totals_C[contexts_G]
    kept_C = np.bincount(contexts_G, weights=probabilities_G, minlength=num_contexts)
    return _Order(keys_G, probabilities_G.astype(np.float32), (1.0 - kept_C).astype(np.float32))


def _discounted(counts: np.ndarray) -> np.ndarray:
    """Subtract one of three discounts from each count (Chen and Goodman 1999, equation 17)."""
    discounts = np.array(_discounts(counts))
    return np.asarray(counts - discounts[np.minimum(counts, 3)])


def _discounts(counts: np.ndarray) -> tuple[float, ...]:
    """Return the discounts of counts of 0, 1, 2, and 3 or more."""
    n1, n2, n3, n4 = (int((counts == count).sum()) for count in range(1, 5))
    if 0 in (n1, n2, n3, n4):
        return FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    discounts = (0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_valid = all(0 <= discount <= count for count, discount in enumerate(discounts))
    return discounts if is_valid else FALLBACK_DISCOUNTS
