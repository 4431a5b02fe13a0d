"""Training steps of every kind that benchmarks/gpu.py compares, and how fast they are.

Each kind is a function that gives a step to call again and again: a whole optimizer step, from a batch to new weights.
Shapes: B items, T positions, E or I inputs, H units, P projection; a leading 2 is the direction.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.gpu_models import Work, build, run_of, stream_of
from lineage.models.base import Encoder
from lineage.training import objectives
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train

RATE = 1e-4
CHUNKS = 5  # of a measurement; their median is quoted, and their range
Step = Callable[[], Any]


class NotRunError(RuntimeError):
    """A row that cannot be measured here, with its reason."""


@dataclass(frozen=True)
class Rate:
    """Tokens a second: median, lowest and highest of the chunks; and what the first steps took, compiling included."""

    middle: float
    low: float
    high: float
    step_seconds: float
    first_seconds: float


def settle(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(step: Step, *, tokens: int, device: torch.device, seconds: float) -> Rate:
    """Warm up, then time chunks of steps of `seconds` in all."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    settle(device)
    first, one = time.perf_counter() - began, _of(step, 1, device)
    count = max(
        1, round(seconds / CHUNKS / max(_of(step, max(1, min(10, round(0.2 / one))), device), 1e-6))
    )
    rates = sorted(tokens / _of(step, count, device) for _ in range(CHUNKS))
    middle = statistics.median(rates)
    return Rate(middle, rates[0], rates[-1], tokens / middle, first)


def _of(step: Step, count: int, device: torch.device) -> float:
    """Seconds a step, over `count` of them."""
    began = time.perf_counter()
    for _ in range(count):
        step()
    settle(device)
    return (time.perf_counter() - began) / count


def ours(work: Work, model: Encoder) -> Step:
    """A step of lineage's own loop on random batches that wait in the memory of the CPU: copies and checks are in it."""
    course = TrainPlan(
        lambda spent: 0.5, lambda progress: 1.0, RATE, max_grad_norm=1.0, precision="bf16"
    )
    objective = work.family.objective
    assert objective is not None
    steps = train(run_of(model), lambda *batch: objective(*batch), stream_of(work), course)
    return lambda: next(steps)


