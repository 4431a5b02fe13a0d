"""Metrics: gold and prediction as arrays of equal length: labels of any type, numbers, tags (`lineage.evaluation.spans`), or texts.

BLEU and chrF are sacrebleu's, from 0 to 100. It is imported where it is used, as scipy is: most stages score no translation, and it takes
half a second.
"""

import re
import string
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from lineage.evaluation.spans import count_spans, span_f1, split_tags, token_accuracy

# The metrics that ways can be compared by, and the value of a perfect score: the column `correct` of predictions has the share of it as its mean.
RANKING_METRICS = {
    "accuracy": 1.0,
    "span_f1": 1.0,
    "token_accuracy": 1.0,
    "pearson": 1.0,
    "spearman": 1.0,
    "f1": 100.0,
    "exact_match": 100.0,
    "bleu": 100.0,
    "macro_f1": 1.0,
    "matthews": 1.0,
}
MIN_SCORES = {
    "pearson": -1.0,
    "spearman": -1.0,
    "matthews": -1.0,
}  # the value of the worst score, where that is not 0
CJK_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
KANA = re.compile("[\u3040-\u30ff]")
ENGLISH_ARTICLE = re.compile(r"\b(a|an|the)\b")
ANSWER_SEPARATOR = "\t"  # in one text: no clean one holds a tab (`lineage.data.language.normalise`)
PUNCTUATION_REMOVAL = str.maketrans("", "", string.punctuation)


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The share of items that are right."""
    return float(np.mean(labels == predictions))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The mean over labels of F1; labels that stand in neither array do not count."""
    return _macro_f1_from_counts(_confusion_matrix(labels, predictions)[0])


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, for any number of labels (Gorodkin 2004); 0 where gold or prediction holds one label only."""
    return _matthews_from_counts(_confusion_matrix(labels, predictions)[0])


def _confusion_matrix(labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(L, L) how often each gold label, a row, met each prediction; and (N, 2) where in it each item stands."""
    classes, places = np.unique(
        np.concatenate([np.asarray(labels), np.asarray(predictions)]), return_inverse=True
    )
    places_N2 = places.reshape(2, -1).T
    counts_LL = np.zeros((len(classes), len(classes)))
    np.add.at(counts_LL, (places_N2[:, 0], places_N2[:, 1]), 1)
    return counts_LL, places_N2


def _macro_f1_from_counts(counts_LL: np.ndarray) -> float:
    both_L = counts_LL.sum(0) + counts_LL.sum(1)
    return float(np.mean(2 * counts_LL.diagonal()[both_L > 0] / both_L[both_L > 0]))


def _matthews_from_counts(counts_LL: np.ndarray) -> float:
    g_L, p_L, items = counts_LL.sum(1), counts_LL.sum(0), counts_LL.sum()
    spread = np.sqrt((items**2 - g_L @ g_L) * (items**2 - p_L @ p_L))
    return float((counts_LL.trace() * items - g_L @ p_L) / spread) if spread else 0.0


def correlation(
    labels: np.ndarray, predictions: np.ndarray, method: Literal["pearson", "spearman"]
) -> tuple[float, float]:
    """The coefficient, and the two-sided p of there being none. gold, prediction: (N,) numbers, or texts of numbers, N > 1.

    Spearman's is Pearson's of the ranks, equal values sharing the mean of theirs. Neither exists where one side is constant: both are then
    not a number, and what shows them must say why. Zero would claim that a reader was seen to follow nothing.
    """
    from scipy import stats

    labels, predictions = (
        np.asarray(values).astype(np.float64) for values in (labels, predictions)
    )
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return float("nan"), float("nan")
    found = (
        stats.pearsonr(labels, predictions)
        if method == "pearson"
        else stats.spearmanr(labels, predictions)
    )
    return float(found.statistic), float(found.pvalue)


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's correlation; not a number where one side is constant."""
    return correlation(labels, predictions, "pearson")[0]


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's correlation of ranks; not a number where one side is constant."""
    return correlation(labels, predictions, "spearman")[0]


def normalize_answer(text: str) -> str:
    """An answer as SQuAD compares it: small letters, then without ASCII punctuation (and no space for it), then without English articles."""
    return " ".join(ENGLISH_ARTICLE.sub(" ", text.lower().translate(PUNCTUATION_REMOVAL)).split())


