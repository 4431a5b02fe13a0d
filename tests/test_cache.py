"""The continuous cache beside an AWD-LSTM: the paper's sums by hand, over all of a text, however it is cut into windows."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks import real_text
from benchmarks.cache import Cache, Past, cached_nats
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training.samplers import BpttBatches
from tests import tiny

B, T, E, V = 3, 17, 5, 7
DRAWN = np.random.default_rng(3)
TOP, TARGETS, LOGITS = (
    DRAWN.normal(size=(B, T, E)),
    DRAWN.integers(0, V, (B, T)),
    DRAWN.normal(size=(B, T, V)),
)


def by_hand(window: int, theta: float, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """(B, T) nats of the targets, and (B, T, V) the whole distribution."""
    everything = np.zeros((B, T, V))
    for b in range(B):
        for t in range(T):
            softmax = np.exp(LOGITS[b, t]) / np.exp(LOGITS[b, t]).sum()
            cached = np.zeros(V)
            for i in range(max(0, t - window), t):
                cached[TARGETS[b, i]] += np.exp(theta * TOP[b, t] @ TOP[b, i])
            everything[b, t] = (
                softmax if t == 0 else weight * cached / cached.sum() + (1 - weight) * softmax
            )
    return -np.log(np.take_along_axis(everything, TARGETS[..., None], 2)[..., 0]), everything


def in_windows(cache: Cache, *cuts: int) -> np.ndarray:
    """The nats of the same text, read in windows that end at the cuts."""
    past: Past | None = None
    own = -torch.log_softmax(torch.from_numpy(LOGITS), -1).gather(
        2, torch.from_numpy(TARGETS)[..., None]
    )[..., 0]
    found = []
    for first, end in zip((0, *cuts), (*cuts, T), strict=True):
        nats, past = cache.nats(
            torch.from_numpy(TOP[:, first:end]),
            own[:, first:end],
            torch.from_numpy(TARGETS[:, first:end]),
            past,
        )
        found.append(nats.numpy())
    return np.concatenate(found, 1)


@pytest.mark.parametrize(
    ("window", "theta", "weight"),
    [(99, 0.7, 0.3), (4, 0.7, 0.3), (4, 0.0, 0.5), (1, 2.0, 0.1), (99, 0.7, 0.0)],
)
def test_the_mixture_is_the_paper_s_however_the_text_is_cut(
    window: int, theta: float, weight: float
) -> None:
    expected, everything = by_hand(window, theta, weight)
    np.testing.assert_allclose(everything.sum(-1), 1)
    for cuts in ((), (5,), (1, 2, 3, 9), tuple(range(1, T))):
        np.testing.assert_allclose(
            in_windows(Cache(window, theta, weight), *cuts), expected, atol=1e-12
        )


def test_the_numbers_are_those_of_the_released_code_and_shares_are_shares() -> None:
    assert vars(Cache()) == {"window": 3785, "theta": 0.662, "weight": 0.1279}
    for wrong in ({"window": 0}, {"weight": 1.0}, {"weight": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Cache(**wrong)  # type: ignore[arg-type]


def test_a_model_s_perplexity_with_a_cache_is_of_its_own_top_states_and_stands_beside_its_own() -> (
    None
):
    checkpoint, texts = tiny.checkpoint("ulmfit"), tiny.documents()[:8]
    model, reader = checkpoint.build(tiny.CPU, load_weights=False).eval(), checkpoint.tokenizer
    lanes, nats, states, targets, own = (
        BpttBatches(encode_corpus(texts, reader), reader, checkpoint.pretrain, seed=0),
        0.0,
        [],
        [],
        [],
    )
    state = None
    for index in range(lanes.set_epoch(0)):
        batch = lanes.get_batch(index)
        with torch.no_grad():
            outputs, _, state = model.run_layers(batch.ids_BT, state)  # type: ignore[operator]
            own.append(
                F.cross_entropy(model.logits(outputs[-1]).mT, batch.targets_BT, reduction="none")
            )  # type: ignore[operator, arg-type]
        states.append(outputs[-1])
        targets.append(batch.targets_BT)
    top, said, mine = (torch.cat(some, 1).double().numpy() for some in (states, targets, own))
    for b in range(len(said)):
        for t in range(said.shape[1]):
            share = np.exp(0.662 * top[b, :t] @ top[b, t])
            cached = share[said[b, :t] == said[b, t]].sum() / share.sum() if t else 0.0
            nats -= math.log(0.1279 * cached + 0.8721 * math.exp(-mine[b, t])) if t else -mine[b, t]
    assert cached_nats(model, lanes, Cache()) == {"forward": pytest.approx(nats, rel=1e-6)}
    found = real_text.measured(checkpoint, model, texts)
    assert set(found) == {
        "perplexity_forward",
        "perplexity_forward_with_a_cache",
        "words",
        "unknown_token_rate",
    }
    counted = math.log(found["perplexity_forward_with_a_cache"] / found["perplexity_forward"])
    assert counted == pytest.approx(
        (nats - mine.sum()) / (said != reader.special_token_ids["<S>"]).sum(), rel=1e-4
    )
    assert found["perplexity_forward_with_a_cache"] < 0.9 * found["perplexity_forward"], (
        "an untrained model's is better by the words that come again"
    )
