"""Negative sampling as word2vec and fastText share it, trained by gensim (Mikolov et al. 2013)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lineage.config.records import check_positive
from lineage.networks.static import NUM_SPECIAL_TOKENS, StaticTrainingText


@dataclass(frozen=True)
class NegativeSamplingSettings:
    """The block `pretrain`."""

    algorithm: Literal["skip_gram", "cbow"]
    window: int  # maximal number of words on each side; each position samples its own
    num_negatives: int
    negative_exponent: float  # negatives are sampled by frequency to this power
    subsample: float  # words above this share of the text are randomly left out; 0: none
    learning_rate: float  # falls linearly
    min_learning_rate: float

    def __post_init__(self) -> None:
        check_positive(self, "window", "num_negatives", "learning_rate", "min_learning_rate")
        if not 0 <= self.subsample < 1:
            raise ValueError(
                f"subsample is {self.subsample}; it is a share of all words, from 0 to below 1"
            )


PRETRAIN_DEFAULTS = {
    "algorithm": "skip_gram",
    "window": 5,
    "num_negatives": 5,
    "negative_exponent": 0.75,
    "subsample": 0.001,
    "learning_rate": 0.025,
    "min_learning_rate": 0.0001,
}


def train_gensim(
    gensim_model: Any,
    text: StaticTrainingText,
    words: list[str],
    report_progress: Callable[[float, str], None],
) -> None:
    """Train with gensim in one worker; more workers give other vectors in each run."""
    word_by_id = np.asarray([""] * NUM_SPECIAL_TOKENS + words, object)

    def sentences() -> Iterator[list[str]]:
        for number, document in enumerate(text.documents):
            report_progress(number / len(text.documents), "")
            for sentence in document:
                yield list(word_by_id[sentence])

    gensim_model.train(sentences(), total_examples=sum(map(len, text.documents)), epochs=1)


def gensim_options(
    settings: NegativeSamplingSettings, *, hidden_size: int, seed: int
) -> dict[str, object]:
    return {
        "vector_size": hidden_size,
        "window": settings.window,
        "negative": settings.num_negatives,
        "ns_exponent": settings.negative_exponent,
        "hs": 0,
        "sample": settings.subsample,
        "sg": int(settings.algorithm == "skip_gram"),
        "alpha": settings.learning_rate,
        "min_count": 1,
        "min_alpha": settings.min_learning_rate,
        "workers": 1,
        "seed": seed % 2**31,
        "sorted_vocab": 0,
        "epochs": 1,
    }
