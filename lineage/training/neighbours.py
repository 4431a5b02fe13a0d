"""What word2vec and fastText share: predicting a word's neighbours against sampled words (Mikolov et al. 2013), by gensim's own training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lineage.records import positive
from lineage.text.tokenization import MARKS, Reader
from lineage.training.static import Text, vocabulary_words


@dataclass(frozen=True)
class Neighbours:
    """The block `pretrain`."""

    architecture: Literal["skip_gram", "cbow"]
    window: int  # words on each side, at most; each position draws its own
    negatives: int
    power: float  # of a word's frequency, by which negatives are drawn
    subsample: float  # words more frequent than this share are left out by chance; 0: none
    rate: float  # falls linearly
    last_rate: float

    def __post_init__(self) -> None:
        positive(self, "window", "negatives", "rate", "last_rate")
        if not 0 <= self.subsample < 1:
            raise ValueError(f"subsample is {self.subsample}; it is a share of all words, from 0 to below 1")


class Sentences:
    """What gensim reads: sentences as lists of words, once."""

    def __init__(self, text: Text, words: list[str], report: Callable[[float, str], None]) -> None:
        self.text, self.report, self.words = text, report, np.asarray(["", *["" for _ in MARKS["word"][1:]], *words], object)

    def __iter__(self) -> Iterator[list[str]]:
        for sentence in self.text.sentences(self.report):
            yield list(self.words[sentence])


def train(found: Any, text: Text, reader: Reader, settings: Neighbours, report: Callable[[float, str], None]) -> None:
    """gensim's own training within the text, in one worker, which alone gives the same vectors each time."""
    found.train(
        Sentences(text, vocabulary_words(reader), report), total_examples=sum(map(len, text.documents)), epochs=1, start_alpha=settings.rate,
        end_alpha=settings.last_rate,
    )  # fmt: skip


def options(settings: Neighbours, *, width: int, seed: int) -> dict[str, object]:
    """The settings by gensim's names."""
    return {"vector_size": width, "window": settings.window, "negative": settings.negatives, "ns_exponent": settings.power, "hs": 0,
            "sample": settings.subsample, "sg": int(settings.architecture == "skip_gram"), "alpha": settings.rate, "min_count": 1,
            "min_alpha": settings.last_rate, "workers": 1, "seed": seed % 2**31, "sorted_vocab": 0, "epochs": 1}  # fmt: skip
