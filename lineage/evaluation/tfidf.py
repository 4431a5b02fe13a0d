"""Baselines without pretraining, for any answer type: the majority class, and linear TF-IDF models.

Shapes: N items, M words of all items, K labels, W words of a context, F features.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.data.language import split_words
from lineage.evaluation.answers import Answer, build_answer
from lineage.evaluation.predictions import (
    PredictionColumns,
    answer_with_spans,
    format_span_predictions,
)
from lineage.tasks.base import Kind

MAX_ITER = 1000  # of L-BFGS
# With this many tagged words or more, character n-grams that occur in only one word are dropped.
MIN_DF_WORDS = 20
CONTEXT_WINDOW = 10  # words of a context to either side

Baseline = Literal["majority", "tfidf"]
WordInContext = tuple[str, str, str]  # a word between the one before it and the one after it
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
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels, choices or tags; numbers and spans have none."""
        return tuple(self.info.get("labels", ()))


@dataclass(frozen=True)
class ClassProbabilities:
    """Probabilities of the K labels that a baseline has seen, for N items."""

    classes_K: np.ndarray
    probabilities_NK: np.ndarray

    def for_all_labels(self, num_labels: int) -> np.ndarray:
        """Return (N, num_labels) probabilities, 0 for labels that the baseline has not seen."""
        probabilities = np.zeros((len(self.probabilities_NK), num_labels))
        probabilities[:, self.classes_K.astype(int)] = self.probabilities_NK
        return probabilities


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline that answers items."""

    kind: Kind
    label_names: tuple[str, ...]

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return what the answers are made of.

        These are (N, K) probabilities of labels or choices, (N, 1) numbers, (M, K) probabilities of
        tags, or (M, 2) log-probabilities that the answer begins, and ends, at each word.
        """
        raise NotImplementedError(f"{type(self).__name__}.outputs")

    @property
    def answer(self) -> Answer:
        """How the outputs answer."""
        return build_answer(self.kind.answer_type, self.label_names)

    def answer_columns(self, items: pd.DataFrame) -> PredictionColumns:
        """Return the answers to items without labels."""
        outputs = self.outputs(items)
        if self.kind.answer_type == "span":  # the outputs are normalized already
            return answer_with_spans(items, outputs)
        return self.answer.answer_columns(items, outputs)

    def prediction_columns(self, items: pd.DataFrame) -> PredictionColumns:
        """Return the answers to labelled items, with their labels."""
        outputs = self.outputs(items)
        if self.kind.answer_type == "span":
            return format_span_predictions(items, outputs)
        return self.answer.prediction_columns(items, outputs)


