"""A conditional random field over the tags of a sentence (Lafferty et al. 2001; as a layer: Lample et al. 2016, section 2.2).

Shapes: N sentences, W words, K tags. A sentence has at least one word; padding stands last.
"""

import torch
from torch import nn


class LinearChainCRF(nn.Module):
    """Scores of a tag after a tag, of the first and of the last one, beside the scores of each word's tags that a network gives."""

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.transitions_KK = nn.Parameter(torch.zeros(num_tags, num_tags))  # row: the tag before
        self.start_transitions_K, self.end_transitions_K = (
            nn.Parameter(torch.zeros(num_tags)),
            nn.Parameter(torch.zeros(num_tags)),
        )

    def neg_log_likelihood(
        self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor, labels_NW: torch.Tensor
    ) -> torch.Tensor:
        """(N,): minus the log-probability of the gold tags; what stands at padding does not matter."""
        return self.log_partition(emissions_NWK, mask_NW) - self._path_score(
            emissions_NWK, mask_NW, labels_NW
        )

    def _path_score(
        self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor, labels_NW: torch.Tensor
    ) -> torch.Tensor:
        labels_NW = labels_NW.where(mask_NW, labels_NW.new_zeros(()))
        own_NW = emissions_NWK.gather(2, labels_NW[..., None])[..., 0] * mask_NW
        steps_NW = self.transitions_KK[labels_NW[:, :-1], labels_NW[:, 1:]] * mask_NW[:, 1:]
        last_N = labels_NW.gather(1, mask_NW.sum(1, keepdim=True) - 1)[:, 0]
        return (
            own_NW.sum(1)
            + steps_NW.sum(1)
            + self.start_transitions_K[labels_NW[:, 0]]
            + self.end_transitions_K[last_N]
        )

    def log_partition(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """(N,): the log of the sum over all taggings of the exponent of their score."""
        log_alpha_NK = self.start_transitions_K + emissions_NWK[:, 0]
        for place in range(1, emissions_NWK.shape[1]):
            further_NK = (
                torch.logsumexp(log_alpha_NK[:, :, None] + self.transitions_KK, 1)
                + emissions_NWK[:, place]
            )
            log_alpha_NK = torch.where(mask_NW[:, place, None], further_NK, log_alpha_NK)
        return torch.logsumexp(log_alpha_NK + self.end_transitions_K, 1)

    @torch.enable_grad()
    def marginals(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """(N, W, K): the probability of each tag at each word, zero at padding: the gradient of the log of the sum by the words' scores."""
        emissions_NWK = emissions_NWK.detach().requires_grad_()
        (found_NWK,) = torch.autograd.grad(
            self.log_partition(emissions_NWK, mask_NW).sum(), emissions_NWK
        )
        return found_NWK

    @torch.no_grad()
    def viterbi_decode(self, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """(N, W): the likeliest tagging (Viterbi 1967); 0 at padding."""
        reached_NK, backpointers = self.start_transitions_K + emissions_NWK[:, 0], []
        for place in range(1, emissions_NWK.shape[1]):
            highest_NK, before_NK = (reached_NK[:, :, None] + self.transitions_KK).max(1)
            real_N1 = mask_NW[:, place, None]
            backpointers.append(
                torch.where(
                    real_N1, before_NK, torch.arange(before_NK.shape[1], device=before_NK.device)
                )
            )  # at padding a tag stays itself
            reached_NK = torch.where(real_N1, highest_NK + emissions_NWK[:, place], reached_NK)
        tags = [(reached_NK + self.end_transitions_K).argmax(1)]
        for before_NK in reversed(backpointers):
            tags.append(before_NK.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1) * mask_NW
