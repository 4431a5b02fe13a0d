"""Compare three parts of ELMo with simpler implementations.

Its LSTM is compared with a Python loop over the steps, its character encoder with one that reads
every token instead of every distinct word, and its sampled softmax with one of dense gradients.
Shapes: B items, T positions, P projection, H units, N targets, S sampled words, V vocabulary,
D width; a leading 2 is the direction.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.contest import Contest, SpeedTarget, TimedCall
from benchmarks.text import sample_words
from lineage.families import elmo
from lineage.networks.batch import Batch
from lineage.networks.layers.lstm import ProjectedLSTM
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.tokenizers.word_bytes import trim_padding, word_byte_table
from lineage.training.objectives import (
    cross_entropy_nats,
    sample_without_replacement,
    sampled_softmax_nats,
)
from lineage.training.optimizers import clip_gradients, densify_gradients
from lineage.training.state import RngState

SoftmaxNats = Callable[[SoftmaxInputs, torch.Tensor], torch.Tensor]
CLIP = 3.0  # of cells and projections
SEQ_LEN = 20
MAX_WORD_BYTES = 50
ELMO_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
STEP_BY_STEP = "step by step"
STEP_BY_STEP_SLICED = "step by step, sliced"


class StepByStepLSTM(nn.Module):
    """One direction of ELMo's LSTM as a Python loop: two linear layers, two clips, a projection."""

    def __init__(self, num_units: int, projection_size: int) -> None:
        super().__init__()
        self.input = nn.Linear(projection_size, 4 * num_units, bias=False)
        self.state = nn.Linear(projection_size, 4 * num_units)
        self.project = nn.Linear(num_units, projection_size, bias=False)

    def forward(self, x_BTP: torch.Tensor, *, sliced: bool) -> torch.Tensor:
        """Return the outputs, (B, T, P).

        `sliced` reads x[:, t] and writes into a tensor, as AllenNLP does. Otherwise the input is
        unbound and the outputs are stacked.
        """
        B = len(x_BTP)
        output_BP = x_BTP.new_zeros(B, self.project.out_features)
        cell_BH = x_BTP.new_zeros(B, self.project.in_features)
        if sliced:
            outputs_BTP = x_BTP.new_zeros(x_BTP.shape)
            for t in range(x_BTP.shape[1]):
                output_BP, cell_BH = self._step(x_BTP[:, t], output_BP, cell_BH)
                outputs_BTP[:, t] = output_BP
            return outputs_BTP
        outputs = []
        for x_BP in x_BTP.unbind(1):
            output_BP, cell_BH = self._step(x_BP, output_BP, cell_BH)
            outputs.append(output_BP)
        return torch.stack(outputs, 1)

    def _step(
        self, x_BP: torch.Tensor, output_BP: torch.Tensor, cell_BH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates = self.input(x_BP) + self.state(output_BP)
        update, in_gate, forget, out = gates.chunk(4, -1)
        cell_BH = torch.sigmoid(in_gate) * torch.tanh(update) + torch.sigmoid(forget) * cell_BH
        cell_BH = cell_BH.clamp(-CLIP, CLIP)
        output_BP = self.project(torch.sigmoid(out) * torch.tanh(cell_BH)).clamp(-CLIP, CLIP)
        return output_BP, cell_BH


def lstm_contest(*, quick: bool, num_units: int, batch_size: int) -> Contest:
    """Run one layer forward and backward, in both directions."""
    H = 16 if quick else num_units
    P = 4 if quick else num_units // 8
    B = 2 if quick else batch_size
    T = 5 if quick else SEQ_LEN
    our_lstm = ProjectedLSTM(
        num_layers=1,
        projection_size=P,
        cell_size=H,
        cell_clip=CLIP,
        projection_clip=CLIP,
        dropout=0.0,
    )
    our_lstm.init_weights(torch.Generator().manual_seed(1))
    their_lstms = nn.ModuleList(StepByStepLSTM(H, P) for _ in range(2))
    _copy_lstm_weights(our_lstm, their_lstms)
    generator = torch.Generator().manual_seed(2)
    x_2BTP = torch.randn(2, B, T, P, generator=generator, requires_grad=True)
    loss_weights_2BTP = torch.randn(2, B, T, P, generator=generator)

    def run_ours() -> torch.Tensor:
        layer_outputs, _ = our_lstm(x_2BTP, None)
        return layer_outputs[-1]

    def run_theirs(*, sliced: bool) -> torch.Tensor:
        pairs = zip(their_lstms, x_2BTP, strict=True)
        return torch.stack([lstm(x_BTP, sliced=sliced) for lstm, x_BTP in pairs])

    def make_step(run_lstm: Callable[[], torch.Tensor]) -> Callable[[], tuple[float, float]]:
        def step() -> tuple[float, float]:
            x_2BTP.grad = None
            loss = (run_lstm() * loss_weights_2BTP).sum()
            loss.backward()
            assert x_2BTP.grad is not None
            return float(loss.detach()), float(x_2BTP.grad.norm())

        return step

    our_step = make_step(run_ours)
    their_step = make_step(lambda: run_theirs(sliced=False))
    required, desired = (1.1, 1.4) if num_units == 512 else (1.5, 2.0)
    contest = Contest(
        f"ELMo cell, {num_units}, {B} rows",
        f"{H} units, projection {P}, both directions, T {T}, B {B}, clips {CLIP}",
        units_per_step=2 * B * T,
        unit="positions",
        sides={
            "ours": our_step,
            STEP_BY_STEP: their_step,
            STEP_BY_STEP_SLICED: make_step(lambda: run_theirs(sliced=True)),
        },
        targets=[
            SpeedTarget("ours", STEP_BY_STEP, required, desired),
            SpeedTarget("ours", STEP_BY_STEP_SLICED),
        ],
    )
    contest.check_equal(
        "parameters", _count_parameters(our_lstm), _count_parameters(their_lstms), tolerance=0
    )
    our_sum, our_norm = our_step()
    their_sum, their_norm = their_step()
    contest.check_equal("sum", our_sum, their_sum, tolerance=1e-3)
    contest.check_equal("norm of the input's gradient", our_norm, their_norm, tolerance=1e-3)
    return contest


@torch.no_grad()
def _copy_lstm_weights(our_lstm: ProjectedLSTM, their_lstms: nn.ModuleList) -> None:
    layer = our_lstm.layers[0]
    bias_2G = layer.bias.view(2, -1)
    for direction, lstm in enumerate(their_lstms):
        lstm.input.weight.copy_(layer.weight_ih[direction].T)
        lstm.state.weight.copy_(layer.weight_hh[direction].T)
        lstm.project.weight.copy_(layer.weight_hr[direction].T)
        lstm.state.bias.copy_(bias_2G[direction])


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def character_encoder_contest(*, quick: bool) -> Contest:
    """Encode the words of real text by their bytes, forward and backward.

    We encode each distinct word once, without its padding; the other side encodes every token over
    all 50 bytes.
    """
    (B, T) = (2, 5) if quick else (32, SEQ_LEN)
    filters = ((1, 8), (2, 8)) if quick else ELMO_FILTERS
    config = elmo.ElmoConfig(
        num_layers=1,
        cell_to_projection_ratio=1,
        filters=filters,
        char_embedding_size=16,
        num_highway_layers=2,
        dropout=0.0,
        cell_clip=CLIP,
        projection_clip=CLIP,
        softmax_samples=None,
        projection_size=8 if quick else 512,
        cell_size=8,
    )
    model = elmo.ElmoModel(config, vocab_size=11)
    model.init_weights(torch.Generator().manual_seed(1))
    char_cnn = model.char_cnn
    assert char_cnn is not None
    words = sample_words(B * T)
    byte_ids_NC = torch.from_numpy(word_byte_table(words, MAX_WORD_BYTES).astype("int64"))
    vector_size = model.hidden_sizes()[0] // 2
    loss_weights = torch.randn(B * T, vector_size, generator=torch.Generator().manual_seed(2))

    def encode_distinct_words() -> torch.Tensor:
        byte_ids_UC, word_rows_N = np.unique(byte_ids_NC.numpy(), axis=0, return_inverse=True)
        word_rows_BT = torch.from_numpy(word_rows_N.reshape(B, T))
        batch = Batch(
            word_rows_BT,
            word_rows_BT >= 0,
            byte_ids_UC=torch.from_numpy(trim_padding(byte_ids_UC)),
            word_rows_BT=word_rows_BT,
        )
        return model.token_vectors(batch).flatten(0, 1)

    def encode_every_token() -> torch.Tensor:
        x = char_cnn.byte_embeddings(byte_ids_NC).transpose(1, 2)
        features = [torch.relu(convolution(x).amax(-1)) for convolution in char_cnn.convolutions]
        x = torch.cat(features, -1)
        for highway in char_cnn.highways:
            x = highway(x)
        return char_cnn.projection(x)

    def make_step(encode: Callable[[], torch.Tensor]) -> Callable[[], tuple[float, float]]:
        def step() -> tuple[float, float]:
            model.zero_grad()
            loss = (encode() * loss_weights).sum()
            loss.backward()
            gradients = [
                parameter.grad for parameter in char_cnn.parameters() if parameter.grad is not None
            ]
            return float(loss.detach()), float(nn.utils.get_total_norm(gradients))

        return step

    our_step = make_step(encode_distinct_words)
    their_step = make_step(encode_every_token)
    num_filters = sum(count for _, count in filters)
    distinct_share = len(set(words)) / len(words)
    contest = Contest(
        "ELMo characters",
        f"{num_filters} filters, 2 highways, {B} x {T} words, {distinct_share:.0%} distinct",
        units_per_step=B * T,
        unit="words",
        sides={"ours fp32": our_step, "Conv1d per token": their_step},
        targets=[SpeedTarget("ours fp32", "Conv1d per token", 3.0, 7.0)],
    )
    our_sum, our_norm = our_step()
    their_sum, their_norm = their_step()
    contest.check_equal("sum", our_sum, their_sum, tolerance=1e-3)
    contest.check_equal("gradient norm", our_norm, their_norm, tolerance=1e-3)
    return contest


def dense_sampled_softmax_nats(
    inputs: SoftmaxInputs, targets_N: torch.Tensor, *, num_samples: int
) -> torch.Tensor:
    """Sum the nats of a sampled softmax with plain indexing.

    The gradient of the weights is a dense table of the whole vocabulary.
    """
    x_ND, weight_VD, bias_V = inputs
    assert bias_V is not None
    N = len(targets_N)
    V = len(weight_VD)
    rates_V = torch.log1p(1 / torch.arange(1.0, V + 1)) / math.log(V + 1)
    samples_S, stop_time = sample_without_replacement(rates_V, num_samples)
    ids = torch.cat([targets_N, samples_S])
    expected_counts = -torch.expm1(-rates_V[ids] * stop_time)
    weight = weight_VD[ids]
    bias = bias_V[ids] - expected_counts.log()
    target_logits_N = (x_ND * weight[:N]).sum(1) + bias[:N]
    sample_logits_NS = F.linear(x_ND, weight[N:], bias[N:])
    is_target_NS = targets_N[:, None] == samples_S
    sample_logits_NS = sample_logits_NS.masked_fill(is_target_NS, -math.inf)
    logits = torch.cat([target_logits_N[:, None], sample_logits_NS], 1)
    return F.cross_entropy(logits, torch.zeros_like(targets_N), reduction="sum")


class SoftmaxStep:
    """A training step of the softmax alone, for both directions.

    It is the loss, gradients, gradient clipping and update. Each step draws new targets,
    log-uniformly over the vocabulary.
    """

    def __init__(
        self, compute_nats: SoftmaxNats, optimizer_name: str, *, V: int, N: int, P: int
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.compute_nats = compute_nats
        self.weight_VP = nn.Parameter(torch.randn(V, P, generator=generator) / P**0.5)
        self.bias_V = nn.Parameter(torch.zeros(V))
        self.x_2NP = torch.randn(2, N, P, generator=generator, requires_grad=True)
        self.rng_state = RngState(2)
        parameters = [self.weight_VP, self.bias_V]
        self.optimizer: torch.optim.Optimizer
        if optimizer_name == "adagrad":
            self.optimizer = torch.optim.Adagrad(
                parameters, 0.2, initial_accumulator_value=1.0, eps=0.0
            )
        else:
            self.optimizer = torch.optim.AdamW(parameters, fused=True)

    def __call__(self) -> tuple[float, float]:
        """Run the step, and return the loss and the norm of the gradient."""
        _, N, _ = self.x_2NP.shape
        V = len(self.weight_VP)
        with self.rng_state.activate(torch.device("cpu")):
            log_ranks_2N = torch.rand(2, N) * math.log(V + 1)
            targets_2N = (torch.exp(log_ranks_2N).long() - 1).clamp(0, V - 1)
            nats = [
                self.compute_nats((x_NP, self.weight_VP, self.bias_V), targets_N)
                for x_NP, targets_N in zip(self.x_2NP, targets_2N, strict=True)
            ]
            loss = sum(nats) / N
        loss.backward()
        norm = clip_gradients([self.weight_VP, self.bias_V], 1.0)
        densify_gradients(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach()), float(norm)


def softmax_contest(*, quick: bool) -> Contest:
    """Train the softmax with sparse, dense and full gradients.

    AdaGrad is ELMo's own optimizer. AdamW needs dense gradients, which our side makes from the
    sparse ones.
    """
    (V, N, P, S) = (997, 5, 4, 20) if quick else (100_000, 640, 128, 8192)

    def sparse_nats(inputs: SoftmaxInputs, targets_N: torch.Tensor) -> torch.Tensor:
        return sampled_softmax_nats(inputs, targets_N, num_samples=S)

    def dense_nats(inputs: SoftmaxInputs, targets_N: torch.Tensor) -> torch.Tensor:
        return dense_sampled_softmax_nats(inputs, targets_N, num_samples=S)

    def build_step(compute_nats: SoftmaxNats, optimizer_name: str) -> SoftmaxStep:
        return SoftmaxStep(compute_nats, optimizer_name, V=V, N=N, P=P)

    steps = {
        "ours, adagrad": build_step(sparse_nats, "adagrad"),
        "dense, adagrad": build_step(dense_nats, "adagrad"),
        "full softmax, adagrad": build_step(cross_entropy_nats, "adagrad"),
        "ours, adamw": build_step(sparse_nats, "adamw"),
        "dense, adamw": build_step(dense_nats, "adamw"),
    }
    sides: dict[str, TimedCall] = dict(steps)
    size = f"V {V:,}, P {P}, both directions, {N} positions each, {S:,} candidates"
    contest = Contest(
        "ELMo softmax",
        f"{size}; the softmax and its update alone",
        units_per_step=2 * N,
        unit="positions",
        sides=sides,
        targets=[
            SpeedTarget("ours, adagrad", "dense, adagrad"),
            SpeedTarget("ours, adamw", "dense, adamw"),
            SpeedTarget("ours, adagrad", "full softmax, adagrad"),
        ],
    )
    for optimizer_name in ("adagrad", "adamw"):
        our_step = steps[f"ours, {optimizer_name}"]
        their_step = steps[f"dense, {optimizer_name}"]
        for _ in range(3):
            our_loss, our_norm = our_step()
            their_loss, their_norm = their_step()
            contest.check_equal(f"loss, {optimizer_name}", our_loss, their_loss)
            contest.check_equal(f"gradient norm, {optimizer_name}", our_norm, their_norm)
        contest.check_equal(
            f"norm of the table, {optimizer_name}",
            float(our_step.weight_VP.detach().norm()),
            float(their_step.weight_VP.detach().norm()),
            tolerance=1e-6,
        )
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "cell512": lambda *, quick: lstm_contest(quick=quick, num_units=512, batch_size=32),
    "cell512_wide": lambda *, quick: lstm_contest(quick=quick, num_units=512, batch_size=128),
    "cell4096": lambda *, quick: lstm_contest(quick=quick, num_units=4096, batch_size=32),
    "characters": character_encoder_contest,
    "sampled": softmax_contest,
}
