"""The continuous cache of an AWD-LSTM computes the paper's mixture.

It is compared with sums by hand, over a whole text that is split into windows in several ways.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks import real_text
from benchmarks.cache import CacheState, ContinuousCache, sum_nats_with_cache
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training.samplers import BpttBatches
from tests.helpers import tiny

B, T, E, V = 3, 17, 5, 7
RNG = np.random.default_rng(3)
TOP = RNG.normal(size=(B, T, E))
TARGETS = RNG.integers(0, V, (B, T))
LOGITS = RNG.normal(size=(B, T, V))


def compute_expected_mixture(
    window: int, theta: float, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nats of the targets, (B, T), and the whole distribution, (B, T, V)."""
    distribution = np.zeros((B, T, V))
    for b in range(B):
        for t in range(T):
            softmax = np.exp(LOGITS[b, t]) / np.exp(LOGITS[b, t]).sum()
            cached = np.zeros(V)
            for i in range(max(0, t - window), t):
                cached[TARGETS[b, i]] += np.exp(theta * TOP[b, t] @ TOP[b, i])
            if t == 0:
                distribution[b, t] = softmax
            else:
                distribution[b, t] = weight * cached / cached.sum() + (1 - weight) * softmax
    return -np.log(np.take_along_axis(distribution, TARGETS[..., None], 2)[..., 0]), distribution


def nats_in_windows(cache: ContinuousCache, *cuts: int) -> np.ndarray:
    """Return the nats of the same text, read in windows that end at the cuts."""
    past: CacheState | None = None
    model_nats = -torch.log_softmax(torch.from_numpy(LOGITS), -1).gather(
        2, torch.from_numpy(TARGETS)[..., None]
    )[..., 0]
    all_nats = []
    for first, end in zip((0, *cuts), (*cuts, T), strict=True):
        nats, past = cache.mixture_nats(
            torch.from_numpy(TOP[:, first:end]),
            model_nats[:, first:end],
            torch.from_numpy(TARGETS[:, first:end]),
            past,
        )
        all_nats.append(nats.numpy())
    return np.concatenate(all_nats, 1)


@pytest.mark.parametrize(
    ("window", "theta", "weight"),
    [(99, 0.7, 0.3), (4, 0.7, 0.3), (4, 0.0, 0.5), (1, 2.0, 0.1), (99, 0.7, 0.0)],
)
def test_the_mixture_is_that_of_the_paper_for_all_window_splits(
    window: int, theta: float, weight: float
) -> None:
    expected, distribution = compute_expected_mixture(window, theta, weight)
    np.testing.assert_allclose(distribution.sum(-1), 1)
    for cuts in ((), (5,), (1, 2, 3, 9), tuple(range(1, T))):
        np.testing.assert_allclose(
            nats_in_windows(ContinuousCache(window, theta, weight), *cuts), expected, atol=1e-12
        )


def test_defaults_are_those_of_the_released_code_and_bad_values_are_rejected() -> None:
    assert vars(ContinuousCache()) == {"window": 3785, "theta": 0.662, "weight": 0.1279}
    for invalid in ({"window": 0}, {"weight": 1.0}, {"weight": -0.1}):
        with pytest.raises(ValueError, match=next(iter(invalid))):
            ContinuousCache(**invalid)  # type: ignore[arg-type]


def test_perplexity_with_a_cache_uses_top_states_and_is_reported_separately() -> None:
    checkpoint = tiny.checkpoint("ulmfit")
    texts = tiny.documents()[:8]
    model = checkpoint.build(tiny.CPU, load_weights=False).eval()
    tokenizer = checkpoint.tokenizer
    tokens = encode_corpus(texts, tokenizer)
    sampler = BpttBatches(tokens, tokenizer, checkpoint.pretrain, seed=0)
    states, targets, losses = [], [], []
    state = None
    for index in range(sampler.set_epoch(0)):
        batch = sampler.get_batch(index)
        with torch.no_grad():
            outputs, _, state = model.run_layers(batch.ids_BT, state)  # type: ignore[operator]
            losses.append(
                F.cross_entropy(model.logits(outputs[-1]).mT, batch.targets_BT, reduction="none")
            )  # type: ignore[operator, arg-type]
        states.append(outputs[-1])
        targets.append(batch.targets_BT)
    top, words, model_nats = (torch.cat(x, 1).double().numpy() for x in (states, targets, losses))
    nats = 0.0
    for b in range(len(words)):
        nats += model_nats[b, 0]
        for t in range(1, words.shape[1]):
            weights = np.exp(0.662 * top[b, :t] @ top[b, t])
            cached = weights[words[b, :t] == words[b, t]].sum() / weights.sum()
            nats -= math.log(0.1279 * cached + 0.8721 * math.exp(-model_nats[b, t]))
    assert sum_nats_with_cache(model, sampler, ContinuousCache()) == {
        "forward": pytest.approx(nats, rel=1e-6)
    }
    measured = real_text.measure(checkpoint, model, texts)
    assert set(measured) == {
        "perplexity_forward",
        "perplexity_forward_with_a_cache",
        "words",
        "unknown_token_rate",
    }
    log_ratio = math.log(
        measured["perplexity_forward_with_a_cache"] / measured["perplexity_forward"]
    )
    assert log_ratio == pytest.approx(
        (nats - model_nats.sum()) / (words != tokenizer.special_token_ids["<S>"]).sum(), rel=1e-4
    )
    assert measured["perplexity_forward_with_a_cache"] < 0.9 * measured["perplexity_forward"], (
        "repeated words must improve the perplexity of an untrained model"
    )
