"""A conditional random field over the tags of a sentence.

Lafferty et al. 2001; as a layer: Lample et al. 2016, section 2.2.
Shapes: N sentences, W words, K tags. A sentence has at least one word; padding is at the end.
"""

import torch
from torch import nn


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
        log_alpha_NK = self.start_transitions_K + emissions_NWK[:, 0]
        for word in range(1, emissions_NWK.shape[1]):
            scores_NKK = log_alpha_NK[:, :, None] + self.transitions_KK
            next_NK = torch.logsumexp(scores_NKK, 1) + emissions_NWK[:, word]
            log_alpha_NK = torch.where(mask_NW[:, word, None], next_NK, log_alpha_NK)
        return torch.logsumexp(log_alpha_NK + self.end_transitions_K, 1)

    @torch.enable_grad()
    def marginals(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """Return (N, W, K): the probability of each tag at each word, zero at padding.

        It is the gradient of the log-partition by the emissions.
        """
        emissions_NWK = emissions_NWK.detach().requires_grad_()
        total = self.log_partition(emissions_NWK, mask_NW).sum()
        (marginals_NWK,) = torch.autograd.grad(total, emissions_NWK)
        return marginals_NWK

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
