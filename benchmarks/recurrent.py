"""ELMo's recurrence beside a step-by-step cell, its character encoder beside convolutions of every token, its softmax beside dense gradients."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.contest import Bar, Contest, Turn
from benchmarks.text import sample_words
from lineage.models import elmo
from lineage.models.batch import Batch
from lineage.models.layers.lstm import ProjectedLSTM
from lineage.tokenizers.word_bytes import trim_padding, word_byte_table
from lineage.training.objectives import (
    cross_entropy_nats,
    sample_without_replacement,
    sampled_softmax_nats,
)
from lineage.training.optimizers import clip_gradients, densify_gradients
from lineage.training.state import RngState

CLIP = 3.0


class PlainCell(nn.Module):
    """One direction, one step after another under autograd: two linear layers, gates, both clips, the projection."""

    def __init__(self, units: int, projection: int) -> None:
        super().__init__()
        self.input, self.state = (
            nn.Linear(projection, 4 * units, bias=False),
            nn.Linear(projection, 4 * units),
        )
        self.project = nn.Linear(units, projection, bias=False)

    def forward(self, x_BTP: torch.Tensor, *, sliced: bool) -> torch.Tensor:
        """(B, T, P) -> (B, T, P). `sliced` as in AllenNLP, which takes x[:, t] and fills a tensor; else unbound and stacked."""
        output, cell = (
            x_BTP.new_zeros(len(x_BTP), self.project.out_features),
            x_BTP.new_zeros(len(x_BTP), self.project.in_features),
        )
        filled, outputs = x_BTP.new_zeros(x_BTP.shape), []
        for index, x in enumerate(x_BTP.unbind(1)):
            update, in_gate, forget, out = (
                self.input(x_BTP[:, index] if sliced else x) + self.state(output)
            ).chunk(4, -1)
            cell = (
                torch.sigmoid(in_gate) * torch.tanh(update) + torch.sigmoid(forget) * cell
            ).clamp(-CLIP, CLIP)
            output = self.project(torch.sigmoid(out) * torch.tanh(cell)).clamp(-CLIP, CLIP)
            if sliced:
                filled[:, index] = output
            outputs.append(output)
        return filled if sliced else torch.stack(outputs, 1)


def cell_contest(*, quick: bool, units: int, batch: int) -> Contest:
    """Forward and backward of one layer of both directions."""
    (H, P, B, T) = (16, 4, 2, 5) if quick else (units, units // 8, batch, 20)
    body = ProjectedLSTM(
        num_layers=1,
        projection_size=P,
        cell_size=H,
        cell_clip=CLIP,
        projection_clip=CLIP,
        dropout=0.0,
    )
    body.init_weights(torch.Generator().manual_seed(1))
    layer, cells = body.layers[0], nn.ModuleList(PlainCell(H, P) for _ in range(2))
    with torch.no_grad():
        for way, cell in enumerate(cells):
            for name, weight in (
                ("input", layer.weight_ih),
                ("state", layer.weight_hh),
                ("project", layer.weight_hr),
            ):
                getattr(cell, name).weight.copy_(weight[way].T)
            cell.state.bias.copy_(layer.bias.view(2, -1)[way])
    draw = torch.Generator().manual_seed(2)
    x, weights = (
        torch.randn(2, B, T, P, generator=draw, requires_grad=True),
        torch.randn(2, B, T, P, generator=draw),
    )

    def turn(
        read: Callable[[], torch.Tensor], found: list[tuple[float, float]]
    ) -> Callable[[], None]:
        def run() -> None:
            x.grad = None
            loss = (read() * weights).sum()
            loss.backward()
            assert x.grad is not None
            found[:] = [(float(loss.detach()), float(x.grad.norm()))]

        return run

    def plain(*, sliced: bool) -> torch.Tensor:
        return torch.stack([cell(some, sliced=sliced) for cell, some in zip(cells, x, strict=True)])

    results: dict[str, list[tuple[float, float]]] = {
        "ours": [],
        "step by step": [],
        "step by step, sliced": [],
    }
    reads = (lambda: body(x, None)[0][-1], lambda: plain(sliced=False), lambda: plain(sliced=True))
    turns = {
        side: turn(read, found) for (side, found), read in zip(results.items(), reads, strict=True)
    }
    must, good = (1.1, 1.4) if units == 512 else (1.5, 2.0)
    bars = [Bar("ours", "step by step", must, good), Bar("ours", "step by step, sliced")]
    work = f"{H} units, projection {P}, both directions, T {T}, B {B}, clips {CLIP}"
    contest = Contest(f"ELMo cell, {units}, {B} rows", work, 2 * B * T, "positions", turns, bars)
    for run in turns.values():
        run()
    contest.alike(
        "parameters",
        *(sum(p.numel() for p in some.parameters()) for some in (body, cells)),
        tolerance=0,
    )
    for what, place in (("sum", 0), ("norm of the input's gradient", 1)):
        contest.alike(
            what, results["ours"][0][place], results["step by step"][0][place], tolerance=1e-3
        )
    return contest


def characters_contest(*, quick: bool) -> Contest:
    """Words of real text -> vectors and back: once per distinct word against once per token, over all 50 bytes."""
    B, T, size = (2, 5, 50) if quick else (32, 20, 50)
    filters = (
        ((1, 8), (2, 8))
        if quick
        else ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    )
    config = elmo.ElmoConfig(num_layers=1, cell_to_projection_ratio=1, filters=filters, char_embedding_size=16, num_highway_layers=2, dropout=0.0, cell_clip=CLIP, projection_clip=CLIP,
                         softmax_samples=None, projection_size=512 if not quick else 8, cell_size=8)  # fmt: skip
    model = elmo.ElmoModel(config, vocab_size=11)
    model.init_weights(torch.Generator().manual_seed(1))
    words = sample_words(B * T)
    every = torch.from_numpy(word_byte_table(words, size).astype("int64"))
    weights = torch.randn(
        B * T, model.hidden_sizes()[0] // 2, generator=torch.Generator().manual_seed(2)
    )

    def ours() -> torch.Tensor:
        distinct, words_N = np.unique(every.numpy(), axis=0, return_inverse=True)
        words_BT = torch.from_numpy(words_N.reshape(B, T))
        batch = Batch(
            words_BT,
            words_BT >= 0,
            byte_ids_UC=torch.from_numpy(trim_padding(distinct)),
            word_rows_BT=words_BT,
        )
        return model.token_vectors(batch).flatten(0, 1)

    def every_token(characters: elmo.CharacterCNN = model.char_cnn) -> torch.Tensor:
        x = characters.byte_embeddings(every).transpose(1, 2)
        x = torch.cat(
            [torch.relu(convolution(x).amax(-1)) for convolution in characters.convolutions], -1
        )
        for highway in characters.highways:
            x = highway(x)
        return characters.projection(x)

    def turn(read: Callable[[], torch.Tensor]) -> Callable[[], tuple[float, float]]:
        def run() -> tuple[float, float]:
            model.zero_grad()
            loss = (read() * weights).sum()
            loss.backward()
            return float(loss.detach()), float(
                nn.utils.get_total_norm(
                    [p.grad for p in model.char_cnn.parameters() if p.grad is not None]
                )
            )

        return run

    turns = {"ours fp32": turn(ours), "Conv1d per token": turn(every_token)}
    work = f"{sum(n for _, n in filters)} filters, 2 highways, {B} x {T} words, {len(set(words)) / len(words):.0%} distinct"
    contest = Contest(
        "ELMo characters",
        work,
        B * T,
        "words",
        turns,
        [Bar("ours fp32", "Conv1d per token", 3.0, 7.0)],
    )
    for what, one, other in zip(
        ("sum", "gradient norm"), turns["ours fp32"](), turns["Conv1d per token"](), strict=True
    ):
        contest.alike(what, one, other, tolerance=1e-3)
    return contest


def dense_sampled(
    x_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor,
    targets_N: torch.Tensor,
    samples: int,
) -> torch.Tensor:
    """The sampled softmax with plain indexing: its gradient is a table of the whole vocabulary."""
    V = len(weight_VD)
    rates_V = torch.log1p(1 / torch.arange(1.0, V + 1)) / math.log(V + 1)
    drawn_S, until = sample_without_replacement(rates_V, samples)
    ids = torch.cat([targets_N, drawn_S])
    expected = -torch.expm1(-rates_V[ids] * until)
    weight, bias, N = weight_VD[ids], bias_V[ids] - expected.log(), len(targets_N)
    logits_NS = F.linear(x_ND, weight[N:], bias[N:]).masked_fill(
        targets_N[:, None] == drawn_S, -math.inf
    )
    logits = torch.cat([((x_ND * weight[:N]).sum(1) + bias[:N])[:, None], logits_NS], 1)
    return F.cross_entropy(logits, torch.zeros_like(targets_N), reduction="sum")


class SoftmaxStep:
    """A step of both directions' softmax alone: loss, gradients, their norm clipped, the update. Words are drawn log-uniformly, new in each step."""

    def __init__(
        self, nats: Callable[..., torch.Tensor], optimizer: str, *, V: int, N: int, P: int
    ) -> None:
        draw = torch.Generator().manual_seed(1)
        self.weight, self.bias = (
            nn.Parameter(torch.randn(V, P, generator=draw) / P**0.5),
            nn.Parameter(torch.zeros(V)),
        )
        self.x, self.draws, self.nats = (
            torch.randn(2, N, P, generator=draw, requires_grad=True),
            RngState(2),
            nats,
        )
        both = [self.weight, self.bias]
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adagrad(both, 0.2, initial_accumulator_value=1.0, eps=0.0)
            if optimizer == "adagrad"
            else torch.optim.AdamW(both, fused=True)
        )

    def __call__(self) -> tuple[float, float]:
        """The loss and the norm of the gradient."""
        with self.draws.activate(torch.device("cpu")):
            targets_2N = (
                torch.exp(torch.rand(self.x.shape[:2]) * math.log(len(self.weight) + 1)).long() - 1
            ).clamp(0, len(self.weight) - 1)
            loss = (
                sum(
                    self.nats((x_NP, self.weight, self.bias), targets_N)
                    for x_NP, targets_N in zip(self.x, targets_2N, strict=True)
                )
                / self.x.shape[1]
            )
        loss.backward()
        norm = clip_gradients([self.weight, self.bias], 1.0)
        densify_gradients(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach()), float(norm)


