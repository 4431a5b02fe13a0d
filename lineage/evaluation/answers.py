"""What a task is answered with: a label, one of several choices, a number, a tag for every word, or a span of words; how that is learned and told.

A reader of any kind gives scores, `outputs` numbers a row: a row is an item, or, of tags and spans, a word, those of an item one after another.
Shapes: N items, M rows, K outputs.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.evaluation.predictions import (
    PredictionColumns,
    format_label_predictions,
    format_number_predictions,
    format_span_predictions,
    format_tag_predictions,
)

AnswerType = Literal["label", "choice", "number", "tags", "span"]
# What a word of a context is, in the gold answers of spans: the first of its item's; where the answer begins; where it ends.
ITEM_START, ANSWER_START, ANSWER_END = 1, 2, 4


@dataclass(frozen=True)
class _ClassAnswer:
    label_names: tuple[str, ...]
    mean_over_items: ClassVar[bool] = (
        False  # whether a loss is a mean over items, instead of over rows
    )

    @property
    def num_outputs(self) -> int:
        """One a name."""
        return len(self.label_names)

    def loss(
        self,
        scores_MK: torch.Tensor,
        labels_M: torch.Tensor,
        *,
        weights_M: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Summed nats, each row's with its weight."""
        if weights_M is None:
            return F.cross_entropy(scores_MK, labels_M, reduction="sum")
        nats_M = F.cross_entropy(scores_MK, labels_M, reduction="none")
        return (weights_M.to(nats_M.dtype) * nats_M).sum()

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """(M, K) probabilities, float64."""
        return torch.softmax(scores_MK.double(), -1).cpu().numpy()

    def agrees(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """(M,) whether two readings of the items say the same."""
        return np.asarray(one_MK.argmax(1) == other_MK.argmax(1))


@dataclass(frozen=True)
class LabelAnswer(_ClassAnswer):
    """One of several labels, or the place of one of several choices, which are scored one by one."""

    is_multiple_choice: bool = False

    @property
    def num_outputs(self) -> int:
        """One a label; of each choice one."""
        return 1 if self.is_multiple_choice else len(self.label_names)

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """(M,): what stands in the items, row by row."""
        return table["label"].to_numpy()

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """The columns of the predictions."""
        return format_label_predictions(self.label_names, self.labels(table), outputs_MK)


@dataclass(frozen=True)
class NumberAnswer:
    """A number on a scale. It is learned as its distance from the mean of the training items, in their deviations."""

    mean: float
    std: float
    num_outputs: ClassVar[int] = 1
    mean_over_items: ClassVar[bool] = False

    @classmethod
    def from_labels(cls, labels_M: np.ndarray) -> "NumberAnswer":
        """The scale of these training items."""
        return cls(float(labels_M.mean()), float(labels_M.std()) or 1.0)

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """(M,) numbers."""
        return table["label"].to_numpy(np.float64)

    def loss(
        self,
        scores_MK: torch.Tensor,
        labels_M: torch.Tensor,
        *,
        weights_M: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Half the summed squares of the error, in deviations, each row's with its weight."""
        wanted_M = (labels_M - self.mean) / self.std
        exact_M = scores_MK[:, 0] if scores_MK.dtype == torch.float64 else scores_MK[:, 0].float()
        squares_M = (exact_M - wanted_M.to(exact_M.dtype)).square()
        return (
            0.5
            * (squares_M if weights_M is None else weights_M.to(squares_M.dtype) * squares_M).sum()
        )

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """(M, 1) numbers on the scale of the items, float64."""
        return scores_MK.double().cpu().numpy() * self.std + self.mean

    def agrees(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """(M,) whether two readings of the items say nearly the same: within a tenth of the deviation of the training items."""
        return np.asarray(np.abs(one_MK - other_MK)[:, 0] <= 0.1 * self.std)

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """The columns of the predictions."""
        return format_number_predictions(self.labels(table), outputs_MK[:, 0])


@dataclass(frozen=True)
class TagsAnswer(_ClassAnswer):
    """A tag for every word."""

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """(M,): the tags of all words."""
        return np.concatenate([np.asarray(tags, np.int64) for tags in table["label"]])

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """The columns of the predictions: each word's likeliest tag, or the `best_M` that a CRF found for sentences as wholes."""
        said_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        return format_tag_predictions(
            self.label_names,
            [len(tags) for tags in table["label"]],
            self.labels(table),
            outputs_MK,
            said_M,
        )


@dataclass(frozen=True)
class SpanAnswer:
    """Some words of a context, one after another: a score for each word to be the first of them, and one to be the last.

    Both are told by a softmax over all words of the context, in however many windows it was read (Devlin et al. 2019, section 4.2; over the parts of
    a document together: Clark and Gardner 2018, section 3.2). In the code released with Devlin et al. each window has a softmax of its own, and what
    is learned of one that lacks the answer is that it begins and ends at [CLS]; here one softmax over windows says it.
    """

    num_outputs: ClassVar[int] = 2
    mean_over_items: ClassVar[bool] = True

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """(M,): what each word is, a sum of FIRST, START and END; of an item whose answer was cut off no word is one of the last two."""
        found = [np.zeros(len(starts), np.int64) for starts in table["starts"]]
        for words, label in zip(found, table["label"], strict=True):
            words[0] = ITEM_START
            if len(label):
                words[label[0]] += ANSWER_START
                words[label[1]] += ANSWER_END
        return np.concatenate(found)

    def loss(self, scores_M2: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Summed nats of the first words and of the last ones. How many items there are is never asked: on a GPU that would be to wait for it."""
        scores_M2 = scores_M2 if scores_M2.dtype == torch.float64 else scores_M2.float()
        item_M = ((labels_M & ITEM_START) > 0).cumsum(0) - 1
        lowest = torch.full_like(scores_M2, float("-inf"))
        max_M2 = lowest.scatter_reduce(
            0, item_M[:, None].expand_as(scores_M2), scores_M2.detach(), "amax"
        )[item_M]
        total_M2 = torch.zeros_like(scores_M2).index_add(0, item_M, (scores_M2 - max_M2).exp())[
            item_M
        ]
        is_target_M2 = torch.stack([labels_M & ANSWER_START, labels_M & ANSWER_END], 1) > 0
        return torch.where(is_target_M2, total_M2.log() + max_M2 - scores_M2, 0.0).sum()

    def postprocess(self, scores_M2: torch.Tensor) -> np.ndarray:
        """(M, 2) the scores, float64: which words belong together is known where the items are."""
        return scores_M2.double().cpu().numpy()

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """The columns of the predictions, from the scores of all words."""
        each = np.split(outputs_MK, np.cumsum([len(starts) for starts in table["starts"]])[:-1])
        return format_span_predictions(
            table, np.concatenate([own - np.logaddexp.reduce(own, axis=0) for own in each])
        )


Answer = LabelAnswer | NumberAnswer | TagsAnswer | SpanAnswer


def make_answer(facts: dict[str, Any], train: pd.DataFrame) -> Answer:
    """What a task is answered with, by its facts (task.json) and the items that a reader learns from."""
    answer_type: AnswerType = facts["answer"]
    if answer_type == "number":
        return NumberAnswer.from_labels(train["label"].to_numpy(np.float64))
    if answer_type == "span":
        return SpanAnswer()
    names = tuple(facts["labels"])
    return (
        TagsAnswer(names)
        if answer_type == "tags"
        else LabelAnswer(names, is_multiple_choice=answer_type == "choice")
    )
