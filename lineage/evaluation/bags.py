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

from lineage.kind import Kind
from lineage.params import Grid
from lineage.scoring.predictions import Columns, of_labels, of_numbers, of_spans, of_tags
from lineage.text.language import words

INVERSE_PENALTY = Grid.tfidf[0]  # the inverse of the L2 penalty, on tf-idf vectors of length 1: one for all tasks, unless the grid names several
TINY = 20  # words with their tags; from so many on, characters that stand in one word are left out
WINDOW = 10  # words of a context to either side


@dataclass(frozen=True)
class Fitted:
    """What a control says of the scored items: N items, K labels that it knows."""

    classes_K: np.ndarray
    probabilities_NK: np.ndarray

    def score_of(self, gold_N: np.ndarray) -> np.ndarray:
        """The probability of the gold label, 0 where the control does not know it."""
        return (self.probabilities_NK * (self.classes_K == gold_N[:, None])).sum(1)


def majority(labels_N: np.ndarray, items: int) -> Fitted:
    """Each label with its share among the training labels, whatever the item."""
    classes_K, count_K = np.unique(labels_N, return_counts=True)
    return Fitted(classes_K, np.tile(count_K / count_K.sum(), (items, 1)))


def tfidf(
    train: Sequence[Sequence[str]], labels_N: np.ndarray, scored: Sequence[Sequence[str]], *, language: str, penalty: float = INVERSE_PENALTY,
    symmetric: bool = False,
) -> Fitted:  # fmt: skip
    """Logistic regression on tf-idf of single words and pairs (in Chinese: characters); of two texts as `vectors` has it."""
    if len(set(labels_N.tolist())) < 2:
        return majority(labels_N, len(scored[0]))
    return _regression(*vectors(train, scored, language=language, symmetric=symmetric), labels_N, penalty)


def vectors(
    train: Sequence[Sequence[str]], scored: Sequence[Sequence[str]], *, language: str, symmetric: bool = False
) -> tuple[csr_matrix, csr_matrix]:
    """Tf-idf of words and pairs of them: of the texts to fit on, and of those to read.

    Of two texts u and v it is what frozen readers of pairs get, [u, v, |u - v|, u v], and the sum of the last, their cosine: side by side alone
    a linear reader could not see that they share a word. Where their order means nothing, u + v stands for the first two.
    """
    counted = TfidfVectorizer(tokenizer=partial(words, language=language), token_pattern=None, ngram_range=(1, 2), sublinear_tf=True)
    counted.fit([text for column in train for text in column])
    fitted, read = ([counted.transform(column) for column in columns] for columns in (train, scored))
    return (fitted[0], read[0]) if len(train) == 1 else (_beside(*fitted, symmetric=symmetric), _beside(*read, symmetric=symmetric))


def _beside(first: csr_matrix, second: csr_matrix, *, symmetric: bool) -> csr_matrix:
    both = first.multiply(second)
    return hstack([*([first + second] if symmetric else [first, second]), abs(first - second), both, csr_matrix(both.sum(1))]).tocsr()


def _regression(fitted: csr_matrix, read: csr_matrix, labels_N: np.ndarray, penalty: float) -> Fitted:
    model = LogisticRegression(C=penalty, max_iter=1000).fit(fitted, labels_N)
    return Fitted(model.classes_, model.predict_proba(read))


def tfidf_choices(
    train: Sequence[Sequence[str]], labels_N: np.ndarray, scored: Sequence[Sequence[str]], *, language: str, penalty: float = INVERSE_PENALTY
) -> Fitted:
    """The same of a text and each of its choices: is this the right one? The choice of which that is likeliest is taken."""

    def each(texts: Sequence[Sequence[str]]) -> list[list[str]]:
        return [list(texts[0]) * (len(texts) - 1), [choice for column in texts[1:] for choice in column]]

    right = np.concatenate([labels_N == place for place in range(len(train) - 1)])
    fitted = tfidf(each(train), right, each(scored), language=language, penalty=penalty)
    share_CN = fitted.score_of(np.ones(len(scored[0]) * (len(scored) - 1), bool)).reshape(len(scored) - 1, -1)
    return Fitted(np.arange(len(share_CN)), (share_CN / share_CN.sum(0)).T)


