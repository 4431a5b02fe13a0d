"""What each family is pretrained to do: objective(model, batch, carry) -> LossOut.

Losses are in nats. Shapes: N predicted positions, V vocabulary, D width, S sampled candidates.
"""

import dataclasses
import math
from typing import Any

import torch
from torch.nn import functional as F

from lineage.models.base import LossOutput, embed
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.models.layers.softmax import SoftmaxInputs, blockwise_cross_entropy


def causal_lm_loss(model: Any, batch: Batch, carry: Any = None) -> LossOutput:
    """The next token, from what stands to its left (GPT; Radford et al. 2018, section 3.1)."""
    top_ND, targets_N = select_targets(model.encode(batch)[-1], batch)
    nats, count = cross_entropy_nats(model.read_out(top_ND), targets_N), len(targets_N)
    return LossOutput(nats / max(count, 1), {"causal": nats.detach()}, {"causal": count}, carry)


def split_directions(batch: Batch) -> tuple[Batch, ...]:
    """The forward windows and the backward ones, of what a stream of two directions gives: ids, mask and targets alone."""
    assert batch.targets_BT is not None
    predicted_N, size = batch.target_positions(), batch.targets_BT.numel() // 2
    every = (
        len(predicted_N) == 2 * size
    )  # as always in training; to look for each half's own would be to wait for a GPU
    split = (
        predicted_N.chunk(2)
        if every
        else (predicted_N[predicted_N < size], predicted_N[predicted_N >= size])
    )
    ids, masks, targets = (x.chunk(2) for x in (batch.ids_BT, batch.mask_BT, batch.targets_BT))
    return tuple(
        Batch(ids[i], masks[i], targets_BT=targets[i], target_positions_N=split[i] - i * size)
        for i in (0, 1)
    )


def select_targets(x_BTD: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, D) vectors at the positions that have a target, and the targets, (N,)."""
    assert batch.targets_BT is not None
    return _select_rows(x_BTD.flatten(0, 1), batch.targets_BT.flatten(), batch.target_positions())


def cross_entropy_nats(read_out: SoftmaxInputs, targets_N: torch.Tensor) -> torch.Tensor:
    """Nats of all targets over the full vocabulary. The one place where the logits of training are made, and so the one to compile on a GPU."""
    if targets_N.device.type == "cpu":
        return blockwise_cross_entropy(read_out, targets_N)
    return F.cross_entropy(F.linear(*read_out), targets_N, reduction="sum")


def _select_rows(
    x_MD: torch.Tensor, targets_M: torch.Tensor, positions_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        (x_MD, targets_M)
        if len(positions_N) == len(targets_M)
        else (x_MD[positions_N], targets_M[positions_N])
    )


def bidirectional_lm_loss(model: Any, batch: Batch, carry: Any = None) -> LossOutput:
    """The next word from the left and the previous word from the right, half of the loss each (Peters et al. 2018, section 3.1).

    The first half of the batch's rows are forward windows, the second half backward ones; `carry` is the state of both.
    """
    tokens_BTP = model.tokens(batch)
    outputs, state = model.run(tokens_BTP.view(2, -1, *tokens_BTP.shape[1:]), carry)
    sums, counts = {}, {}
    for name, top_BTP, half in zip(
        ("forward", "backward"),
        F.dropout(outputs[-1], model.config.dropout, model.training),
        split_directions(batch),
        strict=True,
    ):
        x_NP, targets_N = select_targets(top_BTP, half)
        sums[name], counts[name] = (
            full_or_sampled_softmax_nats(model, x_NP, targets_N),
            len(targets_N),
        )
    loss = sum(0.5 * sums[name] / max(counts[name], 1) for name in sums)
    assert isinstance(loss, torch.Tensor)
    return LossOutput(loss, {name: value.detach() for name, value in sums.items()}, counts, state)


def regularized_lm_loss(model: Any, batch: Batch, carry: Any = None) -> LossOutput:
    """The next word in reading order, with state carried, and AWD-LSTM's two penalties in training (Merity et al. 2018, section 4.6).

    Alpha times the mean square of the dropped last outputs, and beta times that of the change of the undropped ones from position to position.
    """
    outputs, dropped_BTE, state = model.run(batch.ids_BT, carry)
    top_NE, targets_N = select_targets(dropped_BTE, batch)
    nats, count = cross_entropy_nats(model.read_out(top_NE), targets_N), len(targets_N)
    loss, top = nats / max(count, 1), outputs[-1]
    if model.training:
        loss = loss + model.config.activation_penalty * dropped_BTE.float().square().mean()
        if top.shape[1] > 1:
            loss = (
                loss
                + model.config.temporal_activation_penalty
                * (top[:, 1:] - top[:, :-1]).float().square().mean()
            )
    direction = "backward" if batch.is_backward else "forward"
    return LossOutput(loss, {direction: nats.detach()}, {direction: count}, state)


def auxiliary_lm_loss(model: Any, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The auxiliary loss of fine-tuning: the mean over texts of each one's mean nats a next token (Radford et al. 2018, section 3.2).

    As in the code released with it every token after the first is predicted, the marks between and after texts too.
    """
    predicted = batch.mask_BT[:, 1:]
    nats_N = F.cross_entropy(
        model.logits(top_BTD[:, :-1][predicted]), batch.ids_BT[:, 1:][predicted], reduction="none"
    )
    lengths_B1 = predicted.sum(1, keepdim=True)
    return (nats_N / lengths_B1.expand_as(predicted)[predicted]).sum() / len(predicted)


