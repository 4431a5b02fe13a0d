"""The candidate that a pronoun stands for, or neither of them.

A head scores each mention of an item: the candidates, and the pronoun itself, which stands for
neither. The mentions are numbered in the order of the text, so that the place of a candidate
relative to the pronoun tells its side, and how many others are nearer.

Shapes: N items, R mentions of an item, M = N R rows, K = 1 score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.answers.base import (
    ITEM_START,
    LabelledSplits,
    LinearInputs,
    Splits,
    check_labels_differ,
    check_labels_hidden,
)
from lineage.answers.label import LabelAnswer
from lineage.answers.label_names import list_some
from lineage.answers.predicate import place_features
from lineage.config.data import Task
from lineage.errors import InputError

NEITHER = "neither"  # the label of an item whose pronoun means something else
RIGHT = 2  # bit of the label of a mention, as ITEM_START is: it is the answer


@dataclass(frozen=True)
class PronounAnswer(LabelAnswer):
    """One of the candidates of a pronoun, or neither: a softmax over the mentions of an item."""

    has_one_label: ClassVar[bool] = False  # neither may be missing from train
    mean_over_items: ClassVar[bool] = True

    @property
    def num_outputs(self) -> int:
        return 1

    @classmethod
    def check_task(cls, task: Task, kind_name: str, where: str) -> None:
        if task.label_map:
            raise InputError(
                f"{where}.label_map: the labels of a task of kind {kind_name} are its candidates "
                f"and {NEITHER}; write them so in the data, and remove the key"
            )
        if "bilstm" in task.probes:
            raise InputError(
                f"{where}.probes: no BiLSTM probe is trained for a task of kind {kind_name}; remove "
                "the key"
            )

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Return the names of the candidates, then neither, even if train lacks one of them."""
        names = {split: set(table["mentions"].iloc[0]) for split, table in data.tables.items()}
        labels = [*sorted(names["train"] - {NEITHER}), NEITHER]
        for split, found in names.items():
            if found != names["train"]:
                raise InputError(
                    f"{data.places[split]}: its candidates are "
                    f"{list_some(sorted(found - {NEITHER}))}, those of train "
                    f"{list_some(labels[:-1])}; give the columns the same names"
                )
        check_labels_differ(data, list(data.tables["train"]["label"].unique()), noun="label")
        check_labels_hidden(data)
        return labels

    @classmethod
    def warn_of_labels(cls, splits: Splits, task: Task) -> list[str]:
        """Return nothing: the labels are names of columns."""
        return []

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        """Return (M,) sums of ITEM_START and RIGHT."""
        labels_NR = np.zeros((len(table), len(self.label_names)), np.int64)
        places_NR = self._mention_places(table)
        labels_NR[:, 0] = ITEM_START
        labels_NR[np.arange(len(table)), self._right_places(table, places_NR)] += RIGHT
        return labels_NR.reshape(-1)

    def _mention_places(self, table: pd.DataFrame) -> np.ndarray:
        """Return (N, R): for each label the place of its mention among those of the item."""
        rows = [
            [list(names).index(label) for label in self.label_names] for names in table["mentions"]
        ]
        return np.array(rows)

    def _right_places(self, table: pd.DataFrame, places_NR: np.ndarray) -> np.ndarray:
        return places_NR[np.arange(len(table)), table["label"].to_numpy()]

    def loss(self, scores_MK: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        """Return the sum over items of the cross entropy, in nats."""
        num_mentions = len(self.label_names)
        right_N = (labels_M & RIGHT).view(-1, num_mentions).argmax(1)
        return F.cross_entropy(scores_MK.view(-1, num_mentions), right_N, reduction="sum")

    def postprocess(self, scores_MK: torch.Tensor) -> np.ndarray:
        """Return the (M, 1) scores, float64; `normalize` makes probabilities of them."""
        return scores_MK.double().cpu().numpy()

    def normalize(self, table: pd.DataFrame, outputs_MK: np.ndarray) -> np.ndarray:
        """Return (N, R) probabilities of the labels."""
        scores_NR = outputs_MK.reshape(len(table), -1)
        exp_NR = np.exp(scores_NR - scores_NR.max(1, keepdims=True))
        return self._order_by_label(table, exp_NR)

    def _order_by_label(self, table: pd.DataFrame, weights_NR: np.ndarray) -> np.ndarray:
        """Return (N, R) probabilities of the labels from positive weights of the mentions."""
        shares_NR = weights_NR / weights_NR.sum(1, keepdims=True)
        return np.take_along_axis(shares_NR, self._mention_places(table), 1)

    def can_learn(self, train: pd.DataFrame) -> bool:
        """Return True: every item has a right mention and wrong ones."""
        return True

    def choose_nearest(self, table: pd.DataFrame) -> np.ndarray:
        """Return (N, R): 1 for the nearest candidate before the pronoun, else the next one after."""
        pronouns_N = self._mention_places(table)[:, self.label_names.index(NEITHER)]
        nearest_N = np.where(pronouns_N > 0, pronouns_N - 1, 1)
        is_nearest_NR = np.arange(len(self.label_names)) == nearest_N[:, None]
        return self._order_by_label(table, is_nearest_NR.astype(float))

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Return each mention and the pronoun, both with their neighbors, and the place."""
        rows = []
        offsets: list[int] = []
        columns = (
            items[name] for name in ("text", "starts", "ends", "mentions", "firsts", "lasts")
        )
        for text, starts, ends, mentions, firsts, lasts in zip(*columns, strict=True):
            words = [text[start:end] for start, end in zip(starts, ends, strict=True)]
            words = ["<begin>", *words, "<end>"]
            pronoun = list(mentions).index(NEITHER)
            written = [
                (text[starts[first] : ends[last]], words[first], words[last + 2])
                for first, last in zip(firsts, lasts, strict=True)
            ]
            rows += [(*one, *written[pronoun]) for one in written]
            offsets += [number - pronoun for number in range(len(written))]
        return LinearInputs(words=rows, extra_MF=place_features(torch.tensor(offsets)).numpy())

    def linear_labels(self, train: pd.DataFrame) -> list[np.ndarray]:
        return [(self.labels(train) & RIGHT) > 0]

    @property
    def num_linear_labels(self) -> int:
        return 2

    def linear_outputs(self, predictions: Sequence[np.ndarray], items: pd.DataFrame) -> np.ndarray:
        """Return the probabilities that a mention is right, normalized over those of the item."""
        return self._order_by_label(items, predictions[0][:, 1].reshape(len(items), -1))
