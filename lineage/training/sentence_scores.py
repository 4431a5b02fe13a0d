"""Score sentences with a language model: sums of log-probabilities of their tokens.

A token's probability is conditioned on the tokens before it, or on all others.
Shapes: N texts, B rows of a batch, T positions, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.tokenizers.tokenizer import Encoding, Tokenizer
from lineage.training.objectives import directional_nats

MAX_LOGITS_PER_BATCH = 2**25  # positions times vocabulary: 128 MiB in fp32


class LogProbsAndCounts(NamedTuple):
    """(B,) sums of log-probabilities in nats, and (B,) numbers of tokens."""

    log_probs_B: torch.Tensor
    counts_B: torch.Tensor


def score_in_batches(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    limit: int | None,
    score_batch: Callable[[Batch], tuple[torch.Tensor, torch.Tensor]],
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
        log_probs_B, counts_B = score_batch(batch.to(device))
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


@torch.inference_mode()
def score_causal_lm(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """Score each token given those before it, see `score_in_batches`.

    The begin token precedes the first one; the end token is not scored.
    """

    def score_batch(batch: Batch) -> LogProbsAndCounts:
        assert batch.text_mask_BT is not None
        return _score_left_to_right(model, batch, batch.text_mask_BT)

    return score_in_batches(model, tokenizer, texts, limit, score_batch)


@torch.inference_mode()
def score_forward_lm(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """Score each word given those before it, and the tokens around each sentence too."""

    def score_batch(batch: Batch) -> LogProbsAndCounts:
        return _score_left_to_right(model, batch, batch.mask_BT)

    return score_in_batches(model, tokenizer, texts, limit, score_batch)


def _score_left_to_right(
    model: Encoder, batch: Batch, scored_BT: torch.Tensor
) -> LogProbsAndCounts:
    logits = model.logits(model.encode(batch)[-1][:, :-1])
    targets = batch.ids_BT[:, 1:]
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    nats = nats.view(len(logits), -1)
    return LogProbsAndCounts(-(nats * scored_BT[:, 1:]).sum(1), scored_BT[:, 1:].sum(1))


@torch.inference_mode()
def score_bidirectional_lm(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """Add the forward and the backward log-probability of each token.

    The tokens around each sentence are scored too.
    """

    def score_batch(batch: Batch) -> LogProbsAndCounts:
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
        return LogProbsAndCounts(total, count)

    return score_in_batches(model, tokenizer, texts, limit, score_batch)


@torch.inference_mode()
def score_directional_lm(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """Score each token given those to its left.

    With two directions, log-probabilities given those to its right are added.
    """

    def score_batch(batch: Batch) -> LogProbsAndCounts:
        total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
        for _, items_N, nats_N in directional_nats(model, batch, model.encode(batch)[-1]):
            total.index_add_(0, items_N, -nats_N.float())
            count.index_add_(0, items_N, torch.ones_like(nats_N, dtype=count.dtype))
        return LogProbsAndCounts(total, count)

    return score_in_batches(model, tokenizer, texts, limit, score_batch)


class _MaskedToken(NamedTuple):
    """An input with one masked token."""

    item_index: int
    position: int
    target: int
    encoding: Encoding


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
    masked = _mask_each_token(items, tokenizer.special_token_ids["[MASK]"])
    scores = np.zeros((len(items), 2))
    np.add.at(scores[:, 1], [token.item_index for token in masked], 1)
    # Logits are computed at one position per item, but hidden states at all.
    vocab_size = max(1, tokenizer.vocab_size // 8)
    for indices in _batch_by_length([token.encoding for token in masked], limit, vocab_size):
        tokens = [masked[i] for i in indices]
        batch = tokenizer.collate([token.encoding for token in tokens]).to(device)
        positions = torch.tensor([token.position + offset for token in tokens], device=device)
        targets = torch.tensor([token.target for token in tokens], device=device)
        rows = torch.arange(len(tokens), device=device)
        top_ND = model.encode(batch)[-1][rows, positions]
        nats = F.cross_entropy(model.logits(top_ND), targets, reduction="none")
        item_indices = [token.item_index for token in tokens]
        np.subtract.at(scores[:, 0], item_indices, nats.double().cpu().numpy())
    return scores[index_N]


def _mask_each_token(items: Sequence[Encoding], mask_id: int) -> list[_MaskedToken]:
    """Return a copy of an item for each token of its text, with that token masked."""
    masked = []
    for item_index, item in enumerate(items):
        for position in np.flatnonzero(item.offsets[:, 1] > item.offsets[:, 0]):
            ids = item.ids.copy()
            ids[position] = mask_id
            encoding = Encoding(ids, item.offsets)
            target = int(item.ids[position])
            masked.append(_MaskedToken(item_index, int(position), target, encoding))
    return masked
