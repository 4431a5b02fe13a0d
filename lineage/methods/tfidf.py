"""Baselines without pretraining, for any answer of a head: the majority, and linear TF-IDF models.

Shapes: N items, M rows, K outputs, F features.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.answers.base import HeadAnswer, LinearInputs, PredictionColumns, WordInContext
from lineage.data.language import split_words
from lineage.tasks.base import Kind

MAX_ITER = 1000  # of L-BFGS
# With this many tagged words or more, character n-grams that occur in only one word are dropped.
MIN_DF_WORDS = 20

Baseline = Literal["majority", "tfidf"]
LinearModel: TypeAlias = LogisticRegression | Ridge


@dataclass(frozen=True)
class BaselineProblem:
    """The items that a baseline learns from."""

    kind: Kind
    info: dict[str, Any]  # task.json
    train: pd.DataFrame

    @property
    def language(self) -> str:
        """The task's language."""
        return str(self.info["language"])

    @property
    def is_symmetric(self) -> bool:
        """The order of the two texts means nothing."""
        return bool(self.info.get("symmetric", False))

    @property
    def answer(self) -> HeadAnswer:
        """The answers, with the names of the labels; the scale of numbers is not used."""
        answer = self.kind.answer(tuple(self.info.get("labels", ())))
        assert isinstance(answer, HeadAnswer)
        return answer


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline that answers items."""

    answer: HeadAnswer

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return (M, K) outputs of which the answers are made."""
        raise NotImplementedError(f"{type(self).__name__}.outputs")

    def answer_columns(self, items: pd.DataFrame) -> PredictionColumns:
        """Return the answers to items without labels."""
        return self.answer.answer_columns(items, self.outputs(items))

    def prediction_columns(self, items: pd.DataFrame) -> PredictionColumns:
        """Return the answers to labelled items, with their labels."""
        return self.answer.prediction_columns(items, self.outputs(items))


@dataclass(frozen=True)
class MajorityModel(FittedBaseline):
    """The same answer to every item."""

    majority: np.ndarray

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return the most frequent answer for every item or word."""
        return self.answer.repeat(self.majority, items)


@dataclass(frozen=True)
class TfidfModel(FittedBaseline):
    """Linear models on TF-IDF vectors, see `HeadAnswer.linear_inputs`."""

    kind: Kind
    language: str
    is_symmetric: bool
    # One of texts, or three of a word in its context: of the word before, the word, and the next.
    vectorizers: tuple[TfidfVectorizer, ...]
    # One; for spans, one for the first word of the answer and one for the last.
    linear_models: tuple[LinearModel, ...]
    has_converged: bool = True

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return (M, K) outputs of the linear models."""
        inputs = read_inputs(self.kind, self.answer, items, self.language)
        features = compute_features(self.vectorizers, inputs, symmetric=self.is_symmetric)
        num_labels = self.answer.num_linear_labels
        predictions = [
            predict_linear(model, features, num_labels=num_labels) for model in self.linear_models
        ]
        return self.answer.linear_outputs(predictions, items)


def read_inputs(kind: Kind, answer: HeadAnswer, items: pd.DataFrame, language: str) -> LinearInputs:
    """Return what a linear model reads of some items."""
    return answer.linear_inputs(items, kind.extract_texts(items, language), language)


def fit_baseline(baseline: Baseline, problem: BaselineProblem, *, C: float) -> FittedBaseline:
    """Fit a baseline; TF-IDF without anything to learn is the majority."""
    answer = problem.answer
    if baseline == "majority" or not answer.can_learn(problem.train):
        return MajorityModel(answer, answer.majority(problem.train))
    inputs = read_inputs(problem.kind, answer, problem.train, problem.language)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if inputs.words is None:
            vectorizer = fit_text_vectorizer(inputs.texts, problem.language)
            vectorizers: tuple[TfidfVectorizer, ...] = (vectorizer,)
            features = compute_features(vectorizers, inputs, symmetric=problem.is_symmetric)
        else:
            vectorizers, features = _fit_word_vectorizers(inputs.words)
            features = _add_features(features, inputs.extra_MF)
        models = [
            fit_linear(features, labels_M, C, are_numbers=answer.are_numbers)
            for labels_M in answer.linear_labels(problem.train)
        ]
    return TfidfModel(
        answer,
        problem.kind,
        problem.language,
        problem.is_symmetric,
        vectorizers,
        tuple(models),
        not any(issubclass(warning.category, ConvergenceWarning) for warning in caught),
    )


