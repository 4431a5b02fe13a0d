"""A span of a context that answers a question.

Shapes: N items, M words of all items, W words of one context, K = 2 scores: of the first word and
of the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import (
    ITEM_START,
    HeadAnswer,
    LabelledSplits,
    LinearInputs,
    PredictionColumns,
    Splits,
)
from lineage.answers.metrics import ANSWER_SEPARATOR
from lineage.answers.tags import item_ends, words_in_context
from lineage.config.data import Task
from lineage.errors import InputError
from lineage.language import split_words

# Further bits of the label of a word in a context: it is the first or the last one of the answer.
ANSWER_START = 2
ANSWER_END = 4
MAX_ANSWER_WORDS = 30  # the code released with Devlin et al. 2019 allows 30 pieces
CONTEXT_WINDOW = 10  # words of a context to either side


@dataclass(frozen=True)
class SpanAnswer(HeadAnswer):
    """A span of a context: each word has a score as its first word, and one as its last word.

    Each score goes into a softmax over all words of the context (Devlin et al. 2019, section 4.2),
    even if the context is split into windows (shared normalization: Clark and Gardner 2018, section
    3.2).
    """

    mean_over_items: ClassVar[bool] = True
    are_texts: ClassVar[bool] = True
    reads_in_parts: ClassVar[bool] = True

    @property
    def num_outputs(self) -> int:
        return 2

    @classmethod
    def drop_unanswerable(
        cls, data: LabelledSplits, dropped: Mapping[str, dict[str, int]], *, folds: int | None
    ) -> None:
        """Drop and count training questions whose answer max_words cut off: none can be learned.

        They stay in other splits, and with folds in train too, since each is scored. Raises
        InputError if train has no other question; with folds if fewer than half have an answer.
        """
        train = data.tables["train"]
        has_answer = train["label"].map(len) > 0
        num_unanswerable = int((~has_answer).sum())
        if folds and has_answer.mean() < 0.5:
            raise InputError(
                f"{data.places['train']}: {num_unanswerable:,} of {len(has_answer):,} questions "
                "have no answer within the first max_words words, and with folds each is scored; "
                "raise max_words"
            )
        if not has_answer.any():
            raise InputError(
                f"{data.places['train']}: no answer is within the first max_words words of its "
                "context; raise max_words"
            )
        if folds:
            return
        dropped["train"]["answer_cut_off"] = num_unanswerable
        data.tables["train"] = train[has_answer].reset_index(drop=True)

    @classmethod
    def can_be_learned(cls, items: pd.DataFrame) -> np.ndarray:
        return (items["label"].map(len) > 0).to_numpy()

    @classmethod
    def count_doubtful(
        cls, splits: Splits, labels: Sequence[str], task: Task
    ) -> dict[str, dict[str, int]]:
        counts = {
            split: int((table["label"].map(len) == 0).sum())
            for split, table in splits.items()
            if "label" in table
        }
        return {"truncated_answers": counts}

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) sums of ITEM_START, ANSWER_START and ANSWER_END."""
        labels_by_item = []
        for starts, label in zip(table["starts"], table["label"], strict=True):
            labels_W = np.zeros(len(starts), np.int64)
            labels_W[0] = ITEM_START
            if len(label):
                labels_W[label[0]] += ANSWER_START
                labels_W[label[1]] += ANSWER_END
            labels_by_item.append(labels_W)
        return np.concatenate(labels_by_item)

    def loss(self, scores_MK: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Return the sum over items of the cross entropy of both words, in nats."""
        scores_M2 = scores_MK
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

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return the (M, 2) scores, float64; `normalize` makes probabilities of them."""
        return scores_MK.double().cpu().numpy()

    def normalize(self, items: pd.DataFrame, outputs_MK: np.ndarray) -> np.ndarray:
        """Return (M, 2) log-probabilities over the words of each context."""
        log_probs = [
            scores_W2 - np.logaddexp.reduce(scores_W2, axis=0)
            for scores_W2 in np.split(outputs_MK, item_ends(items["starts"]))
        ]
        return np.concatenate(log_probs)

    def answer_columns(
        self, items: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the characters from the first to the last word of the best span of each item."""
        predictions: list[str] = []
        contexts = np.split(outputs_MK, item_ends(items["starts"]))
        columns = (items[name] for name in ("context", "starts", "ends"))
        for log_probs_W2, context, starts, ends in zip(contexts, *columns, strict=True):
            first, last = find_best_span(log_probs_W2)
            predictions.append(context[starts[first] : ends[last]])
        return {"prediction": np.array(predictions, object)}

    def prediction_columns(
        self, items: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels, which are all correct answers, and the answers."""
        scores_N = np.zeros(len(items))
        contexts = np.split(outputs_MK, item_ends(items["starts"]))
        for row, (log_probs_W2, label) in enumerate(zip(contexts, items["label"], strict=True)):
            if len(label):
                scores_N[row] = np.exp(log_probs_W2[label[0], 0] + log_probs_W2[label[1], 1])
        answers = [ANSWER_SEPARATOR.join(texts) for texts in items["answers"]]
        return {
            "label": np.array(answers, object),
            **self.answer_columns(items, outputs_MK),
            "score": scores_N,
        }

    def can_learn(self, train: pd.DataFrame) -> bool:
        """Tell whether a context has words to choose from."""
        return any(len(starts) > 1 for starts in train["starts"])

    def majority_outputs(self, train: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
        """Choose the most frequent first and last word, or the last one of a shorter context."""
        spans, counts = np.unique(np.stack(train["label"].to_list()), axis=0, return_counts=True)
        majority = spans[counts.argmax()]
        lengths = [len(starts) for starts in items["starts"]]
        is_predicted = [
            np.arange(length)[:, None] == np.minimum(majority, length - 1) for length in lengths
        ]
        return np.where(np.concatenate(is_predicted), 0.0, -np.inf)

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Return the words of all contexts with their neighbors, and their `question_overlap`."""
        contexts: list[list[str]] = []
        overlap = []
        columns = (items[name] for name in ("question", "context", "starts", "ends"))
        for question, context, starts, ends in zip(*columns, strict=True):
            tokens = [context[start:end] for start, end in zip(starts, ends, strict=True)]
            contexts.append(tokens)
            question_words = {word.lower() for word in split_words(question, language)}
            overlap.append(question_overlap(question_words, [token.lower() for token in tokens]))
        return LinearInputs(words=words_in_context(contexts), extra_MF=np.concatenate(overlap))

    def linear_labels(self, train: pd.DataFrame) -> list[np.ndarray]:
        """Return which word is the first of the answer, and which the last."""
        ends = np.cumsum([0, *(len(starts) for starts in train["starts"])])
        labels = []
        for side in (0, 1):
            labels_M = np.zeros(ends[-1], bool)
            labels_M[ends[:-1] + [label[side] for label in train["label"]]] = True
            labels.append(labels_M)
        return labels

    @property
    def num_linear_labels(self) -> int:
        return 2

    def linear_outputs(self, predictions: Sequence[np.ndarray], items: pd.DataFrame) -> np.ndarray:
        """Return (M, 2) log-probabilities that a word is right, normalized over its context."""
        log_probabilities = []
        for probabilities_M2 in predictions:
            parts = np.split(probabilities_M2[:, 1], item_ends(items["starts"]))
            log_probabilities.append(np.concatenate([np.log(part / part.sum()) for part in parts]))
        return np.stack(log_probabilities, 1)


def find_best_span(scores_W2: np.ndarray) -> tuple[int, int]:
    """Return the first and last word of the span with the highest sum of both scores.

    See Devlin et al. 2019, section 4.2. A span has at most MAX_ANSWER_WORDS words. Ties go to the
    span that begins first, then to the shortest.
    """
    words = np.arange(len(scores_W2))
    extra_words_WW = words - words[:, None]
    is_allowed_WW = (extra_words_WW >= 0) & (extra_words_WW < MAX_ANSWER_WORDS)
    sums_WW = np.where(is_allowed_WW, scores_W2[:, :1] + scores_W2[:, 1], -np.inf)
    first, last = np.unravel_index(sums_WW.argmax(), sums_WW.shape)
    return int(first), int(last)


def question_overlap(question_words: set[str], tokens: Sequence[str]) -> np.ndarray:
    """Return (W, 3): is the word in the question, and the weight of such words before and after.

    The weight is summed over CONTEXT_WINDOW words and falls with distance, as in the sliding window
    of Richardson et al. 2013 (section 4.1).
    """
    weight_W = np.zeros(len(tokens))
    for index, token in enumerate(tokens):
        if token in question_words:
            weight_W[index] = 1 - tokens.count(token) / len(tokens)
    kernel = [0, *(1 / np.arange(1, CONTEXT_WINDOW + 1))]
    before_W = np.convolve(weight_W, kernel)[: len(weight_W)]
    after_W = np.convolve(weight_W[::-1], kernel)[: len(weight_W)][::-1]
    return np.stack([weight_W > 0, before_W, after_W], 1)
