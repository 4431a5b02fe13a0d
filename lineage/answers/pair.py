"""Which of two sentences is the good one, by the probabilities that a language model gives them."""

from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import Answer, AnsweredBy, PredictionColumns


class PairAnswer(Answer):
    """The good sentence of two; equal probabilities are half right."""

    answered_by: ClassVar[AnsweredBy] = "sentence_probability"
    can_be_shown: ClassVar[bool] = True
    has_ties: ClassVar[bool] = True
    majority_name: ClassVar[str] = "chance"

    @classmethod
    def score(
        cls, metric: str, predictions: pd.DataFrame, *, answer_column: str = "prediction"
    ) -> float:
        return float(predictions["correct"].mean())


def pair_columns(margins_N: np.ndarray) -> PredictionColumns:
    """Predict the good sentence if its margin over the bad one is positive; 0 is half right."""
    return {
        "label": np.full(len(margins_N), "good", object),
        "prediction": np.select([margins_N > 0, margins_N < 0], ["good", "bad"], "tie"),
        "score": margins_N,
        "correct": (np.sign(margins_N) + 1) / 2,
    }
