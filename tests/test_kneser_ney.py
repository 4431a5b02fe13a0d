"""The 5-gram model is interpolated modified Kneser-Ney, and a distribution over the vocabulary."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from lineage.evaluation.kneser_ney import KneserNey, fit_kneser_ney

VOCAB_SIZE = 199
BOUNDARY = 3
Ngram = tuple[int, ...]


def draw_text(seed: int, length: int) -> np.ndarray:
    """Return ids of which some are frequent, with boundaries at random places."""
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.zipf(1.4, length), VOCAB_SIZE - 1)
    return np.concatenate([[BOUNDARY], ids])


def find_context(ids: list[int], end: int) -> Ngram:
    """Return up to four tokens before a place, from the last boundary on."""
    context: list[int] = []
    for token in reversed(ids[:end]):
        context.insert(0, token)
        if token == BOUNDARY or len(context) == 4:
            break
    return tuple(context)


class ByTheBook:
    """The equations of Chen and Goodman 1999, one n-gram at a time."""

    def __init__(self, ids: np.ndarray) -> None:
        text = ids.tolist()
        raw = Counter[Ngram]()
        for end in range(1, len(text)):
            context = find_context(text, end)
            for start in range(len(context) + 1):
                raw[(*context[start:], text[end])] += 1
        before = defaultdict[Ngram, set[int]](set)  # the tokens before an n-gram
        for ngram in raw:
            if len(ngram) > 1:
                before[ngram[1:]].add(ngram[0])
        self.counts = {
            ngram: count
            if len(ngram) == 5 or (len(ngram) > 1 and ngram[0] == BOUNDARY)
            else len(before[ngram])
            for ngram, count in raw.items()
        }
        self.discounts = {n: self.find_discounts(n) for n in range(1, 6)}
        self.continuations = defaultdict[Ngram, list[int]](list)
        for ngram, count in self.counts.items():
            self.continuations[ngram[:-1]].append(count)

    def find_discounts(self, n: int) -> list[float]:
        """Return the discounts of the counts of an order."""
        sizes = Counter(count for ngram, count in self.counts.items() if len(ngram) == n)
        assert all(sizes[count] for count in (1, 2, 3, 4)), "the text is too short for the test"
        y = sizes[1] / (sizes[1] + 2 * sizes[2])
        return [0.0, *(k - (k + 1) * y * sizes[k + 1] / sizes[k] for k in (1, 2, 3))]

    def probability(self, token: int, context: Ngram) -> float:
        """Return p(token | context)."""
        lower = 1 / VOCAB_SIZE
        if context:
            lower = self.probability(token, context[1:])
        seen = self.continuations[context]
        if not seen:
            return lower
        discounts = self.discounts[len(context) + 1]
        count = self.counts.get((*context, token), 0)
        left = sum(discounts[min(other, 3)] for other in seen) / sum(seen)
        return max(0.0, count - discounts[min(count, 3)]) / sum(seen) + left * lower


@pytest.fixture(scope="module")
def model() -> KneserNey:
    return fit_kneser_ney(draw_text(0, 3000), vocab_size=VOCAB_SIZE, boundary_id=BOUNDARY)


def log_probs(model: KneserNey, ids: np.ndarray) -> np.ndarray:
    return model.log_probs(ids, np.arange(len(ids)) == 0)


def test_probabilities_are_those_of_the_equations(model: KneserNey) -> None:
    by_the_book = ByTheBook(draw_text(0, 3000))
    ids = draw_text(1, 500)
    text = ids.tolist()
    expected = [
        np.log(by_the_book.probability(text[end], find_context(text, end)))
        for end in range(1, len(text))
    ]
    np.testing.assert_allclose(log_probs(model, ids)[1:], expected, rtol=1e-5)


def test_the_probabilities_of_all_tokens_sum_to_one_after_any_context(model: KneserNey) -> None:
    ids = draw_text(2, 200)
    for end in range(1, len(ids), 7):
        sequences = [np.append(ids[max(0, end - 6) : end], token) for token in range(VOCAB_SIZE)]
        last = [log_probs(model, sequence)[-1] for sequence in sequences]
        assert np.exp(last).sum() == pytest.approx(1, abs=1e-5)


def test_a_context_does_not_reach_back_beyond_a_boundary(model: KneserNey) -> None:
    one = np.array([BOUNDARY, 1, 2, BOUNDARY, 0, 5])
    other = np.array([BOUNDARY, 7, 0, BOUNDARY, 0, 5])
    np.testing.assert_array_equal(log_probs(model, one)[4:], log_probs(model, other)[4:])
    in_one_sequence = np.array([BOUNDARY, 1, 2, 4, 0, 5])
    assert log_probs(model, in_one_sequence)[4] != log_probs(model, one)[4]


def test_sequences_are_read_by_themselves(model: KneserNey) -> None:
    first = draw_text(3, 20)[5:]
    second = draw_text(4, 20)[5:]
    ids = np.concatenate([first, second])
    starts = np.zeros(len(ids), bool)
    starts[[0, len(first)]] = True
    together = model.log_probs(ids, starts)
    apart = np.concatenate([log_probs(model, first), log_probs(model, second)])
    np.testing.assert_array_equal(together, apart)
    assert together[len(first)] == 0, "a first token is only read"


def test_a_tiny_text_and_unseen_tokens_have_probabilities() -> None:
    model = fit_kneser_ney(np.array([0, 1, 2]), vocab_size=5, boundary_id=0)
    values = log_probs(model, np.array([0, 4, 4, 0, 1, 2, 0]))
    assert np.isfinite(values).all()
    assert values[5] > values[2]
