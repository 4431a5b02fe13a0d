"""Metrics of labels, numbers, tags (see `lineage.answers.spans`) and texts.

Every metric takes labels and predictions as arrays of equal length N. BLEU and chrF are those of
sacrebleu, ROUGE is that of rouge-score, all from 0 to 100.

For each ranking metric there is also a function that gives the contribution of each example, so
that two systems can be paired example by example. The mean of the contributions is the metric. If a
metric is not a mean over examples, they are `jackknife_pseudo_values`.
"""

import importlib.metadata
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lineage.answers.spans import count_spans, span_f1, split_tags, token_accuracy
from lineage.language import CJK_RANGES, to_lowercase

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

# The metrics by which systems can be ranked, and the value of a perfect score. Contributions are
# shares of it.
RANKING_METRICS = {
    "accuracy": 1.0,
    "span_f1": 1.0,
    "token_accuracy": 1.0,
    "pearson": 1.0,
    "spearman": 1.0,
    "f1": 100.0,
    "exact_match": 100.0,
    "bleu": 100.0,
    "rougeL": 100.0,
    "rouge1": 100.0,
    "rouge2": 100.0,
    "macro_f1": 1.0,
    "matthews": 1.0,
}
# The value of the worst score, if it is not 0.
MIN_SCORES = {"pearson": -1.0, "spearman": -1.0, "matthews": -1.0}
CJK_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
KANA = re.compile("[\u3040-\u30ff]")
ENGLISH_ARTICLE = re.compile(r"\b(a|an|the)\b")
ANSWER_SEPARATOR = "\t"  # clean text has no tab, see `lineage.language`
PUNCTUATION_REMOVAL = str.maketrans("", "", string.punctuation)


def max_difference(metric: str) -> float:
    """Return the largest possible difference of two scores, as a share of a perfect score."""
    return 1.0 - MIN_SCORES.get(metric, 0.0)


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean(labels == predictions))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean F1 over the labels that occur in either array."""
    counts_LL, _ = _confusion_matrix(labels, predictions)
    return _macro_f1_from_counts(counts_LL)


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Matthews correlation for any number of labels (Gorodkin 2004)."""
    counts_LL, _ = _confusion_matrix(labels, predictions)
    return _matthews_from_counts(counts_LL)


