"""Baselines without pretraining, for any answer type: the majority class, and linear TF-IDF models.

Shapes: N items, M words of all items, K labels, W words of a context, F features.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.data.language import split_words
from lineage.evaluation.predictions import (
    PredictionColumns,
    format_label_predictions,
    format_number_predictions,
    format_span_predictions,
    format_tag_predictions,
)
from lineage.tasks.base import Kind

MAX_ITER = 1000  # of L-BFGS
# With this many tagged words or more, character n-grams that occur in only one word are dropped.
MIN_DF_WORDS = 20
CONTEXT_WINDOW = 10  # words of a context to either side

Baseline = Literal["majority", "tfidf"]
WordInContext = tuple[str, str, str]  # a word between the one before it and the one after it


@dataclass(frozen=True)
class BaselineProblem:
    """The items that a baseline learns from, and those that it is scored on."""

    kind: Kind
    facts: dict[str, Any]  # task.json
    train: pd.DataFrame
    scored: pd.DataFrame

    @property
    def language(self) -> str:
        """The task's language."""
        return str(self.facts["language"])

    @property
    def is_symmetric(self) -> bool:
        """The order of the two texts means nothing."""
        return bool(self.facts.get("symmetric", False))

    def extract_texts(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return the texts of the training and of the scored items: a list for each text column."""
        return (
            self.kind.extract_texts(self.train, self.language),
            self.kind.extract_texts(self.scored, self.language),
        )


@dataclass(frozen=True)
class ClassProbabilities:
    """Probabilities of the K labels that a baseline has seen, for N items."""

    classes_K: np.ndarray
    probabilities_NK: np.ndarray

    def label_probability(self, labels_N: np.ndarray) -> np.ndarray:
        """Return the probability of each item's label; 0 where the baseline has not seen it."""
        return (self.probabilities_NK * (self.classes_K == labels_N[:, None])).sum(1)

    def for_all_labels(self, num_labels: int) -> np.ndarray:
        """Return (N, num_labels) probabilities, 0 for labels that the baseline has not seen."""
        probabilities = np.zeros((len(self.probabilities_NK), num_labels))
        probabilities[:, self.classes_K.astype(int)] = self.probabilities_NK
        return probabilities


def predict(baseline: Baseline, problem: BaselineProblem, *, C: float) -> PredictionColumns:
    """Fit a baseline on the training items and answer the scored ones."""
    assert problem.kind.answer_type is not None
    return _PREDICTORS[problem.kind.answer_type](baseline, problem, C)


def predict_majority(labels_N: np.ndarray, num_items: int) -> ClassProbabilities:
    """Predict the label frequencies of the training items for every item."""
    classes_K, count_K = np.unique(labels_N, return_counts=True)
    return ClassProbabilities(classes_K, np.tile(count_K / count_K.sum(), (num_items, 1)))


def predict_tfidf(
    train_texts: Sequence[Sequence[str]],
    labels_N: np.ndarray,
    scored_texts: Sequence[Sequence[str]],
    *,
    language: str,
    C: float,
    symmetric: bool = False,
) -> ClassProbabilities:
    """Fit logistic regression on `tfidf_vectors` of one text or two."""
    if len(set(labels_N.tolist())) < 2:
        return predict_majority(labels_N, len(scored_texts[0]))
    train_features, scored_features = tfidf_vectors(
        train_texts, scored_texts, language=language, symmetric=symmetric
    )
    return fit_logistic_regression(train_features, scored_features, labels_N, C)


def tfidf_vectors(
    train_texts: Sequence[Sequence[str]],
    scored_texts: Sequence[Sequence[str]],
    *,
    language: str,
    symmetric: bool = False,
) -> tuple[csr_matrix, csr_matrix]:
    """Return TF-IDF over unigrams and bigrams of words (in Chinese, of characters).

    For two texts u and v the features are those of a probe on pairs, [u, v, |u - v|, u * v], and
    the sum of u * v, which is their cosine. From u and v alone a linear model could not see that
    they share a word. If the order of the texts means nothing, u + v replaces u and v.
    """
    vectorizer = TfidfVectorizer(
        tokenizer=partial(split_words, language=language),
        token_pattern=None,
        ngram_range=(1, 2),
        sublinear_tf=True,
    )
    vectorizer.fit([text for column in train_texts for text in column])
    train_features = [vectorizer.transform(column) for column in train_texts]
    scored_features = [vectorizer.transform(column) for column in scored_texts]
    if len(train_texts) == 1:
        return train_features[0], scored_features[0]
    return (
        _pair_features(*train_features, symmetric=symmetric),
        _pair_features(*scored_features, symmetric=symmetric),
    )


def _pair_features(first: csr_matrix, second: csr_matrix, *, symmetric: bool) -> csr_matrix:
    texts = [first + second] if symmetric else [first, second]
    product = first.multiply(second)
    cosine = csr_matrix(product.sum(1))
    return hstack([*texts, abs(first - second), product, cosine]).tocsr()


def fit_logistic_regression(
    train_features: csr_matrix, scored_features: csr_matrix, labels_N: np.ndarray, C: float
) -> ClassProbabilities:
    """Fit to scikit-learn's tolerance, and predict.

    scikit-learn warns if MAX_ITER iterations are not enough.
    """
    model = LogisticRegression(C=C, max_iter=MAX_ITER).fit(train_features, labels_N)
    return ClassProbabilities(model.classes_, model.predict_proba(scored_features))


def predict_tfidf_choices(
    train_texts: Sequence[Sequence[str]],
    labels_N: np.ndarray,
    scored_texts: Sequence[Sequence[str]],
    *,
    language: str,
    C: float,
) -> ClassProbabilities:
    """Classify each pair of a text and a choice as right or wrong, and normalize over choices."""
    num_choices = len(train_texts) - 1
    is_right = np.concatenate([labels_N == choice for choice in range(num_choices)])
    fitted = predict_tfidf(
        _pair_with_choices(train_texts),
        is_right,
        _pair_with_choices(scored_texts),
        language=language,
        C=C,
    )
    all_right = np.ones(len(scored_texts[0]) * num_choices, bool)
    share_CN = fitted.label_probability(all_right).reshape(num_choices, -1)
    return ClassProbabilities(np.arange(num_choices), (share_CN / share_CN.sum(0)).T)


def _pair_with_choices(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Repeat the texts for each choice, and put all choices in one list."""
    choices = texts[1:]
    return [list(texts[0]) * len(choices), [choice for column in choices for choice in column]]


def _predict_labels(baseline: Baseline, problem: BaselineProblem, C: float) -> PredictionColumns:
    """Answer with a label, or with the index of a choice."""
    labels_N = problem.train["label"].to_numpy()
    if baseline == "majority":
        fitted = predict_majority(labels_N, len(problem.scored))
    else:
        fitted = _predict_tfidf_classes(problem, labels_N, C)
    names = problem.facts["labels"]
    return format_label_predictions(
        names, problem.scored["label"].to_numpy(), fitted.for_all_labels(len(names))
    )


def _predict_tfidf_classes(
    problem: BaselineProblem, labels_N: np.ndarray, C: float
) -> ClassProbabilities:
    train_texts, scored_texts = problem.extract_texts()
    language = problem.language
    if problem.kind.answer_type == "choice":
        return predict_tfidf_choices(train_texts, labels_N, scored_texts, language=language, C=C)
    return predict_tfidf(
        train_texts,
        labels_N,
        scored_texts,
        language=language,
        C=C,
        symmetric=problem.is_symmetric,
    )


def _predict_numbers(baseline: Baseline, problem: BaselineProblem, C: float) -> PredictionColumns:
    """Answer with the mean, or by ridge regression on TF-IDF."""
    train_labels_N = problem.train["label"].to_numpy(float)
    scored_labels_N = problem.scored["label"].to_numpy(float)
    if baseline == "majority":
        means_N = np.full(len(problem.scored), train_labels_N.mean())
        return format_number_predictions(scored_labels_N, means_N)
    train_features, scored_features = tfidf_vectors(
        *problem.extract_texts(), language=problem.language, symmetric=problem.is_symmetric
    )
    model = Ridge(alpha=1 / C).fit(train_features, train_labels_N)
    return format_number_predictions(scored_labels_N, model.predict(scored_features))


def _predict_tags(baseline: Baseline, problem: BaselineProblem, C: float) -> PredictionColumns:
    """Answer with the majority tag, or by logistic regression on a word and its two neighbors."""
    train_labels_M = _concatenate_tags(problem.train)
    scored_words = _words_in_context(problem.scored["tokens"])
    if baseline == "majority" or len(set(train_labels_M.tolist())) < 2:
        fitted = predict_majority(train_labels_M, len(scored_words))
    else:
        train_words = _words_in_context(problem.train["tokens"])
        train_features, scored_features = _word_features(train_words, scored_words)
        fitted = fit_logistic_regression(train_features, scored_features, train_labels_M, C)
    names = problem.facts["labels"]
    probabilities_MK = fitted.for_all_labels(len(names))
    return format_tag_predictions(
        names,
        [len(tags) for tags in problem.scored["label"]],
        _concatenate_tags(problem.scored),
        probabilities_MK,
        probabilities_MK.argmax(1),
    )


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


def _word_features(
    train_words: list[WordInContext], scored_words: list[WordInContext]
) -> tuple[csr_matrix, csr_matrix]:
    """Concatenate TF-IDF over the character n-grams of the word before, the word, and the next."""
    # In a few words nearly every n-gram occurs once, so all are kept.
    min_df = 1 if len(train_words) < MIN_DF_WORDS else 2
    train_parts = []
    scored_parts = []
    for column in range(3):
        vectorizer = TfidfVectorizer(
            analyzer="char_wb",
            ngram_range=(1, 4),
            lowercase=False,
            sublinear_tf=True,
            min_df=min_df,
        )
        train_parts.append(vectorizer.fit_transform([words[column] for words in train_words]))
        scored_parts.append(vectorizer.transform([words[column] for words in scored_words]))
    return hstack(train_parts).tocsr(), hstack(scored_parts).tocsr()


def _predict_spans(baseline: Baseline, problem: BaselineProblem, C: float) -> PredictionColumns:
    """Answer with the most frequent word positions, or by two logistic regressions.

    One predicts the first word of the answer and one the last, from `_word_features` and
    `question_overlap`.
    """
    lengths = [len(starts) for starts in problem.scored["starts"]]
    if baseline == "majority" or all(len(starts) == 1 for starts in problem.train["starts"]):
        return _predict_most_frequent_span(problem, lengths)
    train_features = _context_features(problem.train, problem.language)
    scored_features = _context_features(problem.scored, problem.language)
    train_tfidf, scored_tfidf = _word_features(train_features.words, scored_features.words)
    train_matrix = hstack([train_tfidf, csr_matrix(train_features.overlap_M3)]).tocsr()
    scored_matrix = hstack([scored_tfidf, csr_matrix(scored_features.overlap_M3)]).tocsr()
    ends = np.cumsum([0, *(len(starts) for starts in problem.train["starts"])])
    log_probabilities = []
    for side in (0, 1):
        labels_M = np.zeros(ends[-1], bool)
        labels_M[ends[:-1] + [label[side] for label in problem.train["label"]]] = True
        fitted = fit_logistic_regression(train_matrix, scored_matrix, labels_M, C)
        contexts = np.split(fitted.probabilities_NK[:, 1], np.cumsum(lengths)[:-1])
        log_probabilities.append(np.concatenate([np.log(part / part.sum()) for part in contexts]))
    return format_span_predictions(problem.scored, np.stack(log_probabilities, 1))


def _predict_most_frequent_span(problem: BaselineProblem, lengths: list[int]) -> PredictionColumns:
    """Answer with the most frequent positions of the first and last word.

    In a shorter context, its last word replaces them.
    """
    labels = np.stack(problem.train["label"].to_list())
    spans, counts = np.unique(labels, axis=0, return_counts=True)
    most_frequent = spans[counts.argmax()]
    is_predicted = [
        np.arange(length)[:, None] == np.minimum(most_frequent, length - 1) for length in lengths
    ]
    log_probabilities = np.where(np.concatenate(is_predicted), 0.0, -np.inf)
    return format_span_predictions(problem.scored, log_probabilities)


@dataclass(frozen=True)
class _ContextFeatures:
    """The M words of all contexts with their neighbours, and their (M, 3) `question_overlap`."""

    words: list[WordInContext]
    overlap_M3: np.ndarray


def _context_features(items: pd.DataFrame, language: str) -> _ContextFeatures:
    words: list[WordInContext] = []
    overlap = []
    columns = [items[name] for name in ("question", "context", "starts", "ends")]
    for question, context, starts, ends in zip(*columns, strict=True):
        tokens = [context[start:end] for start, end in zip(starts, ends, strict=True)]
        words += _with_neighbors(tokens)
        question_words = {word.lower() for word in split_words(question, language)}
        overlap.append(question_overlap(question_words, [token.lower() for token in tokens]))
    return _ContextFeatures(words, np.concatenate(overlap))


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


_PREDICTORS: dict[str, Callable[[Baseline, BaselineProblem, float], PredictionColumns]] = {
    "label": _predict_labels,
    "choice": _predict_labels,
    "number": _predict_numbers,
    "tags": _predict_tags,
    "span": _predict_spans,
}