@dataclass(frozen=True)
class MajorityModel(FittedBaseline):
    """The same answer to every item.

    `constant` holds the (K,) frequencies of labels or tags, the (1,) mean of numbers, or (2,) the
    most frequent first and last word of an answer.
    """

    constant: np.ndarray

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return the constant for every item or word."""
        if self.kind.answer_type == "span":
            return self._span_outputs(items)
        num_rows = len(items)
        if self.kind.answer_type == "tags":
            num_rows = sum(len(tokens) for tokens in items["tokens"])
        return np.tile(self.constant, (num_rows, 1))

    def _span_outputs(self, items: pd.DataFrame) -> np.ndarray:
        """In a shorter context, its last word replaces the words that it lacks."""
        lengths = [len(starts) for starts in items["starts"]]
        is_predicted = [
            np.arange(length)[:, None] == np.minimum(self.constant, length - 1)
            for length in lengths
        ]
        return np.where(np.concatenate(is_predicted), 0.0, -np.inf)


@dataclass(frozen=True)
class TfidfModel(FittedBaseline):
    """Linear models on TF-IDF vectors: see `_FITTERS` for those of each answer type."""

    language: str
    is_symmetric: bool
    # One of texts, or three of a word in its context: of the word before, the word, and the next.
    vectorizers: tuple[TfidfVectorizer, ...]
    # One; for spans, one for the first word of the answer and one for the last.
    linear_models: tuple[LinearModel, ...]
    has_converged: bool = True

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return what the answers are made of, see `FittedBaseline.outputs`."""
        answer_type = self.kind.answer_type
        if answer_type == "span":
            return self._span_outputs(items)
        if answer_type == "tags":
            features = _word_features(self.vectorizers, _words_in_context(items["tokens"]))
            return self._probabilities(features)
        texts = self.kind.extract_texts(items, self.language)
        if answer_type == "choice":
            return self._choice_outputs(texts)
        (vectorizer,) = self.vectorizers
        features = text_features(vectorizer, texts, symmetric=self.is_symmetric)
        if answer_type == "number":
            predictions_N: np.ndarray = self.linear_models[0].predict(features)
            return predictions_N[:, None]
        return self._probabilities(features)

    def _probabilities(self, features: csr_matrix) -> np.ndarray:
        fitted = class_probabilities(self.linear_models[0], features)
        return fitted.for_all_labels(len(self.label_names))

    def _choice_outputs(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the probabilities that a choice is right, normalized over the choices."""
        (vectorizer,) = self.vectorizers
        features = text_features(vectorizer, _pair_with_choices(texts), symmetric=False)
        fitted = class_probabilities(self.linear_models[0], features)
        share_CN = fitted.probabilities_NK[:, 1].reshape(len(texts) - 1, -1)
        normalized: np.ndarray = (share_CN / share_CN.sum(0)).T
        return normalized

    def _span_outputs(self, items: pd.DataFrame) -> np.ndarray:
        contexts = _read_contexts(items, self.language)
        tfidf = _word_features(self.vectorizers, contexts.words)
        features = hstack([tfidf, csr_matrix(contexts.overlap_M3)]).tocsr()
        ends = np.cumsum([len(starts) for starts in items["starts"]])[:-1]
        log_probabilities = []
        for model in self.linear_models:
            fitted = class_probabilities(model, features)
            parts = np.split(fitted.probabilities_NK[:, 1], ends)
            log_probabilities.append(np.concatenate([np.log(part / part.sum()) for part in parts]))
        return np.stack(log_probabilities, 1)


def fit_baseline(baseline: Baseline, problem: BaselineProblem, *, C: float) -> FittedBaseline:
    """Fit a baseline; TF-IDF without anything to learn is the majority class."""
    if baseline == "majority" or not _can_learn(problem):
        return _fit_majority(problem)
    assert problem.kind.answer_type is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        vectorizers, linear_models = _FITTERS[problem.kind.answer_type](problem, C)
    return TfidfModel(
        problem.kind,
        problem.label_names,
        problem.language,
        problem.is_symmetric,
        vectorizers,
        linear_models,
        not any(issubclass(warning.category, ConvergenceWarning) for warning in caught),
    )


def _can_learn(problem: BaselineProblem) -> bool:
    """Tell whether the training items have two labels, or words to choose from."""
    answer_type = problem.kind.answer_type
    if answer_type == "span":
        return any(len(starts) > 1 for starts in problem.train["starts"])
    if answer_type == "tags":
        return len(set(_concatenate_tags(problem.train).tolist())) > 1
    if answer_type == "label":
        return problem.train["label"].nunique() > 1
    return True


def _fit_majority(problem: BaselineProblem) -> MajorityModel:
    answer_type = problem.kind.answer_type
    labels = problem.train["label"]
    if answer_type == "number":
        constant = np.array([labels.to_numpy(float).mean()])
    elif answer_type == "span":
        spans, counts = np.unique(np.stack(labels.to_list()), axis=0, return_counts=True)
        constant = spans[counts.argmax()]
    else:
        labels_M = _concatenate_tags(problem.train) if answer_type == "tags" else labels.to_numpy()
        fitted = predict_majority(labels_M, 1)
        constant = fitted.for_all_labels(len(problem.label_names))[0]
    return MajorityModel(problem.kind, problem.label_names, constant)


def predict_majority(labels_N: np.ndarray, num_items: int) -> ClassProbabilities:
    """Predict the label frequencies of the training items for every item."""
    classes_K, count_K = np.unique(labels_N, return_counts=True)
    return ClassProbabilities(classes_K, np.tile(count_K / count_K.sum(), (num_items, 1)))


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


def fit_logistic_regression(
    features: csr_matrix, labels_N: np.ndarray, C: float
) -> LogisticRegression:
    """Fit to scikit-learn's tolerance; it warns if MAX_ITER iterations are not enough."""
    return LogisticRegression(C=C, max_iter=MAX_ITER).fit(features, labels_N)


def class_probabilities(model: LinearModel, features: csr_matrix) -> ClassProbabilities:
    """Return the probabilities of a logistic regression."""
    assert isinstance(model, LogisticRegression)
    return ClassProbabilities(model.classes_, model.predict_proba(features))


FittedParts = tuple[tuple[TfidfVectorizer, ...], tuple[LinearModel, ...]]


def _fit_labels(problem: BaselineProblem, C: float) -> FittedParts:
    """Fit logistic regression on `text_features`."""
    texts = problem.kind.extract_texts(problem.train, problem.language)
    vectorizer = fit_text_vectorizer(texts, problem.language)
    features = text_features(vectorizer, texts, symmetric=problem.is_symmetric)
    labels_N = problem.train["label"].to_numpy()
    return (vectorizer,), (fit_logistic_regression(features, labels_N, C),)


def _fit_choices(problem: BaselineProblem, C: float) -> FittedParts:
    """Classify each pair of a text and a choice as right or wrong."""
    texts = problem.kind.extract_texts(problem.train, problem.language)
    pairs = _pair_with_choices(texts)
    labels_N = problem.train["label"].to_numpy()
    is_right = np.concatenate([labels_N == choice for choice in range(len(texts) - 1)])
    vectorizer = fit_text_vectorizer(pairs, problem.language)
    features = text_features(vectorizer, pairs, symmetric=False)
    return (vectorizer,), (fit_logistic_regression(features, is_right, C),)


def _pair_with_choices(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Repeat the texts for each choice, and put all choices in one list."""
    choices = texts[1:]
    return [list(texts[0]) * len(choices), [choice for column in choices for choice in column]]


def _fit_numbers(problem: BaselineProblem, C: float) -> FittedParts:
    """Fit ridge regression on `text_features`."""
    texts = problem.kind.extract_texts(problem.train, problem.language)
    vectorizer = fit_text_vectorizer(texts, problem.language)
    features = text_features(vectorizer, texts, symmetric=problem.is_symmetric)
    return (vectorizer,), (
        Ridge(alpha=1 / C).fit(features, problem.train["label"].to_numpy(float)),
    )


def _fit_tags(problem: BaselineProblem, C: float) -> FittedParts:
    """Fit logistic regression on a word and its two neighbors."""
    words = _words_in_context(problem.train["tokens"])
    vectorizers, features = _fit_word_vectorizers(words)
    labels_M = _concatenate_tags(problem.train)
    return vectorizers, (fit_logistic_regression(features, labels_M, C),)


def _fit_spans(problem: BaselineProblem, C: float) -> FittedParts:
    """Fit two logistic regressions: on the first word of the answer, and on the last.

    The features are those of `_word_features`, and `question_overlap`.
    """
    contexts = _read_contexts(problem.train, problem.language)
    vectorizers, word_features = _fit_word_vectorizers(contexts.words)
    features = hstack([word_features, csr_matrix(contexts.overlap_M3)]).tocsr()
    ends = np.cumsum([0, *(len(starts) for starts in problem.train["starts"])])
    models = []
    for side in (0, 1):
        labels_M = np.zeros(ends[-1], bool)
        labels_M[ends[:-1] + [label[side] for label in problem.train["label"]]] = True
        models.append(fit_logistic_regression(features, labels_M, C))
    return vectorizers, tuple(models)


def _concatenate_tags(items: pd.DataFrame) -> np.ndarray:
    return np.concatenate([np.asarray(tags, int) for tags in items["label"]])


def _words_in_context(sentences: Iterable[Sequence[str]]) -> list[WordInContext]:
    words: list[WordInContext] = []
    for tokens in sentences:
        words += _with_neighbors(list(tokens))
    return words


def _with_neighbors(tokens: list[str]) -> list[WordInContext]:
    """Put each word between its neighbors; the ends of a sentence have special tokens."""
    return list(zip(["<begin>", *tokens[:-1]], tokens, [*tokens[1:], "<end>"], strict=True))


def _fit_word_vectorizers(
    words: list[WordInContext],
) -> tuple[tuple[TfidfVectorizer, ...], csr_matrix]:
    """Fit a vectorizer for each column of `_word_features`; return them and the features."""
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


def _word_features(
    vectorizers: Sequence[TfidfVectorizer], words: list[WordInContext]
) -> csr_matrix:
    """Concatenate TF-IDF over the character n-grams of the word before, the word, and the next."""
    parts = [
        vectorizer.transform([word[column] for word in words])
        for column, vectorizer in enumerate(vectorizers)
    ]
    return hstack(parts).tocsr()


@dataclass(frozen=True)
class _Contexts:
    """The M words of all contexts with their neighbours, and their (M, 3) `question_overlap`."""

    words: list[WordInContext]
    overlap_M3: np.ndarray


def _read_contexts(items: pd.DataFrame, language: str) -> _Contexts:
    words: list[WordInContext] = []
    overlap = []
    columns = [items[name] for name in ("question", "context", "starts", "ends")]
    for question, context, starts, ends in zip(*columns, strict=True):
        tokens = [context[start:end] for start, end in zip(starts, ends, strict=True)]
        words += _with_neighbors(tokens)
        question_words = {word.lower() for word in split_words(question, language)}
        overlap.append(question_overlap(question_words, [token.lower() for token in tokens]))
    return _Contexts(words, np.concatenate(overlap))


def question_overlap(question_words: set[str], tokens: Sequence[str]) -> np.ndarray:
    """Return (W, 3): is the word in the question, and the weight of such words before and after.

    The weight is summed over CONTEXT_WINDOW words and falls with distance, as in the sliding window
    of Richardson et al. 2013 (section 4.1). A word that is frequent in the context weighs less.
    """
    weight_W = np.zeros(len(tokens))
    for index, token in enumerate(tokens):
        if token in question_words:
            weight_W[index] = 1 - tokens.count(token) / len(tokens)
    kernel = [0, *(1 / np.arange(1, CONTEXT_WINDOW + 1))]
    before_W = np.convolve(weight_W, kernel)[: len(weight_W)]
    after_W = np.convolve(weight_W[::-1], kernel)[: len(weight_W)][::-1]
    return np.stack([weight_W > 0, before_W, after_W], 1)


_FITTERS: dict[str, Callable[[BaselineProblem, float], FittedParts]] = {
    "label": _fit_labels,
    "choice": _fit_choices,
    "number": _fit_numbers,
    "tags": _fit_tags,
    "span": _fit_spans,
}
