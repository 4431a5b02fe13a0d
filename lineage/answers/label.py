"""One of several labels: sentiment, topic, entailment, the sense of a word."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.answers.base import (
    HeadAnswer,
    LabelledSplits,
    PredictionColumns,
    Splits,
    check_labels_differ,
    check_labels_hidden,
    row_number,
    share_of_labels,
)
from lineage.answers.label_names import (
    MAX_SHOWN_LABELS,
    describe_labels,
    list_some,
    sort_labels,
    too_many_labels,
    warn_of_names,
)
from lineage.config.data import Task
from lineage.errors import InputError, is_short_name, shorten_value
from lineage.results import PROBABILITY_PREFIX

NAME_SIMILARITY_CUTOFF = 0.6  # of difflib: one name may be meant by the other
MAX_SUGGESTED_LABELS = 10  # labels that train lacks, to be copied into label_map
MIN_KNOWN_SHARE = 0.5  # of a split's labels: if train has fewer, the others may be texts


@dataclass(frozen=True)
class ClassAnswer(HeadAnswer):
    """One of several classes for each row, trained with cross entropy."""

    @property
    def num_outputs(self) -> int:
        return len(self.label_names)

    def loss(self, scores_MK: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Return the sum over rows of the cross entropy, in nats."""
        return F.cross_entropy(scores_MK, labels_M, reduction="sum")

    def weighted_loss(
        self, scores_MK: torch.Tensor, labels_M: torch.Tensor, weights_M: torch.Tensor
    ) -> torch.Tensor:
        nats_M = F.cross_entropy(scores_MK, labels_M, reduction="none")
        return (weights_M.to(nats_M.dtype) * nats_M).sum()

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return (M, K) probabilities, float64."""
        return torch.softmax(scores_MK.double(), -1).cpu().numpy()


@dataclass(frozen=True)
class LabelAnswer(ClassAnswer):
    """One of several labels for an item."""

    names_labels: ClassVar[bool] = True
    column_advice: ClassVar[str] = "one of the labels, such as the most frequent one"
    are_classes: ClassVar[bool] = True
    can_be_shown: ClassVar[bool] = True
    has_one_label: ClassVar[bool] = True

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Return the names of the labels, which train decides."""
        labels = sort_labels(list(data.tables["train"]["label"]))
        check_labels_differ(data, labels, noun="label")
        check_labels_hidden(data)
        num_train = len(data.tables["train"])
        for split, table in data.tables.items():
            is_known = table["label"].isin(labels)
            if is_known.all():
                continue
            too_many = too_many_labels(labels, num_train)
            problem, fix = _describe_unknown_labels(
                sort_labels(list(table["label"][~is_known])),
                labels,
                are_names=not too_many and bool(is_known.mean() >= MIN_KNOWN_SHARE),
                too_many=too_many,
            )
            raise data.error(
                split,
                f"{problem} not occur in train, which has {describe_labels(labels, num_train)}; "
                f"correct it, add such items to train, or {fix}",
                item_ids=list(table["id"][~is_known]),
            )
        return labels

    @classmethod
    def warn_of_labels(cls, splits: Splits, task: Task) -> list[str]:
        return warn_of_names(splits, task)

    @classmethod
    def read_predictions(
        cls, items: pd.DataFrame, names: Sequence[str], where: str, column: str
    ) -> np.ndarray:
        """Return the labels. Raises InputError for one that the task does not have."""
        unknown = items[~items["label"].isin(names)]
        if len(unknown):
            others = len(unknown) - 1
            more = f" (and {others:,} more)" if others else ""
            raise InputError(
                f"{where}: row {row_number(unknown['id'].iloc[0])}{more}: column '{column}': "
                f"'{shorten_value(unknown['label'].iloc[0])}' is no label of the task, which has "
                f"{list_some(names)}; give each scored item one of the labels, such as the most "
                "frequent one, also where the system gave none"
            )
        return items["label"].to_numpy(object)

    @classmethod
    def answer_types(cls, labels: Sequence[str]) -> dict[str, type]:
        probabilities = [f"{PROBABILITY_PREFIX}{label}" for label in labels]
        return {"prediction": str, **dict.fromkeys(probabilities, float)}

    def labels(self, table: pd.DataFrame) -> np.ndarray:
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
        labels_N = table["label"].to_numpy()
        return {
            "label": np.asarray(self.label_names, object)[labels_N],
            "prediction": answers.pop("prediction"),
            "score": outputs_MK[np.arange(len(labels_N)), labels_N],
            **answers,
        }

    def can_learn(self, train: pd.DataFrame) -> bool:
        return train["label"].nunique() > 1

    def majority_outputs(self, train: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
        shares_K = share_of_labels(train["label"].to_numpy(), len(self.label_names))
        return np.tile(shares_K, (len(items), 1))


def _describe_unknown_labels(
    unknown: list[str], labels: Sequence[str], *, are_names: bool, too_many: bool
) -> tuple[str, str]:
    """Return the beginning of a sentence about labels that train lacks, and what to do."""
    count = f"{len(unknown):,} labels"
    if too_many:
        subject = "its label does" if len(unknown) == 1 else f"{count} do"
        return subject, "give its name there in 'label_map'"
    suggested = unknown[:MAX_SUGGESTED_LABELS]
    if are_names and all(is_short_name(label, is_label=True) for label in suggested):
        shown = suggested
    else:
        shown = [shorten_value(label) for label in unknown[:MAX_SHOWN_LABELS]]
    num_others = len(unknown) - len(shown)
    rest = f", and {num_others:,} more" if num_others else ""
    if len(unknown) == 1:
        subject = f"label '{shown[0]}' does"
    else:
        subject = f"{count} ({', '.join(shown)}{rest}) do"
    if shown != unknown[: len(shown)]:
        return subject, (
            "say in 'label_map' what it is, written out: null, which leaves such items out, or a "
            "label of train"
        )
    dropped = ", ".join(f'"{label}": null' for label in shown)
    fix = f"leave such items out, label_map: {{{dropped}{rest}}}"
    return subject, fix + _suggest_merge(unknown[0], labels, shown[0])


def _suggest_merge(label: str, labels: Sequence[str], shown: str) -> str:
    """Suggest to merge a label into the most similar one of train, if a message may show it."""
    short_labels = [shorten_value(known) for known in labels]
    similar = difflib.get_close_matches(label, short_labels, n=1, cutoff=NAME_SIMILARITY_CUTOFF)
    target = similar[0] if similar else "a label of train"
    if similar and target not in labels:  # it was shortened
        return ""
    return f', or merge them: {{"{shown}": "{target}"}}'
