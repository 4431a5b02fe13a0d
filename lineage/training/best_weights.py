"""Keep the weights with the lowest validation loss, and end a training that no longer improves."""

import math
from pathlib import Path

import torch
from torch import nn

from lineage.artifacts import read_json, write_json
from lineage.networks.weights import read_tensors, save_tensors

WEIGHTS_FILE = "best.safetensors"
METADATA_FILE = "best.json"


class BestWeights:
    """The weights of a model with the lowest validation loss so far, those it starts with included.

    A training is over after `patience` validations that are not lower than those before them; there
    the start does not count, because a high learning rate raises the loss at first.
    """

    def __init__(self, model: nn.Module, loss: float, patience: int | None) -> None:
        """Keep the present weights, whose validation loss is `loss`."""
        self.model = model
        self.loss = loss
        self.patience = patience
        self.lowest_since_start = math.inf
        self.num_without_improvement = 0
        self.weights: dict[str, torch.Tensor] = {}
        self._keep()

    @property
    def is_over(self) -> bool:
        return self.patience is not None and self.num_without_improvement >= self.patience

    def update(self, loss: float) -> None:
        """Take note of a validation of the present weights, and keep them if they are the best."""
        self.num_without_improvement += 1
        if loss < self.lowest_since_start:
            self.lowest_since_start = loss
            self.num_without_improvement = 0
        if loss < self.loss:
            self.loss = loss
            self._keep()

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)

    def save(self, folder: Path) -> None:
        save_tensors(self.weights, folder / WEIGHTS_FILE)
        losses = {"loss": self.loss, "lowest_since_start": self.lowest_since_start}
        known = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
        metadata = {**known, "num_without_improvement": self.num_without_improvement}
        write_json(folder / METADATA_FILE, metadata)

    def load(self, folder: Path) -> None:
        device = next(self.model.parameters()).device
        tensors = read_tensors(folder / WEIGHTS_FILE)
        self.weights = {name: tensor.to(device) for name, tensor in tensors.items()}
        metadata = read_json(folder / METADATA_FILE)
        self.loss = metadata.get("loss", math.inf)
        self.lowest_since_start = metadata.get("lowest_since_start", math.inf)
        self.num_without_improvement = metadata["num_without_improvement"]

    def _keep(self) -> None:
        tensors = self.model.state_dict().items()
        self.weights = {name: tensor.detach().clone() for name, tensor in tensors}
