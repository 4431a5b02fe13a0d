"""Metrics: gold and prediction as arrays of equal length, labels of any type, or texts for those of translation.

BLEU and chrF are sacrebleu's, from 0 to 100. It is imported where it is used: most stages score no translation, and it takes half a second.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

# The metrics that cells are compared by, and the value of a perfect score; the column `correct` of predictions has the share of it as its mean.
COMPARED = {"accuracy": 1.0, "bleu": 100.0}
SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


def accuracy(gold: np.ndarray, prediction: np.ndarray) -> float:
    """The share of items that are right."""
    return float(np.mean(gold == prediction))


def macro_f1(gold: np.ndarray, prediction: np.ndarray) -> float:
    """The mean over labels of F1; labels that stand in neither array do not count."""
    scores = []
    for label in np.union1d(gold, prediction):
        hits = np.sum((gold == label) & (prediction == label))
        scores.append(2 * hits / (np.sum(gold == label) + np.sum(prediction == label)))
    return float(np.mean(scores))


def matthews(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Matthews correlation, for any number of labels (Gorodkin 2004); 0 where gold or prediction holds one label only."""
    labels = np.union1d(gold, prediction)
    g_NL, p_NL = (array[:, None] == labels for array in (np.asarray(gold), np.asarray(prediction)))
    g_L, p_L, items = g_NL.sum(0).astype(float), p_NL.sum(0).astype(float), float(len(gold))
    covariance = np.sum(g_NL & p_NL) * items - g_L @ p_L
    spread = np.sqrt((items**2 - g_L @ g_L) * (items**2 - p_L @ p_L))
    return float(covariance / spread) if spread else 0.0


def _bleu(gold: np.ndarray) -> Any:
    """Tokens as mteval-v13a cuts them; where most references are Chinese or Japanese, their characters."""
    from sacrebleu.metrics.bleu import BLEU

    spaceless = sum(SPACELESS.search(text) is not None for text in gold)
    return BLEU(tokenize="zh" if 2 * spaceless > len(gold) else "13a", force=True)  # which only silences a remark on texts that end in " ."


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


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "bleu": bleu,
    "chrf": chrf,
}
