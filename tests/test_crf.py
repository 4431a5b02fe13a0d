"""The CRF's closed-form gradients match autograd over the plain recursion, extremes included."""

import math

import pytest
import torch

from lineage.networks.layers.crf import LinearChainCRF

N, W, K = 5, 7, 4
LENGTHS = (7, 1, 3, 6, 2)


def plain_log_partition(
    crf: LinearChainCRF, emissions_NWK: torch.Tensor, mask_NW: torch.Tensor
) -> torch.Tensor:
    """Return (N,) by one logsumexp a word (Lample et al. 2016, section 2.2)."""
    log_alpha_NK = crf.start_transitions_K + emissions_NWK[:, 0]
    for word in range(1, emissions_NWK.shape[1]):
        scores_NKK = log_alpha_NK[:, :, None] + crf.transitions_KK
        next_NK = torch.logsumexp(scores_NKK, 1) + emissions_NWK[:, word]
        log_alpha_NK = torch.where(mask_NW[:, word, None], next_NK, log_alpha_NK)
    return torch.logsumexp(log_alpha_NK + crf.end_transitions_K, 1)


def make_crf(
    *, scale: float = 1.0, forbidden: float | None = None
) -> tuple[LinearChainCRF, torch.Tensor, torch.Tensor]:
    """Return a CRF, emissions and their mask; `forbidden` is the score of some transitions."""
    generator = torch.Generator().manual_seed(7)
    crf = LinearChainCRF(K).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(generator=generator)
        if forbidden is not None:
            crf.transitions_KK[0, 1] = forbidden
            crf.transitions_KK[2, 3] = forbidden
            crf.transitions_KK[3, 1:] = forbidden
            crf.start_transitions_K[2] = forbidden
            crf.end_transitions_K[1] = forbidden
    emissions_NWK = scale * torch.randn(N, W, K, dtype=torch.double, generator=generator)
    mask_NW = torch.arange(W) < torch.tensor(LENGTHS)[:, None]
    return crf, emissions_NWK.requires_grad_(), mask_NW


@pytest.mark.parametrize(
    ("scale", "forbidden"), [(1.0, None), (30.0, None), (3000.0, None), (1.0, -1e4), (30.0, -1e4)]
)
def test_the_log_partition_and_its_gradients_match_autograd_over_the_plain_recursion(
    scale: float, forbidden: float | None
) -> None:
    crf, emissions_NWK, mask_NW = make_crf(scale=scale, forbidden=forbidden)
    weight_N = torch.tensor([0.3, -2.0, 1.0, 0.7, 5.0], dtype=torch.double)
    inputs = [emissions_NWK, *crf.parameters()]
    results = []
    for log_partition in (crf.log_partition, lambda *x: plain_log_partition(crf, *x)):
        log_partition_N = log_partition(emissions_NWK, mask_NW)
        gradients = torch.autograd.grad((weight_N * log_partition_N).sum(), inputs)
        results.append([log_partition_N.detach(), *gradients])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-12)


def test_the_loss_passes_gradcheck() -> None:
    crf, emissions_NWK, mask_NW = make_crf()
    labels_NW = torch.arange(N * W).view(N, W) % K

    def loss(emissions_NWK: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        names = [name for name, _ in crf.named_parameters()]
        loss_N: torch.Tensor = torch.func.functional_call(
            _Loss(crf),
            {f"crf.{name}": value for name, value in zip(names, parameters, strict=True)},
            (emissions_NWK, mask_NW, labels_NW),
        )
        return loss_N

    assert torch.autograd.gradcheck(loss, (emissions_NWK, *crf.parameters()))


class _Loss(torch.nn.Module):
    def __init__(self, crf: LinearChainCRF) -> None:
        super().__init__()
        self.crf = crf

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.crf.neg_log_likelihood(*inputs)


def test_impossible_transitions_have_no_probability_and_finite_gradients() -> None:
    """After the last tag nothing may follow, so it can only end a sentence."""
    crf, emissions_NWK, mask_NW = make_crf()
    with torch.no_grad():
        crf.transitions_KK[3] = -math.inf
        crf.start_transitions_K[0] = -math.inf
    loss_N = crf.log_partition(emissions_NWK, mask_NW)
    loss_N.sum().backward()
    gradients = [emissions_NWK.grad, *(parameter.grad for parameter in crf.parameters())]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    marginals_NWK = crf.marginals(emissions_NWK, mask_NW)
    assert not marginals_NWK[:, 0, 0].any()
    for number, length in enumerate(LENGTHS):
        assert not marginals_NWK[number, : length - 1, 3].any()
    torch.testing.assert_close(marginals_NWK.sum(-1), mask_NW.double())


def test_scores_at_padding_do_not_count() -> None:
    crf, emissions_NWK, mask_NW = make_crf()
    changed_NWK = emissions_NWK.detach().masked_fill(~mask_NW[..., None], math.nan)
    changed_NWK.requires_grad_()
    gradients, changed_gradients = (
        torch.autograd.grad(crf.log_partition(x_NWK, mask_NW).sum(), [x_NWK, *crf.parameters()])
        for x_NWK in (emissions_NWK, changed_NWK)
    )
    assert all(map(torch.equal, gradients, changed_gradients))
    assert not gradients[0][~mask_NW].any()
    assert torch.equal(
        crf.marginals(changed_NWK, mask_NW), crf.marginals(emissions_NWK.detach(), mask_NW)
    )


def test_float32_scores_give_a_float32_loss_as_exact_as_float64() -> None:
    crf, emissions_NWK, mask_NW = make_crf(scale=5.0)
    expected_N = plain_log_partition(crf, emissions_NWK, mask_NW)
    actual_N = crf.float().log_partition(emissions_NWK.float(), mask_NW)
    assert actual_N.dtype == torch.float32
    torch.testing.assert_close(actual_N.double(), expected_N, rtol=1e-6, atol=0)