def full_or_sampled_softmax_nats(
    model: Any, x_ND: torch.Tensor, targets_N: torch.Tensor
) -> torch.Tensor:
    """Summed nats: over the full vocabulary, or, in training with `samples`, over sampled candidates, which is much faster and no perplexity."""
    num_samples = model.config.softmax_samples
    if model.training and num_samples is not None and num_samples < model.vocabulary:
        return sampled_softmax_nats(model.read_out(x_ND), targets_N, num_samples=num_samples)
    return cross_entropy_nats(model.read_out(x_ND), targets_N)


def sampled_softmax_nats(
    read_out: SoftmaxInputs, targets_N: torch.Tensor, *, num_samples: int
) -> torch.Tensor:
    """Summed nats over each target and as many candidates from a vocabulary in order of frequency, fewer than it has words (Jean et al. 2015).

    Logits are corrected by the log of how often a candidate is expected, and a candidate that is the target itself is left out.
    """
    x_ND, weight_VD, bias_V = read_out
    assert bias_V is not None
    probabilities_V = _log_uniform_probabilities(torch.arange(len(weight_VD), device=x_ND.device))
    candidates_S, stop_time = sample_without_replacement(probabilities_V, num_samples)
    ids = torch.cat([targets_N, candidates_S])
    correction = torch.log(-torch.expm1(-probabilities_V[ids] * stop_time))
    weight, bias = embed(weight_VD, ids), bias_V[ids] - correction
    n = len(targets_N)
    true_N1 = (x_ND * weight[:n]).sum(-1, keepdim=True) + bias[:n, None]
    other_NS = torch.addmm(bias[n:], x_ND, weight[n:].T).masked_fill(
        targets_N[:, None] == candidates_S[None], float("-inf")
    )
    return (torch.logsumexp(torch.cat([true_N1, other_NS], 1), 1) - true_N1[:, 0]).sum()


