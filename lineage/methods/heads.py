"""The heads of an encoder under test: fitted, or started, so that their training can pause.

Shapes: M answers of the items, K outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lineage.answers.base import HeadAnswer
from lineage.data.task_data import SplitItems
from lineage.methods.early_stopping import CurvePoint, ValidatedTraining
from lineage.results import Note

# (M, K) outputs, such as probabilities, and (M,) the decoded tags of a CRF.
HeadOutput = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class FittedHead:
    """A head that can predict, and the record of its training."""

    predict: Callable[[SplitItems], HeadOutput]
    # All that the method's `load_head` reads.
    # None: nothing was learned.
    get_tensors: Callable[[], dict[str, torch.Tensor]] | None
    # Empty for a linear probe, which L-BFGS fits; for SetFit the loss of its pairs.
    learning_curve: Sequence[CurvePoint] = ()
    notes: Sequence[Note] = ()
    write_files: Callable[[Path], None] | None = None  # writes all that is no tensor into a folder
    is_normalized: bool = False  # the outputs need no `HeadAnswer.normalize`


@dataclass(frozen=True)
class StartedHead:
    """A head whose training can pause. A linear probe, also that of SetFit, is fitted at once."""

    head: FittedHead  # predicts with the present weights; has no curve yet
    training: ValidatedTraining[Any] | None = None  # None: a linear probe

    def finish(self) -> FittedHead:
        """Train the head to the end. Raises EvaluationError if training fails."""
        if self.training is not None:
            self.training.train_to_end()
        return self.stop()

    def stop(self) -> FittedHead:
        """Return the head with its best weights so far. It cannot be trained any more."""
        if self.training is None:
            return self.head
        self.training.keep_best()
        return replace(self.head, learning_curve=self.training.curve)


@dataclass(frozen=True)
class HeadProblem:
    """The data of a head: some rows of the table train, and the items that validate it."""

    train_rows: np.ndarray
    labels_M: np.ndarray
    answer: HeadAnswer
    validation: SplitItems
    validation_labels_M: np.ndarray
    # (outputs of the validation items, decoded tags) -> the task's first metric
    score_validation: Callable[[np.ndarray, np.ndarray | None], float]
