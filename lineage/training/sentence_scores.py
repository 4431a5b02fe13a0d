"""How probable a language model calls a sentence: the sum of its pieces' log-probabilities, given those before them, or all the others.

Shapes: N texts, B rows of a batch, T positions, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.models.batch import Batch
from lineage.tokenizers.tokenizer import Encoding, Tokenizer
from lineage.training.objectives import directional_nats

MAX_LOGITS_PER_BATCH = (
    2**25
)  # positions of a batch of sentences to score, times the vocabulary: 128 MiB in fp32
LogProbsAndCounts = tuple[
    torch.Tensor, torch.Tensor
]  # (B,) the sum of log-probabilities, in nats, and (B,) of how many


def _batch_by_length(
    items: Sequence[Encoding], limit: int | None, vocab_size: int
) -> Iterator[np.ndarray]:
    """Indices of items in batches of like length. Raises CellError for an item of more than `limit` positions."""
    if limit is not None and (longest := max(len(item.ids) for item in items)) > limit:
        raise EvaluationError(
            f"a sentence of {longest} pieces is longer than the {limit} that the model was trained to read; it cannot be scored in parts"
        )
    order = np.argsort([len(item.ids) for item in items], kind="stable")[::-1]
    first = 0
    while first < len(order):
        size = max(1, MAX_LOGITS_PER_BATCH // vocab_size // len(items[order[first]].ids))
        yield order[first : first + size]
        first += size


def _deduplicate(model: Any, items: Sequence[Encoding]) -> tuple[list[Encoding], list[int]]:
    """What the model reads as different, and the place of each among them: in another batch last bits differ, and no tie would be one."""
    keys = [(item.ids.tobytes(), item.words if model.spells else ()) for item in items]
    distinct = dict(zip(keys, items, strict=True))
    index_by_key = {key: number for number, key in enumerate(distinct)}
    return [*distinct.values()], [index_by_key[key] for key in keys]


def score_texts(
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    limit: int | None,
    score_batch: Callable[[Batch], LogProbsAndCounts],
) -> np.ndarray:
    """(N, 2) float64 from `score`, each text's sum of log-probabilities in nats, and of how many it is; what is read as the same is scored once."""
    (items, index_N), device = (
        _deduplicate(model, tokenizer.encode_batch(texts)),
        next(model.parameters()).device,
    )
    scores = np.zeros((len(items), 2))
    for indices in _batch_by_length(items, limit, tokenizer.vocab_size):
        scores[indices] = (
            torch.stack(
                [
                    part.double()
                    for part in score_batch(
                        tokenizer.collate([items[i] for i in indices]).to(device)
                    )
                ],
                1,
            )
            .cpu()
            .numpy()
        )
    return scores[index_N]


def _score_left_to_right(
    model: Any, batch: Batch, scored_BT: torch.Tensor | None
) -> LogProbsAndCounts:
    """Of the positions that are `scored`, each given those before it."""
    assert scored_BT is not None
    logits = model.logits(model.encode(batch)[-1][:, :-1])
    nats = F.cross_entropy(
        logits.flatten(0, 1), batch.ids_BT[:, 1:].flatten(), reduction="none"
    ).view(len(logits), -1)
    return -(nats * scored_BT[:, 1:]).sum(1), scored_BT[:, 1:].sum(1)


@torch.inference_mode()
def score_causal_lm(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores` of whole texts: every piece given those before it, the first given the begin mark; the end mark is no text."""
    return score_texts(
        model,
        tokenizer,
        texts,
        limit,
        lambda batch: _score_left_to_right(model, batch, batch.text_mask_BT),
    )


@torch.inference_mode()
def score_forward_lm(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """`causal_scores` of words with marks round each sentence, which are scored too, as in `bidirectional_scores`."""
    return score_texts(
        model,
        tokenizer,
        texts,
        limit,
        lambda batch: _score_left_to_right(model, batch, batch.mask_BT),
    )


@torch.inference_mode()
def score_bidirectional_lm(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores`, the sum of a text's forward and backward log-probabilities, marks included."""

    def score(batch: Batch) -> LogProbsAndCounts:
        real = batch.mask_BT[:, 1:] & batch.mask_BT[:, :-1]
        total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
        for way, (vectors_BTP, *softmax) in model.directions(model.encode(batch)[-1]):
            vectors, targets = (
                (vectors_BTP[:, :-1], batch.ids_BT[:, 1:])
                if way == "forward"
                else (vectors_BTP[:, 1:], batch.ids_BT[:, :-1])
            )
            nats = F.cross_entropy(
                F.linear(vectors, *softmax).flatten(0, 1), targets.flatten(), reduction="none"
            ).view(targets.shape)
            total -= (nats * real).sum(1)
            count += real.sum(1)
        return total, count

    return score_texts(model, tokenizer, texts, limit, score)


@torch.inference_mode()
def score_directional_lm(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores`, every piece given those to its left; joined, and given those to its right, both summed."""

    def score(batch: Batch) -> LogProbsAndCounts:
        total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
        for items_N, nats_N in directional_nats(model, batch, model.encode(batch)[-1]).values():
            total.index_add_(0, items_N, -nats_N.float())
            count.index_add_(0, items_N, torch.ones_like(nats_N, dtype=count.dtype))
        return total, count

    return score_texts(model, tokenizer, texts, limit, score)


@torch.inference_mode()
def score_pseudo_log_likelihood(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores` of log p(piece | all the others), each masked in turn (Salazar et al. 2020); no probability of a text."""
    (items, index_N), item_indices, masked_positions, masked_items = (
        _deduplicate(model, tokenizer.encode_batch(texts)),
        [],
        [],
        [],
    )
    for item_index, item in enumerate(items):
        for position in np.flatnonzero(item.offsets[:, 1] > item.offsets[:, 0]):
            ids = item.ids.copy()
            ids[position] = tokenizer.special_token_ids["[MASK]"]
            item_indices.append(item_index)
            masked_positions.append(position)
            masked_items.append(Encoding(ids, item.offsets))
    scores, device = np.zeros((len(items), 2)), next(model.parameters()).device
    np.add.at(scores[:, 1], item_indices, 1)
    for indices in _batch_by_length(
        masked_items, limit, max(1, tokenizer.vocab_size // 8)
    ):  # logits at one position an item, hidden states at all
        batch = tokenizer.collate([masked_items[i] for i in indices]).to(device)
        positions = torch.tensor([masked_positions[i] for i in indices], device=device)
        targets = torch.tensor(
            [items[item_indices[i]].ids[masked_positions[i]] for i in indices], device=device
        )
        top_ND = model.encode(batch)[-1][torch.arange(len(indices), device=device), positions]
        nats = F.cross_entropy(model.logits(top_ND), targets, reduction="none")
        np.subtract.at(
            scores[:, 0], [item_indices[i] for i in indices], nats.double().cpu().numpy()
        )
    return scores[index_N]