def sample_without_replacement(
    probabilities_V: torch.Tensor, num_samples: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The (S,) words of draws that go on until so many differ, and how many draws that took.

    TensorFlow's sampler, that of ELMo's code, draws one by one and drops what it has. Here a clock for each word rings after an exponential
    time, with the word's probability as its rate: the first to ring are distributed as those draws, and a word is expected among them with
    1 - exp(-rate * time). That is one pass, of a size known before, so that a GPU never waits.
    """
    arrival_times_V = torch.rand_like(probabilities_V).log_().neg_() / probabilities_V
    first = arrival_times_V.topk(num_samples, largest=False, sorted=False)
    return first.indices, first.values.max()


def _log_uniform_probabilities(ids: torch.Tensor) -> torch.Tensor:
    """p = log((id + 2) / (id + 1)) / log(V + 1): nearly Zipf's law, for ids in order of frequency."""
    return torch.log1p(1.0 / (ids + 1.0)) / math.log(len(ids) + 1)


def masked_lm_loss(model: Any, batch: Batch, carry: Any = None) -> LossOutput:
    """The masked tokens, on their positions only, and whether the second segment follows the first (Devlin et al. 2019, section 3.1)."""
    top_BTD = model.encode(batch)[-1]
    top_ND, targets_N = select_targets(top_BTD, batch)
    nats, count = cross_entropy_nats(model.read_out(top_ND), targets_N), len(targets_N)
    return _add_next_sentence_loss(
        LossOutput(nats / max(count, 1), {"masked": nats.detach()}, {"masked": count}, carry),
        model,
        batch,
        top_BTD,
    )


def _add_next_sentence_loss(
    out: LossOutput, model: Any, batch: Batch, top_BTD: torch.Tensor
) -> LossOutput:
    """The loss with that of the second segment, where it has a label."""
    if batch.next_sentence_labels_B is None:
        return out
    logits_B2, count = model.next_sentence_logits(top_BTD, batch), len(batch.next_sentence_labels_B)
    nats, correct = (
        F.cross_entropy(logits_B2, batch.next_sentence_labels_B, reduction="sum"),
        (logits_B2.argmax(-1) == batch.next_sentence_labels_B).sum(),
    )
    sums = {"next": nats.detach(), "next_right": correct.to(nats.dtype)}
    return LossOutput(
        out.loss + nats / count,
        out.nats | sums,
        out.target_counts | dict.fromkeys(sums, count),
        out.recurrent_state,
    )


def directional_lm_loss(model: Any, batch: Batch, carry: Any = None) -> LossOutput:
    """Every piece of the text from what stands to its left; joined, from its right too, half of the loss each (Peters et al. 2018, section 3.1).

    On the very batches that `masked_lm` learns from: the targets say what stood under the masks. Marks are read, and not predicted.
    """
    assert batch.targets_BT is not None
    batch = dataclasses.replace(
        batch, ids_BT=torch.where(batch.targets_BT == IGNORE_INDEX, batch.ids_BT, batch.targets_BT)
    )
    top_BTD = model.encode(batch)[-1]
    nats_by_direction = {
        name: (nats_N.sum(), len(nats_N))
        for name, (_, nats_N) in directional_nats(model, batch, top_BTD).items()
    }
    loss = sum(
        (total / max(count, 1) for total, count in nats_by_direction.values()), torch.zeros(())
    ) / len(nats_by_direction)
    out = LossOutput(
        loss,
        {name: total.detach() for name, (total, _) in nats_by_direction.items()},
        {name: count for name, (_, count) in nats_by_direction.items()},
        carry,
    )
    return _add_next_sentence_loss(out, model, batch, top_BTD)


def directional_nats(
    model: Any, batch: Batch, top_BTD: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For each direction the (N,) items whose pieces are predicted, and their nats."""
    assert batch.text_mask_BT is not None
    ids_BT, text_BT, joined = batch.ids_BT, batch.text_mask_BT, model.config.ways == 2
    D = top_BTD.shape[-1] // model.config.ways
    forward = (top_BTD[:, :-1, :D], ids_BT[:, 1:], text_BT[:, 1:])
    backward = (top_BTD[:, 1:, D:], ids_BT[:, :-1], text_BT[:, :-1])
    nats_by_direction = {}
    for name, (x_BTD, targets_BT, where_BT) in (
        (("forward", forward), ("backward", backward)) if joined else (("causal", forward),)
    ):
        nats_N = F.cross_entropy(
            model.logits(x_BTD[where_BT]), targets_BT[where_BT], reduction="none"
        )
        nats_by_direction[name] = (where_BT.nonzero()[:, 0], nats_N)
    return nats_by_direction


def compute_lm_metrics(
    nats: dict[str, float], targets: dict[str, int], text_bytes: int
) -> dict[str, float]:
    """What sums over held text amount to: bits per byte for each direction of a language model, nats a target for the rest, or a share right."""
    metrics = {}
    for name, total in nats.items():
        if name in ("causal", "forward", "backward"):
            metrics["bits_per_byte" if name == "causal" else f"bits_per_byte_{name}"] = total / (
                math.log(2) * max(text_bytes, 1)
            )
        else:
            metric = (
                f"{name.removesuffix('_right')}_accuracy"
                if name.endswith("_right")
                else f"{name}_nats"
            )
            metrics[metric] = total / max(targets[name], 1)
    return metrics
