"""The types of answer that a task can ask for: one file of this package each.

The file says how the labels of a task are checked and stored, how a head learns and gives the
answers, what simple baselines answer, how answers are scored, and which columns of predictions hold
them. A head of any kind gives `num_outputs` scores for each row: an item, or for tags and spans a
word.

Shapes: N items, M rows, K outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch

from lineage.answers.metrics import CONTRIBUTIONS, METRICS
from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.results import Note

PredictionColumns = dict[str, np.ndarray]
# The answers come from a trained head over an encoder, the probability that a language model gives to
# sentences, the vectors of single words, a trained translator, or a language model that writes on.
AnsweredBy = Literal["head", "sentence_probability", "word_vectors", "translator", "continuation"]
Splits = dict[str, pd.DataFrame]
# A word between the one before it and the one after it; then other words that it is read with.
WordInContext = tuple[str, ...]


# Bit of the labels that rows of an item share if it is scored as a whole: it is the first row.
ITEM_START = 1


@dataclass(frozen=True)
class LabelledSplits:
    """The labelled items of a task by split, and for messages the file and the label column."""

    tables: Splits
    places: Mapping[str, str]
    columns: Mapping[str, str]

    def error(self, split: str, problem: str, *, item_ids: Sequence[str] = ()) -> InputError:
        """Return an error about the labels of a split, or those of some of its items."""
        row = ""
        if len(item_ids):
            others = len(item_ids) - 1
            more = f" (and {others:,} more)" if others else ""
            row = f"row {row_number(item_ids[0])}{more}: "
        return InputError(f"{self.places[split]}: {row}column '{self.columns[split]}': {problem}")


@dataclass(frozen=True)
class LinearInputs:
    """The inputs of a linear model on TF-IDF for each row: texts, or words in their context."""

    # One list for each text of a row.
    texts: Sequence[Sequence[str]] = ()
    words: Sequence[WordInContext] | None = None
    extra_MF: np.ndarray | None = None  # further features


class Answer:
    """A type of answer: the checks of its labels, and its scores."""

    answered_by: ClassVar[AnsweredBy] = "head"
    also_answered_by: ClassVar[tuple[AnsweredBy, ...]] = ()  # without training
    names_labels: ClassVar[bool] = False  # labels have names, which `label_map` may change
    are_classes: ClassVar[bool] = False  # one of several, with a probability each
    are_words: ClassVar[bool] = False  # an answer for each word of an item; a CRF may decode them
    are_texts: ClassVar[bool] = False  # labels and answers are texts, which may be private
    are_numbers: ClassVar[bool] = False
    # An answer is a shorter text in the language of its source, so parts of the source are floors.
    shortens_source: ClassVar[bool] = False
    text_nouns: ClassVar[str] = ""  # the plural of written answers: translations
    # The report shows single answers: each is a name, and right, wrong or half right.
    can_be_shown: ClassVar[bool] = False
    # Texts longer than the model reads are read in several windows instead of being cut.
    reads_in_parts: ClassVar[bool] = False
    has_ties: ClassVar[bool] = False  # items may be half right
    averages_groups: ClassVar[bool] = False  # the score is the mean over groups of a score each
    has_one_label: ClassVar[bool] = False  # an item has one label, and train must have them all
    # Says what an outside system writes for each item into a column of predictions, which
    # `read_predictions` reads as labels are read; empty: its predictions do not fit a column.
    column_advice: ClassVar[str] = ""
    # The name of the most frequent answer to tasks without classes; empty: majority.
    majority_name: ClassVar[str] = ""

    @classmethod
    def list_answered_by(cls) -> tuple[AnsweredBy, ...]:
        """Return everything that can give such answers."""
        return (cls.answered_by, *cls.also_answered_by)

    @classmethod
    def reason_key(cls, answered_by: AnsweredBy) -> str:
        """Return the key by which a report says that something cannot answer."""
        return answered_by

    # Checks and storage of a task's labels.

    @classmethod
    def check_task(cls, task: Task, kind_name: str, where: str) -> None:
        """Raise InputError if a key of the task does not fit its answers."""
        if task.label_map and not cls.names_labels:
            raise InputError(
                f"{where}.label_map: a task of kind {kind_name} has no labels to name; remove the "
                "key"
            )

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Return the names of the labels. Raises InputError for labels that cannot be learned."""
        return []

    @classmethod
    def warn_of_labels(cls, splits: Splits, task: Task) -> list[str]:
        """Return at most two warnings about the labels of train, as the user wrote them."""
        return []

    @classmethod
    def drop_unanswerable(
        cls, data: LabelledSplits, dropped: Mapping[str, dict[str, int]], *, folds: int | None
    ) -> None:
        """Drop and count the training items that nothing can be learned from."""

    @classmethod
    def can_be_learned(cls, items: pd.DataFrame) -> np.ndarray:
        """Return (N,) whether something can be learned from each item."""
        return np.ones(len(items), bool)

    @classmethod
    def choose_metric(cls, labels: Sequence[str], requested: Sequence[str], where: str) -> str:
        """Return the default metric if the labels decide it; empty: the first of the kind."""
        return ""

    @classmethod
    def count_doubtful(
        cls, splits: Splits, labels: Sequence[str], task: Task
    ) -> dict[str, dict[str, int]]:
        """Count labels that no model can predict, by split, for task.json."""
        return {}

    @classmethod
    def warn_of_doubtful(cls, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Return warnings about what `count_doubtful` has counted."""
        return []

    @classmethod
    def index_labels(cls, labels: "pd.Series[Any]", names: Sequence[str]) -> "pd.Series[Any]":
        """Replace the names of labels by their places in `names`."""
        index_of = {name: index for index, name in enumerate(names)}
        return labels.map(index_of).astype("int64")

    @classmethod
    def read_predictions(
        cls, items: pd.DataFrame, names: Sequence[str], where: str, column: str
    ) -> np.ndarray:
        """Return (N,) answers as the results hold them, from items that have them as labels.

        `names` are those of the task's labels. Raises InputError that names the row, by its id.
        """
        raise NotImplementedError(f"{cls.__name__}.read_predictions")

    @classmethod
    def check_new_items(cls, items: pd.DataFrame, labels: Sequence[str], where: str) -> None:
        """Raise InputError if a system with these labels cannot answer new items."""

    @classmethod
    def answer_types(cls, labels: Sequence[str]) -> dict[str, type]:
        """Return the columns of the answers to new items, and the type of their values."""
        return {"prediction": str}

    # Scores.

    @classmethod
    def describe_answers(cls, predictions: pd.DataFrame) -> list[Note]:
        """Return notes on how some items were answered."""
        return []

    @classmethod
    def score(
        cls, metric: str, predictions: pd.DataFrame, *, answer_column: str = "prediction"
    ) -> float:
        """Return the metric of the answers in a column of predictions; NaN if it is undefined."""
        labels = predictions["label"].to_numpy(object)
        return METRICS[metric](labels, predictions[answer_column].to_numpy(object))

    @classmethod
    def describe_undefined(
        cls, metric: str, predictions: pd.DataFrame, answer_column: str = "prediction"
    ) -> Note:
        """Return why the metric of these predictions is undefined."""
        return Note("undefined_metric", metric)


class LexicalAnswer(Answer, ABC):
    """An answer that no head gives, and that a baseline finds by words and letters alone."""

    @classmethod
    @abstractmethod
    def lexical_columns(
        cls, train: pd.DataFrame | None, items: pd.DataFrame, language: str, metric: str
    ) -> PredictionColumns:
        """Return the answers to some items; `metric` ranks the systems."""


@dataclass(frozen=True)
class HeadAnswer(Answer, ABC):
    """An answer that a trained head gives, over an encoder or over TF-IDF, fitted to a task."""

    label_names: tuple[str, ...] = ()
    # The mean and standard deviation of the training labels, for numbers.
    mean: float = 0.0
    std: float = 1.0

    mean_over_items: ClassVar[bool] = False  # the loss is a mean over items, not over rows

    @classmethod
    def fit(cls, label_names: Sequence[str], train: pd.DataFrame) -> Self:
        """Return the answer of a task from the names of its labels and its training items."""
        return cls(tuple(label_names))

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """The scores that a head gives to each row."""

    @abstractmethod
    def labels(self, items: pd.DataFrame) -> np.ndarray:
        """Return (M,) labels as a head learns them."""

    @abstractmethod
    def loss(self, scores_MK: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Return the sum over rows, or over items, of the loss."""

    def weighted_loss(
        self, scores_MK: torch.Tensor, labels_M: torch.Tensor, weights_M: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum over rows of the loss, where a text has one label."""
        raise NotImplementedError(f"{type(self).__name__}.weighted_loss")

    @abstractmethod
    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return (M, K) outputs, float64: probabilities of labels, numbers, or scores of words."""

    def normalize(self, items: pd.DataFrame, outputs_MK: np.ndarray) -> np.ndarray:
        """Return outputs of `postprocess` that are probabilities over all rows of an item."""
        return outputs_MK

    def agrees(self, one_MK: np.ndarray, other_MK: np.ndarray) -> np.ndarray:
        """Return (M,) whether two outputs of `postprocess` give the same answer."""
        return np.asarray(one_MK.argmax(1) == other_MK.argmax(1))

    @abstractmethod
    def answer_columns(
        self, items: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the answers to items without labels, from outputs or from what a CRF decoded.

        The outputs are normalized here and in `prediction_columns`.
        """

    @abstractmethod
    def prediction_columns(
        self, items: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return label, prediction and score of labelled items, and what `answer_columns` adds."""

    # Baselines. They learn from items whose labels are places in `label_names`.

    def can_learn(self, train: pd.DataFrame) -> bool:
        """Tell whether the training items have more than one answer."""
        return True

    @abstractmethod
    def majority_outputs(self, train: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
        """Return (M, K) outputs that give the items the most frequent answer of train."""

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Return the inputs of a linear model; `texts` are those of the items, by column."""
        return LinearInputs(texts)

    def linear_labels(self, train: pd.DataFrame) -> list[np.ndarray]:
        """Return the (M,) labels of each linear model: names, numbers, or right and wrong."""
        return [train["label"].to_numpy()]

    def linear_outputs(self, predictions: Sequence[np.ndarray], items: pd.DataFrame) -> np.ndarray:
        """Return (M, K) outputs from the predictions of each linear model.

        These are (M, K) probabilities of the labels, (M, 2) of wrong and right, or (M,) numbers.
        """
        return predictions[0]

    @property
    def num_linear_labels(self) -> int:
        """The labels among which a linear model chooses; 0 if it predicts numbers."""
        return len(self.label_names)


def correct_column(columns: PredictionColumns, metric: str) -> PredictionColumns:
    """Return the columns with `correct`, the contribution of each item to a ranking metric.

    It is NaN if the metric is undefined, such as a correlation with a constant.
    """
    contributions = CONTRIBUTIONS[metric](columns["label"], columns["prediction"])
    return columns | {"correct": contributions}


def share_of_labels(labels_M: np.ndarray, num_labels: int) -> np.ndarray:
    """Return (num_labels,) the share of each label; 0 for those that do not occur."""
    counts = np.bincount(labels_M.astype(int), minlength=num_labels)
    return counts / counts.sum()


def row_number(item_id: str) -> int:
    """Return the row of the user's table that an item's id names; the first is 1."""
    return int(item_id.rsplit("-", 1)[1])


# Checks that several answers share.

MIN_CONSTANT_LABELS = 20  # so many equal numbers or right choices are no chance
# A constant label column that is less probable than this, given train, means withheld labels.
MIN_PLAUSIBLE_PROBABILITY = 1e-6


def check_labels_hidden(data: LabelledSplits) -> None:
    """Raise InputError if a whole split has one label, which is improbable given train."""
    shares = data.tables["train"]["label"].explode().value_counts(normalize=True)
    if len(shares) < 2:
        return
    for split in ("test", "validation"):
        if split not in data.tables:
            continue
        labels = data.tables[split]["label"].explode()
        if len(labels) < 2 or labels.nunique() != 1:
            continue
        if shares.get(labels.iloc[0], 0.0) ** len(labels) < MIN_PLAUSIBLE_PROBABILITY:
            raise data.error(
                split,
                f"all {len(labels):,} are '{shorten_value(labels.iloc[0])}', as if labels were "
                "held back; name a split that has them, such as the validation one as test, and "
                "this one as unlabelled",
            )


def check_labels_differ(data: LabelledSplits, labels: Sequence[str], *, noun: str) -> None:
    """Raise InputError if the training items have one label."""
    if len(labels) < 2:
        raise data.error(
            "train",
            f"every {noun} is '{shorten_value(labels[0])}'; there is nothing to learn, name "
            "another column",
        )
