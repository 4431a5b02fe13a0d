"""Pretraining objectives: objective(model, batch, recurrent_state) -> LossOutput.

Losses are in nats. Shapes: B items, T positions, N predicted positions, V vocabulary, D width,
P projection, E embedding, S sampled candidates.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from lineage.networks.base import Encoder, LossOutput, embed
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.networks.layers.softmax import SoftmaxInputs, blockwise_cross_entropy


def mean_loss(name: str, nats: torch.Tensor, count: int, recurrent_state: Any) -> LossOutput:
    """Return the mean over `count` targets as the only loss, of this name."""
    return LossOutput(nats / max(count, 1), {name: nats.detach()}, {name: count}, recurrent_state)


def causal_lm_loss(model: Encoder, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """Predict the next token from those to its left (GPT; Radford et al. 2018, section 3.1).

    Each batch starts from a zero state, so the sampler must not carry one.
    """
    top_ND, targets_N = select_targets(model.encode(batch)[-1], batch)
    nats = cross_entropy_nats(model.softmax_inputs(top_ND), targets_N)
    return mean_loss("causal", nats, len(targets_N), recurrent_state)


def bidirectional_lm_loss(model: Any, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """Predict the next word from the left and the previous word from the right.

    Each is half of the loss (Peters et al. 2018, section 3.1). The first half of the batch's rows
    are forward windows, the second half backward ones; the state holds both directions.
    """
    tokens_BTP = model.token_vectors(batch)
    tokens_2BTP = tokens_BTP.view(2, -1, *tokens_BTP.shape[1:])
    outputs, state = model.run_layers(tokens_2BTP, recurrent_state)
    top_2BTP = F.dropout(outputs[-1], model.config.dropout, model.training)
    sums = {}
    counts = {}
    for name, top_BTP, half in zip(
        ("forward", "backward"), top_2BTP, split_directions(batch), strict=True
    ):
        x_NP, targets_N = select_targets(top_BTP, half)
        sums[name] = full_or_sampled_softmax_nats(model, x_NP, targets_N)
        counts[name] = len(targets_N)
    loss = sum(0.5 * sums[name] / max(counts[name], 1) for name in sums)
    assert isinstance(loss, torch.Tensor)
    return LossOutput(loss, {name: value.detach() for name, value in sums.items()}, counts, state)


def regularized_lm_loss(model: Any, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """Predict the next word in reading order, with AWD-LSTM's two penalties.

    In training the loss adds alpha times the mean square of the last outputs after dropout, and
    beta times the mean square of the change of the outputs before dropout from position to
    position (Merity et al. 2018, section 4.6).
    """
    outputs, dropped_BTE, state = model.run_layers(batch.ids_BT, recurrent_state)
    top_NE, targets_N = select_targets(dropped_BTE, batch)
    nats = cross_entropy_nats(model.softmax_inputs(top_NE), targets_N)
    direction = "backward" if batch.is_backward else "forward"
    output = mean_loss(direction, nats, len(targets_N), state)
    loss = output.loss
    top_BTE = outputs[-1]
    if model.training:
        loss = loss + model.config.activation_penalty * dropped_BTE.float().square().mean()
        if top_BTE.shape[1] > 1:
            change = (top_BTE[:, 1:] - top_BTE[:, :-1]).float()
            loss = loss + model.config.temporal_activation_penalty * change.square().mean()
    return dataclasses.replace(output, loss=loss)


def masked_lm_loss(model: Encoder, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """Predict the masked tokens, and whether the second segment follows the first.

    (Devlin et al. 2019, section 3.1.) Logits are computed at masked positions only.
    """
    top_BTD = model.encode(batch)[-1]
    top_ND, targets_N = select_targets(top_BTD, batch)
    nats = cross_entropy_nats(model.softmax_inputs(top_ND), targets_N)
    output = mean_loss("masked", nats, len(targets_N), recurrent_state)
    return _add_next_sentence_loss(output, model, batch, top_BTD)


def _add_next_sentence_loss(
    output: LossOutput, model: Any, batch: Batch, top_BTD: torch.Tensor
) -> LossOutput:
    labels_B = batch.next_sentence_labels_B
    if labels_B is None:
        return output
    logits_B2 = model.next_sentence_logits(top_BTD, batch)
    nats = F.cross_entropy(logits_B2, labels_B, reduction="sum")
    num_correct = (logits_B2.argmax(-1) == labels_B).sum()
    count = len(labels_B)
    sums = {"next_sentence": nats.detach(), "next_sentence_correct": num_correct.to(nats.dtype)}
    return LossOutput(
        output.loss + nats / count,
        output.nats | sums,
        output.target_counts | dict.fromkeys(sums, count),
        output.recurrent_state,
    )


def directional_lm_loss(model: Any, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """Predict every token of the text from those to its left, on the batches of `masked_lm_loss`.

    With two directions, tokens are also predicted from those to their right, and each is half of
    the loss (Peters et al. 2018, section 3.1). The targets restore the masked tokens. Special
    tokens are read but not predicted.
    """
    assert batch.targets_BT is not None
    is_masked = batch.targets_BT != IGNORE_INDEX
    batch = dataclasses.replace(
        batch, ids_BT=torch.where(is_masked, batch.targets_BT, batch.ids_BT)
    )
    top_BTD = model.encode(batch)[-1]
    nats = {}
    counts = {}
    for name, _, nats_N in directional_nats(model, batch, top_BTD):
        nats[name] = nats_N.sum()
        counts[name] = len(nats_N)
    losses = (nats[name] / max(counts[name], 1) for name in nats)
    output = LossOutput(
        sum(losses, torch.zeros(())) / len(nats),
        {name: total.detach() for name, total in nats.items()},
        counts,
        recurrent_state,
    )
    return _add_next_sentence_loss(output, model, batch, top_BTD)


def directional_nats(
    model: Any, batch: Batch, top_BTD: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the losses of the text's tokens for each direction in which the model reads.

    They are its name (causal, forward or backward), the (N,) item of each token, and (N,) nats.
    """
    assert batch.text_mask_BT is not None
    ids_BT = batch.ids_BT
    text_BT = batch.text_mask_BT
    D = top_BTD.shape[-1] // model.config.num_directions
    forward_name = "forward" if model.config.num_directions == 2 else "causal"
    inputs = [(forward_name, top_BTD[:, :-1, :D], ids_BT[:, 1:], text_BT[:, 1:])]
    if model.config.num_directions == 2:
        inputs.append(("backward", top_BTD[:, 1:, D:], ids_BT[:, :-1], text_BT[:, :-1]))
    for name, x_BTD, targets_BT, where_BT in inputs:
        logits_NV = model.logits(x_BTD[where_BT])
        nats_N = F.cross_entropy(logits_NV, targets_BT[where_BT], reduction="none")
        yield name, where_BT.nonzero()[:, 0], nats_N


