"""Devices, precision and torch's global switches."""

import contextlib
import math
import os
import time
import warnings

import torch

from lineage.errors import InputError


def configure_torch(threads: int) -> None:
    """Set the number of threads, and flush denormals to zero.

    A peaky softmax in fp32 is many times slower with denormals.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    # This is torch's default; setting it silences a warning.
    torch.sparse.check_sparse_tensor_invariants.disable()
    # AWD-LSTM drops entries of a matrix in every step, so cuDNN must copy its weights each time.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single")


def select_device(device: str, device_index: int = 0) -> torch.device:
    """Return the requested device, cpu or cuda. Raises InputError if there is no GPU."""
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            "params.yaml: device is cuda, and this machine has no GPU; "
            "run on a worker that has one, or set device: cpu"
        )
    # Without this, cuBLAS may sum in another order each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Strict: otherwise the backward of attention sums in another order each time, and warns.
    torch.use_deterministic_algorithms(True)
    # Filling new memory would write all of it twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.cuda.set_device(device_index)
    return torch.device("cuda", device_index)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Compute in bf16 if `precision` is bf16; weights stay fp32."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def measure_bf16_speedup() -> float:
    """Measure how many times faster this CPU multiplies matrices in bf16 than in fp32.

    The CPU's feature flags do not tell: of two processors with avx512_bf16 one gained.
    """
    min_seconds = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    for _ in range(12):
        for dtype in min_seconds:
            matrix = torch.ones(512, 512, dtype=dtype)
            start_time = time.process_time()
            matrix @ matrix
            min_seconds[dtype] = min(min_seconds[dtype], time.process_time() - start_time)
    return min_seconds[torch.float32] / min_seconds[torch.bfloat16]
