"""TF-IDF vectors of texts and of words.

Shapes: N items, M rows, F features.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.answers.base import LinearInputs, WordInContext
from lineage.language import split_words

# With this many tagged words or more, character n-grams that occur in only one word are dropped.
MIN_DF_WORDS = 20


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


def fit_word_vectorizers(
    words: Sequence[WordInContext],
) -> tuple[tuple[TfidfVectorizer, ...], csr_matrix]:
    """Fit a vectorizer of character n-grams for each word of a row: the one before, the word, ..."""
    # In a few words nearly every n-gram occurs once, so all are kept.
    min_df = 1 if len(words) < MIN_DF_WORDS else 2
    vectorizers = tuple(build_word_vectorizer(min_df=min_df) for _ in words[0])
    # Not fit and then transform: the order of the columns within a row, and with it the last digit
    # of a sum, would be another.
    parts = [
        vectorizer.fit_transform([word[column] for word in words])
        for column, vectorizer in enumerate(vectorizers)
    ]
    return vectorizers, hstack(parts).tocsr()


def compute_features(
    vectorizers: Sequence[TfidfVectorizer], inputs: LinearInputs, *, symmetric: bool
) -> csr_matrix:
    """Return (M, F) features: of texts, or of words and their extra features."""
    if inputs.words is None:
        return text_features(vectorizers[0], inputs.texts, symmetric=symmetric)
    parts = [
        vectorizer.transform([word[column] for word in inputs.words])
        for column, vectorizer in enumerate(vectorizers)
    ]
    return add_features(hstack(parts).tocsr(), inputs.extra_MF)


def add_features(features: csr_matrix, extra_MF: np.ndarray | None) -> csr_matrix:
    if extra_MF is None:
        return features
    return hstack([features, csr_matrix(extra_MF)]).tocsr()


def text_features(
    vectorizer: TfidfVectorizer, texts: Sequence[Sequence[str]], *, symmetric: bool
) -> csr_matrix:
    """Return (N, F) features of one text or two.

    For two texts u and v they are [u, v, |u - v|, u * v] and the sum of u * v, their cosine. If the
    order of the texts means nothing, u + v replaces u and v.
    """
    vectors = [vectorizer.transform(column) for column in texts]
    if len(vectors) == 1:
        return vectors[0]
    first, second = vectors
    sides = [first + second] if symmetric else [first, second]
    product = first.multiply(second)
    cosine = csr_matrix(product.sum(1))
    return hstack([*sides, abs(first - second), product, cosine]).tocsr()
