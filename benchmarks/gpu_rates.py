"""The kinds of training steps that gpu.py compares, and the measurement of their speed.

Each kind is a function that returns a step to call again and again. A step is a whole optimizer
step: from a batch to new weights. What a kind changes globally is undone by `cleanup`.
Shapes: B items, T positions, I inputs, P projection; a leading 2 is the direction.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.gpu_models import Workload, build_model, build_train_state, random_batches
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.training import objectives
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train

LEARNING_RATE = 1e-4
NUM_WARMUP_STEPS = 3
NUM_CHUNKS = 5  # parts of a measurement; their median and their range are reported
PROBE_SECONDS = 0.2  # to estimate the time of a step
Step = Callable[[], Any]
StepBuilder = Callable[[Workload, torch.device, contextlib.ExitStack], Step]


class NotRunError(RuntimeError):
    """A row cannot be measured here; the message is the reason."""


@dataclass(frozen=True)
class Throughput:
    """Tokens per second of the chunks of a measurement."""

    median: float
    lowest: float
    highest: float
    step_seconds: float
    first_steps_seconds: float  # the warm-up, compiling included


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_throughput(
    step: Step, *, tokens_per_step: int, device: torch.device, seconds: float
) -> Throughput:
    """Warm up, then time chunks of steps that take `seconds` together."""
    start = time.perf_counter()
    for _ in range(NUM_WARMUP_STEPS):
        step()
    synchronize(device)
    first_steps_seconds = time.perf_counter() - start

    one_step_seconds = _seconds_per_step(step, 1, device)
    num_probe_steps = max(1, min(10, round(PROBE_SECONDS / one_step_seconds)))
    step_seconds = max(_seconds_per_step(step, num_probe_steps, device), 1e-6)
    steps_per_chunk = max(1, round(seconds / NUM_CHUNKS / step_seconds))
    rates = [
        tokens_per_step / _seconds_per_step(step, steps_per_chunk, device)
        for _ in range(NUM_CHUNKS)
    ]
    median = statistics.median(rates)
    return Throughput(
        median,
        lowest=min(rates),
        highest=max(rates),
        step_seconds=tokens_per_step / median,
        first_steps_seconds=first_steps_seconds,
    )


def _seconds_per_step(step: Step, num_steps: int, device: torch.device) -> float:
    start = time.perf_counter()
    for _ in range(num_steps):
        step()
    synchronize(device)
    return (time.perf_counter() - start) / num_steps


def lineage_step(workload: Workload, model: Encoder) -> Step:
    """Return a step of lineage's own loop, on random batches.

    The batches lie in the memory of the CPU. So copies to the device and checks are measured too.
    """
    plan = TrainPlan(
        progress=lambda counters: 0.5,
        lr_schedule=lambda progress: 1.0,
        learning_rate=LEARNING_RATE,
        max_grad_norm=1.0,
        precision="bf16",
    )
    objective = workload.family.objective
    assert objective is not None
    steps = train(build_train_state(model), objective, random_batches(workload), plan)
    return lambda: next(steps)


def lineage_default(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step of lineage without deterministic algorithms."""
    return lineage_step(workload, build_model(workload, device))


