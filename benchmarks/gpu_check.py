"""For gpu.py: compare a GPU with the CPU, and check that two runs end in the same bytes.

Layers, loss and gradients are compared, for small models with random weights and random words.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.gpu_models import (
    RandomBatches,
    Workload,
    build_model,
    build_train_state,
    middle_size,
    random_batches,
    toy_size,
    with_dropout,
)
from lineage.networks.base import Encoder
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train

CPU = torch.device("cpu")
# The largest relative error of a tensor. Without TF32, fp32 differs only by the order of sums; bf16
# has 8 bits.
TOLERANCES = {
    "fp32": {"layers": 1e-5, "loss": 1e-5, "gradients": 1e-4},
    "bf16": {"layers": 2e-2, "loss": 1e-2, "gradients": 1e-1},
}
NUM_REPRODUCIBILITY_STEPS = 12
TensorsByKind = dict[str, dict[str, torch.Tensor]]  # kind ("layers", ...), name of the tensor


@contextlib.contextmanager
def disable_tf32() -> Iterator[None]:
    """Compute fp32 products in fp32. By default cuDNN uses TF32 for LSTMs and convolutions."""
    cudnn_tf32 = torch.backends.cudnn.allow_tf32
    matmul_tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = cudnn_tf32
        torch.backends.cuda.matmul.allow_tf32 = matmul_tf32


def _compute_tensors(
    model: Encoder, workload: Workload, batches: RandomBatches, *, precision: str
) -> TensorsByKind:
    """Return the layers, the loss and the gradients of one batch, as doubles on the CPU."""
    device = next(model.parameters()).device
    batch = batches.get_batch(0).to(device)
    # cuDNN's LSTM has a backward pass only in training mode. All dropout probabilities are 0.
    model.train()
    with autocast(device, precision):
        layers = model.encode(batch)
        assert workload.family.objective is not None
        output = workload.family.objective(model, batch, None)
    output.loss.backward()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return {
        "layers": _to_cpu_doubles({str(index): layer for index, layer in enumerate(layers)}),
        "loss": _to_cpu_doubles({"loss": output.loss}),
        "gradients": _to_cpu_doubles(gradients),
    }


def _to_cpu_doubles(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().double().cpu() for name, tensor in tensors.items()}


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ||actual - expected|| / ||expected||; NaN if a tensor contains NaN."""
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-12))


def compare_with_cpu(workload: Workload, device: torch.device) -> list[dict[str, object]]:
    """Compare a toy-size model on the device with the same model on the CPU.

    Returns a row per precision and kind of tensor: the largest relative error, and whether it is
    within the tolerance.
    """
    workload = toy_size(workload)
    batches = random_batches(workload)
    cpu_model = build_model(workload, CPU)
    rows: list[dict[str, object]] = []
    with disable_tf32():
        expected = _compute_tensors(cpu_model, workload, batches, precision="fp32")
        device_model = build_model(workload, device)
        device_model.load_state_dict(cpu_model.state_dict())
        for precision, tolerances in TOLERANCES.items():
            actual = _compute_tensors(device_model, workload, batches, precision=precision)
            for kind, tolerance in tolerances.items():
                assert actual[kind].keys() == expected[kind].keys()
                largest_error = max(
                    relative_error(tensor, expected[kind][name])
                    for name, tensor in actual[kind].items()
                )
                row = {
                    "family": workload.family.name,
                    "precision": precision,
                    "what": kind,
                    "distance": largest_error,
                    "limit": tolerance,
                    "ok": largest_error <= tolerance,  # also false for NaN
                }
                rows.append(row)
    return rows


def hash_parameters(model: Encoder) -> str:
    """Return the SHA-256 of the bytes of all parameters."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def train_and_hash(workload: Workload, device: torch.device, *, precision: str, seed: int) -> str:
    """Train for a few steps with lineage's loop, and return the hash of the parameters.

    Dropout and, for ELMo, the sampled softmax are on.
    """
    size = toy_size if device.type == "cpu" else middle_size
    workload = with_dropout(size(workload))
    if workload.family.name == "elmo":
        workload = replace(workload, config=replace(workload.config, softmax_samples=50))
    model = build_model(workload, device)
    state = build_train_state(model, seed=seed)
    plan = TrainPlan(
        progress=lambda counters: counters.steps / NUM_REPRODUCIBILITY_STEPS,
        lr_schedule=lambda progress: 1.0,
        learning_rate=0.003,
        max_grad_norm=1.0,
        precision=precision,
    )
    assert workload.family.objective is not None
    for _ in train(state, workload.family.objective, random_batches(workload), plan):
        pass
    return hash_parameters(model)


def check_reproducibility(workload: Workload, device: torch.device) -> list[dict[str, object]]:
    """Check that two runs with the same seed end in the same bytes.

    Returns a row per precision. `told_apart` says whether another seed ends in other bytes: if it
    does not, `ok` means nothing.
    """
    rows = []
    for precision in TOLERANCES:
        first = train_and_hash(workload, device, precision=precision, seed=1)
        second = train_and_hash(workload, device, precision=precision, seed=1)
        other_seed = train_and_hash(workload, device, precision=precision, seed=2)
        row: dict[str, object] = {
            "family": workload.family.name,
            "precision": precision,
            "what": "two runs, same bytes",
            "ok": first == second,
            "told_apart": first != other_seed,
        }
        rows.append(row)
    return rows