def as_is(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """lineage without anything more."""
    return ours(work, build(work, device))


def deterministic(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """lineage as its stages run it: the same bytes each time."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True)
        leave.callback(torch.use_deterministic_algorithms, False)
    return as_is(work, device, leave)


def compiled(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """One Transformer block compiled, which serves all of them, and the last product with the loss."""
    leave.callback(torch.compiler.reset_state)
    leave.enter_context(
        patch.object(
            objectives,
            "cross_entropy_nats",
            torch.compile(objectives.cross_entropy_nats, dynamic=False),
        )
    )
    model = build(work, device)
    for block in getattr(model.body, "blocks", ()):
        block.compile(dynamic=False)
    return ours(work, model)


def graphed(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """The recurrence's launches recorded once as a CUDA graph, forward and backward; the rest as it is."""
    if device.type != "cuda":
        raise NotRunError("a CUDA graph needs a GPU")
    model, B, P, H = (
        build(work, device),
        work.batch,
        work.config.projection_size,
        work.config.cell_size,
    )
    sample = torch.randn(
        2, B, work.length, P, device=device, dtype=torch.bfloat16, requires_grad=True
    )
    states = [
        torch.randn(2, B, n, device=device, dtype=d)
        for _ in model.body.layers
        for n, d in ((P, torch.bfloat16), (H, torch.float32))
    ]
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loop = torch.cuda.make_graphed_callables(_Flat(model.body), (sample, *states))

    def run(tokens_2BTP: torch.Tensor, state: Any) -> tuple[list[torch.Tensor], Any]:
        flat = [x for pair in state or model.body.zero_state(tokens_2BTP) for x in pair]
        top, *after = loop(tokens_2BTP, *flat)
        return [top], tuple(
            (output.detach(), cell.detach())
            for output, cell in zip(after[::2], after[1::2], strict=True)
        )

    object.__setattr__(model, "run_layers", run)
    return ours(work, model)


class _Flat(nn.Module):
    """The two-way LSTM with tensors in and tensors out, as a graph needs it: x, then output and cell of each layer."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x_2BTP: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, after = self.body(x_2BTP, tuple(zip(states[::2], states[1::2], strict=True)))
        return (outputs[-1], *(x for pair in after for x in pair))


def half_weights(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """AWD-LSTM with its weights themselves in bf16, where cuDNN takes such an LSTM; in lineage its cells are fp32 (TF32 products)."""
    if not torch.cudnn_is_acceptable(torch.ones(1, device=device, dtype=torch.bfloat16)):
        raise NotRunError("no cuDNN here that takes a bf16 LSTM")
    return ours(work, build(work, device).to(torch.bfloat16))


def plain(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """The path without a fused kernel or a backward by hand: a cell, step by step, under autograd."""
    model = build(work, device)
    for layer in model.body.layers:
        object.__setattr__(
            layer,
            "forward",
            (_two_way_steps if work.family.name == "elmo" else _one_way_steps)(layer),
        )
    return ours(work, model)


def _two_way_steps(layer: Any) -> Callable[..., Any]:
    """ELMo's cell with both clips, both directions side by side (Sak et al. 2014)."""

    def forward(x_2BTP: torch.Tensor, state: Any, lengths_B: None = None) -> Any:
        (output, cell), bias, found = state, layer.bias.view(2, 1, -1), []
        for x_2BP in x_2BTP.unbind(2):
            gates = (
                torch.bmm(x_2BP, layer.weight_ih)
                + torch.bmm(output.to(x_2BP.dtype), layer.weight_hh)
                + bias
            )
            update, in_gate, forget, out = gates.float().chunk(4, -1)
            cell = (cell.float() * forget.sigmoid() + in_gate.sigmoid() * update.tanh()).clamp(
                -layer.cell_clip, layer.cell_clip
            )
            output = torch.bmm(out.sigmoid() * cell.tanh(), layer.weight_hr).clamp(
                -layer.projection_clip, layer.projection_clip
            )
            found.append(output)
        return torch.stack(found, 2), (output, cell)

    return forward


def _one_way_steps(layer: Any) -> Callable[..., Any]:
    """AWD-LSTM's layer, its dropped matrix drawn once a window."""

    def forward(x_BTI: torch.Tensor, state: Any, *, drop: float) -> Any:
        kept = nn.functional.dropout(layer.weight_hh, drop, layer.training)
        (h, c), found = (s[0] for s in state), []
        for x_BI in x_BTI.unbind(1):
            gates = nn.functional.linear(
                x_BI, layer.weight_ih, layer.bias_ih
            ) + nn.functional.linear(h, kept, layer.bias_hh)
            in_gate, forget, update, out = gates.float().chunk(4, -1)
            c = c * forget.sigmoid() + in_gate.sigmoid() * update.tanh()
            h = out.sigmoid() * c.tanh()
            found.append(h)
        return torch.stack(found, 1), (h[None], c[None])

    return forward


def transformers(
    work: Work, device: torch.device, leave: contextlib.ExitStack, *, compile_layers: bool = False
) -> Step:
    """The same model of the transformers library in a bare loop, on batches that lie on the device: bf16 autocast, fused AdamW, gradients clipped."""
    model = _theirs(work).to(device).train()
    if compile_layers:
        leave.callback(torch.compiler.reset_state)
        for layer in (
            model.bert.encoder.layer if work.family.name == "bert" else model.transformer.h
        ):
            layer.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    ready, number = [_their_batch(work, batch.to(device)) for batch in stream_of(work).ready], [0]

    def step() -> None:
        number[0] += 1
        with autocast(device, "bf16"):
            loss = model(**ready[number[0] % len(ready)]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_compiled(work: Work, device: torch.device, leave: contextlib.ExitStack) -> Step:
    """The same with its layers compiled, as ours are."""
    return transformers(work, device, leave, compile_layers=True)


def _theirs(work: Work) -> Any:
    try:
        import transformers as library  # optional: most machines that train have none
    except ImportError:
        raise NotRunError("transformers is not installed here") from None
    c = work.config
    if work.family.name == "bert":
        config = library.BertConfig(vocab_size=work.vocabulary, hidden_size=c.hidden_size, num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads,
                                    intermediate_size=c.ffn_size, max_position_embeddings=c.max_positions)  # fmt: skip
        return library.BertForPreTraining(config)
    config = library.OpenAIGPTConfig(
        vocab_size=work.vocabulary,
        n_embd=c.hidden_size,
        n_layer=c.num_layers,
        n_head=c.num_heads,
        n_positions=c.max_positions,
    )
    return library.OpenAIGPTLMHeadModel(config)


def _their_batch(work: Work, batch: Any) -> dict[str, torch.Tensor]:
    if work.family.name == "gpt":
        return {"input_ids": batch.ids_BT, "labels": batch.ids_BT}
    return {
        "input_ids": batch.ids_BT,
        "token_type_ids": batch.segment_ids_BT,
        "labels": batch.targets_BT,
        "next_sentence_label": batch.next_sentence_labels_B,
    }