def auxiliary_lm_loss(model: Encoder, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Compute fine-tuning's auxiliary loss: the mean over texts of their mean nats per next token.

    (Radford et al. 2018, section 3.2.) As in the released code every token after the first is
    predicted, including special tokens between and after texts.
    """
    predicted = batch.mask_BT[:, 1:]
    logits_NV = model.logits(top_BTD[:, :-1][predicted])
    nats_N = F.cross_entropy(logits_NV, batch.ids_BT[:, 1:][predicted], reduction="none")
    lengths_N = predicted.sum(1, keepdim=True).expand_as(predicted)[predicted]
    return (nats_N / lengths_N).sum() / len(predicted)


def select_targets(x_BTD: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the (N, D) vectors at positions that have a target, and the (N,) targets."""
    assert batch.targets_BT is not None
    x_MD = x_BTD.flatten(0, 1)
    targets_M = batch.targets_BT.flatten()
    positions_N = batch.target_positions()
    if len(positions_N) == len(targets_M):
        return x_MD, targets_M
    return x_MD[positions_N], targets_M[positions_N]


def split_directions(batch: Batch) -> tuple[Batch, Batch]:
    """Split a batch of two directions into its forward and its backward half.

    The halves hold only ids, mask and targets.
    """
    assert batch.targets_BT is not None
    positions_N = batch.target_positions()
    half_size = batch.targets_BT.numel() // 2
    if len(positions_N) == 2 * half_size:
        # Every position has a target, as always in training. Comparing would wait for a GPU.
        forward_N, backward_N = positions_N.chunk(2)
    else:
        forward_N = positions_N[positions_N < half_size]
        backward_N = positions_N[positions_N >= half_size]
    ids = batch.ids_BT.chunk(2)
    masks = batch.mask_BT.chunk(2)
    targets = batch.targets_BT.chunk(2)
    forward = Batch(ids[0], masks[0], targets_BT=targets[0], target_positions_N=forward_N)
    backward = Batch(
        ids[1], masks[1], targets_BT=targets[1], target_positions_N=backward_N - half_size
    )
    return forward, backward


def cross_entropy_nats(softmax_inputs: SoftmaxInputs, targets_N: torch.Tensor) -> torch.Tensor:
    """Sum the nats of all targets over the full vocabulary.

    Training computes logits only here, so this is the function to compile on a GPU.
    """
    if targets_N.device.type == "cpu":
        return blockwise_cross_entropy(softmax_inputs, targets_N)
    return F.cross_entropy(F.linear(*softmax_inputs), targets_N, reduction="sum")


def full_or_sampled_softmax_nats(
    model: Any, x_ND: torch.Tensor, targets_N: torch.Tensor
) -> torch.Tensor:
    """Sum nats over the full vocabulary, or in training over `softmax_samples` candidates.

    Sampling is much faster, but its nats are not those of the full softmax.
    """
    num_samples = model.config.softmax_samples
    if model.training and num_samples is not None and num_samples < model.vocab_size:
        return sampled_softmax_nats(model.softmax_inputs(x_ND), targets_N, num_samples=num_samples)
    return cross_entropy_nats(model.softmax_inputs(x_ND), targets_N)


def sampled_softmax_nats(
    softmax_inputs: SoftmaxInputs, targets_N: torch.Tensor, *, num_samples: int
) -> torch.Tensor:
    """Sum nats over each target and `num_samples` candidates (Jean et al. 2015).

    The vocabulary is in order of frequency and larger than `num_samples`. Logits are corrected by
    the log of the expected count of a candidate, and a candidate that equals the target is masked.
    """
    x_ND, weight_VD, bias_V = softmax_inputs
    assert bias_V is not None
    ids_V = torch.arange(len(weight_VD), device=x_ND.device)
    # p = log((id + 2) / (id + 1)) / log(V + 1): nearly Zipf's law, for ids by frequency.
    probabilities_V = torch.log1p(1.0 / (ids_V + 1.0)) / math.log(len(ids_V) + 1)
    candidates_S, stop_time = sample_without_replacement(probabilities_V, num_samples)
    ids = torch.cat([targets_N, candidates_S])
    correction = torch.log(-torch.expm1(-probabilities_V[ids] * stop_time))
    weight = embed(weight_VD, ids)
    bias = bias_V[ids] - correction
    n = len(targets_N)
    true_N1 = (x_ND * weight[:n]).sum(-1, keepdim=True) + bias[:n, None]
    other_NS = torch.addmm(bias[n:], x_ND, weight[n:].T)
    is_target_NS = targets_N[:, None] == candidates_S[None]
    other_NS = other_NS.masked_fill(is_target_NS, float("-inf"))
    return (torch.logsumexp(torch.cat([true_N1, other_NS], 1), 1) - true_N1[:, 0]).sum()


def sample_without_replacement(
    probabilities_V: torch.Tensor, num_samples: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw words until `num_samples` differ; return (S,) words and the number of samples.

    As TensorFlow's sampler, which ELMo's code uses, in one pass of a fixed size. Each word gets an
    exponential arrival time whose rate is its probability: the first S to arrive have the same
    distribution, and the expected count of a word is 1 - exp(-rate * time).
    """
    arrival_times_V = torch.rand_like(probabilities_V).log_().neg_() / probabilities_V
    first = arrival_times_V.topk(num_samples, largest=False, sorted=False)
    return first.indices, first.values.max()


@dataclass(frozen=True)
class LossSums:
    """Sums over held-out text by the names of an objective's losses."""

    nats: dict[str, float]
    target_counts: dict[str, int]
    text_bytes: int


def compute_lm_metrics(sums: LossSums) -> dict[str, float]:
    """Turn sums over held-out text into metrics.

    Language models give bits per byte for each direction, X_correct gives X_accuracy, and any other
    loss gives nats per target.
    """
    metrics = {}
    for name, total in sums.nats.items():
        per_target = total / max(sums.target_counts[name], 1)
        bits_per_byte = total / (math.log(2) * max(sums.text_bytes, 1))
        if name == "causal":
            metrics["bits_per_byte"] = bits_per_byte
        elif name in ("forward", "backward"):
            metrics[f"bits_per_byte_{name}"] = bits_per_byte
        elif name.endswith("_correct"):
            metrics[f"{name.removesuffix('_correct')}_accuracy"] = per_target
        else:
            metrics[f"{name}_nats"] = per_target
    return metrics
