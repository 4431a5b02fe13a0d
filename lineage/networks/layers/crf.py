"""A conditional random field over the tags of a sentence.

Lafferty et al. 2001; as a layer: Lample et al. 2016, section 2.2.

Shapes: N sentences, W words, K tags; a leading 2 is the direction, W first where the words are read
one by one. A sentence has at least one word; padding is at the end.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from lineage.networks.batch import gather_positions, reversed_positions

TINY = 1e-300  # a smaller sum of probabilities has lost its digits


class LinearChainCRF(nn.Module):
    """Scores of tag transitions and of first and last tags, added to a network's emissions."""

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.transitions_KK = nn.Parameter(torch.zeros(num_tags, num_tags))  # from row to column
        self.start_transitions_K = nn.Parameter(torch.zeros(num_tags))
        self.end_transitions_K = nn.Parameter(torch.zeros(num_tags))

    def neg_log_likelihood(
        self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor, labels_NW: torch.Tensor
    ) -> torch.Tensor:
        """Return the (N,) negative log-probabilities of the labels; padding is ignored."""
        log_partition_N = self.log_partition(emissions_NWK, mask_NW)
        return log_partition_N - self._path_score(emissions_NWK, mask_NW, labels_NW)

    def _path_score(
        self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor, labels_NW: torch.Tensor
    ) -> torch.Tensor:
        labels_NW = labels_NW.where(mask_NW, labels_NW.new_zeros(()))
        emissions_NW = emissions_NWK.gather(2, labels_NW[..., None])[..., 0] * mask_NW
        transitions_NW = self.transitions_KK[labels_NW[:, :-1], labels_NW[:, 1:]] * mask_NW[:, 1:]
        last_N = labels_NW.gather(1, mask_NW.sum(1, keepdim=True) - 1)[:, 0]
        return (
            emissions_NW.sum(1)
            + transitions_NW.sum(1)
            + self.start_transitions_K[labels_NW[:, 0]]
            + self.end_transitions_K[last_N]
        )

    def log_partition(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """Return (N,): the log of the sum of exp(score) over all tag sequences."""
        log_partition_N: torch.Tensor = _LogPartition.apply(
            emissions_NWK,
            mask_NW,
            self.transitions_KK,
            self.start_transitions_K,
            self.end_transitions_K,
        )
        return log_partition_N

    @torch.no_grad()
    def marginals(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """Return (N, W, K): the probability of each tag at each word, zero at padding."""
        posterior = forward_backward(
            emissions_NWK,
            mask_NW,
            self.transitions_KK,
            self.start_transitions_K,
            self.end_transitions_K,
        )
        return posterior.tags_NWK.to(emissions_NWK.dtype)

    @torch.no_grad()
    def viterbi_decode(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """Return (N, W): the most probable tag sequence (Viterbi 1967); 0 at padding."""
        scores_NK = self.start_transitions_K + emissions_NWK[:, 0]
        same_tag_K = torch.arange(scores_NK.shape[1], device=scores_NK.device)
        backpointers = []
        for word in range(1, emissions_NWK.shape[1]):
            best_NK, previous_NK = (scores_NK[:, :, None] + self.transitions_KK).max(1)
            real_N1 = mask_NW[:, word, None]
            # At padding a tag points to itself and its score stays.
            backpointers.append(torch.where(real_N1, previous_NK, same_tag_K))
            scores_NK = torch.where(real_N1, best_NK + emissions_NWK[:, word], scores_NK)
        tags = [(scores_NK + self.end_transitions_K).argmax(1)]
        for previous_NK in reversed(backpointers):
            tags.append(previous_NK.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1) * mask_NW


class Posterior(NamedTuple):
    """Sums over all tag sequences, weighted by their probabilities, in float64."""

    log_partition_N: torch.Tensor  # log of the sum of exp(score), the weights' denominator
    tags_NWK: torch.Tensor  # the probability of each tag at each word, zero at padding
    pairs_NKK: torch.Tensor  # how often each tag is expected to follow each other tag


@torch.no_grad()
def forward_backward(
    emissions_NWK: torch.Tensor,
    mask_NW: torch.Tensor,
    transitions_KK: torch.Tensor,
    start_K: torch.Tensor,
    end_K: torch.Tensor,
) -> Posterior:
    """Run the forward-backward algorithm (Rabiner 1989, section III; Lafferty et al. 2001).

    One loop reads both directions: the backward one is the forward one over reversed sentences with
    transposed transitions. States are logs. A step multiplies probabilities relative to the best
    state by exp(transitions) relative to the best one of each row, so that the best state always
    has a successor. States that are e^700 times less probable than the best count as impossible.
    """
    positions_NW = reversed_positions(mask_NW)
    emissions_NWK = emissions_NWK.double().masked_fill(~mask_NW[..., None], 0.0)
    both_2NWK = torch.stack([emissions_NWK, gather_positions(emissions_NWK, positions_NW)])
    emissions_W2NK = both_2NWK.permute(2, 0, 1, 3).contiguous()
    transitions_2KK = torch.stack([transitions_KK, transitions_KK.T]).double()
    # A row may be -inf: nothing follows its tag.
    row_max_2K1 = transitions_2KK.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.double).min)
    factors_2KK = (transitions_2KK - row_max_2K1).exp()
    row_max_21K = row_max_2K1.mT

    message_2NK = torch.stack([start_K, end_K]).double()[:, None].expand(emissions_W2NK.shape[1:])
    messages = [message_2NK]  # the log of the sum over all beginnings, without the word itself
    shares = []  # the probability of each state, over that of the best one
    sums = []
    for offered_2NK in (emissions_W2NK + row_max_21K)[:-1]:
        state_2NK = message_2NK + offered_2NK
        best_2N1 = state_2NK.amax(-1, keepdim=True)
        share_2NK = state_2NK.sub_(best_2N1).exp_()
        sum_2NK = torch.bmm(share_2NK, factors_2KK)
        message_2NK = sum_2NK.log().add_(best_2N1)
        messages.append(message_2NK)
        shares.append(share_2NK)
        sums.append(sum_2NK)

    messages_W2NK = torch.stack(messages)
    ahead_NWK = messages_W2NK[:, 0].transpose(0, 1)
    behind_NWK = (messages_W2NK[:, 1] + emissions_W2NK[:, 1]).transpose(0, 1)
    scores_NWK = ahead_NWK + gather_positions(behind_NWK, positions_NW)
    log_partition_N = scores_NWK[:, 0].logsumexp(-1)
    tags_NWK = (scores_NWK - log_partition_N[:, None, None]).exp()
    tags_NWK = tags_NWK.masked_fill(~mask_NW[..., None], 0.0)
    if not shares:
        pairs_NKK = tags_NWK.new_zeros(len(mask_NW), *transitions_KK.shape)
        return Posterior(log_partition_N, tags_NWK, pairs_NKK)
    shares_NWK = torch.stack(shares)[:, 0].transpose(0, 1)
    sums_NWK = torch.stack(sums)[:, 0].transpose(0, 1)
    # P(i, j) = P(j) P(i | j), and i has its share of the sum that led to j.
    per_sum_NWK = torch.where(sums_NWK > TINY, tags_NWK[:, 1:] / sums_NWK, 0.0)
    pairs_NKK = factors_2KK[0] * torch.bmm(shares_NWK.mT, per_sum_NWK)
    return Posterior(log_partition_N, tags_NWK, pairs_NKK)


class _LogPartition(torch.autograd.Function):
    """The log-partition, whose gradient is the posterior: autograd would keep every word's step."""

    @staticmethod
    def forward(
        ctx: Any,
        emissions_NWK: torch.Tensor,
        mask_NW: torch.Tensor,
        transitions_KK: torch.Tensor,
        start_K: torch.Tensor,
        end_K: torch.Tensor,
    ) -> torch.Tensor:
        posterior = forward_backward(emissions_NWK, mask_NW, transitions_KK, start_K, end_K)
        ctx.save_for_backward(posterior.tags_NWK, posterior.pairs_NKK, mask_NW)
        ctx.dtypes = (emissions_NWK.dtype, transitions_KK.dtype)
        return posterior.log_partition_N.to(emissions_NWK.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_N: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tags_NWK, pairs_NKK, mask_NW = ctx.saved_tensors
        emissions_dtype, parameter_dtype = ctx.dtypes
        gradient_N = gradient_N.double()
        emissions_NWK = tags_NWK * gradient_N[:, None, None]
        last_N11 = (mask_NW.sum(1) - 1)[:, None, None]
        end_NK = emissions_NWK.gather(1, last_N11.expand(-1, 1, tags_NWK.shape[-1]))[:, 0]
        return (
            emissions_NWK.to(emissions_dtype),
            None,
            torch.tensordot(gradient_N, pairs_NKK, 1).to(parameter_dtype),
            emissions_NWK[:, 0].sum(0).to(parameter_dtype),
            end_NK.sum(0).to(parameter_dtype),
        )
