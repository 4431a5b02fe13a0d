"""Small tables of items for each type of answer, which a probe can learn."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from lineage.answers.base import HeadAnswer
from lineage.answers.choice import ChoiceAnswer
from lineage.answers.label import LabelAnswer
from lineage.answers.number import NumberAnswer
from lineage.answers.sense import SenseAnswer
from lineage.answers.tags import TagsAnswer
from tests.helpers import tiny

WORDS = tiny.words("ulmfit")[:24]


def tagged_sentences(count: int) -> pd.DataFrame:
    """Return sentences in which the tag of a word depends on the word before it.

    Only a probe with an LSTM can learn this.
    """
    rng = np.random.default_rng(3)
    tokens = [list(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]
    return pd.DataFrame(
        {
            "tokens": tokens,
            "label": [[0, *(int(word in WORDS[:12]) for word in words[:-1])] for words in tokens],
        }
    )


def target_words(count: int) -> pd.DataFrame:
    """Return sentences with a target word, labelled by whether it follows one of twelve words."""
    table = tagged_sentences(count)
    targets = [len(tokens) // 2 for tokens in table["tokens"]]
    return table.assign(
        target=targets,
        label=[tags[target] for tags, target in zip(table["label"], targets, strict=True)],
    )


def labelled_texts(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(6)
    labels = rng.integers(2, size=count)
    return pd.DataFrame(
        {
            "text": [
                " ".join([*rng.choice(WORDS[2:], 4), WORDS[label], *rng.choice(WORDS[2:], 2)])
                for label in labels
            ],
            "label": labels,
        }
    )


def text_pairs(count: int) -> pd.DataFrame:
    return labelled_texts(count).assign(second=" ".join(WORDS[3:6]))


def numbered_texts(count: int) -> pd.DataFrame:
    table = labelled_texts(count)
    return table.assign(label=10.0 + 5 * table["label"])


def text_choices(count: int) -> pd.DataFrame:
    table = labelled_texts(count)
    both_choices = [" ".join((WORDS[0], WORDS[5])), " ".join((WORDS[1], WORDS[6]))]
    return table.assign(
        text=" ".join(WORDS[7:10]),
        choices=[both_choices if label == 0 else both_choices[::-1] for label in table["label"]],
    )


CASES: dict[str, tuple[Callable[[int], pd.DataFrame], HeadAnswer]] = {
    "tags": (tagged_sentences, TagsAnswer(("a", "b"))), "sense": (target_words, SenseAnswer(("a", "b"))), "text_classification": (labelled_texts, LabelAnswer(("a", "b"))),
    "pairs": (text_pairs, LabelAnswer(("a", "b"))), "multiple_choice": (text_choices, ChoiceAnswer(("0", "1"))), "text_regression": (numbered_texts, NumberAnswer(mean=12.5, std=2.5)),
}  # fmt: skip