def softmax_contest(*, quick: bool) -> Contest:
    """AdaGrad is ELMo's own optimizer; AdamW needs a dense gradient in the end, and gets it from the few rows."""
    V, N, P, S = (997, 5, 4, 20) if quick else (100_000, 640, 128, 8192)
    ways: dict[str, Callable[..., torch.Tensor]] = {
        "ours": lambda read_out, targets_N: sampled_softmax_nats(
            read_out, targets_N, num_samples=S
        ),
        "dense": lambda read_out, targets_N: dense_sampled(*read_out, targets_N, S),
        "full softmax": cross_entropy_nats,
    }
    chosen = [
        (way, optimizer)
        for optimizer in ("adagrad", "adamw")
        for way in ways
        if (way, optimizer) != ("full softmax", "adamw")
    ]
    steps = {
        f"{way}, {optimizer}": SoftmaxStep(ways[way], optimizer, V=V, N=N, P=P)
        for way, optimizer in chosen
    }
    bars = [
        Bar("ours, adagrad", "dense, adagrad"),
        Bar("ours, adamw", "dense, adamw"),
        Bar("ours, adagrad", "full softmax, adagrad"),
    ]
    work = f"V {V:,}, P {P}, both directions, {N} positions each, {S:,} candidates; the softmax and its update alone"
    turns: dict[str, Turn] = dict(steps)
    contest = Contest("ELMo softmax", work, 2 * N, "positions", turns, bars)
    for optimizer in ("adagrad", "adamw"):
        one, other = steps[f"ours, {optimizer}"], steps[f"dense, {optimizer}"]
        for _ in range(3):
            for what, ours, theirs in zip(("loss", "gradient norm"), one(), other(), strict=True):
                contest.alike(f"{what}, {optimizer}", ours, theirs)
        contest.alike(
            f"norm of the table, {optimizer}",
            float(one.weight.detach().norm()),
            float(other.weight.detach().norm()),
            tolerance=1e-6,
        )
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "cell512": lambda *, quick: cell_contest(quick=quick, units=512, batch=32),
    "cell512_wide": lambda *, quick: cell_contest(quick=quick, units=512, batch=128),
    "cell4096": lambda *, quick: cell_contest(quick=quick, units=4096, batch=32),
    "characters": characters_contest,
    "sampled": softmax_contest,
}