def score_answers(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """(N, 2) exact match and F1 of words, from 0 to 1, of the best of each question's golds (Rajpurkar et al. 2016, section 6.1).

    gold: (N,), each several texts, or one with BETWEEN_GOLDS between them; prediction: (N,) texts, or None or NaN for a question that was not
    answered, which scores 0.
    As evaluate-v1.1.py has it, where an answer and its gold are both nothing once normalised, the match is 1 and the F1 0; version 2.0 gives 1.
    """
    best = np.zeros((len(labels), 2))
    for row, golds, said in zip(best, labels, predictions, strict=True):
        if isinstance(said, str):
            every = golds.split(ANSWER_SEPARATOR) if isinstance(golds, str) else golds
            row[:] = np.max(
                [
                    _exact_match_and_f1(normalize_answer(said), normalize_answer(one))
                    for one in every
                ],
                axis=0,
            )
    return best


def _exact_match_and_f1(prediction: str, label: str) -> tuple[float, float]:
    common = (Counter(prediction.split()) & Counter(label.split())).total()
    return float(prediction == label), 2 * common / max(
        len(prediction.split()) + len(label.split()), 1
    )


def exact_match(labels: np.ndarray, predictions: np.ndarray) -> float:
    """SQuAD's exact match, from 0 to 100."""
    return 100 * float(score_answers(labels, predictions)[:, 0].mean())


def answer_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """SQuAD's F1: the mean over questions, from 0 to 100."""
    return 100 * float(score_answers(labels, predictions)[:, 1].mean())


def _make_bleu(labels: np.ndarray) -> Any:
    """Tokens as mteval-v13a cuts them; where most references are Chinese, its characters, and where most are Japanese, all characters: sacrebleu's
    Chinese ones leave kana together."""
    from sacrebleu.metrics.bleu import BLEU

    japanese, spaceless = (
        2 * sum(sign.search(text) is not None for text in labels) > len(labels)
        for sign in (KANA, CJK_CHARACTER)
    )
    return BLEU(
        tokenize="char" if japanese else "zh" if spaceless else "13a", force=True
    )  # which only silences a remark on texts that end in " ."


def bleu(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Corpus BLEU against one reference (Papineni et al. 2002; Post 2018)."""
    return float(_make_bleu(labels).corpus_score(list(predictions), [list(labels)]).score)


def chrf(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Corpus chrF2 (Popovic 2015)."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().corpus_score(list(predictions), [list(labels)]).score)


def get_bleu_signature(labels: np.ndarray, predictions: np.ndarray) -> str:
    """What sacrebleu says of how it scored: references, case, tokens, smoothing, version."""
    metric = _make_bleu(labels)
    metric.corpus_score(list(predictions), [list(labels)])
    return str(metric.get_signature())


def bleu_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to corpus BLEU over 100: their mean is the corpus's own, though BLEU is no mean over sentences.

    Jackknife pseudo-values (Tukey 1958), moved to the exact mean: N - 1 times what the score loses without the example. Cells can then be paired
    example by example, as where an example is right or wrong; a single value may lie outside of 0 and 1.
    """
    metric, N = _make_bleu(labels), len(labels)
    each = [
        metric.corpus_score([said], [[true]])
        for said, true in zip(predictions, labels, strict=True)
    ]
    facts_NF = np.array(
        [[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in each], np.int64
    )
    whole_F, order = facts_NF.sum(0), metric.max_ngram_order

    def score(facts_F: np.ndarray) -> float:
        parts = (
            facts_F[:order].tolist(),
            facts_F[order : 2 * order].tolist(),
            int(facts_F[-2]),
            int(facts_F[-1]),
        )
        return (
            float(metric.compute_bleu(*parts, smooth_method="exp", max_ngram_order=order).score)
            / 100
        )

    without_N = np.array([score(whole_F - facts_F) for facts_F in facts_NF])
    return score(whole_F) + (N - 1) * (without_N.mean() - without_N)


def pearson_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to Pearson's correlation, as `bleu_shares`; not numbers where there is none.

    Where there is none without one of the examples (the only one that differs), that one's share is the correlation itself.
    """
    labels, predictions = (
        np.asarray(values).astype(np.float64) for values in (labels, predictions)
    )
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return np.full(len(labels), np.nan)
    x_N, y_N = labels - labels.mean(), predictions - predictions.mean()
    N, sums = len(x_N), np.array([x_N @ x_N, y_N @ y_N, x_N @ y_N])
    whole = sums[2] / np.sqrt(sums[0] * sums[1])
    xx, yy, xy = (
        total - one * N / (N - 1)
        for total, one in zip(sums, (x_N**2, y_N**2, x_N * y_N), strict=True)
    )  # the others' mean is -x / (N - 1)
    real = (xx > 1e-9 * sums[0]) & (yy > 1e-9 * sums[1])
    without_N = np.where(real, xy / np.sqrt(np.where(real, xx * yy, 1.0)), whole)
    return whole + (N - 1) * (without_N.mean() - without_N)


def mean_spearman_by_group(labels: np.ndarray, predictions: np.ndarray, group: np.ndarray) -> float:
    """The mean over groups of Spearman's correlation, as numbers of different groups may have different scales; not a number where one has none."""
    return float(
        np.mean(
            [
                spearman(labels[group == name], predictions[group == name])
                for name in np.unique(group)
            ]
        )
    )


def spearman_contributions(
    labels: np.ndarray, predictions: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """(N,) what each example adds to `spearman_by_group`: `pearson_shares` of the ranks within its group, weighted so that each group counts alike.

    Ranks stay as they are when an example is left out: it moves those of others by one at most. gold, prediction: (N,) numbers.
    """
    from scipy import stats

    names, shares_N = np.unique(group), np.empty(len(group))
    for name in names:
        own = group == name
        weight = len(group) / (len(names) * own.sum())
        shares_N[own] = weight * pearson_contributions(
            stats.rankdata(labels[own]), stats.rankdata(predictions[own])
        )
    return shares_N


def confusion_contributions(
    metric_from_counts: Callable[[np.ndarray], float], labels: np.ndarray, predictions: np.ndarray
) -> np.ndarray:
    """(N,) what each example adds to a score of the (L, L) table of labels and predictions, as `bleu_shares`; itself, of a single example.

    Examples of the same label and prediction add the same.
    """
    counts_LL, places_N2 = _confusion_matrix(labels, predictions)
    whole, N = metric_from_counts(counts_LL), len(places_N2)
    if N == 1:
        return np.array([whole])
    without_LL = np.zeros_like(counts_LL)
    for place in zip(*np.nonzero(counts_LL), strict=True):
        counts_LL[place] -= 1
        without_LL[place] = metric_from_counts(counts_LL)
        counts_LL[place] += 1
    without_N = without_LL[places_N2[:, 0], places_N2[:, 1]]
    return whole + (N - 1) * (without_N.mean() - without_N)


def ratio_contributions(numerators_N: np.ndarray, denominators_N: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to the ratio of two sums, to first order; their mean is the ratio itself. 0 where there is nothing to divide by."""
    whole = denominators_N.sum()
    if not whole:
        return np.zeros(len(numerators_N))
    ratio = numerators_N.sum() / whole
    return ratio + len(numerators_N) * (numerators_N - ratio * denominators_N) / whole


def span_f1_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to the F1 of all spans."""
    counts_N3 = np.array(count_spans(labels, predictions), np.float64)
    return ratio_contributions(2 * counts_N3[:, 0], counts_N3[:, 1] + counts_N3[:, 2])


def token_accuracy_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to the share of tags that are right."""
    right = [
        [said == true for said, true in zip(split_tags(ours), split_tags(theirs), strict=True)]
        for ours, theirs in zip(predictions, labels, strict=True)
    ]
    return ratio_contributions(
        np.array([sum(one) for one in right], np.float64),
        np.array([len(one) for one in right], np.float64),
    )


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "matthews": matthews_correlation,
    "pearson": pearson,
    "spearman": spearman,
    "token_accuracy": token_accuracy,
    "span_f1": span_f1,
    "exact_match": exact_match,
    "f1": answer_f1,
    "bleu": bleu,
    "chrf": chrf,
}
# What each example adds to a metric that ways can be compared by, as a share of a perfect score; similarities have theirs by group.
CONTRIBUTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda gold, prediction: (gold == prediction).astype(float),
    "macro_f1": partial(confusion_contributions, _macro_f1_from_counts),
    "matthews": partial(confusion_contributions, _matthews_from_counts),
    "pearson": pearson_contributions,
    "spearman": lambda gold, prediction: spearman_contributions(
        gold.astype(float), prediction.astype(float), np.zeros(len(gold))
    ),
    "token_accuracy": token_accuracy_contributions,
    "span_f1": span_f1_contributions,
    "exact_match": lambda gold, prediction: score_answers(gold, prediction)[:, 0],
    "f1": lambda gold, prediction: score_answers(gold, prediction)[:, 1],
    "bleu": bleu_contributions,
}