def lineage_deterministic(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step of lineage with deterministic algorithms, as the pipeline runs it."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True)
        cleanup.callback(torch.use_deterministic_algorithms, False)
    return lineage_default(workload, device, cleanup)


def lineage_compiled(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step of lineage with compiled Transformer blocks and a compiled softmax loss.

    The blocks are equal, so they share one compiled function.
    """
    cleanup.callback(torch.compiler.reset)
    compiled_loss = torch.compile(objectives.cross_entropy_nats, dynamic=False)
    cleanup.enter_context(patch.object(objectives, "cross_entropy_nats", compiled_loss))
    model = build_model(workload, device)
    for block in getattr(model.body, "blocks", ()):
        block.compile(dynamic=False)
    return lineage_step(workload, model)


def lineage_cuda_graph(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step of ELMo whose LSTM is recorded as a CUDA graph, forward and backward."""
    if device.type != "cuda":
        raise NotRunError("a CUDA graph needs a GPU")
    model = build_model(workload, device)
    B = workload.batch_size
    P = workload.config.projection_size
    sample_2BTP = torch.randn(
        2, B, workload.seq_len, P, device=device, dtype=torch.bfloat16, requires_grad=True
    )
    sample_states = []
    for _ in model.body.layers:
        output_2BP = torch.randn(2, B, P, device=device, dtype=torch.bfloat16)
        cell_2BH = torch.randn(2, B, workload.config.cell_size, device=device)
        sample_states += [output_2BP, cell_2BH]
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        graphed_body: Any = torch.cuda.make_graphed_callables(
            _FlatLSTM(model.body), (sample_2BTP, *sample_states)
        )

    def run_layers(tokens_2BTP: torch.Tensor, state: Any) -> tuple[list[torch.Tensor], Any]:
        pairs = state or model.body.zero_state(tokens_2BTP)
        top_2BTP, *next_states = graphed_body(tokens_2BTP, *itertools.chain(*pairs))
        detached = [tensor.detach() for tensor in next_states]
        return [top_2BTP], tuple(zip(detached[::2], detached[1::2], strict=True))

    object.__setattr__(model, "run_layers", run_layers)
    return lineage_step(workload, model)


class _FlatLSTM(nn.Module):
    """ELMo's LSTM with a flat list of tensors as its state, as a CUDA graph needs it.

    The list holds the output and the cell of each layer.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x_2BTP: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = tuple(zip(states[::2], states[1::2], strict=True))
        outputs, next_pairs = self.body(x_2BTP, pairs)
        return (outputs[-1], *itertools.chain(*next_pairs))


def lineage_bf16_weights(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step of the AWD-LSTM with bf16 weights, if cuDNN supports them.

    In lineage its LSTM has fp32 weights, and TF32 products.
    """
    if not torch.cudnn_is_acceptable(torch.ones(1, device=device, dtype=torch.bfloat16)):
        raise NotRunError("no cuDNN here that takes a bf16 LSTM")
    return lineage_step(workload, build_model(workload, device).to(torch.bfloat16))


def step_by_step_lstm(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step with LSTMs written as a Python loop under autograd.

    There is no fused kernel and no backward pass written by hand.
    """
    model = build_model(workload, device)
    build_forward = elmo_loop_forward if workload.family.name == "elmo" else awd_loop_forward
    for layer in model.body.layers:
        object.__setattr__(layer, "forward", build_forward(layer))
    return lineage_step(workload, model)


def elmo_loop_forward(layer: Any) -> Callable[..., Any]:
    """Return a forward function for a layer of ELMo: both directions, both clips.

    Sak et al. 2014 describe the projected LSTM.
    """

    def forward(x_2BTP: torch.Tensor, state: Any, lengths_B: None = None) -> Any:
        output, cell = state
        bias = layer.bias.view(2, 1, -1)
        outputs = []
        for x_2BP in x_2BTP.unbind(2):
            from_input = torch.bmm(x_2BP, layer.weight_ih)
            from_output = torch.bmm(output.to(x_2BP.dtype), layer.weight_hh)
            gates = from_input + from_output + bias
            update, in_gate, forget, out = gates.float().chunk(4, -1)
            cell = cell.float() * forget.sigmoid() + in_gate.sigmoid() * update.tanh()
            cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
            output = torch.bmm(out.sigmoid() * cell.tanh(), layer.weight_hr)
            output = output.clamp(-layer.projection_clip, layer.projection_clip)
            outputs.append(output)
        return torch.stack(outputs, 2), (output, cell)

    return forward


def awd_loop_forward(layer: Any) -> Callable[..., Any]:
    """Return a forward function for a layer of the AWD-LSTM.

    The recurrent weights are dropped once per window.
    """

    def forward(x_BTI: torch.Tensor, state: Any, *, drop: float) -> Any:
        weight_hh = nn.functional.dropout(layer.weight_hh, drop, layer.training)
        if state is None:
            hidden = cell = x_BTI.new_zeros(len(x_BTI), layer.weight_hh.shape[1])
        else:
            hidden, cell = (tensor[0] for tensor in state)
        outputs = []
        for x_BI in x_BTI.unbind(1):
            from_input = nn.functional.linear(x_BI, layer.weight_ih, layer.bias_ih)
            from_hidden = nn.functional.linear(hidden, weight_hh, layer.bias_hh)
            in_gate, forget, update, out = (from_input + from_hidden).float().chunk(4, -1)
            cell = cell * forget.sigmoid() + in_gate.sigmoid() * update.tanh()
            hidden = out.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1), (hidden[None], cell[None])

    return forward


def transformers_default(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return a step of the same model of the transformers library, in a minimal loop.

    Batches lie on the device; bf16 autocast, fused AdamW, clipped gradients.
    """
    return _transformers_step(workload, _build_transformers_model(workload).to(device))


def transformers_compiled(
    workload: Workload, device: torch.device, cleanup: contextlib.ExitStack
) -> Step:
    """Return the same step with compiled layers, as in `lineage_compiled`."""
    model = _build_transformers_model(workload).to(device)
    cleanup.callback(torch.compiler.reset)
    is_bert = workload.family.name == "bert"
    for layer in model.bert.encoder.layer if is_bert else model.transformer.h:
        layer.compile(dynamic=False)
    return _transformers_step(workload, model)


def _transformers_step(workload: Workload, model: Any) -> Step:
    model.train()
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True
    )
    batches = [
        _to_transformers_inputs(workload, batch.to(device))
        for batch in random_batches(workload).batches
    ]
    next_inputs = itertools.cycle(batches)

    def step() -> None:
        with autocast(device, "bf16"):
            loss = model(**next(next_inputs)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _build_transformers_model(workload: Workload) -> Any:
    try:
        import transformers  # optional: most training machines do not have it
    except ImportError:
        raise NotRunError("transformers is not installed here") from None
    config = workload.config
    if workload.family.name == "bert":
        bert_config = transformers.BertConfig(
            vocab_size=workload.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.ffn_size,
            max_position_embeddings=config.max_positions,
        )
        return transformers.BertForPreTraining(bert_config)
    gpt_config = transformers.OpenAIGPTConfig(
        vocab_size=workload.vocab_size,
        n_embd=config.hidden_size,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_positions=config.max_positions,
    )
    return transformers.OpenAIGPTLMHeadModel(gpt_config)


def _to_transformers_inputs(workload: Workload, batch: Batch) -> dict[str, torch.Tensor | None]:
    if workload.family.name == "gpt":
        return {"input_ids": batch.ids_BT, "labels": batch.ids_BT}
    return {
        "input_ids": batch.ids_BT,
        "token_type_ids": batch.segment_ids_BT,
        "labels": batch.targets_BT,
        "next_sentence_label": batch.next_sentence_labels_B,
    }
