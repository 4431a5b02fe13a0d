"""Recurrent models written out in numpy, in double precision, to compare with ours."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from lineage.families.sa_lstm import SALSTMConfig, SALSTMModel


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def projected_lstm_step(
    x: np.ndarray,
    out: np.ndarray,
    cell: np.ndarray,
    p: Mapping[str, np.ndarray],
    clips: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray]:
    """Take one step of the LSTM with projection for one item.

    The gates are in the order update, input, forget, output; `clips` are the limits of the cell
    and of the projection.
    """
    H = len(cell)
    gates = x @ p["weight_ih"][0] + out @ p["weight_hh"][0] + p["bias"]
    update, in_gate, forget, out_gate = (
        np.tanh(gates[:H]),
        *(sigmoid(gates[k * H : (k + 1) * H]) for k in (1, 2, 3)),
    )
    cell = np.clip(forget * cell + in_gate * update, -clips[0], clips[0])
    return np.clip((out_gate * np.tanh(cell)) @ p["weight_hr"][0], -clips[1], clips[1]), cell


def lstm_step(
    x: np.ndarray, out: np.ndarray, cell: np.ndarray, p: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Take one step of the plain LSTM for one item.

    The gates are in torch's order: input, forget, update, output.
    """
    H = len(cell)
    gates = p["weight_ih"] @ x + p["bias_ih"] + p["weight_hh"] @ out + p["bias_hh"]
    in_gate, forget, out_gate = (sigmoid(gates[k * H : (k + 1) * H]) for k in (0, 1, 3))
    cell = forget * cell + in_gate * np.tanh(gates[2 * H : 3 * H])
    return out_gate * np.tanh(cell), cell


def cross_entropy_nats(logits: np.ndarray, target: int) -> float:
    """Return minus the log of the target's probability in the softmax."""
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target])


def parameter_arrays(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return copies of a model's parameters as arrays in double precision."""
    return {
        name: value.detach().numpy().astype(float).copy()
        for name, value in model.named_parameters()
    }


def arrays_with_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose name starts with a prefix, by their name without it."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in arrays.items()
        if name.startswith(f"{prefix}.")
    }


def assert_gradients_match_finite_differences(
    model: torch.nn.Module, loss: Callable[[dict[str, np.ndarray]], float]
) -> None:
    """Compare three gradients of every parameter of `model` with central differences of `loss`.

    `model` holds its gradients already.
    """
    rng, step = np.random.default_rng(4), 1e-6
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradient = parameter.grad.numpy()
        # In an embedding table most rows have no gradient, so the largest gradient is checked too.
        largest = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        random = [tuple(rng.integers(size) for size in gradient.shape) for _ in range(2)]
        for index in (largest, *random):
            changed = parameter_arrays(model)
            changed[name][index] += step
            above = loss(changed)
            changed[name][index] -= 2 * step
            np.testing.assert_allclose(
                gradient[index],
                (above - loss(changed)) / (2 * step),
                atol=1e-8,
                rtol=1e-6,
                err_msg=f"{name}{index}",
            )


def build_small_sa_lstm(objective: str, layers: int = 2) -> SALSTMModel:
    """Return an SA-LSTM with 7 words and 4 units, in double precision."""
    model = SALSTMModel(
        SALSTMConfig(
            objective=objective,
            num_layers=layers,
            hidden_to_embedding_ratio=2.0,
            dropout=0.0,
            embedding_size=3,
            hidden_size=4,
        ),
        vocab_size=7,
    )  # type: ignore[arg-type]
    model.init_weights(torch.Generator().manual_seed(3))
    return model.double()
