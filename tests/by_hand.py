"""The pieces of recurrent models written out in numpy, in double precision, for the tests that compare with them."""

from collections.abc import Callable, Mapping

import numpy as np
import torch


def sigmoid(x: np.ndarray) -> np.ndarray:
    """One over one plus e to the minus x."""
    return 1 / (1 + np.exp(-x))


def projected_step(
    x: np.ndarray,
    out: np.ndarray,
    cell: np.ndarray,
    p: Mapping[str, np.ndarray],
    clips: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray]:
    """One step of the LSTM with projection, of one item: gates in the order update, in, forget, out; clips of cell and projection."""
    H = len(cell)
    gates = x @ p["weight_ih"][0] + out @ p["weight_hh"][0] + p["bias"]
    update, in_gate, forget, out_gate = (
        np.tanh(gates[:H]),
        *(sigmoid(gates[k * H : (k + 1) * H]) for k in (1, 2, 3)),
    )
    cell = np.clip(forget * cell + in_gate * update, -clips[0], clips[0])
    return np.clip((out_gate * np.tanh(cell)) @ p["weight_hr"][0], -clips[1], clips[1]), cell


def plain_step(
    x: np.ndarray, out: np.ndarray, cell: np.ndarray, p: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """One step of the plain LSTM, of one item: gates in torch's order, in, forget, update, out."""
    H = len(cell)
    gates = p["weight_ih"] @ x + p["bias_ih"] + p["weight_hh"] @ out + p["bias_hh"]
    in_gate, forget, out_gate = (sigmoid(gates[k * H : (k + 1) * H]) for k in (0, 1, 3))
    cell = forget * cell + in_gate * np.tanh(gates[2 * H : 3 * H])
    return out_gate * np.tanh(cell), cell


def nats(logits: np.ndarray, target: int) -> float:
    """Minus the log of the target's share of the softmax."""
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target])


def numbers(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """A model's parameters as arrays in double precision, to be changed at will."""
    return {
        name: value.detach().numpy().astype(float).copy()
        for name, value in model.named_parameters()
    }


def part(numbers: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays under a prefix, without it."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in numbers.items()
        if name.startswith(f"{prefix}.")
    }


def assert_gradients_are_central_differences(
    model: torch.nn.Module, loss: Callable[[dict[str, np.ndarray]], float]
) -> None:
    """The model holds gradients: three numbers of every parameter, changed a little either way, change the loss by them."""
    rng, step = np.random.default_rng(4), 1e-6
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found = parameter.grad.numpy()
        largest = np.unravel_index(
            np.abs(found).argmax(), found.shape
        )  # in a table most rows have no gradient
        for place in (
            largest,
            *(tuple(rng.integers(size) for size in found.shape) for _ in range(2)),
        ):
            changed = numbers(model)
            changed[name][place] += step
            above = loss(changed)
            changed[name][place] -= 2 * step
            np.testing.assert_allclose(
                found[place],
                (above - loss(changed)) / (2 * step),
                atol=1e-8,
                rtol=1e-6,
                err_msg=f"{name}{place}",
            )
