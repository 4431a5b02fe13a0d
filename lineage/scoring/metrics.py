"""Metrics: gold and prediction as arrays of equal length: labels of any type, numbers, tags (`lineage.scoring.tags`), or texts.

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

from lineage.scoring.tags import span_counts, span_f1, tags_of, token_accuracy

# The metrics that ways can be compared by, and the value of a perfect score: the column `correct` of predictions has the share of it as its mean.
COMPARED = {"accuracy": 1.0, "span_f1": 1.0, "token_accuracy": 1.0, "pearson": 1.0, "spearman": 1.0, "f1": 100.0, "exact_match": 100.0,
            "bleu": 100.0, "macro_f1": 1.0, "matthews": 1.0}  # fmt: skip
LOWEST = {"pearson": -1.0, "spearman": -1.0, "matthews": -1.0}  # the value of the worst score, where that is not 0
SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
KANA = re.compile("[\u3040-\u30ff]")
ARTICLE = re.compile(r"\b(a|an|the)\b")
BETWEEN_GOLDS = "\t"  # in one text: no clean one holds a tab (`lineage.text.language.normalise`)
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(gold: np.ndarray, prediction: np.ndarray) -> float:
    """The share of items that are right."""
    return float(np.mean(gold == prediction))


def macro_f1(gold: np.ndarray, prediction: np.ndarray) -> float:
    """The mean over labels of F1; labels that stand in neither array do not count."""
    return _macro_f1(_confusion(gold, prediction)[0])


def matthews(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Matthews correlation, for any number of labels (Gorodkin 2004); 0 where gold or prediction holds one label only."""
    return _matthews(_confusion(gold, prediction)[0])


