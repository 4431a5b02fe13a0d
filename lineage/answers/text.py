"""A text that a model writes: the translation of a sentence, or a summary (`summary.py`)."""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import AnsweredBy, LexicalAnswer, PredictionColumns, correct_column
from lineage.answers.metrics import get_bleu_signature
from lineage.results import Note, NoteKind

SIMILARITY_BATCH_SIZE = 256  # sources that are compared with all training sources at once


class TextAnswer(LexicalAnswer):
    """A text, compared with one reference."""

    answered_by: ClassVar[AnsweredBy] = "translator"
    are_texts: ClassVar[bool] = True
    text_nouns: ClassVar[str] = "translations"
    unfinished_note: ClassVar[NoteKind] = "unfinished_translations"

    @classmethod
    def lexical_columns(
        cls, train: pd.DataFrame | None, items: pd.DataFrame, language: str, metric: str
    ) -> PredictionColumns:
        """Answer with the target of the most similar training source."""
        assert train is not None
        return text_columns(items, find_nearest_targets(train, items, language=language), metric)

    @classmethod
    def describe_answers(cls, predictions: pd.DataFrame) -> list[Note]:
        references = predictions["label"].to_numpy()
        signature = get_bleu_signature(references, predictions["prediction"].to_numpy())
        return [Note("bleu_signature", signature)]


def text_columns(
    items: pd.DataFrame, texts: Iterable[str], metric: str, scores_N: np.ndarray | None = None
) -> PredictionColumns:
    """Return the columns of texts; `correct` is their contribution to the metric."""
    texts_N = np.array(list(texts), object)
    columns = {
        "label": items["target"].to_numpy(object),
        "prediction": texts_N,
        "score": np.full(len(texts_N), np.nan) if scores_N is None else scores_N,
    }
    return correct_column(columns, metric)


def find_nearest_targets(train: pd.DataFrame, scored: pd.DataFrame, *, language: str) -> list[str]:
    """Return the targets of the most similar training sources, as a translation memory does."""
    # Imported here, since scikit-learn takes a second.
    from lineage.answers.text_features import fit_text_vectorizer

    vectorizer = fit_text_vectorizer([train["source"].tolist()], language)
    train_vectors = vectorizer.transform(train["source"].tolist())
    scored_vectors = vectorizer.transform(scored["source"].tolist())
    nearest: list[int] = []
    for first in range(0, scored_vectors.shape[0], SIMILARITY_BATCH_SIZE):
        batch = scored_vectors[first : first + SIMILARITY_BATCH_SIZE]
        nearest += np.asarray((batch @ train_vectors.T).argmax(1)).ravel().tolist()
    return [train["target"].iloc[index] for index in nearest]
