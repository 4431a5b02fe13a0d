"""Is a GPU's arithmetic ours? Layers, loss and gradients against the CPU, and the same bytes from two runs: for benchmarks/gpu.py.

Small sizes, random weights and words; nothing is trained long enough to matter.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.gpu_models import (
    RandomStream,
    Work,
    build,
    dropping,
    middling,
    run_of,
    small,
    stream_of,
)
from lineage.models.base import Encoder
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train

CPU = torch.device("cpu")
# The largest ||GPU - CPU|| / ||CPU||, over all elements of a tensor. fp32 with TF32 off differs by the order of sums alone; bf16 has 8 bits.
TOLERANCES = {
    "fp32": {"layers": 1e-5, "loss": 1e-5, "gradients": 1e-4},
    "bf16": {"layers": 2e-2, "loss": 1e-2, "gradients": 1e-1},
}
STEPS = 12  # of the two runs that have to end in the same bytes


@contextlib.contextmanager
def true_fp32() -> Iterator[None]:
    """fp32 products in fp32: cuDNN's LSTM and convolutions take TF32 by default."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def _values(
    model: Encoder, work: Work, stream: RandomStream, *, precision: str
) -> dict[str, dict[str, torch.Tensor]]:
    """Layers, loss and gradients of one batch, in double on the CPU."""
    device = next(model.parameters()).device
    batch = stream.get_batch(0).to(device)
    model.train()  # cuDNN's LSTM has no backward outside of training; all shares of dropout are zero here
    with autocast(device, precision):
        layers = model.encode(batch)
        assert work.family.objective is not None
        out = work.family.objective(model, batch, None)
    out.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    found = {
        "layers": {str(i): x for i, x in enumerate(layers)},
        "loss": {"loss": out.loss},
        "gradients": gradients,
    }
    return {
        kind: {name: x.detach().double().cpu() for name, x in values.items()}
        for kind, values in found.items()
    }


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||, and not a number where either holds one."""
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


def against_cpu(work: Work, device: torch.device) -> list[dict[str, object]]:
    """A row for each precision and kind of value: the largest distance of any tensor, and whether it is within the tolerance."""
    tiny, rows = small(work), []
    stream, here = stream_of(tiny), build(tiny, CPU)
    with true_fp32():
        expected = _values(here, tiny, stream, precision="fp32")
        there = build(tiny, device)
        there.load_state_dict(here.state_dict())
        for precision, limits in TOLERANCES.items():
            found = _values(there, tiny, stream, precision=precision)
            for kind, limit in limits.items():
                assert found[kind].keys() == expected[kind].keys()
                largest = max(
                    distance(value, expected[kind][name]) for name, value in found[kind].items()
                )
                ok = largest <= limit  # false for not-a-number, too
                rows.append(
                    {
                        "family": work.family.name,
                        "precision": precision,
                        "what": kind,
                        "distance": largest,
                        "limit": limit,
                        "ok": ok,
                    }
                )
    return rows


def digest(model: Encoder) -> str:
    """sha256 of all parameters' bytes."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def trained_digest(work: Work, device: torch.device, *, precision: str, seed: int = 1) -> str:
    """The parameters after some steps of lineage's own loop, with dropout and, for ELMo, the sampled softmax."""
    tiny = dropping(small(work) if device.type == "cpu" else middling(work))
    if tiny.family.name == "elmo":
        tiny = replace(tiny, config=replace(tiny.config, softmax_samples=50))
    model = build(tiny, device)
    run = run_of(model, seed=seed)
    course = TrainPlan(
        lambda spent: spent.steps / STEPS,
        lambda progress: 1.0,
        0.003,
        max_grad_norm=1.0,
        precision=precision,
    )
    assert tiny.family.objective is not None
    for _ in train(run, tiny.family.objective, stream_of(tiny), course):
        pass
    return digest(model)


def same_bytes(work: Work, device: torch.device) -> list[dict[str, object]]:
    """A row for each precision: whether two runs of one seed end in the same bytes, and another seed in others (else the claim is empty)."""
    rows = []
    for precision in TOLERANCES:
        one, two = (trained_digest(work, device, precision=precision) for _ in range(2))
        other = trained_digest(work, device, precision=precision, seed=2)
        rows.append(
            {
                "family": work.family.name,
                "precision": precision,
                "what": "two runs, same bytes",
                "ok": one == two,
                "told_apart": one != other,
            }
        )
    return rows
