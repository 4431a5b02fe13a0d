"""What a task is answered with: a label, one of several choices, a number, or a tag for every word; how that is learned, and how it is told.

A reader of any kind gives scores, `outputs` numbers a row: a row is an item, or, of tags, a word, those of an item one after another.
Shapes: N items, M rows, K outputs.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.predictions import Columns, of_labels, of_numbers, of_tags

Form = Literal["label", "choice", "number", "tags"]


@dataclass(frozen=True)
class _Classes:
    names: tuple[str, ...]

    @property
    def outputs(self) -> int:
        """One a name."""
        return len(self.names)

    def loss(self, scores_MK: torch.Tensor, gold_M: torch.Tensor) -> torch.Tensor:
        """Summed nats."""
        return F.cross_entropy(scores_MK, gold_M, reduction="sum")

    def read(self, scores_MK: torch.Tensor) -> np.ndarray:
        """(M, K) probabilities, float64."""
        return torch.softmax(scores_MK.double(), -1).cpu().numpy()

    def agree(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """(M,) whether two readings of the items say the same."""
        return np.asarray(one_MK.argmax(1) == other_MK.argmax(1))


@dataclass(frozen=True)
class Labels(_Classes):
    """One of several labels, or the place of one of several choices, which are scored one by one."""

    choices: bool = False

    @property
    def outputs(self) -> int:
        """One a label; of each choice one."""
        return 1 if self.choices else len(self.names)

    def gold(self, table: pd.DataFrame) -> np.ndarray:
        """(M,): what stands in the items, row by row."""
        return table["label"].to_numpy()

    def columns(self, table: pd.DataFrame, read_MK: np.ndarray, best_M: np.ndarray | None = None) -> Columns:
        """The columns of the predictions."""
        return of_labels(self.names, self.gold(table), read_MK)


@dataclass(frozen=True)
class Number:
    """A number on a scale. It is learned as its distance from the mean of the training items, in their deviations."""

    mean: float
    deviation: float
    outputs: int = 1

    @classmethod
    def like(cls, gold_M: np.ndarray) -> "Number":
        """The scale of these training items."""
        return cls(float(gold_M.mean()), float(gold_M.std()) or 1.0)

    def gold(self, table: pd.DataFrame) -> np.ndarray:
        """(M,) numbers."""
        return table["label"].to_numpy(np.float64)

    def loss(self, scores_MK: torch.Tensor, gold_M: torch.Tensor) -> torch.Tensor:
        """Half the summed squares of the error, in deviations."""
        wanted_M = (gold_M - self.mean) / self.deviation
        exact_M = scores_MK[:, 0] if scores_MK.dtype == torch.float64 else scores_MK[:, 0].float()
        return 0.5 * (exact_M - wanted_M.to(exact_M.dtype)).square().sum()

    def read(self, scores_MK: torch.Tensor) -> np.ndarray:
        """(M, 1) numbers on the scale of the items, float64."""
        return scores_MK.double().cpu().numpy() * self.deviation + self.mean

    def agree(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """(M,) whether two readings of the items say nearly the same: within a tenth of the deviation of the training items."""
        return np.asarray(np.abs(one_MK - other_MK)[:, 0] <= 0.1 * self.deviation)

    def columns(self, table: pd.DataFrame, read_MK: np.ndarray, best_M: np.ndarray | None = None) -> Columns:
        """The columns of the predictions. What is correct is no number where every prediction is the same."""
        return of_numbers(self.gold(table), read_MK[:, 0])


@dataclass(frozen=True)
class Tags(_Classes):
    """A tag for every word; `spans` where they are tags of spans (IOB2), which are then what is scored."""

    spans: bool

    def gold(self, table: pd.DataFrame) -> np.ndarray:
        """(M,): the tags of all words."""
        return np.concatenate([np.asarray(tags, np.int64) for tags in table["label"]])

    def columns(self, table: pd.DataFrame, read_MK: np.ndarray, best_M: np.ndarray | None = None) -> Columns:
        """The columns of the predictions: each word's likeliest tag, or the `best_M` that a CRF found for sentences as wholes."""
        said_M = read_MK.argmax(1) if best_M is None else best_M
        return of_tags(self.names, [len(tags) for tags in table["label"]], self.gold(table), read_MK, said_M, spans=self.spans)


Answer = Labels | Number | Tags


def answer_of(facts: dict[str, Any], train: pd.DataFrame) -> Answer:
    """What a task is answered with, by its facts (task.json) and the items that a reader learns from."""
    form: Form = facts["answer"]
    if form == "number":
        return Number.like(train["label"].to_numpy(np.float64))
    names = tuple(facts["labels"])
    return Tags(names, facts["metric"][0] == "span_f1") if form == "tags" else Labels(names, choices=form == "choice")
