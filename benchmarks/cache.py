"""A continuous cache beside an AWD-LSTM: words that stood where the state was alike (Grave et al. 2017, section 3; salesforce's pointer.py).

It learns the text that it is measured on, so that its perplexity stands beside the model's own, and never in the bits per byte that are compared.
Shapes: B lanes, T positions, M positions in the cache, E units of the top layer.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from lineage.config.records import check_positive
from lineage.training.samplers import BatchSampler, iterate_batches

Past = tuple[torch.Tensor, torch.Tensor]  # (B, M, E) top states, and (B, M) the word after each


@dataclass(frozen=True)
class Cache:
    """p = weight * cache + (1 - weight) * softmax, where the cache gives word w the share of exp(theta h_t h_i) of the last positions i before a w.

    The numbers that salesforce/awd-lstm-lm found on WikiText-2's validation text. Unlike there the cache is used before it is full.
    """

    window: int = 3785
    theta: float = 0.662
    weight: float = 0.1279

    def __post_init__(self) -> None:
        check_positive(self, "window")
        if not 0 <= self.weight < 1:
            raise ValueError(f"weight is {self.weight}; it is a share, from 0 to below 1")

    def nats(
        self,
        top_BTE: torch.Tensor,
        own_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        past: Past | None,
    ) -> tuple[torch.Tensor, Past]:
        """(B, T) nats of the targets in place of the model's own, and what the next positions look back on. A position sees those before it alone."""
        keys_BNE, words_BN = top_BTE, targets_BT
        if past is not None:
            keys_BNE, words_BN = (
                torch.cat([past[0], keys_BNE], 1),
                torch.cat([past[1], words_BN], 1),
            )
        T, N, device = targets_BT.shape[1], words_BN.shape[1], top_BTE.device
        back_TN = torch.arange(N - T, N, device=device)[:, None] - torch.arange(N, device=device)
        seen_TN = (back_TN > 0) & (back_TN <= self.window)
        scores_BTN = (self.theta * top_BTE @ keys_BNE.mT).double().masked_fill(~seen_TN, -math.inf)
        same_BTN = words_BN[:, None] == targets_BT[..., None]
        cached_BT = (
            scores_BTN.masked_fill(~same_BTN, -math.inf).logsumexp(-1) - scores_BTN.logsumexp(-1)
        ).exp()
        mixed_BT = self.weight * cached_BT + (1 - self.weight) * (-own_BT.double()).exp()
        return torch.where(seen_TN.any(-1), -mixed_BT.log(), own_BT.double()), (
            keys_BNE[:, -self.window :],
            words_BN[:, -self.window :],
        )


@torch.inference_mode()
def cached_nats(model: Any, stream: BatchSampler, cache: Cache) -> dict[str, float]:
    """Summed nats of one pass through a text, by direction, each lane with a cache of its own."""
    model.eval()
    state, past, total = None, None, dict[str, float]()
    for _, _, batch in iterate_batches(stream):
        assert batch.targets_BT is not None and stream.carries_state
        outputs, _, state = model.run_layers(batch.ids_BT, state)
        logits = model.logits(outputs[-1])
        own = F.cross_entropy(
            logits.flatten(0, 1), batch.targets_BT.flatten(), reduction="none"
        ).view(batch.targets_BT.shape)
        nats, past = cache.nats(outputs[-1], own, batch.targets_BT, past)
        way = "backward" if batch.is_backward else "forward"
        total[way] = total.get(way, 0.0) + float(nats.sum())
    return total