def _confusion(gold: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(L, L) how often each gold label, a row, met each prediction; and (N, 2) where in it each item stands."""
    labels, places = np.unique(np.concatenate([np.asarray(gold), np.asarray(prediction)]), return_inverse=True)
    places_N2 = places.reshape(2, -1).T
    counts_LL = np.zeros((len(labels), len(labels)))
    np.add.at(counts_LL, (places_N2[:, 0], places_N2[:, 1]), 1)
    return counts_LL, places_N2


def _macro_f1(counts_LL: np.ndarray) -> float:
    both_L = counts_LL.sum(0) + counts_LL.sum(1)
    return float(np.mean(2 * counts_LL.diagonal()[both_L > 0] / both_L[both_L > 0]))


def _matthews(counts_LL: np.ndarray) -> float:
    g_L, p_L, items = counts_LL.sum(1), counts_LL.sum(0), counts_LL.sum()
    spread = np.sqrt((items**2 - g_L @ g_L) * (items**2 - p_L @ p_L))
    return float((counts_LL.trace() * items - g_L @ p_L) / spread) if spread else 0.0


def correlation(gold: np.ndarray, prediction: np.ndarray, method: Literal["pearson", "spearman"]) -> tuple[float, float]:
    """The coefficient, and the two-sided p of there being none. gold, prediction: (N,) numbers, or texts of numbers, N > 1.

    Spearman's is Pearson's of the ranks, equal values sharing the mean of theirs. Neither exists where one side is constant: both are then
    not a number, and what shows them must say why. Zero would claim that a reader was seen to follow nothing.
    """
    from scipy import stats

    gold, prediction = (np.asarray(values).astype(np.float64) for values in (gold, prediction))
    if np.ptp(gold) == 0 or np.ptp(prediction) == 0:
        return float("nan"), float("nan")
    found = stats.pearsonr(gold, prediction) if method == "pearson" else stats.spearmanr(gold, prediction)
    return float(found.statistic), float(found.pvalue)


def pearson(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Pearson's correlation; not a number where one side is constant."""
    return correlation(gold, prediction, "pearson")[0]


def spearman(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Spearman's correlation of ranks; not a number where one side is constant."""
    return correlation(gold, prediction, "spearman")[0]


def normalised_answer(text: str) -> str:
    """An answer as SQuAD compares it: small letters, then without ASCII punctuation (and no space for it), then without English articles."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def answer_scores(gold: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(N, 2) exact match and F1 of words, from 0 to 1, of the best of each question's golds (Rajpurkar et al. 2016, section 6.1).

    gold: (N,), each several texts, or one with BETWEEN_GOLDS between them; prediction: (N,) texts, or None or NaN for a question that was not
    answered, which scores 0.
    As evaluate-v1.1.py has it, where an answer and its gold are both nothing once normalised, the match is 1 and the F1 0; version 2.0 gives 1.
    """
    best = np.zeros((len(gold), 2))
    for row, golds, said in zip(best, gold, prediction, strict=True):
        if isinstance(said, str):
            every = golds.split(BETWEEN_GOLDS) if isinstance(golds, str) else golds
            row[:] = np.max([_agreement(normalised_answer(said), normalised_answer(one)) for one in every], axis=0)
    return best


def _agreement(said: str, right: str) -> tuple[float, float]:
    common = (Counter(said.split()) & Counter(right.split())).total()
    return float(said == right), 2 * common / max(len(said.split()) + len(right.split()), 1)


def exact_match(gold: np.ndarray, prediction: np.ndarray) -> float:
    """SQuAD's exact match, from 0 to 100."""
    return 100 * float(answer_scores(gold, prediction)[:, 0].mean())


def answer_f1(gold: np.ndarray, prediction: np.ndarray) -> float:
    """SQuAD's F1: the mean over questions, from 0 to 100."""
    return 100 * float(answer_scores(gold, prediction)[:, 1].mean())


def _bleu(gold: np.ndarray) -> Any:
    """Tokens as mteval-v13a cuts them; where most references are Chinese, its characters, and where most are Japanese, all characters: sacrebleu's
    Chinese ones leave kana together."""
    from sacrebleu.metrics.bleu import BLEU

    japanese, spaceless = (2 * sum(sign.search(text) is not None for text in gold) > len(gold) for sign in (KANA, SPACELESS))
    return BLEU(tokenize="char" if japanese else "zh" if spaceless else "13a", force=True)  # which only silences a remark on texts that end in " ."


def bleu(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Corpus BLEU against one reference (Papineni et al. 2002; Post 2018)."""
    return float(_bleu(gold).corpus_score(list(prediction), [list(gold)]).score)


def chrf(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Corpus chrF2 (Popovic 2015)."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().corpus_score(list(prediction), [list(gold)]).score)


def bleu_signature(gold: np.ndarray, prediction: np.ndarray) -> str:
    """What sacrebleu says of how it scored: references, case, tokens, smoothing, version."""
    metric = _bleu(gold)
    metric.corpus_score(list(prediction), [list(gold)])
    return str(metric.get_signature())


def bleu_shares(gold: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to corpus BLEU over 100: their mean is the corpus's own, though BLEU is no mean over sentences.

    Jackknife pseudo-values (Tukey 1958), moved to the exact mean: N - 1 times what the score loses without the example. Cells can then be paired
    example by example, as where an example is right or wrong; a single value may lie outside of 0 and 1.
    """
    metric, N = _bleu(gold), len(gold)
    each = [metric.corpus_score([said], [[true]]) for said, true in zip(prediction, gold, strict=True)]
    facts_NF = np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in each], np.int64)
    whole_F, order = facts_NF.sum(0), metric.max_ngram_order

    def score(facts_F: np.ndarray) -> float:
        parts = facts_F[:order].tolist(), facts_F[order : 2 * order].tolist(), int(facts_F[-2]), int(facts_F[-1])
        return float(metric.compute_bleu(*parts, smooth_method="exp", max_ngram_order=order).score) / 100

    without_N = np.array([score(whole_F - facts_F) for facts_F in facts_NF])
    return score(whole_F) + (N - 1) * (without_N.mean() - without_N)


def pearson_shares(gold: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to Pearson's correlation, as `bleu_shares`; not numbers where there is none.

    Where there is none without one of the examples (the only one that differs), that one's share is the correlation itself.
    """
    gold, prediction = (np.asarray(values).astype(np.float64) for values in (gold, prediction))
    if np.ptp(gold) == 0 or np.ptp(prediction) == 0:
        return np.full(len(gold), np.nan)
    x_N, y_N = gold - gold.mean(), prediction - prediction.mean()
    N, sums = len(x_N), np.array([x_N @ x_N, y_N @ y_N, x_N @ y_N])
    whole = sums[2] / np.sqrt(sums[0] * sums[1])
    xx, yy, xy = (total - one * N / (N - 1) for total, one in zip(sums, (x_N**2, y_N**2, x_N * y_N), strict=True))  # the others' mean is -x / (N - 1)
    real = (xx > 1e-9 * sums[0]) & (yy > 1e-9 * sums[1])
    without_N = np.where(real, xy / np.sqrt(np.where(real, xx * yy, 1.0)), whole)
    return whole + (N - 1) * (without_N.mean() - without_N)


def spearman_by_group(gold: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> float:
    """The mean over groups of Spearman's correlation, as numbers of different groups may have different scales; not a number where one has none."""
    return float(np.mean([spearman(gold[group == name], prediction[group == name]) for name in np.unique(group)]))


def spearman_shares(gold: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to `spearman_by_group`: `pearson_shares` of the ranks within its group, weighted so that each group counts alike.

    Ranks stay as they are when an example is left out: it moves those of others by one at most. gold, prediction: (N,) numbers.
    """
    from scipy import stats

    names, shares_N = np.unique(group), np.empty(len(group))
    for name in names:
        own = group == name
        weight = len(group) / (len(names) * own.sum())
        shares_N[own] = weight * pearson_shares(stats.rankdata(gold[own]), stats.rankdata(prediction[own]))
    return shares_N


def label_shares(score: Callable[[np.ndarray], float], gold: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to a score of the (L, L) table of labels and predictions, as `bleu_shares`; itself, of a single example.

    Examples of the same label and prediction add the same.
    """
    counts_LL, places_N2 = _confusion(gold, prediction)
    whole, N = score(counts_LL), len(places_N2)
    if N == 1:
        return np.array([whole])
    without_LL = np.zeros_like(counts_LL)
    for place in zip(*np.nonzero(counts_LL), strict=True):
        counts_LL[place] -= 1
        without_LL[place] = score(counts_LL)
        counts_LL[place] += 1
    without_N = without_LL[places_N2[:, 0], places_N2[:, 1]]
    return whole + (N - 1) * (without_N.mean() - without_N)


def ratio_shares(parts_N: np.ndarray, wholes_N: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to the ratio of two sums, to first order; their mean is the ratio itself. 0 where there is nothing to divide by."""
    whole = wholes_N.sum()
    if not whole:
        return np.zeros(len(parts_N))
    ratio = parts_N.sum() / whole
    return ratio + len(parts_N) * (parts_N - ratio * wholes_N) / whole


def span_f1_shares(gold: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to the F1 of all spans."""
    counts_N3 = np.array(span_counts(gold, prediction), np.float64)
    return ratio_shares(2 * counts_N3[:, 0], counts_N3[:, 1] + counts_N3[:, 2])


def token_accuracy_shares(gold: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(N,) what each example adds to the share of tags that are right."""
    right = [[said == true for said, true in zip(tags_of(ours), tags_of(theirs), strict=True)] for ours, theirs in zip(prediction, gold, strict=True)]
    return ratio_shares(np.array([sum(one) for one in right], np.float64), np.array([len(one) for one in right], np.float64))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "matthews": matthews,
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
SHARES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda gold, prediction: (gold == prediction).astype(float),
    "macro_f1": partial(label_shares, _macro_f1),
    "matthews": partial(label_shares, _matthews),
    "pearson": pearson_shares,
    "spearman": lambda gold, prediction: spearman_shares(gold.astype(float), prediction.astype(float), np.zeros(len(gold))),
    "token_accuracy": token_accuracy_shares,
    "span_f1": span_f1_shares,
    "exact_match": lambda gold, prediction: answer_scores(gold, prediction)[:, 0],
    "f1": lambda gold, prediction: answer_scores(gold, prediction)[:, 1],
    "bleu": bleu_shares,
}
