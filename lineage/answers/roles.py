"""The semantic roles of the words of a sentence, as the arguments of one of its predicates.

The tags are spans (B-ARG0, I-ARG0), or labels on the heads of arguments (ARG0), which are scored
as spans of one word. Of the predicate nothing is scored: which word it is, is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import LabelledSplits, LinearInputs, PredictionColumns, Splits
from lineage.answers.label_names import list_some
from lineage.answers.predicate import place_features
from lineage.answers.spans import are_span_tags
from lineage.answers.tags import TagsAnswer, words_in_context
from lineage.config.data import Task

# The types of the predicate itself, and of the rest of a verb with a particle (CoNLL-2005).
PREDICATE_TYPES = ("V", "C-V")
VERB_TAGS = {prefix + PREDICATE_TYPES[0] for prefix in ("", "B-", "S-", "U-")}
NO_PREDICATE = "<none>"  # where the predicate is on the other side of a word


@dataclass(frozen=True)
class RolesAnswer(TagsAnswer):
    """A tag for every word: its role for the predicate, or O."""

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Return the tags of all splits. Raises InputError if none is O, or all are O or V."""
        labels = super().check_labels(data)
        if not are_span_tags(labels) and "O" not in labels:
            raise data.error(
                "train",
                f"no tag is O, which words without a role need (the tags are {list_some(labels)}); "
                "if another name means that, rename it: label_map: {_: O}",
            )
        if all(is_unscored(tag) for tag in labels):
            raise data.error(
                "train",
                f"the tags are {', '.join(labels)}, so there is no argument to be found; name "
                "another column",
            )
        return labels

    @classmethod
    def choose_metric(cls, labels: Sequence[str], requested: Sequence[str], where: str) -> str:
        return "span_f1"

    @classmethod
    def count_doubtful(
        cls, splits: Splits, labels: Sequence[str], task: Task
    ) -> dict[str, dict[str, int]]:
        """Count tags that train lacks, by sentence; plain tags are as good as spans."""
        unseen = super().count_doubtful(splits, labels, task)["tags_not_in_train"]
        return {"tags_not_in_train": unseen}

    @classmethod
    def read_predictions(
        cls, items: pd.DataFrame, names: Sequence[str], where: str, column: str
    ) -> np.ndarray:
        """Return the arguments of each item as the results hold them."""
        tags_N = super().read_predictions(items, names, where, column)
        return scored_arguments(tags_N, are_spans=are_span_tags(names))

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels and answers as spans of arguments, and the score of all tags."""
        columns = super().prediction_columns(table, outputs_MK, decoded_M)
        are_spans = are_span_tags(self.label_names)
        for name in ("label", "prediction"):
            columns[name] = scored_arguments(columns[name], are_spans=are_spans)
        return columns

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Return each word with its neighbors, the predicate, and its place relative to it."""
        words = words_in_context(items["tokens"])
        predicate_words: list[tuple[str, str]] = []  # before the word, and after it
        offsets: list[int] = []
        for tokens, predicate in zip(items["tokens"], items["predicate"], strict=True):
            place = int(predicate)
            offsets += range(-place, len(tokens) - place)
            after = [(NO_PREDICATE, tokens[place])] * place
            before = [(tokens[place], NO_PREDICATE)] * (len(tokens) - place)
            predicate_words += after + before
        places_MF = place_features(torch.tensor(offsets)).numpy()
        rows = [(*word, *others) for word, others in zip(words, predicate_words, strict=True)]
        return LinearInputs(words=rows, extra_MF=places_MF)


def is_unscored(tag: str) -> bool:
    """Tell whether a tag means no argument: O, or the predicate itself."""
    name = tag[2:] if tag[:2] in ("B-", "I-") else tag
    return tag == "O" or name in PREDICATE_TYPES


def scored_arguments(tags_N: np.ndarray, *, are_spans: bool) -> np.ndarray:
    """Return (N,) texts of tags in IOB2 without the predicate; a head is a span of one word."""
    prefix = "" if are_spans else "B-"
    scored = np.empty(len(tags_N), object)
    for row, text in enumerate(tags_N):
        tags = ["O" if is_unscored(tag) else prefix + tag for tag in text.split()]
        scored[row] = " ".join(tags)
    return scored