def _said_labels(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """A label, or the place of a choice."""
    own_N, gold_N = train["label"].to_numpy(), scored["label"].to_numpy()
    if control == "majority":
        fitted = majority(own_N, len(scored))
    else:
        texts, read = (kind.texts(table, facts["language"]) for table in (train, scored))
        said = tfidf_choices if kind.answer == "choice" else partial(tfidf, symmetric=facts.get("symmetric", False))
        fitted = said(texts, own_N, read, language=facts["language"], penalty=penalty)
    return of_labels(facts["labels"], gold_N, _of_all(fitted, len(facts["labels"])))


def _said_numbers(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """The mean, or ridge regression on tf-idf."""
    own_N, gold_N = train["label"].to_numpy(float), scored["label"].to_numpy(float)
    if control == "majority":
        return of_numbers(gold_N, np.full(len(scored), own_N.mean()))
    texts, read = (kind.texts(table, facts["language"]) for table in (train, scored))
    fitted, asked = vectors(texts, read, language=facts["language"], symmetric=facts.get("symmetric", False))
    return of_numbers(gold_N, Ridge(alpha=1 / penalty).fit(fitted, own_N).predict(asked))


def _said_tags(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """The commonest tag, or logistic regression on tf-idf of the characters of a word and of its two neighbours, side by side."""
    (words_M, own_M), (read_M, gold_M) = (
        ([_neighbours(list(tokens)) for tokens in table["tokens"]], np.concatenate([np.asarray(tags, int) for tags in table["label"]]))
        for table in (train, scored)
    )
    asked = [row for sentence in read_M for row in sentence]
    if control == "majority" or len(set(own_M.tolist())) < 2:
        fitted = majority(own_M, len(asked))
    else:
        fitted = _regression(*_of_words([row for sentence in words_M for row in sentence], asked), own_M, penalty)
    lengths, read_MK = [len(tags) for tags in scored["label"]], _of_all(fitted, len(facts["labels"]))
    return of_tags(facts["labels"], lengths, gold_M, read_MK, read_MK.argmax(1))


def _of_words(own: list[tuple[str, str, str]], read: list[tuple[str, str, str]]) -> tuple[csr_matrix, csr_matrix]:
    """Tf-idf of the characters of words and of their two neighbours, side by side: of those to fit on, and of those to read."""
    often = 1 if len(own) < TINY else 2  # of a few words nothing may be left out: nearly all that is known of them stands there once
    found = []
    for column, other in zip(zip(*own, strict=True), zip(*read, strict=True), strict=True):
        counted = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), lowercase=False, sublinear_tf=True, min_df=often)
        found.append((counted.fit_transform(column), counted.transform(other)))
    fitted, asked = (hstack(matrices).tocsr() for matrices in zip(*found, strict=True))
    return fitted, asked


def _said_spans(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """The words at the commonest place, or two logistic regressions, for the first word and the last: of `_of_words` and `overlaps`."""
    lengths = [len(starts) for starts in scored["starts"]]
    if control == "majority" or all(len(starts) == 1 for starts in train["starts"]):
        places, counts = np.unique(np.stack(train["label"].to_list()), axis=0, return_counts=True)
        held = [np.arange(length)[:, None] == np.minimum(places[counts.argmax()], length - 1) for length in lengths]
        return of_spans(scored, np.where(np.concatenate(held), 0.0, -np.inf))
    (own, own_MF), (read, read_MF) = (_context_words(table, facts["language"]) for table in (train, scored))
    of_own, of_read = _of_words(own, read)
    fitted, asked = hstack([of_own, csr_matrix(own_MF)]).tocsr(), hstack([of_read, csr_matrix(read_MF)]).tocsr()
    ends = np.cumsum([0, *(len(starts) for starts in train["starts"])])
    nats = []
    for side in (0, 1):
        gold_M = np.zeros(ends[-1], bool)
        gold_M[ends[:-1] + [label[side] for label in train["label"]]] = True
        chance_M = _regression(fitted, asked, gold_M, penalty).probabilities_NK[:, 1]
        nats.append(np.concatenate([np.log(part / part.sum()) for part in np.split(chance_M, np.cumsum(lengths)[:-1])]))
    return of_spans(scored, np.stack(nats, 1))


def _context_words(items: pd.DataFrame, language: str) -> tuple[list[tuple[str, str, str]], np.ndarray]:
    """Every word of the contexts between its neighbours, and (M, 3) how it stands to the question: see `overlaps`."""
    found, how = list[tuple[str, str, str]](), []
    for question, context, starts, ends in zip(*(items[name] for name in ("question", "context", "starts", "ends")), strict=True):
        tokens = [context[a:b] for a, b in zip(starts, ends, strict=True)]
        found += _neighbours(tokens)
        how.append(overlaps({word.lower() for word in words(question, language)}, [token.lower() for token in tokens]))
    return found, np.concatenate(how)


def overlaps(asked: set[str], tokens: Sequence[str]) -> np.ndarray:
    """(W, 3): whether each word stands in the question, and how many such words stand among the WINDOW before and after it, a near one for more.

    As in the sliding window of Richardson et al. 2013 (section 4.1). A word counts for the share of the context that it is not.
    """
    own_W = np.array([token in asked and 1 - tokens.count(token) / len(tokens) for token in tokens], float)
    near = 1 / np.arange(1, WINDOW + 1)
    before, after = np.convolve(own_W, [0, *near])[: len(own_W)], np.convolve(own_W[::-1], [0, *near])[: len(own_W)][::-1]
    return np.stack([own_W > 0, before, after], 1)


SAID: dict[str, Callable[..., Columns]] = {
    "label": _said_labels, "choice": _said_labels, "number": _said_numbers, "tags": _said_tags, "span": _said_spans}  # fmt: skip


def _neighbours(tokens: list[str]) -> list[tuple[str, str, str]]:
    """Each word between the one before it and the one after it; a mark that no word holds where there is none."""
    return list(zip(["<begin>", *tokens[:-1]], tokens, [*tokens[1:], "<end>"], strict=True))


def _of_all(fitted: Fitted, labels: int) -> np.ndarray:
    """(N, K) probabilities of all labels, 0 of those that the control does not know."""
    found = np.zeros((len(fitted.probabilities_NK), labels))
    found[:, fitted.classes_K.astype(int)] = fitted.probabilities_NK
    return found
