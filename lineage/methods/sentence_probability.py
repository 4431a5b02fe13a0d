"""The probabilities that a language model gives to two sentences answer an item, without training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.pair import pair_columns
from lineage.errors import EvaluationError
from lineage.methods.base import LENGTH_NORMALIZED_ACCURACY, Method
from lineage.methods.encoder import EvalRun, Subject, Transfer, under_test
from lineage.networks.base import LanguageModelFamily


@dataclass(frozen=True, kw_only=True)
class SentenceProbabilityMethod(Method):
    """The more probable sentence is the good one."""

    name: ClassVar[str] = "sentence_probability"
    transfer: ClassVar[Transfer] = "zero_shot"
    head: ClassVar[str] = "none"
    titles: ClassVar[Mapping[str, str]] = {"none": "zero-shot"}
    meanings: ClassVar[Mapping[str, str]] = {
        "none": "without labels, the model answers by what it finds probable or alike"
    }
    answered_by: ClassVar[AnsweredBy] = "sentence_probability"

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        """Compare the sentences. Raises EvaluationError if a probability is not finite."""
        encoder = under_test(subject)
        context = encoder.context
        family = context.checkpoint.family
        assert isinstance(family, LanguageModelFamily)
        log_probs, num_tokens = family.score_texts(
            encoder.build_encoder().eval(),
            context.checkpoint.tokenizer,
            [*items["good"], *items["bad"]],
            limit=context.max_input_positions,
        ).T
        if not np.isfinite(log_probs).all():
            raise EvaluationError(
                "scores of sentences are not finite; lower the learning_rate of pretraining"
            )
        margin_per_token = _margins(log_probs / np.maximum(num_tokens, 1))
        return {
            **pair_columns(_margins(log_probs)),
            LENGTH_NORMALIZED_ACCURACY: (np.sign(margin_per_token) + 1) / 2,
        }


def _margins(scores: np.ndarray) -> np.ndarray:
    """Subtract the scores of the bad sentences, the second half, from those of the good ones."""
    middle = len(scores) // 2
    return scores[:middle] - scores[middle:]
