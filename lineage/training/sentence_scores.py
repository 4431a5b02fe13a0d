"""Score sentences with a language model: sums of log-probabilities of their tokens.

A token's probability is conditioned on the tokens before it, or on all others.
Shapes: N texts, B rows of a batch, T positions, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.tokenizers.tokenizer import Encoding, Tokenizer
from lineage.training.objectives import directional_nats

# (B,) sums of log-probabilities in nats, and (B,) numbers of tokens.
LogProbsAndCounts = tuple[torch.Tensor, torch.Tensor]
MAX_LOGITS_PER_BATCH = 2**25  # positions times vocabulary: 128 MiB in fp32


@torch.inference_mode()
def score_in_batches(
    score_batch: Callable[[Any, Batch], LogProbsAndCounts],
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    limit: int | None,
) -> np.ndarray:
    """Return (N, 2) float64: each text's log-probability in nats, and its number of tokens.

    Texts that are the same to the model are scored once. Raises EvaluationError for a text of more
    than `limit` positions.
    """
    items, index_N = _deduplicate(model, tokenizer.encode_batch(texts))
    device = next(model.parameters()).device
    scores = np.zeros((len(items), 2))
    for indices in _batch_by_length(items, limit, tokenizer.vocab_size):
        batch = tokenizer.collate([items[i] for i in indices])
        log_probs_B, counts_B = score_batch(model, batch.to(device))
        batch_scores_B2 = torch.stack([log_probs_B.double(), counts_B.double()], 1)
        scores[indices] = batch_scores_B2.cpu().numpy()
    return scores[index_N]


def _deduplicate(model: Encoder, items: Sequence[Encoding]) -> tuple[list[Encoding], list[int]]:
    """Return the distinct inputs, and the index of each item among them.

    In another batch the last bits differ, so equal inputs would not be exactly tied.
    """
    distinct: list[Encoding] = []
    index_by_key: dict[tuple[bytes, tuple[str, ...]], int] = {}
    indices = []
    for item in items:
        key = (item.ids.tobytes(), item.words if model.handles_oov else ())
        if key not in index_by_key:
            index_by_key[key] = len(distinct)
            distinct.append(item)
        indices.append(index_by_key[key])
    return distinct, indices


def _batch_by_length(
    items: Sequence[Encoding], limit: int | None, vocab_size: int
) -> Iterator[np.ndarray]:
    """Yield indices of items in batches of similar length, the longest first."""
    lengths = [len(item.ids) for item in items]
    if limit is not None and max(lengths) > limit:
        raise EvaluationError(
            f"a sentence of {max(lengths)} tokens is longer than the {limit} that the model was "
            "trained to read; it cannot be scored in parts"
        )
    order = np.argsort(lengths, kind="stable")[::-1]
    first = 0
    while first < len(order):
        size = max(1, MAX_LOGITS_PER_BATCH // vocab_size // lengths[order[first]])
        yield order[first : first + size]
        first += size


def _score_causal_batch(model: Encoder, batch: Batch) -> LogProbsAndCounts:
    """Score each token given those before it, but for the end token."""
    assert batch.text_mask_BT is not None
    return _score_left_to_right(model, batch, batch.text_mask_BT)


def _score_forward_batch(model: Encoder, batch: Batch) -> LogProbsAndCounts:
    """Score each word given those before it, and the tokens around each sentence too."""
    return _score_left_to_right(model, batch, batch.mask_BT)


def _score_left_to_right(
    model: Encoder, batch: Batch, scored_BT: torch.Tensor
) -> LogProbsAndCounts:
    logits = model.logits(model.encode(batch)[-1][:, :-1])
    targets = batch.ids_BT[:, 1:]
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    nats = nats.view(len(logits), -1)
    return -(nats * scored_BT[:, 1:]).sum(1), scored_BT[:, 1:].sum(1)


def _score_bidirectional_batch(model: Any, batch: Batch) -> LogProbsAndCounts:
    """Add the forward and the backward log-probability of each token.

    The tokens around each sentence are scored too.
    """
    is_scored = batch.mask_BT[:, 1:] & batch.mask_BT[:, :-1]
    total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
    top_BTD = model.encode(batch)[-1]
    for direction, softmax_inputs in model.softmax_inputs_by_direction(top_BTD):
        x_BTP, weight_VP, bias_V = softmax_inputs
        if direction == "forward":
            x_BTP = x_BTP[:, :-1]
            targets = batch.ids_BT[:, 1:]
        else:
            x_BTP = x_BTP[:, 1:]
            targets = batch.ids_BT[:, :-1]
        logits = F.linear(x_BTP, weight_VP, bias_V)
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        total -= (nats.view(targets.shape) * is_scored).sum(1)
        count += is_scored.sum(1)
    return total, count


def _score_directional_batch(model: Encoder, batch: Batch) -> LogProbsAndCounts:
    """Score each token given those to its left, and with two directions those to its right."""
    total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
    for _, items_N, nats_N in directional_nats(model, batch, model.encode(batch)[-1]):
        total.index_add_(0, items_N, -nats_N.float())
        count.index_add_(0, items_N, torch.ones_like(nats_N, dtype=count.dtype))
    return total, count


score_causal_lm = partial(score_in_batches, _score_causal_batch)
score_forward_lm = partial(score_in_batches, _score_forward_batch)
score_bidirectional_lm = partial(score_in_batches, _score_bidirectional_batch)
score_directional_lm = partial(score_in_batches, _score_directional_batch)


@torch.inference_mode()
def score_pseudo_log_likelihood(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    limit: int | None,
    offset: int = 0,
) -> np.ndarray:
    """Sum log p(token | all others), each token masked in turn (Salazar et al. 2020).

    The model predicts a token at its position plus `offset`. The sums are not log-probabilities of
    the texts.
    """
    items, index_N = _deduplicate(model, tokenizer.encode_batch(texts))
    device = next(model.parameters()).device
    mask_id = tokenizer.special_token_template.mask_token_id
    scores = np.zeros((len(items), 2))
    masked: list[Encoding] = []  # a copy of an item for each token of its text
    places = []  # of each copy: its row in `scores`, the masked position, the token there
    for row, item in enumerate(items):
        positions = np.flatnonzero(item.offsets[:, 1] > item.offsets[:, 0])
        scores[row, 1] = len(positions)
        for position in positions:
            ids = item.ids.copy()
            ids[position] = mask_id
            masked.append(Encoding(ids, item.offsets))
            places.append((row, position, item.ids[position]))
    places_M3 = np.array(places, np.int64).reshape(-1, 3)
    # Logits are computed at one position per item, but hidden states at all.
    vocab_size = max(1, tokenizer.vocab_size // 8)
    for indices in _batch_by_length(masked, limit, vocab_size):
        batch = tokenizer.collate([masked[i] for i in indices]).to(device)
        _, positions_N, targets_N = torch.from_numpy(places_M3[indices]).to(device).unbind(1)
        rows_N = torch.arange(len(indices), device=device)
        top_ND = model.encode(batch)[-1][rows_N, positions_N + offset]
        nats = F.cross_entropy(model.logits(top_ND), targets_N, reduction="none")
        np.subtract.at(scores[:, 0], places_M3[indices, 0], nats.double().cpu().numpy())
    return scores[index_N]