def build_text_vectorizer(language: str, *, vocabulary: list[str] | None = None) -> TfidfVectorizer:
    """Build TF-IDF over unigrams and bigrams of words (in Chinese, of characters)."""
    return TfidfVectorizer(
        tokenizer=partial(split_words, language=language),
        token_pattern=None,
        ngram_range=(1, 2),
        sublinear_tf=True,
        vocabulary=vocabulary,
    )


def build_word_vectorizer(
    *, min_df: int = 1, vocabulary: list[str] | None = None
) -> TfidfVectorizer:
    """Build TF-IDF over the character n-grams of a word."""
    return TfidfVectorizer(
        analyzer="char_wb",
        ngram_range=(1, 4),
        lowercase=False,
        sublinear_tf=True,
        min_df=min_df,
        vocabulary=vocabulary,
    )


def fit_text_vectorizer(texts: Sequence[Sequence[str]], language: str) -> TfidfVectorizer:
    """Fit `build_text_vectorizer` on the texts of all columns."""
    vectorizer = build_text_vectorizer(language)
    vectorizer.fit([text for column in texts for text in column])
    return vectorizer


def compute_features(
    vectorizers: Sequence[TfidfVectorizer], inputs: LinearInputs, *, symmetric: bool
) -> csr_matrix:
    """Return (M, F) features: of texts, or of words and what is known of them besides."""
    if inputs.words is None:
        return text_features(vectorizers[0], inputs.texts, symmetric=symmetric)
    parts = [
        vectorizer.transform([word[column] for word in inputs.words])
        for column, vectorizer in enumerate(vectorizers)
    ]
    return _add_features(hstack(parts).tocsr(), inputs.extra_MF)


def _add_features(features: csr_matrix, extra_MF: np.ndarray | None) -> csr_matrix:
    if extra_MF is None:
        return features
    return hstack([features, csr_matrix(extra_MF)]).tocsr()


def text_features(
    vectorizer: TfidfVectorizer, texts: Sequence[Sequence[str]], *, symmetric: bool
) -> csr_matrix:
    """Return (N, F) features of one text or two.

    For two texts u and v the features are those of a probe on pairs, [u, v, |u - v|, u * v], and
    the sum of u * v, which is their cosine. From u and v alone a linear model could not see that
    they share a word. If the order of the texts means nothing, u + v replaces u and v.
    """
    vectors = [vectorizer.transform(column) for column in texts]
    if len(vectors) == 1:
        return vectors[0]
    first, second = vectors
    sides = [first + second] if symmetric else [first, second]
    product = first.multiply(second)
    cosine = csr_matrix(product.sum(1))
    return hstack([*sides, abs(first - second), product, cosine]).tocsr()


def fit_linear(
    features: csr_matrix, labels_M: np.ndarray, C: float, *, are_numbers: bool = False
) -> LinearModel:
    """Fit logistic regression, or ridge regression to numbers.

    scikit-learn warns if MAX_ITER iterations are not enough for its tolerance.
    """
    if are_numbers:
        return Ridge(alpha=1 / C).fit(features, labels_M)
    return LogisticRegression(C=C, max_iter=MAX_ITER).fit(features, labels_M)


def predict_linear(model: LinearModel, features: csr_matrix, *, num_labels: int) -> np.ndarray:
    """Return (M, num_labels) probabilities, 0 for labels that the model has not seen.

    Ridge regression gives (M,) numbers.
    """
    if isinstance(model, Ridge):
        numbers_M: np.ndarray = model.predict(features)
        return numbers_M
    probabilities = np.zeros((features.shape[0], num_labels))
    probabilities[:, model.classes_.astype(int)] = model.predict_proba(features)
    return probabilities


def _fit_word_vectorizers(
    words: Sequence[WordInContext],
) -> tuple[tuple[TfidfVectorizer, ...], csr_matrix]:
    """Fit a vectorizer of the character n-grams of the word before, of the word, and of the next.

    Return them and the features.
    """
    # In a few words nearly every n-gram occurs once, so all are kept.
    min_df = 1 if len(words) < MIN_DF_WORDS else 2
    vectorizers = tuple(build_word_vectorizer(min_df=min_df) for _ in range(3))
    # Not fit and then transform: the order of the columns within a row, and with it the last digit
    # of a sum, would be another.
    parts = [
        vectorizer.fit_transform([word[column] for word in words])
        for column, vectorizer in enumerate(vectorizers)
    ]
    return vectorizers, hstack(parts).tocsr()
