"""One of several choices of an item, each scored by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import (
    MIN_CONSTANT_LABELS,
    LabelledSplits,
    LinearInputs,
    Splits,
    check_labels_hidden,
)
from lineage.answers.label import LabelAnswer
from lineage.config.data import Task
from lineage.errors import InputError


@dataclass(frozen=True)
class ChoiceAnswer(LabelAnswer):
    """The position of the right choice; a head scores the choices one by one."""

    names_labels: ClassVar[bool] = False
    has_one_label: ClassVar[bool] = False

    @property
    def num_outputs(self) -> int:
        return 1

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Return the positions of the choices: these are labels even if train lacks one.

        Raises InputError if splits differ in the number of choices, or if all right choices of a
        scored split have the same position.
        """
        counts = {split: len(table["choices"].iloc[0]) for split, table in data.tables.items()}
        for split, count in counts.items():
            if count != counts["train"]:
                raise InputError(
                    f"{data.places[split]}: its items have {count} choices, those of train "
                    f"{counts['train']}; give every item the same number"
                )
        check_labels_hidden(data)
        scored = set(data.tables)
        if "validation" in data.tables:  # else validation is split off train
            scored.remove("train")
        for split in sorted(scored):
            labels = data.tables[split]["label"]
            if labels.nunique() == 1 and len(labels) >= MIN_CONSTANT_LABELS:
                raise data.error(
                    split,
                    f"the right choice is number {labels.iloc[0]} in all {len(labels):,} items, so "
                    "a model that learns only the position would be right; shuffle the choices of "
                    "each item, of train too",
                )
        return [str(position) for position in range(counts["train"])]

    @classmethod
    def check_new_items(cls, items: pd.DataFrame, labels: Sequence[str], where: str) -> None:
        """Raise InputError if new items have more or fewer choices than those of training."""
        num_choices = len(items["choices"].iloc[0])
        if num_choices != len(labels):
            raise InputError(
                f"{where}: its items have {num_choices} choices, those of the training data "
                f"{len(labels)}; give every item as many"
            )

    @classmethod
    def warn_of_labels(cls, splits: Splits, task: Task) -> list[str]:
        """Return nothing: positions have no names."""
        return []

    def can_learn(self, train: pd.DataFrame) -> bool:
        """Return True: every item has a right choice and wrong ones."""
        return True

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Pair the texts with each choice: all items with the first one, then with the second."""
        choices = texts[1:]
        return LinearInputs(
            [list(texts[0]) * len(choices), [choice for column in choices for choice in column]]
        )

    def linear_labels(self, train: pd.DataFrame) -> list[np.ndarray]:
        labels_N = train["label"].to_numpy()
        num_choices = len(train["choices"].iloc[0])
        return [np.concatenate([labels_N == choice for choice in range(num_choices)])]

    @property
    def num_linear_labels(self) -> int:
        return 2

    def linear_outputs(self, predictions: Sequence[np.ndarray], items: pd.DataFrame) -> np.ndarray:
        """Return the probabilities that a choice is right, normalized over the choices."""
        share_CN = predictions[0][:, 1].reshape(-1, len(items))
        normalized: np.ndarray = (share_CN / share_CN.sum(0)).T
        return normalized
