"""A continuous cache for an AWD-LSTM: words that occurred in similar states become more likely.

Grave et al. 2017, section 3; pointer.py in salesforce/awd-lstm-lm. The cache reads the text that
is measured. So its perplexity is reported next to the model's own, and it is not used for the bits
per byte that are compared.
Shapes: B sequences, T positions, M positions in the cache, N = M + T, E units of the top layer.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from lineage.config.records import check_positive
from lineage.networks.batch import BatchSampler
from lineage.training.samplers import iterate_batches

CacheState = tuple[torch.Tensor, torch.Tensor]  # (B, M, E) top states, (B, M) the words after them


@dataclass(frozen=True)
class ContinuousCache:
    """p = weight * cache + (1 - weight) * softmax.

    The cache looks at the last `window` positions i. It gives each word w a probability in
    proportion to the sum of exp(theta h_t h_i) over the positions i that are followed by w.

    The defaults are those of salesforce/awd-lstm-lm, tuned on the validation text of WikiText-2.
    In contrast to that code, the cache is used before it is full.
    """

    window: int = 3785
    theta: float = 0.662
    weight: float = 0.1279

    def __post_init__(self) -> None:
        check_positive(self, "window")
        if not 0 <= self.weight < 1:
            raise ValueError(f"weight is {self.weight}; it is a share, from 0 to below 1")

    def mixture_nats(
        self,
        states_BTE: torch.Tensor,
        model_nats_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        cache_state: CacheState | None,
    ) -> tuple[torch.Tensor, CacheState]:
        """Return the nats of the targets under the mixture, (B, T), and the next cache state.

        A position sees only the positions before it. The first position of a text has none, so it
        keeps the nats of the model.
        """
        keys_BNE = states_BTE
        words_BN = targets_BT
        if cache_state is not None:
            cached_states_BME, cached_words_BM = cache_state
            keys_BNE = torch.cat([cached_states_BME, keys_BNE], 1)
            words_BN = torch.cat([cached_words_BM, words_BN], 1)

        T = targets_BT.shape[1]
        N = words_BN.shape[1]
        positions_N = torch.arange(N, device=states_BTE.device)
        distance_TN = positions_N[N - T :, None] - positions_N
        is_visible_TN = (distance_TN > 0) & (distance_TN <= self.window)

        scores_BTN = (self.theta * states_BTE @ keys_BNE.mT).double()
        scores_BTN = scores_BTN.masked_fill(~is_visible_TN, -math.inf)
        is_target_BTN = words_BN[:, None] == targets_BT[..., None]
        target_scores_BTN = scores_BTN.masked_fill(~is_target_BTN, -math.inf)
        cache_BT = (target_scores_BTN.logsumexp(-1) - scores_BTN.logsumexp(-1)).exp()

        model_BT = (-model_nats_BT.double()).exp()
        mixture_BT = self.weight * cache_BT + (1 - self.weight) * model_BT
        has_cache_T = is_visible_TN.any(-1)
        nats_BT = torch.where(has_cache_T, -mixture_BT.log(), model_nats_BT.double())
        return nats_BT, (keys_BNE[:, -self.window :], words_BN[:, -self.window :])


@torch.inference_mode()
def sum_nats_with_cache(
    model: Any, sampler: BatchSampler, cache: ContinuousCache
) -> dict[str, float]:
    """Sum the nats of a text by direction. Each sequence of the batch has its own cache."""
    model.eval()
    recurrent_state = None
    cache_state = None
    nats_by_direction: dict[str, float] = {}
    for _, _, batch in iterate_batches(sampler):
        assert batch.targets_BT is not None
        assert sampler.carries_state
        outputs, _, recurrent_state = model.run_layers(batch.ids_BT, recurrent_state)
        top_BTE = outputs[-1]
        logits_BTV = model.logits(top_BTE)
        model_nats = F.cross_entropy(
            logits_BTV.flatten(0, 1), batch.targets_BT.flatten(), reduction="none"
        )
        nats_BT, cache_state = cache.mixture_nats(
            top_BTE, model_nats.view(batch.targets_BT.shape), batch.targets_BT, cache_state
        )
        direction = "backward" if batch.is_backward else "forward"
        previous_nats = nats_by_direction.get(direction, 0.0)
        nats_by_direction[direction] = previous_nats + float(nats_BT.sum())
    return nats_by_direction
