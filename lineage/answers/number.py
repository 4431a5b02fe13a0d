"""A number: how similar two sentences are, how good a review is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import MIN_CONSTANT_LABELS, HeadAnswer, LabelledSplits, PredictionColumns


@dataclass(frozen=True)
class NumberAnswer(HeadAnswer):
    """A number, standardized by the mean and standard deviation of the training labels."""

    are_numbers: ClassVar[bool] = True
    column_advice: ClassVar[str] = "a number, such as the mean of train"
    majority_name: ClassVar[str] = "mean score"

    @classmethod
    def fit(cls, label_names: Sequence[str], train: pd.DataFrame) -> Self:
        labels_M = train["label"].to_numpy(np.float64)
        return cls(mean=float(labels_M.mean()), std=float(labels_M.std()) or 1.0)

    @property
    def num_outputs(self) -> int:
        return 1

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Return no names.

        Raises InputError if all numbers of train are equal, or all of a larger scored split.
        """
        for split in ("train", "test", "validation"):
            if split not in data.tables:
                continue
            numbers = data.tables[split]["label"]
            if numbers.nunique() > 1:
                continue
            if split == "train":
                fix = "there is nothing to learn, name another column"
            elif len(numbers) >= MIN_CONSTANT_LABELS:
                fix = "nothing can be compared; name a split that has them"
            else:
                continue
            raise data.error(split, f"every number is {numbers.iloc[0]}; {fix}")
        return []

    @classmethod
    def read_predictions(
        cls, items: pd.DataFrame, names: Sequence[str], where: str, column: str
    ) -> np.ndarray:
        return _format_numbers(items["label"].to_numpy(np.float64))

    @classmethod
    def answer_types(cls, labels: Sequence[str]) -> dict[str, type]:
        return {"prediction": float}

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        return table["label"].to_numpy(np.float64)

    def loss(self, scores_MK: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Return half the sum over rows of the squared error, in standard deviations."""
        return 0.5 * self._squared_errors(scores_MK, labels_M).sum()

    def weighted_loss(
        self, scores_MK: torch.Tensor, labels_M: torch.Tensor, weights_M: torch.Tensor
    ) -> torch.Tensor:
        squares_M = self._squared_errors(scores_MK, labels_M)
        return 0.5 * (weights_M.to(squares_M.dtype) * squares_M).sum()

    def _squared_errors(self, scores_MK: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        scores_M = scores_MK[:, 0]
        if scores_M.dtype != torch.float64:
            scores_M = scores_M.float()
        targets_M = (labels_M - self.mean) / self.std
        return (scores_M - targets_M.to(scores_M.dtype)).square()

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return (M, 1) numbers on the scale of the labels, float64."""
        return scores_MK.double().cpu().numpy() * self.std + self.mean

    def agrees(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """Return (M,) whether two outputs differ by at most a tenth of the standard deviation."""
        return np.asarray(np.abs(one_MK - other_MK)[:, 0] <= 0.1 * self.std)

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        return {"prediction": outputs_MK[:, 0].astype(float)}

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels and answers as texts; score is the prediction."""
        predictions_M = outputs_MK[:, 0]
        return {
            "label": _format_numbers(self.labels(table)),
            "prediction": _format_numbers(predictions_M),
            "score": predictions_M.astype(float),
        }

    def majority_outputs(self, train: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
        """Return (N, 1): the mean score."""
        return np.full((len(items), 1), train["label"].to_numpy(float).mean())

    def linear_labels(self, train: pd.DataFrame) -> list[np.ndarray]:
        return [train["label"].to_numpy(float)]

    @property
    def num_linear_labels(self) -> int:
        return 0

    def linear_outputs(self, predictions: Sequence[np.ndarray], items: pd.DataFrame) -> np.ndarray:
        return predictions[0][:, None]


def _format_numbers(numbers_M: np.ndarray) -> np.ndarray:
    return np.array([repr(float(number)) for number in numbers_M], object)
