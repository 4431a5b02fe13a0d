"""A text that a model writes: the translation of a sentence."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import Answer, AnsweredBy, PredictionColumns
from lineage.answers.metrics import bleu_contributions


@dataclass(frozen=True)
class TextAnswer(Answer):
    """A text, compared with one reference."""

    answered_by: ClassVar[AnsweredBy] = "translator"
    are_texts: ClassVar[bool] = True


def text_columns(
    items: pd.DataFrame, texts: Iterable[str], scores_N: np.ndarray | None = None
) -> PredictionColumns:
    """Return the columns of translations; `correct` is their contribution to corpus BLEU.

    `scores_N` are mean log-probabilities of their tokens; None: there are none.
    """
    references = items["target"].to_numpy(object)
    texts_N = np.array(list(texts), object)
    return {
        "label": references,
        "prediction": texts_N,
        "score": np.full(len(texts_N), np.nan) if scores_N is None else scores_N,
        "correct": bleu_contributions(references, texts_N),
    }
