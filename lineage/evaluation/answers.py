"""The types of answer that a task can ask for: the labels, loss and predictions of each.

An answer is a label, one of several choices, a number, a tag for each word, or a span of words.
A head of any kind gives `num_outputs` scores for each row. A row is an item; for tags and spans it
is a word, and the words of an item follow each other.
Shapes: N items, M rows, K outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.evaluation.predictions import (
    PredictionColumns,
    answer_with_labels,
    answer_with_numbers,
    answer_with_spans,
    answer_with_tags,
    format_label_predictions,
    format_number_predictions,
    format_span_predictions,
    format_tag_predictions,
)
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
        """Return the answers to items without labels, and the probability of each label."""
        return answer_with_labels(self.label_names, outputs_MK)

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the columns of the predictions."""
        return format_label_predictions(self.label_names, self.labels(table), outputs_MK)


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
        """Return the answers to items without labels, as numbers."""
        return answer_with_numbers(outputs_MK[:, 0])

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the columns of the predictions."""
        return format_number_predictions(self.labels(table), outputs_MK[:, 0])


@dataclass(frozen=True)
class TagsAnswer(_ClassAnswer):
    """A tag for every word."""

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) tag indices of all words."""
        return np.concatenate([np.asarray(tags, np.int64) for tags in table["label"]])

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the answers to items without labels.

        Each word gets its most probable tag, or with `decoded_M` the tag that a CRF decoded.
        """
        predictions_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        lengths = [len(tokens) for tokens in table["tokens"]]
        return answer_with_tags(self.label_names, lengths, predictions_M)

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the columns of the predictions; for the tags see `answer_columns`."""
        predictions_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        lengths = [len(tags) for tags in table["label"]]
        return format_tag_predictions(
            self.label_names, lengths, self.labels(table), outputs_MK, predictions_M
        )


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
        """Return the answers to items without labels, from the scores of all words."""
        return answer_with_spans(table, self._log_probabilities(table, outputs_MK))

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the columns of the predictions, from the scores of all words."""
        return format_span_predictions(table, self._log_probabilities(table, outputs_MK))

    def _log_probabilities(self, table: pd.DataFrame, scores_M2: np.ndarray) -> np.ndarray:
        ends = np.cumsum([len(starts) for starts in table["starts"]])[:-1]
        log_probs = [
            scores_W2 - np.logaddexp.reduce(scores_W2, axis=0)
            for scores_W2 in np.split(scores_M2, ends)
        ]
        return np.concatenate(log_probs)


Answer = LabelAnswer | NumberAnswer | TagsAnswer | SpanAnswer


def make_answer(facts: Mapping[str, Any], train: pd.DataFrame) -> Answer:
    """Build the answer type of a task from task.json and the training items."""
    answer_type: AnswerType = facts["answer"]
    if answer_type == "number":
        return NumberAnswer.from_labels(train["label"].to_numpy(np.float64))
    if answer_type == "span":
        return SpanAnswer()
    label_names = tuple(facts["labels"])
    if answer_type == "tags":
        return TagsAnswer(label_names)
    return LabelAnswer(label_names, is_multiple_choice=answer_type == "choice")
