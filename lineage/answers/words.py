"""Answers to items of single words, from the cosines of their vectors: similarity and analogy.

The cosines come from a model or from TF-IDF; nothing is trained.
Shapes: V distinct words of the task, N items, K words of an item, n items of a batch.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import AnsweredBy, LexicalAnswer, PredictionColumns
from lineage.answers.groups import can_report_groups
from lineage.answers.metrics import mean_spearman_by_group, spearman_contributions
from lineage.errors import EvaluationError
from lineage.results import Note

KNOWN_COLUMN = "known"  # of the predictions: the model knows all words of the item
LAYER_PREFIX = "layer "  # with a number: the column of the answers of that layer alone
UNKNOWN_WORDS_HINT = (
    "raise its tokenizer.vocab_size, or use a family that reads the letters of words, such as "
    "fasttext or elmo"
)
ANALOGIES_PER_BATCH = 1024
AnswersAndScores = tuple[np.ndarray, np.ndarray]  # (N,) answers as texts, (N,) scores as numbers


def list_distinct_words(items: pd.DataFrame) -> list[str]:
    """Return the V words of the items, sorted, so that the order of the items does not matter."""
    return sorted({str(word) for words in items["words"] for word in words})


def cosine_matrix(products_VV: np.ndarray) -> np.ndarray:
    """Return (V, V) cosines from the products of vectors; 0 if a vector has no length."""
    length_V = np.sqrt(np.diag(products_VV).clip(0))
    scale_V = np.divide(1.0, length_V, out=np.zeros_like(length_V), where=length_V > 0)
    return products_VV * (scale_V[:, None] * scale_V)


def _character_cosines(words: Sequence[str]) -> np.ndarray:
    """Return the (V, V) cosines of centered TF-IDF vectors of the character n-grams of words."""
    # Imported here, since it takes a second.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    tfidf_VF = vectorizer.fit_transform(words)
    products_VV = (tfidf_VF @ tfidf_VF.T).toarray()
    # Center the products, since centered vectors would no longer be sparse.
    mean_V = products_VV.mean(0)
    return cosine_matrix(products_VV - (mean_V[:, None] + mean_V) + mean_V.mean())


class WordsAnswer(LexicalAnswer):
    """How the cosines of single words answer the items of a kind."""

    answered_by: ClassVar[AnsweredBy] = "word_vectors"
    item_name: ClassVar[str]  # plural, for the report
    unknown_effect: ClassVar[str]  # how items with an unknown word are answered

    @classmethod
    @abstractmethod
    def labels(cls, items: pd.DataFrame) -> np.ndarray:
        """Return the (N,) correct answers as texts."""

    @classmethod
    @abstractmethod
    def answer(
        cls, words_V: np.ndarray, index_NK: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
    ) -> AnswersAndScores:
        """Return answers and scores.

        The index holds each item's words as places in `words_V`; `known_V` is False where the model
        lacks the word. Raises EvaluationError if no item can be answered.
        """

    @classmethod
    @abstractmethod
    def contributions(
        cls, items: pd.DataFrame, answers_N: np.ndarray, scores_N: np.ndarray
    ) -> np.ndarray:
        """Return the (N,) contribution of each item to the metric."""

    @classmethod
    def columns(
        cls,
        items: pd.DataFrame,
        layer_cosines: Iterable[tuple[str, np.ndarray]],
        known_V: np.ndarray,
    ) -> PredictionColumns:
        """Return the columns of predictions; `layer 0`, ... hold the answers of single layers.

        V is in the order of `list_distinct_words`. The cosines called `none` give the prediction.
        Raises EvaluationError if no item can be answered.
        """
        words = list_distinct_words(items)
        words_V = np.array(words, object)
        index_of_word = {word: index for index, word in enumerate(words)}
        index_NK = np.array(
            [[index_of_word[str(word)] for word in item_words] for item_words in items["words"]]
        )
        columns: PredictionColumns = {"label": cls.labels(items)}
        for layer, cosines_VV in layer_cosines:
            answers_N, scores_N = cls.answer(words_V, index_NK, cosines_VV, known_V)
            if layer == "none":
                columns["prediction"] = answers_N
                columns["score"] = scores_N
            else:
                columns[f"{LAYER_PREFIX}{layer}"] = answers_N
        columns["correct"] = cls.contributions(items, columns["prediction"], columns["score"])
        columns[KNOWN_COLUMN] = known_V[index_NK].all(1)
        return columns

    @classmethod
    def lexical_columns(
        cls, train: pd.DataFrame | None, items: pd.DataFrame, language: str, metric: str
    ) -> PredictionColumns:
        """Answer by the character n-grams of words. Raises EvaluationError as `columns` does."""
        words = list_distinct_words(items)
        cosines_VV = _character_cosines(words)
        return cls.columns(items, [("none", cosines_VV)], np.ones(len(words), bool))

    @classmethod
    def describe_answers(cls, predictions: pd.DataFrame) -> list[Note]:
        """Tell how many items have a word that the model does not know, if there are any."""
        num_unknown = int((~predictions[KNOWN_COLUMN].astype(bool)).sum())
        if not num_unknown:
            return []
        value = {
            "count": num_unknown,
            "of": len(predictions),
            "items": cls.item_name,
            "effect": cls.unknown_effect,
        }
        return [Note("unknown_words", value)]

    @classmethod
    def describe_undefined(
        cls, metric: str, predictions: pd.DataFrame, answer_column: str = "prediction"
    ) -> Note:
        """Name the groups without a correlation: perhaps the model knows hardly any of the words."""
        constant_groups = [
            str(name)
            for name, group_items in predictions.groupby("group", sort=True)
            if len({float(cosine) for cosine in group_items[answer_column]}) < 2
        ]
        if can_report_groups(predictions):
            return Note("constant_cosines", constant_groups)
        num_groups = predictions["group"].nunique()
        return Note("constant_cosines", {"count": len(constant_groups), "of": num_groups})


class SimilarityAnswer(WordsAnswer):
    """The cosine of two words, compared with how similar people find them."""

    averages_groups: ClassVar[bool] = True
    item_name: ClassVar[str] = "pairs"
    unknown_effect: ClassVar[str] = "mean_cosine"

    @classmethod
    def labels(cls, items: pd.DataFrame) -> np.ndarray:
        return np.array([repr(float(score)) for score in items["label"]], object)

    @classmethod
    def answer(
        cls, words_V: np.ndarray, index_NK: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
    ) -> AnswersAndScores:
        """Answer with the cosine of each pair; one with an unknown word gets the mean of the others.

        Raises EvaluationError if every pair has an unknown word.
        """
        known_N = known_V[index_NK].all(1)
        if not known_N.any():
            raise EvaluationError(f"the model knows both words of no pair; {UNKNOWN_WORDS_HINT}")
        cosines_N = cosines_VV[index_NK[:, 0], index_NK[:, 1]]
        cosines_N = np.where(known_N, cosines_N, cosines_N[known_N].mean())
        return np.array([repr(float(number)) for number in cosines_N], object), cosines_N

    @classmethod
    def contributions(
        cls, items: pd.DataFrame, answers_N: np.ndarray, scores_N: np.ndarray
    ) -> np.ndarray:
        """Return (N,) numbers whose mean is the mean over groups of the rank correlation."""
        labels_N = items["label"].to_numpy(np.float64)
        return spearman_contributions(labels_N, scores_N, items["group"].to_numpy(object))

    @classmethod
    def score(
        cls, metric: str, predictions: pd.DataFrame, *, answer_column: str = "prediction"
    ) -> float:
        """Return the mean over groups of the rank correlation, NaN if one of them has none."""
        labels = predictions["label"].to_numpy(object)
        answers = predictions[answer_column].to_numpy(object)
        return mean_spearman_by_group(labels, answers, predictions["group"].to_numpy(object))


class AnalogyAnswer(WordsAnswer):
    """The word that is to c as b is to a."""

    item_name: ClassVar[str] = "analogies"
    unknown_effect: ClassVar[str] = "wrong"

    @classmethod
    def labels(cls, items: pd.DataFrame) -> np.ndarray:
        return np.array([str(words[3]) for words in items["words"]], object)

    @classmethod
    def answer(
        cls, words_V: np.ndarray, index_NK: np.ndarray, cosines_VV: np.ndarray, known_V: np.ndarray
    ) -> AnswersAndScores:
        """Answer with the known word, except a, b and c, that is nearest to b - a + c.

        This is 3CosAdd (Mikolov et al. 2013; Levy and Goldberg 2014, equation 2); the score is that
        of the correct word. Ties go to the first word in alphabetical order. An item with an
        unknown word gets an empty answer and the score NaN.
        """
        answers_N = np.full(len(index_NK), "", object)
        scores_N = np.full(len(index_NK), np.nan)
        known_items = np.flatnonzero(known_V[index_NK].all(1))
        for first in range(0, len(known_items), ANALOGIES_PER_BATCH):
            batch = known_items[first : first + ANALOGIES_PER_BATCH]
            a, b, c, d = index_NK[batch].T
            similarity_nV = cosines_VV[b] - cosines_VV[a] + cosines_VV[c]
            rows = np.arange(len(batch))
            scores_N[batch] = similarity_nV[rows, d]
            similarity_nV[:, ~known_V] = -np.inf
            similarity_nV[rows[:, None], index_NK[batch, :3]] = -np.inf
            answers_N[batch] = words_V[similarity_nV.argmax(1)]
        return answers_N, scores_N

    @classmethod
    def contributions(
        cls, items: pd.DataFrame, answers_N: np.ndarray, scores_N: np.ndarray
    ) -> np.ndarray:
        return (cls.labels(items) == answers_N).astype(float)
