"""The curve of a training: what is known of it at some points, kept with every checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch

from lineage.artifacts import read_json, write_json, write_table

CURVE = ("step", "progress", "text_bytes", "loss", "rate")


@dataclass
class Curve:
    """What is known of a training, a record a point: the loss as an average since the last point, and what validation found."""

    points: list[dict[str, float]] = field(default_factory=list)
    waiting: list[torch.Tensor] = field(default_factory=list)  # losses since the last point
    earlier_seconds: float = 0.0  # that processes before this one took, to the checkpoint from which this one went on

    def table(self) -> pd.DataFrame:
        """The points as rows; a measure that was not taken at a point is missing there."""
        frame = pd.DataFrame(self.points)
        return frame[[*CURVE, *sorted(c for c in frame.columns if c not in CURVE)]] if self.points else pd.DataFrame(columns=list(CURVE))

    @property
    def validations(self) -> list[float]:
        """The validation loss of each look."""
        told = [{k: v for k, v in point.items() if k.startswith("validation_") and not k.endswith("_accuracy")} for point in self.points]
        looks = [[*point.values()] for point in told]
        return [sum(measured) for measured in looks if measured]

    def save(self, folder: Path, *, seconds: float) -> None:
        """Keep the curve with a checkpoint, `seconds` after this process began."""
        write_json(folder / "curve.json", {"points": self.points, "waiting": self.waited(), "seconds": self.earlier_seconds + seconds})

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        kept = read_json(folder / "curve.json")
        self.points, self.earlier_seconds = kept["points"], kept["seconds"]
        self.waiting = [torch.tensor(loss, dtype=torch.double) for loss in kept["waiting"]]

    def waited(self) -> list[float]:
        """The losses since the last point as numbers."""
        return torch.stack([loss.cpu() for loss in self.waiting]).tolist() if self.waiting else []


def write_curve(path: Path, curve: Curve) -> None:
    """The curve as a table without a clock."""
    write_table(path, curve.table())
