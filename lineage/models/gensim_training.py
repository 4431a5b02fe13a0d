"""What word2vec and fastText share: predicting a word's neighbours against sampled words (Mikolov et al. 2013), by gensim's own training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lineage.config.records import check_positive
from lineage.models.static import StaticTrainingText, vocab_words
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer


@dataclass(frozen=True)
class NegativeSamplingSettings:
    """The block `pretrain`."""

    algorithm: Literal["skip_gram", "cbow"]
    window: int  # words on each side, at most; each position draws its own
    num_negatives: int
    negative_exponent: float  # of a word's frequency, by which negatives are drawn
    subsample: float  # words more frequent than this share are left out by chance; 0: none
    learning_rate: float  # falls linearly
    min_learning_rate: float

    def __post_init__(self) -> None:
        check_positive(self, "window", "num_negatives", "learning_rate", "min_learning_rate")
        if not 0 <= self.subsample < 1:
            raise ValueError(
                f"subsample is {self.subsample}; it is a share of all words, from 0 to below 1"
            )


class GensimSentences:
    """What gensim reads: sentences as lists of words, once."""

    def __init__(
        self,
        text: StaticTrainingText,
        words: list[str],
        report_progress: Callable[[float, str], None],
    ) -> None:
        self.text, self.report_progress, self.words = (
            text,
            report_progress,
            np.asarray(["", *["" for _ in SPECIAL_TOKENS["word"][1:]], *words], object),
        )

    def __iter__(self) -> Iterator[list[str]]:
        for sentence in self.text.iterate_sentences(self.report_progress):
            yield list(self.words[sentence])


def train_gensim(
    gensim_model: Any,
    text: StaticTrainingText,
    tokenizer: Tokenizer,
    settings: NegativeSamplingSettings,
    report_progress: Callable[[float, str], None],
) -> None:
    """gensim's own training within the text, in one worker, which alone gives the same vectors each time."""
    gensim_model.train(
        GensimSentences(text, vocab_words(tokenizer), report_progress),
        total_examples=sum(map(len, text.documents)),
        epochs=1,
        start_alpha=settings.learning_rate,
        end_alpha=settings.min_learning_rate,
    )


def gensim_options(
    settings: NegativeSamplingSettings, *, hidden_size: int, seed: int
) -> dict[str, object]:
    """The settings by gensim's names."""
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
