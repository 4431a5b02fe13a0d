"""The types of answer that a task can ask for: the labels, loss and predictions of each.

An answer is a label, one of several choices, a number, a tag for each word, or a span of words.
A head of any kind gives `num_outputs` scores for each row. A row is an item; for tags and spans it
is a word, and the words of an item follow each other.
Shapes: N items, M rows, K outputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.evaluation.predictions import (
    PredictionColumns,
    answer_with_spans,
    format_span_predictions,
)
from lineage.results import PROBABILITY_PREFIX
from lineage.tasks.base import AnswerType

# Bits of the label of a word in a context: it is the first word of its item, the first word of the
# answer, the last word of the answer.
ITEM_START = 1
ANSWER_START = 2
ANSWER_END = 4


@dataclass(frozen=True)
class _ClassAnswer:
    """One of several classes, trained with cross entropy."""

    label_names: tuple[str, ...]
    mean_over_items: ClassVar[bool] = False  # False: the loss is a mean over rows

    @property
    def num_outputs(self) -> int:
        """One score for each class."""
        return len(self.label_names)

    def loss(
        self,
        scores_MK: torch.Tensor,
        labels_M: torch.Tensor,
        *,
        weights_M: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the weighted sum over rows of the cross entropy, in nats."""
        if weights_M is None:
            return F.cross_entropy(scores_MK, labels_M, reduction="sum")
        nats_M = F.cross_entropy(scores_MK, labels_M, reduction="none")
        return (weights_M.to(nats_M.dtype) * nats_M).sum()

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return (M, K) probabilities, float64."""
        return torch.softmax(scores_MK.double(), -1).cpu().numpy()

    def agrees(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """Return (M,) whether two outputs of `postprocess` give the same class."""
        return np.asarray(one_MK.argmax(1) == other_MK.argmax(1))


@dataclass(frozen=True)
class LabelAnswer(_ClassAnswer):
    """One of several labels, or the position of the right choice."""

    is_multiple_choice: bool = False

    @property
    def num_outputs(self) -> int:
        """One score for each label; choices are scored one by one."""
        return 1 if self.is_multiple_choice else len(self.label_names)

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) label indices."""
        return table["label"].to_numpy()

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the most probable label of each item, and the probability of each label."""
        names = np.asarray(self.label_names, object)
        columns = {"prediction": names[outputs_MK.argmax(1)]}
        for index, name in enumerate(self.label_names):
            columns[f"{PROBABILITY_PREFIX}{name}"] = outputs_MK[:, index].astype(np.float32)
        return columns

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels and answers; score is the probability of the true label."""
        answers = self.answer_columns(table, outputs_MK)
        labels_M = self.labels(table)
        return {
            "label": np.asarray(self.label_names, object)[labels_M],
            "prediction": answers.pop("prediction"),
            "score": outputs_MK[np.arange(len(labels_M)), labels_M],
            **answers,
        }


@dataclass(frozen=True)
class NumberAnswer:
    """A number, standardized by the mean and standard deviation of the training labels."""

    mean: float
    std: float
    num_outputs: ClassVar[int] = 1
    mean_over_items: ClassVar[bool] = False

    @classmethod
    def from_labels(cls, labels_M: np.ndarray) -> "NumberAnswer":
        """Take the mean and standard deviation of these training labels."""
        return cls(float(labels_M.mean()), float(labels_M.std()) or 1.0)

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) numbers."""
        return table["label"].to_numpy(np.float64)

    def loss(
        self,
        scores_MK: torch.Tensor,
        labels_M: torch.Tensor,
        *,
        weights_M: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return half the weighted sum over rows of the squared error, in standard deviations."""
        scores_M = scores_MK[:, 0]
        if scores_M.dtype != torch.float64:
            scores_M = scores_M.float()
        targets_M = (labels_M - self.mean) / self.std
        squares_M = (scores_M - targets_M.to(scores_M.dtype)).square()
        if weights_M is not None:
            squares_M = weights_M.to(squares_M.dtype) * squares_M
        return 0.5 * squares_M.sum()

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return (M, 1) numbers on the scale of the labels, float64."""
        return scores_MK.double().cpu().numpy() * self.std + self.mean

    def agrees(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """Return (M,) whether two outputs differ by at most a tenth of the standard deviation."""
        return np.asarray(np.abs(one_MK - other_MK)[:, 0] <= 0.1 * self.std)

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the predicted numbers."""
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


def _format_numbers(numbers_M: np.ndarray) -> np.ndarray:
    return np.array([repr(float(number)) for number in numbers_M], object)


