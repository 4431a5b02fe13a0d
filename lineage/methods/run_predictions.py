"""The predictions of one run, and the folder that keeps them until its stage has ended."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import pandas as pd

from lineage.artifacts import read_json, read_table, write_json, write_table
from lineage.methods.early_stopping import curve_frame
from lineage.results import Note


@dataclass(frozen=True)
class FailedTrial:
    """A trial that could not be fitted, and why."""

    number: int
    error: str


@dataclass(frozen=True)
class RunPredictions:
    """The predictions of one run: of each fitted trial on validation, and of the chosen head."""

    table: pd.DataFrame
    failed_trials: Sequence[FailedTrial] = ()
    # The learning curves of the trials and of the chosen head, by the column `trial`.
    curves: pd.DataFrame = field(default_factory=lambda: curve_frame([]).assign(trial=""))
    notes: Sequence[Note] = ()  # on the fit of the chosen head
    chosen_trial: int | None = None  # of the chosen head, by this run or an earlier one
    # Costs: the time of the run, and how fast its system answers, the encoder included; None if
    # nothing was trained.
    seconds: float = 0.0
    items_per_second: float | None = None

    def save(self, folder: Path) -> None:
        record = {
            "failed_trials": [asdict(trial) for trial in self.failed_trials],
            "notes": [asdict(note) for note in self.notes],
            "chosen_trial": self.chosen_trial,
            "seconds": self.seconds,
            "items_per_second": self.items_per_second,
        }
        write_json(folder / "run.json", record)
        write_table(folder / "curves.parquet", self.curves)
        write_table(folder / "predictions.parquet", self.table)

    @classmethod
    def load(cls, folder: Path) -> Self:
        record = read_json(folder / "run.json")
        return cls(
            read_table(folder / "predictions.parquet"),
            [FailedTrial(**trial) for trial in record["failed_trials"]],
            read_table(folder / "curves.parquet"),
            [Note(**note) for note in record["notes"]],
            record["chosen_trial"],
            record["seconds"],
            record["items_per_second"],
        )
