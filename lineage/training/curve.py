"""The curve of a training: what is known of it at some points, kept with every checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch

from lineage.artifacts import read_json, write_json, write_table

CURVE_COLUMNS = ("step", "progress", "text_bytes", "loss", "rate")


@dataclass
class LearningCurve:
    """What is known of a training, a record a point: the loss as an average since the last point, and what validation found."""

    points: list[dict[str, float]] = field(default_factory=list)
    pending_losses: list[torch.Tensor] = field(default_factory=list)  # losses since the last point
    previous_seconds: float = (
        0.0  # that processes before this one took, to the checkpoint from which this one went on
    )

    def to_frame(self) -> pd.DataFrame:
        """The points as rows; a measure that was not taken at a point is missing there."""
        frame = pd.DataFrame(self.points)
        return (
            frame[[*CURVE_COLUMNS, *sorted(c for c in frame.columns if c not in CURVE_COLUMNS)]]
            if self.points
            else pd.DataFrame(columns=list(CURVE_COLUMNS))
        )

    @property
    def validation_losses(self) -> list[float]:
        """The validation loss of each look."""
        validation_points = [
            {
                k: v
                for k, v in point.items()
                if k.startswith("validation_") and not k.endswith("_accuracy")
            }
            for point in self.points
        ]
        validation_values = [[*point.values()] for point in validation_points]
        return [sum(measured) for measured in validation_values if measured]

    def save(self, folder: Path, *, seconds: float) -> None:
        """Keep the curve with a checkpoint, `seconds` after this process began."""
        write_json(
            folder / "curve.json",
            {
                "points": self.points,
                "waiting": self.pending_loss_values(),
                "seconds": self.previous_seconds + seconds,
            },
        )

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        saved = read_json(folder / "curve.json")
        self.points, self.previous_seconds = saved["points"], saved["seconds"]
        self.pending_losses = [torch.tensor(loss, dtype=torch.double) for loss in saved["waiting"]]

    def pending_loss_values(self) -> list[float]:
        """The losses since the last point as numbers."""
        return (
            torch.stack([loss.cpu() for loss in self.pending_losses]).tolist()
            if self.pending_losses
            else []
        )


def write_curve(path: Path, curve: LearningCurve) -> None:
    """The curve as a table without a clock."""
    write_table(path, curve.to_frame())
