"""A tag for every word of an item: named entities, phrases, parts of speech."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import (
    MIN_CONSTANT_LABELS,
    LabelledSplits,
    LinearInputs,
    PredictionColumns,
    Splits,
    WordInContext,
    check_labels_differ,
    check_labels_hidden,
    row_number,
    share_of_labels,
)
from lineage.answers.label import ClassAnswer
from lineage.answers.label_names import list_some, sort_labels, warn_of_names
from lineage.answers.spans import (
    are_span_tags,
    convert_to_iob2,
    find_scheme_violations,
    suggest_label_map,
)
from lineage.config.data import Task
from lineage.errors import InputError, row_error

CONLL2012_BRACKETS = re.compile(r"(\([^()*]*)*\*?\)*")  # such as (PERSON*, *, *) and (GPE)
WORDS_COLUMN = "prediction_words"  # the words to which the tags of a prediction belong
# Tags that may be spans, by their counts in task.json.
UNREAD_SPANS = {
    "numeric_tags": (
        "integers without names, so token accuracy is scored instead of span F1; name them, such "
        "as label_map: [O, B-PER, I-PER]"
    ),
    "tags_without_scheme": (
        "in no IOB scheme although one looks like O, so token accuracy is scored instead of span "
        "F1; if they mark spans, write B-PER and I-PER, or name each: label_map: {PER: I-PER}"
    ),
}
OUTSIDE_TAGS = {"o", "other", "none", "outside"}  # names of the plain tag outside of spans


@dataclass(frozen=True)
class TagsAnswer(ClassAnswer):
    """A tag for every word."""

    names_labels: ClassVar[bool] = True
    column_advice: ClassVar[str] = "a tag for each word, such as the most frequent one"
    are_words: ClassVar[bool] = True
    reads_in_parts: ClassVar[bool] = True

    @classmethod
    def check_task(cls, task: Task, kind_name: str, where: str) -> None:
        """Raise InputError if a name in label_map is not one word."""
        for name in task.label_names_by_value.values():
            if name is None:
                raise InputError(
                    f"{where}.label_map: null leaves out the items with that label, but a tag "
                    "belongs to one word; give it a name, such as O"
                )
            if len(name.split()) != 1:
                raise InputError(
                    f"{where}.label_map: the tag '{name}' is not one word, and tags are written "
                    "with spaces between them; give it another name"
                )

    @classmethod
    def check_labels(cls, data: LabelledSplits) -> list[str]:
        """Convert spans to IOB2, whatever their scheme, and return the tags of all splits."""
        all_tags = set[str]().union(*map(_distinct_tags, data.tables.values()))
        if are_span_tags(all_tags):
            for split, table in data.tables.items():
                _convert_table_to_iob2(table, data.places[split], data.columns[split])
        tags = {split: _distinct_tags(table) for split, table in data.tables.items()}
        check_labels_differ(data, [*tags["train"]], noun="tag")
        check_labels_hidden(data)
        train_types = set(map(_span_type, tags["train"]))
        for split, table in data.tables.items():
            split_tags = [tag for sentence in table["label"] for tag in sentence if tag != "O"]
            has_known_type = not train_types.isdisjoint(map(_span_type, split_tags))
            if len(split_tags) >= MIN_CONSTANT_LABELS and not has_known_type:
                raise data.error(
                    split,
                    f"none of its tags ({list_some(sort_labels(split_tags))}) occurs in train, "
                    f"which has {list_some(sorted(tags['train'] - {'O'}))}; say in 'label_map' "
                    "which are the same",
                )
        return sort_labels(list(set[str]().union(*tags.values())))

    @classmethod
    def warn_of_labels(cls, splits: Splits, task: Task) -> list[str]:
        counts: Counter[str] = Counter()
        labels = splits["train"]["label"]
        if are_span_tags(labels.explode()):
            for tags in labels:
                counts.update({tag[2:] for tag in tags if tag[2:]})
        return warn_of_names(splits, task, counts)

    @classmethod
    def choose_metric(cls, labels: Sequence[str], requested: Sequence[str], where: str) -> str:
        """Return span_f1 if the tags are spans, else token_accuracy.

        Raises InputError if span_f1 is requested without spans, or if tags look like unread spans.
        """
        if are_span_tags(labels):
            return "span_f1"
        shown = list_some(labels)
        if "token_accuracy" not in requested:
            if label_map := suggest_label_map(labels):
                raise InputError(
                    f"{where}.label: the tags ({shown}) look like spans in an unknown scheme, "
                    "and only token accuracy would be scored; write O, B-PER and I-PER, or rename "
                    f"them: label_map: {{{label_map}}}; if they are not spans, set "
                    "metric: [token_accuracy]"
                )
            if "*" in labels and all(map(CONLL2012_BRACKETS.fullmatch, labels)):
                raise InputError(
                    f"{where}.label: the tags ({shown}) are the brackets of CoNLL-2012, which are not "
                    "read; write O, B-PER and I-PER"
                )
        if "span_f1" in requested:
            are_numbers = all(map(str.isdecimal, labels))
            numbers = " but numbers: give their names in 'label_map'" if are_numbers else ""
            raise InputError(
                f"{where}.metric: span_f1 needs spans, and the tags ({shown}) are neither O nor "
                f"B-TYPE nor I-TYPE{numbers}; rename types of spans, such as "
                "label_map: {PER: I-PER}, remove the metric, or name another column"
            )
        return "token_accuracy"

    @classmethod
    def count_doubtful(
        cls, splits: Splits, labels: Sequence[str], task: Task
    ) -> dict[str, dict[str, int]]:
        """Count tags that train lacks, by sentence, and tags that may be spans but are not read so.

        Nothing is counted where the task itself asks for token_accuracy.
        """
        counts = {"tags_not_in_train": _count_unseen(splits)}
        if are_span_tags(labels) or "token_accuracy" in (task.metric or ()):
            return counts
        if all(map(str.isdecimal, labels)):
            counts["numeric_tags"] = {"train": len(labels)}
        if not OUTSIDE_TAGS.isdisjoint(map(str.lower, labels)):
            counts["tags_without_scheme"] = {"train": len(labels)}
        return counts

    @classmethod
    def warn_of_doubtful(cls, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Warn of tags that may be spans, but are not read so."""
        return [
            f"its {counts[key]['train']} tags are {problem}, or set metric: [token_accuracy]"
            for key, problem in UNREAD_SPANS.items()
            if key in counts
        ]

    @classmethod
    def index_labels(cls, labels: "pd.Series[Any]", names: Sequence[str]) -> "pd.Series[Any]":
        index_of = {name: index for index, name in enumerate(names)}
        indices = [[index_of[tag] for tag in tags] for tags in labels]
        return pd.Series(indices, labels.index)

    @classmethod
    def read_predictions(
        cls, items: pd.DataFrame, names: Sequence[str], where: str, column: str
    ) -> np.ndarray:
        """Return the tags of each item as one text, spans in IOB2.

        Raises InputError for tags that are no spans where the task's are.
        """
        if are_span_tags(names):
            _convert_table_to_iob2(items, where, column)
        return np.array([" ".join(tags) for tags in items["label"]], object)

    @classmethod
    def answer_types(cls, labels: Sequence[str]) -> dict[str, type]:
        return {WORDS_COLUMN: str, "prediction": str}

    def labels(self, table: pd.DataFrame) -> np.ndarray:
        return np.concatenate([np.asarray(tags, np.int64) for tags in table["label"]])

    def answer_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return the words and the tags of each item as texts, with spaces between them.

        Each word gets its most probable tag, or with `decoded_M` the tag that a CRF decoded.
        """
        predictions_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        return {
            WORDS_COLUMN: np.array([" ".join(words) for words in table["tokens"]], object),
            "prediction": self._join_tags(predictions_M, item_ends(table["tokens"])),
        }

    def prediction_columns(
        self, table: pd.DataFrame, outputs_MK: np.ndarray, decoded_M: np.ndarray | None = None
    ) -> PredictionColumns:
        """Return labels and answers; score is the mean probability of the true tags."""
        predictions_M = outputs_MK.argmax(1) if decoded_M is None else decoded_M
        labels_M = self.labels(table)
        ends = item_ends(table["label"])
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

    def can_learn(self, train: pd.DataFrame) -> bool:
        return len(set(self.labels(train).tolist())) > 1

    def majority_outputs(self, train: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
        shares_K = share_of_labels(self.labels(train), len(self.label_names))
        return np.tile(shares_K, (sum(map(len, items["tokens"])), 1))

    def linear_inputs(
        self, items: pd.DataFrame, texts: Sequence[Sequence[str]], language: str
    ) -> LinearInputs:
        """Return each word with its two neighbors."""
        return LinearInputs(words=words_in_context(items["tokens"]))

    def linear_labels(self, train: pd.DataFrame) -> list[np.ndarray]:
        return [self.labels(train)]


def item_ends(words_by_item: Iterable[Sequence[Any]]) -> np.ndarray:
    """Return the rows after the words of each item but the last."""
    return np.cumsum([len(words) for words in words_by_item])[:-1]


def words_in_context(sentences: Iterable[Sequence[str]]) -> list[WordInContext]:
    """Put each word between its neighbors; the ends of a sentence have special tokens."""
    words: list[WordInContext] = []
    for sentence in sentences:
        tokens = list(sentence)
        words += zip(["<begin>", *tokens[:-1]], tokens, [*tokens[1:], "<end>"], strict=True)
    return words


def _distinct_tags(table: pd.DataFrame) -> set[str]:
    return set[str]().union(*table["label"])


def _convert_table_to_iob2(table: pd.DataFrame, where: str, column: str) -> None:
    """Convert the tags of a table in place; `has_invalid_tags` is true if they were repaired."""
    violations = pd.Series(find_scheme_violations(list(table["label"])), table.index)
    table["has_invalid_tags"] = table.get("has_invalid_tags", False) | violations
    converted = []
    for tags, item_id in zip(table["label"], table["id"], strict=True):
        try:
            converted.append(convert_to_iob2(tags))
        except InputError as error:
            raise row_error(row_number(item_id) - 1, where, f"column '{column}': {error}") from None
    table["label"] = converted


def _span_type(tag: str) -> str:
    """Return the type of a span; a plain tag is a type."""
    return tag[2:] if tag[:2] in ("B-", "I-") else tag


def _count_unseen(splits: Splits) -> dict[str, int]:
    """Count the sentences of each split with a tag or type of span that train lacks."""
    train_types = set(map(_span_type, _distinct_tags(splits["train"])))
    return {
        split: sum(not train_types.issuperset(map(_span_type, tags)) for tags in table["label"])
        for split, table in splits.items()
        if "label" in table
    }
