"""The probabilities that a language model gives to two sentences answer an item, without training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.pair import pair_columns
from lineage.errors import EvaluationError
from lineage.methods.base import (
    LENGTH_NORMALIZED_ACCURACY,
    FittedSystem,
    Method,
    answer_scored_splits,
)
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalRun, Subject, TaskContext, Transfer, under_test
from lineage.methods.run_predictions import RunPredictions
from lineage.networks.base import LanguageModelFamily


@dataclass(frozen=True, kw_only=True)
class SentenceProbabilityMethod(Method):
    """The more probable sentence is the good one."""

    name: ClassVar[str] = "sentence_probability"
    transfer: ClassVar[Transfer] = "zero_shot"
    titles: ClassVar[Mapping[str, str]] = {"none": "zero-shot"}
    answered_by: ClassVar[AnsweredBy] = "sentence_probability"

    def head_name(self, context: TaskContext) -> str:
        """Return "none": there is no head."""
        return "none"

    def fit(
        self,
        subject: Subject,
        run: EvalRun,
        chosen_trial: int | None,
        resume_point: ResumePoint,
    ) -> FittedSystem:
        """Answer every scored split. Raises EvaluationError if a probability is not finite."""
        encoder = under_test(subject)
        context = encoder.context
        model = encoder.build_encoder().eval()
        family = context.checkpoint.family
        assert isinstance(family, LanguageModelFamily)
        score = family.score_texts

        def answer(items: pd.DataFrame) -> PredictionColumns:
            texts = [*items["good"], *items["bad"]]
            log_probs, num_tokens = score(
                model, context.checkpoint.tokenizer, texts, limit=context.max_input_positions
            ).T
            if not np.isfinite(log_probs).all():
                raise EvaluationError(
                    "scores of sentences are not finite; lower the learning_rate of pretraining"
                )
            margin = _margins(log_probs)
            margin_per_token = _margins(log_probs / np.maximum(num_tokens, 1))
            return {
                **pair_columns(margin),
                LENGTH_NORMALIZED_ACCURACY: (np.sign(margin_per_token) + 1) / 2,
            }

        return FittedSystem(RunPredictions(answer_scored_splits(context, run, answer)), self)


def _margins(scores: np.ndarray) -> np.ndarray:
    """Subtract the scores of the bad sentences, the second half, from those of the good ones."""
    middle = len(scores) // 2
    return scores[:middle] - scores[middle:]
