"""The learning curve of a training run, which is saved with every checkpoint."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch

from lineage.artifacts import read_json, write_json
from lineage.work import Stopwatch

CURVE_COLUMNS = ("step", "progress", "text_bytes", "loss", "learning_rate")


def total_loss(metrics: Mapping[str, float]) -> float:
    """Return the sum of the losses among the metrics of a language model."""
    return sum(value for name, value in metrics.items() if not name.endswith("_accuracy"))


@dataclass(frozen=True)
class CurvePoint:
    """A training at one step."""

    step: int
    progress: float  # share of the budget
    text_bytes: int
    loss: float  # mean over the steps since the last point
    learning_rate: float
    weights_averaged: bool = False  # the validation used averaged weights (NT-ASGD)
    validation: dict[str, float] = field(default_factory=dict)  # empty: no validation here

    def metrics(self) -> dict[str, float]:
        """Return the values to log by name; those of a validation begin with `validation_`."""
        values = {"progress": self.progress, "loss": self.loss, "learning_rate": self.learning_rate}
        if self.weights_averaged:
            values["weights_averaged"] = 1.0
        for name, value in self.validation.items():
            values[f"validation_{name}"] = value
        return values

    @property
    def validation_loss(self) -> float:
        return total_loss(self.validation)


@dataclass
class LearningCurve:
    """The points of a training run so far."""

    points: list[CurvePoint] = field(default_factory=list)
    pending_losses: list[torch.Tensor] = field(default_factory=list)  # since the last point
    previous_seconds: float = 0.0  # time that earlier, killed processes trained
    previous_own_seconds: float = 0.0  # without that in which other programs used the cores

    def to_frame(self) -> pd.DataFrame:
        """Return the points as rows; values that were not measured at a point are missing."""
        if not self.points:
            return pd.DataFrame(columns=list(CURVE_COLUMNS))
        rows = [
            {"step": point.step, "text_bytes": point.text_bytes, **point.metrics()}
            for point in self.points
        ]
        frame = pd.DataFrame(rows)
        others = sorted(set(frame.columns) - set(CURVE_COLUMNS))
        return frame[[*CURVE_COLUMNS, *others]]

    def validation_losses(self) -> list[float]:
        return [point.validation_loss for point in self.points if point.validation]

    def save(self, folder: Path, stopwatch: Stopwatch) -> None:
        """Write curve.json, with the time since this process began to train."""
        saved = {
            "points": [dataclasses.asdict(point) for point in self.points],
            "pending_losses": self.pending_loss_values(),
            "elapsed_seconds": self.previous_seconds + stopwatch.elapsed_seconds,
            "own_seconds": self.previous_own_seconds + stopwatch.seconds,
        }
        write_json(folder / "curve.json", saved)

    def load(self, folder: Path) -> None:
        saved = read_json(folder / "curve.json")
        self.points = [CurvePoint(**point) for point in saved["points"]]
        self.previous_seconds = saved["elapsed_seconds"]
        self.previous_own_seconds = saved["own_seconds"]
        self.pending_losses = [
            torch.tensor(loss, dtype=torch.double) for loss in saved["pending_losses"]
        ]

    def pending_loss_values(self) -> list[float]:
        """Return the losses since the last point as numbers, which waits for a GPU."""
        if not self.pending_losses:
            return []
        return torch.stack([loss.cpu() for loss in self.pending_losses]).tolist()