def _confusion_matrix(labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the (L, L) counts, a row for each label, and the (N, 2) cell of each item in it."""
    both_2N = np.concatenate([np.asarray(labels), np.asarray(predictions)])
    classes, indices = np.unique(both_2N, return_inverse=True)
    cells_N2 = indices.reshape(2, -1).T
    counts_LL = np.zeros((len(classes), len(classes)))
    np.add.at(counts_LL, (cells_N2[:, 0], cells_N2[:, 1]), 1)
    return counts_LL, cells_N2


def _macro_f1_from_counts(counts_LL: np.ndarray) -> float:
    both_L = counts_LL.sum(0) + counts_LL.sum(1)
    occurs_L = both_L > 0
    return float(np.mean(2 * counts_LL.diagonal()[occurs_L] / both_L[occurs_L]))


def _matthews_from_counts(counts_LL: np.ndarray) -> float:
    labels_L = counts_LL.sum(1)
    predictions_L = counts_LL.sum(0)
    n = counts_LL.sum()
    spread = np.sqrt((n**2 - labels_L @ labels_L) * (n**2 - predictions_L @ predictions_L))
    if not spread:
        return 0.0
    return float((counts_LL.trace() * n - labels_L @ predictions_L) / spread)


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Pearson's correlation of (N,) numbers, or texts of numbers, with N > 1."""
    from scipy import stats

    return _correlation(stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Spearman's correlation: Pearson's over ranks, where ties share their mean rank."""
    from scipy import stats

    return _correlation(stats.spearmanr, labels, predictions)


def _correlation(
    correlate: Callable[[np.ndarray, np.ndarray], Any], labels: np.ndarray, predictions: np.ndarray
) -> float:
    x_N = np.asarray(labels).astype(np.float64)
    y_N = np.asarray(predictions).astype(np.float64)
    if np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        return float("nan")
    return float(correlate(x_N, y_N).statistic)


def normalize_answer(text: str) -> str:
    """Normalize an answer as SQuAD does: lowercase, no ASCII punctuation, no English articles."""
    plain = text.lower().translate(PUNCTUATION_REMOVAL)
    return " ".join(ENGLISH_ARTICLE.sub(" ", plain).split())


def score_answers(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return (N, 2): exact match and word F1, each the best over the labels of a question.

    Both are from 0 to 1 (Rajpurkar et al. 2016, section 6.1). labels: (N,), each several texts, or
    one text that joins them with ANSWER_SEPARATOR. predictions: (N,) texts; None or NaN scores 0.
    If both answer and label are empty after normalization, F1 is 0, as in evaluate-v1.1.py.
    """
    scores_N2 = np.zeros((len(labels), 2))
    for row, label, prediction in zip(scores_N2, labels, predictions, strict=True):
        if not isinstance(prediction, str):
            continue
        answers = label.split(ANSWER_SEPARATOR) if isinstance(label, str) else label
        normalized = normalize_answer(prediction)
        scores = [_exact_match_and_f1(normalized, normalize_answer(answer)) for answer in answers]
        row[:] = np.max(scores, axis=0)
    return scores_N2


def _exact_match_and_f1(prediction: str, label: str) -> tuple[float, float]:
    predicted_words = prediction.split()
    label_words = label.split()
    common = (Counter(predicted_words) & Counter(label_words)).total()
    f1 = 2 * common / max(len(predicted_words) + len(label_words), 1)
    return float(prediction == label), f1


def exact_match(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return SQuAD's exact match, from 0 to 100."""
    return 100 * float(score_answers(labels, predictions)[:, 0].mean())


def answer_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return SQuAD's F1, the mean over questions, from 0 to 100."""
    return 100 * float(score_answers(labels, predictions)[:, 1].mean())


def _make_bleu(labels: np.ndarray) -> "BLEU":
    """Return BLEU with the tokenizer for the language of most references."""
    from sacrebleu.metrics.bleu import BLEU

    tokenizer = "13a"
    if _most_contain(CJK_CHARACTER, labels):
        tokenizer = "zh"
    if _most_contain(KANA, labels):
        tokenizer = "char"
    # `force` only silences a warning about texts that end in " ."
    return BLEU(tokenize=tokenizer, force=True)


def _most_contain(pattern: re.Pattern[str], texts: Sequence[str] | np.ndarray) -> bool:
    return 2 * sum(pattern.search(text) is not None for text in texts) > len(texts)


def bleu(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return corpus BLEU against one reference (Papineni et al. 2002; Post 2018)."""
    return float(_make_bleu(labels).corpus_score(list(predictions), [list(labels)]).score)


def chrf(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return corpus chrF2 (Popovic 2015)."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().corpus_score(list(predictions), [list(labels)]).score)


def get_bleu_signature(labels: np.ndarray, predictions: np.ndarray) -> str:
    """Return sacrebleu's signature: references, case, tokenizer, smoothing and version."""
    metric = _make_bleu(labels)
    metric.corpus_score(list(predictions), [list(labels)])  # counts the references
    return str(metric.get_signature())


def bleu_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return (N,) contributions to corpus BLEU / 100."""
    metric = _make_bleu(labels)
    sentence_scores = [
        metric.corpus_score([prediction], [[label]])
        for prediction, label in zip(predictions, labels, strict=True)
    ]
    rows = [
        [*score.counts, *score.totals, score.sys_len, score.ref_len] for score in sentence_scores
    ]
    statistics_NF = np.array(rows, np.int64)
    corpus_F = statistics_NF.sum(0)
    corpus_bleu = _bleu_from_statistics(metric, corpus_F)
    without_N = np.array(
        [_bleu_from_statistics(metric, corpus_F - sentence_F) for sentence_F in statistics_NF]
    )
    return jackknife_pseudo_values(corpus_bleu, without_N)


def jackknife_pseudo_values(score: float, without_N: np.ndarray) -> np.ndarray:
    """Return (N,) jackknife pseudo-values (Tukey 1958), shifted so that their mean is the score."""
    return score + (len(without_N) - 1) * (without_N.mean() - without_N)


def _bleu_from_statistics(metric: "BLEU", statistics_F: np.ndarray) -> float:
    """Return BLEU / 100 from n-gram matches, n-gram counts, and both lengths."""
    order = metric.max_ngram_order
    score = metric.compute_bleu(
        correct=statistics_F[:order].tolist(),
        total=statistics_F[order : 2 * order].tolist(),
        sys_len=int(statistics_F[-2]),
        ref_len=int(statistics_F[-1]),
        smooth_method="exp",
        max_ngram_order=order,
    ).score
    return float(score) / 100


class RougeWords:
    """Split a text into words in small letters, as ROUGE compares them.

    On ASCII these are the words of rouge-score, which drops all other letters. A Chinese or
    Japanese character is a word.
    """

    def __init__(self) -> None:
        # Imported here: machines that only train lack it.
        import regex

        letters = r"[\p{L}\p{M}\p{N}]"
        self.pattern = regex.compile(rf"[{CJK_RANGES}]|(?:(?![{CJK_RANGES}]){letters})+")

    def tokenize(self, text: str) -> list[str]:
        words: list[str] = self.pattern.findall(to_lowercase(text))
        return words


@cache
def _make_rouge(metric: str) -> "RougeScorer":
    # Imported here, since it takes a second.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([metric], tokenizer=RougeWords())


def rouge_contributions(metric: str, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return (N,) F-measures of ROUGE-1, -2 or -L (Lin 2004), from 0 to 1.

    labels: (N,) texts; several references of an item are joined with ANSWER_SEPARATOR, and its
    score is the mean over them. `metric` is rouge1, rouge2 or rougeL.
    """
    scorer = _make_rouge(metric)
    scores_N = np.zeros(len(labels))
    for row, (label, prediction) in enumerate(zip(labels, predictions, strict=True)):
        references = label.split(ANSWER_SEPARATOR)
        scores = [scorer.score(reference, prediction)[metric].fmeasure for reference in references]
        scores_N[row] = np.mean(scores)
    return scores_N


def rouge(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean of `rouge_contributions`, from 0 to 100."""
    return 100 * float(rouge_contributions(metric, labels, predictions).mean())


def get_rouge_signature(labels: np.ndarray) -> str:
    """Return how ROUGE is computed: references, stemming, and version of rouge-score."""
    counts = [label.count(ANSWER_SEPARATOR) + 1 for label in labels]
    version = importlib.metadata.version("rouge-score")
    return f"nrefs:{max(counts)}|refs:mean|score:fmeasure|stem:no|rouge-score:{version}"


def pearson_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return (N,) contributions to Pearson's correlation, NaN if a side is constant.

    If a side is constant without one of the examples, the correlation of all takes its place.
    """
    labels = np.asarray(labels).astype(np.float64)
    predictions = np.asarray(predictions).astype(np.float64)
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return np.full(len(labels), np.nan)
    x_N = labels - labels.mean()
    y_N = predictions - predictions.mean()
    N = len(x_N)
    sums = np.array([x_N @ x_N, y_N @ y_N, x_N @ y_N])
    whole = sums[2] / np.sqrt(sums[0] * sums[1])
    # Without an example x, the mean of the others is -x / (N - 1).
    xx_N = sums[0] - x_N**2 * N / (N - 1)
    yy_N = sums[1] - y_N**2 * N / (N - 1)
    xy_N = sums[2] - x_N * y_N * N / (N - 1)
    exists_N = (xx_N > 1e-9 * sums[0]) & (yy_N > 1e-9 * sums[1])
    without_N = np.where(exists_N, xy_N / np.sqrt(np.where(exists_N, xx_N * yy_N, 1.0)), whole)
    return jackknife_pseudo_values(whole, without_N)


def mean_spearman_by_group(labels: np.ndarray, predictions: np.ndarray, group: np.ndarray) -> float:
    """Return the mean over groups of Spearman's correlation, NaN if it is undefined in a group.

    Numbers of different groups may have different scales.
    """
    correlations = [
        spearman(labels[group == name], predictions[group == name]) for name in np.unique(group)
    ]
    return float(np.mean(correlations))


def spearman_contributions(
    labels: np.ndarray, predictions: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """Return (N,) contributions to `mean_spearman_by_group`. labels, predictions: (N,) numbers.

    They are `pearson_contributions` of the ranks within each group, weighted so that all groups
    count equally. Ranks are not recomputed without each example.
    """
    from scipy import stats

    names = np.unique(group)
    contributions_N = np.empty(len(group))
    for name in names:
        in_group = group == name
        weight = len(group) / (len(names) * in_group.sum())
        contributions_N[in_group] = weight * pearson_contributions(
            stats.rankdata(labels[in_group]), stats.rankdata(predictions[in_group])
        )
    return contributions_N


def confusion_contributions(
    metric_from_counts: Callable[[np.ndarray], float], labels: np.ndarray, predictions: np.ndarray
) -> np.ndarray:
    """Return (N,) contributions to a score of the (L, L) counts of labels and predictions."""
    counts_LL, cells_N2 = _confusion_matrix(labels, predictions)
    whole = metric_from_counts(counts_LL)
    if len(cells_N2) == 1:
        return np.array([whole])
    without_LL = np.zeros_like(counts_LL)
    for cell in zip(*np.nonzero(counts_LL), strict=True):
        counts_LL[cell] -= 1
        without_LL[cell] = metric_from_counts(counts_LL)
        counts_LL[cell] += 1
    return jackknife_pseudo_values(whole, without_LL[cells_N2[:, 0], cells_N2[:, 1]])


def ratio_contributions(numerators_N: np.ndarray, denominators_N: np.ndarray) -> np.ndarray:
    """Return (N,) first-order contributions to the ratio of two sums, 0 if the divisor is 0."""
    denominator = denominators_N.sum()
    if not denominator:
        return np.zeros(len(numerators_N))
    ratio = numerators_N.sum() / denominator
    N = len(numerators_N)
    return ratio + N * (numerators_N - ratio * denominators_N) / denominator


def span_f1_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    counts_N3 = np.array(count_spans(labels, predictions), np.float64)
    return ratio_contributions(2 * counts_N3[:, 0], counts_N3[:, 1] + counts_N3[:, 2])


def token_accuracy_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    num_correct_N = np.zeros(len(labels))
    num_tags_N = np.zeros(len(labels))
    for row, (label, prediction) in enumerate(zip(labels, predictions, strict=True)):
        label_tags = split_tags(label)
        pairs = zip(split_tags(prediction), label_tags, strict=True)
        num_correct_N[row] = sum(predicted == tag for predicted, tag in pairs)
        num_tags_N[row] = len(label_tags)
    return ratio_contributions(num_correct_N, num_tags_N)


def _spearman_contributions(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    one_group = np.zeros(len(labels))
    return spearman_contributions(labels.astype(float), predictions.astype(float), one_group)


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
    "rougeL": partial(rouge, "rougeL"),
    "rouge1": partial(rouge, "rouge1"),
    "rouge2": partial(rouge, "rouge2"),
}
# (N,) contributions to each ranking metric, as shares of a perfect score. Word similarity has its
# own by group, see `lineage.tasks.word_similarity`.
CONTRIBUTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda labels, predictions: (labels == predictions).astype(float),
    "macro_f1": partial(confusion_contributions, _macro_f1_from_counts),
    "matthews": partial(confusion_contributions, _matthews_from_counts),
    "pearson": pearson_contributions,
    "spearman": _spearman_contributions,
    "token_accuracy": token_accuracy_contributions,
    "span_f1": span_f1_contributions,
    "exact_match": lambda labels, predictions: score_answers(labels, predictions)[:, 0],
    "f1": lambda labels, predictions: score_answers(labels, predictions)[:, 1],
    "bleu": bleu_contributions,
    "rougeL": partial(rouge_contributions, "rougeL"),
    "rouge1": partial(rouge_contributions, "rouge1"),
    "rouge2": partial(rouge_contributions, "rouge2"),
}
