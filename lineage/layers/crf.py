"""A conditional random field over the tags of a sentence (Lafferty et al. 2001; as a layer: Lample et al. 2016, section 2.2).

Shapes: N sentences, W words, K tags. A sentence has at least one word; padding stands last.
"""

import torch
from torch import nn


class LinearChain(nn.Module):
    """Scores of a tag after a tag, of the first and of the last one, beside the scores of each word's tags that a network gives."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.after_KK = nn.Parameter(torch.zeros(tags, tags))  # row: the tag before
        self.first_K, self.last_K = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def nats(self, scores_NWK: torch.Tensor, mask_NW: torch.Tensor, gold_NW: torch.Tensor) -> torch.Tensor:
        """(N,): minus the log-probability of the gold tags; what stands at padding does not matter."""
        return self.log_total(scores_NWK, mask_NW) - self._score(scores_NWK, mask_NW, gold_NW)

    def _score(self, scores_NWK: torch.Tensor, mask_NW: torch.Tensor, gold_NW: torch.Tensor) -> torch.Tensor:
        gold_NW = gold_NW.where(mask_NW, gold_NW.new_zeros(()))
        own_NW = scores_NWK.gather(2, gold_NW[..., None])[..., 0] * mask_NW
        steps_NW = self.after_KK[gold_NW[:, :-1], gold_NW[:, 1:]] * mask_NW[:, 1:]
        last_N = gold_NW.gather(1, mask_NW.sum(1, keepdim=True) - 1)[:, 0]
        return own_NW.sum(1) + steps_NW.sum(1) + self.first_K[gold_NW[:, 0]] + self.last_K[last_N]

    def log_total(self, scores_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """(N,): the log of the sum over all taggings of the exponent of their score."""
        reached_NK = self.first_K + scores_NWK[:, 0]
        for place in range(1, scores_NWK.shape[1]):
            further_NK = torch.logsumexp(reached_NK[:, :, None] + self.after_KK, 1) + scores_NWK[:, place]
            reached_NK = torch.where(mask_NW[:, place, None], further_NK, reached_NK)
        return torch.logsumexp(reached_NK + self.last_K, 1)

    @torch.enable_grad()
    def marginals(self, scores_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """(N, W, K): the probability of each tag at each word, zero at padding: the gradient of the log of the sum by the words' scores."""
        scores_NWK = scores_NWK.detach().requires_grad_()
        (found_NWK,) = torch.autograd.grad(self.log_total(scores_NWK, mask_NW).sum(), scores_NWK)
        return found_NWK

    @torch.no_grad()
    def best(self, scores_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """(N, W): the likeliest tagging (Viterbi 1967); 0 at padding."""
        reached_NK, came = self.first_K + scores_NWK[:, 0], []
        for place in range(1, scores_NWK.shape[1]):
            highest_NK, before_NK = (reached_NK[:, :, None] + self.after_KK).max(1)
            real_N1 = mask_NW[:, place, None]
            came.append(torch.where(real_N1, before_NK, torch.arange(before_NK.shape[1], device=before_NK.device)))  # at padding a tag stays itself
            reached_NK = torch.where(real_N1, highest_NK + scores_NWK[:, place], reached_NK)
        tags = [(reached_NK + self.last_K).argmax(1)]
        for before_NK in reversed(came):
            tags.append(before_NK.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1) * mask_NW
