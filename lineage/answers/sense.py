"""The sense of a word in its sentence: one of several labels, most of which belong to other words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import LinearInputs, share_of_labels
from lineage.answers.label import LabelAnswer


@dataclass(frozen=True)
class SenseAnswer(LabelAnswer):
    """A label for the word at the place `target` of `tokens`."""

    majority_name: ClassVar[str] = "commonest sense of the word"

    def majority_outputs(self, train: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
        """Return the shares of the senses that the item's word has in train, or of all senses.

        The most frequent sense is the usual baseline (Navigli 2009, section 7.2).
        """
        labels = train["label"].to_numpy()
        words = np.array(list_targets(train), object)
        num_senses = len(self.label_names)
        shares = {word: share_of_labels(labels[words == word], num_senses) for word in set(words)}
        of_all_words = share_of_labels(labels, num_senses)
        return np.stack([shares.get(word, of_all_words) for word in list_targets(items)])

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Return the sentences and the words in them whose sense is asked for."""
        return LinearInputs([*texts, list_targets(items)])


def list_targets(items: pd.DataFrame) -> list[str]:
    """Return the word of each item, in lower case."""
    return [
        str(tokens[target]).lower()
        for tokens, target in zip(items["tokens"], items["target"], strict=True)
    ]
