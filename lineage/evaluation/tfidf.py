"""What can be said without pretraining of any task's items: the commonest answer, and bags of words, by tf-idf and a linear reader.

Shapes: N items, M words of all of them, K labels, W words of a context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.config.params import Grid
from lineage.data.language import split_words
from lineage.evaluation.predictions import (
    PredictionColumns,
    format_label_predictions,
    format_number_predictions,
    format_span_predictions,
    format_tag_predictions,
)
from lineage.tasks.base import Kind

DEFAULT_C = Grid.tfidf_C[
    0
]  # the inverse of the L2 penalty, on tf-idf vectors of length 1: one for all tasks, unless the grid names several
MIN_DF_WORDS = (
    20  # words with their tags; from so many on, characters that stand in one word are left out
)
CONTEXT_WINDOW = 10  # words of a context to either side


@dataclass(frozen=True)
class ClassProbabilities:
    """What a control says of the scored items: N items, K labels that it knows."""

    classes_K: np.ndarray
    probabilities_NK: np.ndarray

    def label_probability(self, labels_N: np.ndarray) -> np.ndarray:
        """The probability of the gold label, 0 where the control does not know it."""
        return (self.probabilities_NK * (self.classes_K == labels_N[:, None])).sum(1)


def predict_majority(labels_N: np.ndarray, num_items: int) -> ClassProbabilities:
    """Each label with its share among the training labels, whatever the item."""
    classes_K, count_K = np.unique(labels_N, return_counts=True)
    return ClassProbabilities(classes_K, np.tile(count_K / count_K.sum(), (num_items, 1)))


def predict_tfidf(
    train_texts: Sequence[Sequence[str]],
    labels_N: np.ndarray,
    scored_texts: Sequence[Sequence[str]],
    *,
    language: str,
    C: float = DEFAULT_C,
    symmetric: bool = False,
) -> ClassProbabilities:
    """Logistic regression on tf-idf of single words and pairs (in Chinese: characters); of two texts as `vectors` has it."""
    if len(set(labels_N.tolist())) < 2:
        return predict_majority(labels_N, len(scored_texts[0]))
    return _fit_and_predict(
        *tfidf_vectors(train_texts, scored_texts, language=language, symmetric=symmetric),
        labels_N,
        C,
    )


def tfidf_vectors(
    train_texts: Sequence[Sequence[str]],
    scored_texts: Sequence[Sequence[str]],
    *,
    language: str,
    symmetric: bool = False,
) -> tuple[csr_matrix, csr_matrix]:
    """Tf-idf of words and pairs of them: of the texts to fit on, and of those to read.

    Of two texts u and v it is what frozen readers of pairs get, [u, v, |u - v|, u v], and the sum of the last, their cosine: side by side alone
    a linear reader could not see that they share a word. Where their order means nothing, u + v stands for the first two.
    """
    vectorizer = TfidfVectorizer(
        tokenizer=partial(split_words, language=language),
        token_pattern=None,
        ngram_range=(1, 2),
        sublinear_tf=True,
    )
    vectorizer.fit([text for column in train_texts for text in column])
    train_features, scored_features = (
        [vectorizer.transform(column) for column in columns]
        for columns in (train_texts, scored_texts)
    )
    return (
        (train_features[0], scored_features[0])
        if len(train_texts) == 1
        else (
            _pair_features(*train_features, symmetric=symmetric),
            _pair_features(*scored_features, symmetric=symmetric),
        )
    )


def _pair_features(first: csr_matrix, second: csr_matrix, *, symmetric: bool) -> csr_matrix:
    product = first.multiply(second)
    return hstack(
        [
            *([first + second] if symmetric else [first, second]),
            abs(first - second),
            product,
            csr_matrix(product.sum(1)),
        ]
    ).tocsr()


def _fit_and_predict(
    train_features: csr_matrix, scored_features: csr_matrix, labels_N: np.ndarray, C: float
) -> ClassProbabilities:
    model = LogisticRegression(C=C, max_iter=1000).fit(train_features, labels_N)
    return ClassProbabilities(model.classes_, model.predict_proba(scored_features))


def predict_tfidf_choices(
    train_texts: Sequence[Sequence[str]],
    labels_N: np.ndarray,
    scored_texts: Sequence[Sequence[str]],
    *,
    language: str,
    C: float = DEFAULT_C,
) -> ClassProbabilities:
    """The same of a text and each of its choices: is this the right one? The choice of which that is likeliest is taken."""

    def pair_with_choices(texts: Sequence[Sequence[str]]) -> list[list[str]]:
        return [
            list(texts[0]) * (len(texts) - 1),
            [choice for column in texts[1:] for choice in column],
        ]

    is_correct = np.concatenate([labels_N == place for place in range(len(train_texts) - 1)])
    fitted = predict_tfidf(
        pair_with_choices(train_texts),
        is_correct,
        pair_with_choices(scored_texts),
        language=language,
        C=C,
    )
    share_CN = fitted.label_probability(
        np.ones(len(scored_texts[0]) * (len(scored_texts) - 1), bool)
    ).reshape(len(scored_texts) - 1, -1)
    return ClassProbabilities(np.arange(len(share_CN)), (share_CN / share_CN.sum(0)).T)


def _predict_labels(
    baseline: str,
    kind: Kind,
    facts: dict[str, Any],
    train: pd.DataFrame,
    scored: pd.DataFrame,
    *,
    C: float,
) -> PredictionColumns:
    """A label, or the place of a choice."""
    train_labels_N, scored_labels_N = train["label"].to_numpy(), scored["label"].to_numpy()
    if baseline == "majority":
        fitted = predict_majority(train_labels_N, len(scored))
    else:
        texts, scored_texts = (
            kind.extract_texts(table, facts["language"]) for table in (train, scored)
        )
        predict = (
            predict_tfidf_choices
            if kind.answer_type == "choice"
            else partial(predict_tfidf, symmetric=facts.get("symmetric", False))
        )
        fitted = predict(texts, train_labels_N, scored_texts, language=facts["language"], C=C)
    return format_label_predictions(
        facts["labels"], scored_labels_N, _expand_to_all_labels(fitted, len(facts["labels"]))
    )


def _predict_numbers(
    baseline: str,
    kind: Kind,
    facts: dict[str, Any],
    train: pd.DataFrame,
    scored: pd.DataFrame,
    *,
    C: float,
) -> PredictionColumns:
    """The mean, or ridge regression on tf-idf."""
    train_labels_N, scored_labels_N = (
        train["label"].to_numpy(float),
        scored["label"].to_numpy(float),
    )
    if baseline == "majority":
        return format_number_predictions(
            scored_labels_N, np.full(len(scored), train_labels_N.mean())
        )
    texts, scored_texts = (
        kind.extract_texts(table, facts["language"]) for table in (train, scored)
    )
    train_features, scored_features = tfidf_vectors(
        texts, scored_texts, language=facts["language"], symmetric=facts.get("symmetric", False)
    )
    return format_number_predictions(
        scored_labels_N,
        Ridge(alpha=1 / C).fit(train_features, train_labels_N).predict(scored_features),
    )


def _predict_tags(
    baseline: str,
    kind: Kind,
    facts: dict[str, Any],
    train: pd.DataFrame,
    scored: pd.DataFrame,
    *,
    C: float,
) -> PredictionColumns:
    """The commonest tag, or logistic regression on tf-idf of the characters of a word and of its two neighbours, side by side."""
    (train_words_M, train_labels_M), (scored_words_M, scored_labels_M) = (
        (
            [_with_neighbors(list(tokens)) for tokens in table["tokens"]],
            np.concatenate([np.asarray(tags, int) for tags in table["label"]]),
        )
        for table in (train, scored)
    )
    scored_words = [row for sentence in scored_words_M for row in sentence]
    if baseline == "majority" or len(set(train_labels_M.tolist())) < 2:
        fitted = predict_majority(train_labels_M, len(scored_words))
    else:
        fitted = _fit_and_predict(
            *_word_features([row for sentence in train_words_M for row in sentence], scored_words),
            train_labels_M,
            C,
        )
    lengths, probabilities_MK = (
        [len(tags) for tags in scored["label"]],
        _expand_to_all_labels(fitted, len(facts["labels"])),
    )
    return format_tag_predictions(
        facts["labels"], lengths, scored_labels_M, probabilities_MK, probabilities_MK.argmax(1)
    )


def _word_features(
    train_words: list[tuple[str, str, str]], scored_words: list[tuple[str, str, str]]
) -> tuple[csr_matrix, csr_matrix]:
    """Tf-idf of the characters of words and of their two neighbours, side by side: of those to fit on, and of those to read."""
    min_df = (
        1 if len(train_words) < MIN_DF_WORDS else 2
    )  # of a few words nothing may be left out: nearly all that is known of them stands there once
    found = []
    for column, other in zip(
        zip(*train_words, strict=True), zip(*scored_words, strict=True), strict=True
    ):
        vectorizer = TfidfVectorizer(
            analyzer="char_wb",
            ngram_range=(1, 4),
            lowercase=False,
            sublinear_tf=True,
            min_df=min_df,
        )
        found.append((vectorizer.fit_transform(column), vectorizer.transform(other)))
    train_features, scored_features = (
        hstack(matrices).tocsr() for matrices in zip(*found, strict=True)
    )
    return train_features, scored_features


def _predict_spans(
    baseline: str,
    kind: Kind,
    facts: dict[str, Any],
    train: pd.DataFrame,
    scored: pd.DataFrame,
    *,
    C: float,
) -> PredictionColumns:
    """The words at the commonest place, or two logistic regressions, for the first word and the last: of `_of_words` and `overlaps`."""
    lengths = [len(starts) for starts in scored["starts"]]
    if baseline == "majority" or all(len(starts) == 1 for starts in train["starts"]):
        places, counts = np.unique(np.stack(train["label"].to_list()), axis=0, return_counts=True)
        is_predicted = [
            np.arange(length)[:, None] == np.minimum(places[counts.argmax()], length - 1)
            for length in lengths
        ]
        return format_span_predictions(scored, np.where(np.concatenate(is_predicted), 0.0, -np.inf))
    (train_words, train_overlap_MF), (scored_words, scored_overlap_MF) = (
        _context_words(table, facts["language"]) for table in (train, scored)
    )
    train_tfidf, scored_tfidf = _word_features(train_words, scored_words)
    train_features, scored_features = (
        hstack([train_tfidf, csr_matrix(train_overlap_MF)]).tocsr(),
        hstack([scored_tfidf, csr_matrix(scored_overlap_MF)]).tocsr(),
    )
    ends = np.cumsum([0, *(len(starts) for starts in train["starts"])])
    log_probabilities = []
    for side in (0, 1):
        labels_M = np.zeros(ends[-1], bool)
        labels_M[ends[:-1] + [label[side] for label in train["label"]]] = True
        probability_M = _fit_and_predict(
            train_features, scored_features, labels_M, C
        ).probabilities_NK[:, 1]
        log_probabilities.append(
            np.concatenate(
                [
                    np.log(part / part.sum())
                    for part in np.split(probability_M, np.cumsum(lengths)[:-1])
                ]
            )
        )
    return format_span_predictions(scored, np.stack(log_probabilities, 1))


def _context_words(
    items: pd.DataFrame, language: str
) -> tuple[list[tuple[str, str, str]], np.ndarray]:
    """Every word of the contexts between its neighbours, and (M, 3) how it stands to the question: see `overlaps`."""
    found, overlap = list[tuple[str, str, str]](), []
    for question, context, starts, ends in zip(
        *(items[name] for name in ("question", "context", "starts", "ends")), strict=True
    ):
        tokens = [context[a:b] for a, b in zip(starts, ends, strict=True)]
        found += _with_neighbors(tokens)
        overlap.append(
            question_overlap(
                {word.lower() for word in split_words(question, language)},
                [token.lower() for token in tokens],
            )
        )
    return found, np.concatenate(overlap)


def question_overlap(question_words: set[str], tokens: Sequence[str]) -> np.ndarray:
    """(W, 3): whether each word stands in the question, and how many such words stand among the WINDOW before and after it, a near one for more.

    As in the sliding window of Richardson et al. 2013 (section 4.1). A word counts for the share of the context that it is not.
    """
    weight_W = np.array(
        [token in question_words and 1 - tokens.count(token) / len(tokens) for token in tokens],
        float,
    )
    near = 1 / np.arange(1, CONTEXT_WINDOW + 1)
    before, after = (
        np.convolve(weight_W, [0, *near])[: len(weight_W)],
        np.convolve(weight_W[::-1], [0, *near])[: len(weight_W)][::-1],
    )
    return np.stack([weight_W > 0, before, after], 1)


PREDICTORS: dict[str, Callable[..., PredictionColumns]] = {
    "label": _predict_labels,
    "choice": _predict_labels,
    "number": _predict_numbers,
    "tags": _predict_tags,
    "span": _predict_spans,
}


def _with_neighbors(tokens: list[str]) -> list[tuple[str, str, str]]:
    """Each word between the one before it and the one after it; a mark that no word holds where there is none."""
    return list(zip(["<begin>", *tokens[:-1]], tokens, [*tokens[1:], "<end>"], strict=True))


def _expand_to_all_labels(fitted: ClassProbabilities, num_labels: int) -> np.ndarray:
    """(N, K) probabilities of all labels, 0 of those that the control does not know."""
    found = np.zeros((len(fitted.probabilities_NK), num_labels))
    found[:, fitted.classes_K.astype(int)] = fitted.probabilities_NK
    return found
