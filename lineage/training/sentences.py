"""How probable a language model calls a sentence: the sum of its pieces' log-probabilities, given those before them, or all the others.

Shapes: N texts, B rows of a batch, T positions, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lineage.batch import Batch
from lineage.errors import CellError
from lineage.text.tokenization import Encoded, Reader
from lineage.training.objectives import directed_nats

SCORED_LOGITS = 2**25  # positions of a batch of sentences to score, times the vocabulary: 128 MiB in fp32
Scored = tuple[torch.Tensor, torch.Tensor]  # (B,) the sum of log-probabilities, in nats, and (B,) of how many


def _by_length(items: Sequence[Encoded], limit: int | None, vocabulary: int) -> Iterator[np.ndarray]:
    """Indices of items in batches of like length. Raises CellError for an item of more than `limit` positions."""
    if limit is not None and (longest := max(len(item.ids) for item in items)) > limit:
        raise CellError(f"a sentence of {longest} pieces is longer than the {limit} that the model was trained to read; it cannot be scored in parts")
    order = np.argsort([len(item.ids) for item in items], kind="stable")[::-1]
    first = 0
    while first < len(order):
        size = max(1, SCORED_LOGITS // vocabulary // len(items[order[first]].ids))
        yield order[first : first + size]
        first += size


def _distinct(model: Any, every: Sequence[Encoded]) -> tuple[list[Encoded], list[int]]:
    """What the model reads as different, and the place of each among them: in another batch last bits differ, and no tie would be one."""
    keys = [(item.ids.tobytes(), item.words if model.spells else ()) for item in every]
    distinct = dict(zip(keys, every, strict=True))
    place = {key: number for number, key in enumerate(distinct)}
    return [*distinct.values()], [place[key] for key in keys]


def text_scores(model: Any, reader: Reader, texts: Sequence[str], limit: int | None, score: Callable[[Batch], Scored]) -> np.ndarray:
    """(N, 2) float64 from `score`, each text's sum of log-probabilities in nats, and of how many it is; what is read as the same is scored once."""
    (items, place_N), device = _distinct(model, reader.encode_many(texts)), next(model.parameters()).device
    found = np.zeros((len(items), 2))
    for some in _by_length(items, limit, reader.vocabulary):
        found[some] = torch.stack([part.double() for part in score(reader.collate([items[i] for i in some]).to(device))], 1).cpu().numpy()
    return found[place_N]


def _from_the_left(model: Any, batch: Batch, scored_BT: torch.Tensor | None) -> Scored:
    """Of the positions that are `scored`, each given those before it."""
    assert scored_BT is not None
    logits = model.logits(model.encode(batch)[-1][:, :-1])
    nats = F.cross_entropy(logits.flatten(0, 1), batch.ids_BT[:, 1:].flatten(), reduction="none").view(len(logits), -1)
    return -(nats * scored_BT[:, 1:]).sum(1), scored_BT[:, 1:].sum(1)


@torch.inference_mode()
def causal_scores(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores` of whole texts: every piece given those before it, the first given the begin mark; the end mark is no text."""
    return text_scores(model, reader, texts, limit, lambda batch: _from_the_left(model, batch, batch.text_BT))


@torch.inference_mode()
def forward_scores(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """`causal_scores` of words with marks round each sentence, which are scored too, as in `bidirectional_scores`."""
    return text_scores(model, reader, texts, limit, lambda batch: _from_the_left(model, batch, batch.mask_BT))


@torch.inference_mode()
def bidirectional_scores(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores`, the sum of a text's forward and backward log-probabilities, marks included."""

    def score(batch: Batch) -> Scored:
        real = batch.mask_BT[:, 1:] & batch.mask_BT[:, :-1]
        total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
        for way, (vectors_BTP, *softmax) in model.directions(model.encode(batch)[-1]):
            vectors, targets = (vectors_BTP[:, :-1], batch.ids_BT[:, 1:]) if way == "forward" else (vectors_BTP[:, 1:], batch.ids_BT[:, :-1])
            nats = F.cross_entropy(F.linear(vectors, *softmax).flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
            total -= (nats * real).sum(1)
            count += real.sum(1)
        return total, count

    return text_scores(model, reader, texts, limit, score)


@torch.inference_mode()
def directed_scores(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores`, every piece given those to its left; joined, and given those to its right, both summed."""

    def score(batch: Batch) -> Scored:
        total, count = torch.zeros(2, len(batch.ids_BT), device=batch.ids_BT.device)
        for items_N, nats_N in directed_nats(model, batch, model.encode(batch)[-1]).values():
            total.index_add_(0, items_N, -nats_N.float())
            count.index_add_(0, items_N, torch.ones_like(nats_N, dtype=count.dtype))
        return total, count

    return text_scores(model, reader, texts, limit, score)


@torch.inference_mode()
def pseudo_log_likelihoods(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores` of log p(piece | all the others), each masked in turn (Salazar et al. 2020); no probability of a text."""
    (items, place_N), owners, places, copies = _distinct(model, reader.encode_many(texts)), [], [], []
    for owner, item in enumerate(items):
        for place in np.flatnonzero(item.spans[:, 1] > item.spans[:, 0]):
            ids = item.ids.copy()
            ids[place] = reader.marks["[MASK]"]
            owners.append(owner)
            places.append(place)
            copies.append(Encoded(ids, item.spans))
    found, device = np.zeros((len(items), 2)), next(model.parameters()).device
    np.add.at(found[:, 1], owners, 1)
    for some in _by_length(copies, limit, max(1, reader.vocabulary // 8)):  # logits at one position an item, hidden states at all
        batch = reader.collate([copies[i] for i in some]).to(device)
        where = torch.tensor([places[i] for i in some], device=device)
        truth = torch.tensor([items[owners[i]].ids[places[i]] for i in some], device=device)
        top_ND = model.encode(batch)[-1][torch.arange(len(some), device=device), where]
        nats = F.cross_entropy(model.logits(top_ND), truth, reduction="none")
        np.subtract.at(found[:, 0], [owners[i] for i in some], nats.double().cpu().numpy())
    return found[place_N]