@dataclass(frozen=True)
class TagsAnswer(_ClassAnswer):
    """A tag for every word."""

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) tag indices of all words."""
        return np.concatenate([np.asarray(tags, np.int64) for tags in table["label"]])

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the tags of each item as one text, with spaces between them.

        Each word gets its most probable tag, or with `decoded_M` the tag that a CRF decoded.
        """
        predictions_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        return {"prediction": self._join_tags(predictions_M, _item_ends(table["tokens"]))}

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels and answers; score is the mean probability of the true tags."""
        predictions_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        labels_M = self.labels(table)
        ends = _item_ends(table["label"])
        probabilities_M = outputs_MK[np.arange(len(labels_M)), labels_M]
        return {
            "label": self._join_tags(labels_M, ends),
            "prediction": self._join_tags(predictions_M, ends),
            "score": np.array([item.mean() for item in np.split(probabilities_M, ends)]),
        }

    def _join_tags(self, indices_M: np.ndarray, ends: np.ndarray) -> np.ndarray:
        tags_M = np.asarray(self.label_names, object)[indices_M]
        texts = np.empty(len(ends) + 1, object)
        texts[:] = [" ".join(tags) for tags in np.split(tags_M, ends)]
        return texts


def _item_ends(words_by_item: Iterable[Sequence[Any]]) -> np.ndarray:
    """Return the rows after the words of each item but the last."""
    return np.cumsum([len(words) for words in words_by_item])[:-1]


@dataclass(frozen=True)
class SpanAnswer:
    """A span of a context: each word has a score as its first word, and one as its last word.

    Each score goes into a softmax over all words of the context (Devlin et al. 2019, section 4.2),
    even if the context is split into windows (shared normalization: Clark and Gardner 2018,
    section 3.2). The code released with Devlin et al. has a softmax for each window, and trains a
    window without the answer to predict [CLS]. One softmax over all windows does not need that.
    """

    num_outputs: ClassVar[int] = 2
    mean_over_items: ClassVar[bool] = True

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) sums of ITEM_START, ANSWER_START and ANSWER_END.

        If the answer was truncated, no word has ANSWER_START or ANSWER_END.
        """
        labels_by_item = []
        for starts, label in zip(table["starts"], table["label"], strict=True):
            labels_W = np.zeros(len(starts), np.int64)
            labels_W[0] = ITEM_START
            if len(label):
                labels_W[label[0]] += ANSWER_START
                labels_W[label[1]] += ANSWER_END
            labels_by_item.append(labels_W)
        return np.concatenate(labels_by_item)

    def loss(self, scores_M2: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Return the sum over items of the cross entropy of both words, in nats.

        The item-wise softmax is computed in tensors with a row for each word, because counting
        the items would make the CPU wait for the GPU.
        """
        if scores_M2.dtype != torch.float64:
            scores_M2 = scores_M2.float()
        item_M = ((labels_M & ITEM_START) > 0).cumsum(0) - 1
        item_M2 = item_M[:, None].expand_as(scores_M2)
        lowest_M2 = torch.full_like(scores_M2, float("-inf"))
        max_M2 = lowest_M2.scatter_reduce(0, item_M2, scores_M2.detach(), "amax")[item_M]
        exp_M2 = (scores_M2 - max_M2).exp()
        total_M2 = torch.zeros_like(scores_M2).index_add(0, item_M, exp_M2)[item_M]
        is_target_M2 = torch.stack([labels_M & ANSWER_START, labels_M & ANSWER_END], 1) > 0
        return torch.where(is_target_M2, total_M2.log() + max_M2 - scores_M2, 0.0).sum()

    def postprocess(self, scores_M2: torch.Tensor) -> np.ndarray:
        """Return the (M, 2) scores, float64; `prediction_columns` normalizes them."""
        return scores_M2.double().cpu().numpy()

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the text of the best span of each item."""
        return answer_with_spans(table, self._log_probabilities(table, outputs_MK))

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels and answers; score is the probability of the labelled span."""
        return format_span_predictions(table, self._log_probabilities(table, outputs_MK))

    def _log_probabilities(self, table: pd.DataFrame, scores_M2: np.ndarray) -> np.ndarray:
        log_probs = [
            scores_W2 - np.logaddexp.reduce(scores_W2, axis=0)
            for scores_W2 in np.split(scores_M2, _item_ends(table["starts"]))
        ]
        return np.concatenate(log_probs)


Answer = LabelAnswer | NumberAnswer | TagsAnswer | SpanAnswer


def make_answer(info: Mapping[str, Any], train: pd.DataFrame) -> Answer:
    """Build the answer type of a task from task.json and the training items."""
    if info["answer"] == "number":
        return NumberAnswer.from_labels(train["label"].to_numpy(np.float64))
    return build_answer(info["answer"], tuple(info["labels"]))


def build_answer(
    answer_type: AnswerType | None,
    label_names: tuple[str, ...],
    *,
    mean: float = 0.0,
    std: float = 1.0,
) -> Answer:
    """Build an answer type; `mean` and `std` are those of a number."""
    if answer_type == "number":
        return NumberAnswer(mean, std)
    if answer_type == "span":
        return SpanAnswer()
    if answer_type == "tags":
        return TagsAnswer(label_names)
    return LabelAnswer(label_names, is_multiple_choice=answer_type == "choice")
