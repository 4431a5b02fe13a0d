"""Numbers, metrics and systems as short texts, the same on the pages, in MLflow and on screen."""

import math
from collections.abc import Iterable, Sequence

from lineage.analysis.decision import SystemCost
from lineage.analysis.records import (
    MEAN_TOLERANCE,
    Comparison,
    Failure,
    Setting,
    SwapConsistency,
    System,
)
from lineage.methods.registry import find_method_type
from lineage.results import ENSEMBLE_FAMILY, JOINED_FAMILY, OUTSIDE_FAMILY, PUBLIC_FAMILY

PUBLIC_MARK = "public"
OUTSIDE_MARK = "outside"
CONTINUED_MARK = f"{PUBLIC_MARK}, continued"
NO_VALUE = "–"
THESE_LABELS = "with these labels"
# metric -> the unit behind a value, as in 25.1 BLEU, and the heading of a column
METRIC_UNITS = {
    "bleu": ("BLEU", "BLEU"),
    "rougeL": ("ROUGE-L", "ROUGE-L"),
    "rouge1": ("ROUGE-1", "ROUGE-1"),
    "rouge2": ("ROUGE-2", "ROUGE-2"),
    "span_f1": ("F1", "F1 of spans"),
    "token_accuracy": ("%", "% of words correct"),
    "macro_f1": ("F1", "macro F1"),
    "matthews": ("Matthews", "Matthews' r x 100"),
    "f1": ("F1", "F1 of words"),
    "exact_match": ("%", "% exact match"),
    "pearson": ("Pearson", "Pearson's r x 100"),
    "spearman": ("Spearman", "Spearman's rho x 100"),
}
ACCURACY_UNITS = ("%", "% correct")
UNMATCHED_NOTES = {
    ENSEMBLE_FAMILY: " (two budgets)",
    JOINED_FAMILY: " (two budgets)",
    PUBLIC_FAMILY: f" ({PUBLIC_MARK})",
    OUTSIDE_FAMILY: f" ({OUTSIDE_MARK})",
}
INIT_NAMES = {"adapted": "adapted", "target_only": "target text only", "random": "random init"}
INIT_MEANINGS = {
    "adapted": "pretraining went on with the texts of the task, without their labels",
    "target_only": "pretrained on the texts of the task alone",
    "random": "the same network with random weights",
}
# Names of papers for models that are called as their family; other names are the user's.
MODEL_NAMES = {
    "elmo": "ELMo",
    "ulmfit": "ULMFiT",
    "gpt": "GPT",
    "bert": "BERT",
    "gpt_modern": "modern GPT",
    "bert_modern": "modern BERT",
    "gpt_bert": "GPT-BERT",
    "fasttext": "fastText",
    "glove": "GloVe",
    "sa_lstm": "SA-LSTM",
    "taglm": "TagLM",
    "tfidf": "TF-IDF",
    "kneser_ney": "5-gram model",
    "word_frequency": "word frequency",
    "majority": "majority class",
    "copy": "copied source",
    "lead_3": "first three sentences",
    "longest_sentence": "longest sentence",
    "nearest_candidate": "nearest candidate",
}
MIN_ITEMS_FOR_INTERVAL = 10  # with fewer, the number of items is why an interval is too wide
SI_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

LOSS_NAMES = {
    "bits_per_byte": "bits per byte, left to right",
    "bits_per_byte_forward": "bits per byte, forward",
    "bits_per_byte_backward": "bits per byte, backward",
    "masked_nats": "nats per masked token",
    "next_token_nats": "nats per next token",
    "next_sentence_nats": "nats per next-sentence prediction",
    "next_sentence_accuracy": "accuracy of next-sentence prediction",
    "sampled_nats": "nats per word, sampled softmax",
    "rebuilt_nats": "nats per reconstructed token",
    "word_nats": "nats per word",
    "source_nats": "nats per source token",
    "target_nats": "nats per target token",
}


NamedSystem = System | SwapConsistency | Failure


def format_system(system: NamedSystem) -> str:
    """Name a system: `bert, fine-tuned`; `gpt adapted, frozen`; `both (two budgets), frozen`."""
    parts = [format_model(system.model) + UNMATCHED_NOTES.get(system.family, "")]
    if system.init in INIT_NAMES:
        parts.append(f" {INIT_NAMES[system.init]}")
    if title := format_transfer(system.transfer, system.head):
        parts.append(f", {title}")
    return "".join(parts)


def format_model(model: str) -> str:
    """Name a model or a baseline: `ELMo`; a name that the user chose stays as it is."""
    return MODEL_NAMES.get(model, model)


def format_transfer(transfer: str, head: str) -> str:
    """Name the way of using a model: `frozen + BiLSTM-CRF`; nothing for a baseline."""
    method = find_method_type(transfer, head)
    return "" if method is None else method.titles[head]


def format_use(system: NamedSystem, *, mark: str = "") -> str:
    """Tell how a model is used: `adapted, frozen + BiLSTM-CRF`; `mark` stands behind the init."""
    parts = []
    if system.init in INIT_NAMES:
        parts.append(INIT_NAMES[system.init] + mark)
    if title := format_transfer(system.transfer, system.head):
        parts.append(title)
    return ", ".join(parts)


def format_kind(kind: str) -> str:
    """Name a kind of task: `text classification`."""
    return kind.replace("_", " ")


def format_label_count(label_count: str, *, train_examples: int = 0) -> str:
    """Name a label count: `100 labels`; `all 600 labels`; `no labels`."""
    if label_count == "none":
        return "no labels"
    if label_count == "all":
        return f"all {train_examples:,} labels" if train_examples else "all labels"
    if 0 < train_examples < int(label_count):
        return f"{int(label_count):,} labels (there are {train_examples:,})"
    return f"{int(label_count):,} labels"


def format_count_range(counts: Iterable[int]) -> str:
    """Format numbers of labels that differ by task: `1,000 to 2,000`; `100`."""
    low, *others = sorted(set(counts))
    return f"{low:,} to {others[-1]:,}" if others else f"{low:,}"


def format_setting(setting: Setting, *, train_examples: int = 0) -> str:
    """Name a setting: `sentiment, 100 labels`."""
    labels = format_label_count(setting.label_count, train_examples=train_examples)
    return f"{setting.task}, {labels}"


def metric_unit(metric: str) -> str:
    """Return the unit of a value, as in 71.3 % or 25.1 BLEU."""
    return METRIC_UNITS.get(metric, ACCURACY_UNITS)[0]


def metric_heading(metric: str) -> str:
    """Return the heading of a column of values."""
    return METRIC_UNITS.get(metric, ACCURACY_UNITS)[1]


def format_percent(value: float | None) -> str:
    """Format a share as a percentage with one digit, without a sign before a zero."""
    if value is None:
        return NO_VALUE
    return f"{_as_percent(value):z.1f}".replace("-", "−")


def _as_percent(value: float) -> float:
    """Return a percentage, moved away from a half: sums in another order print the same digit."""
    return 100 * value + math.copysign(1e-9, value)


def format_difference(value: float) -> str:
    """Format a difference in points, or an end of its interval, with its sign: `−0.4`; `+0.02`.

    What would be printed as zero without being zero has a digit more, and its sign in any case, so
    that an interval tells on which side of zero it ends.
    """
    if abs(value) <= MEAN_TOLERANCE:
        return "0.0"
    points = _as_percent(value)
    text = f"{points:+.1f}"
    if text in ("+0.0", "-0.0"):
        text = f"{points:+.2f}"
    return text.replace("-", "−")


def format_comparison(comparison: Comparison) -> str:
    """Format a difference with its interval: `+1.2 points, −0.4 to +2.9`.

    Identical predictions have no interval. With too few items, the reason stands in its place.
    With too few seeds it is about these models: `+1.2 points, −0.4 to +2.9 for these models`.
    """
    points = f"{format_difference(comparison.difference)} points"
    if comparison.verdict == "identical predictions":
        return points
    if comparison.num_examples < MIN_ITEMS_FOR_INTERVAL:
        return f"{points}, too few items or groups for an interval"
    interval = format_range(comparison.ci_low, comparison.ci_high)
    if comparison.verdict == "too few seeds":
        return f"{points}, {interval} for these models"
    return f"{points}, {interval}"


def format_range(low: float, high: float) -> str:
    """Format the interval of a difference in points: `−0.4 to +2.9`."""
    return f"{format_difference(low)} to {format_difference(high)}"


def format_verdict(comparison: Comparison) -> str:
    """Return a verdict in words: `better`; `too few seeds to tell`."""
    if comparison.verdict == "too few seeds":
        return "too few seeds to tell"
    return comparison.verdict


def format_these_labels(comparisons: Iterable[Comparison]) -> str:
    """Return ` with these labels` for a verdict on comparisons some of which used all labels."""
    return f" {THESE_LABELS}" if any(map(_has_fixed_labels, comparisons)) else ""


def note_these_labels(comparisons: Iterable[Comparison]) -> str:
    """Return the same as a sentence after the note on a table; empty if it does not apply."""
    if not any(map(_has_fixed_labels, comparisons)):
        return ""
    return (
        f" With all labels, a verdict holds {THESE_LABELS}: seeds draw no others, with which it may "
        "turn out otherwise."
    )


def _has_fixed_labels(comparison: Comparison) -> bool:
    draws_folds = comparison.num_folds > 1
    is_verdict = comparison.verdict != "too few seeds"
    return comparison.label_count == "all" and is_verdict and not draws_folds


def format_si(value: float | None, unit: str = "") -> str:
    """Format a number with three digits and a prefix: `1.23 M`; `n/a` for None."""
    if value is None:
        return "n/a"
    rounded = abs(float(f"{value:.3g}"))  # so that 999.7 k becomes 1 M
    for size, prefix in SI_PREFIXES:
        if rounded >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


def format_seconds(value: float | None) -> str:
    """Format a duration: `under 1 s`; `41 s`; `12 min`; `3.4 h`."""
    if value is None:
        return NO_VALUE
    if value < 0.5:
        return "under 1 s"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def format_build_time(cost: SystemCost, verb: str = "") -> str:
    """Format the time to build a system: `12 min`; `40 s to build on a GPU`, with its verb."""
    return f"{format_seconds(cost.seconds)}{verb}{' on a GPU' if cost.on_gpu else ''}"


def format_epochs(value: float | None) -> str:
    """Format a number of epochs over the text: `1.37`."""
    return "n/a" if value is None else f"{value:.2f}"


def join_with_and(items: Sequence[str]) -> str:
    """Join texts as in English: `a, b and c`."""
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


def plural(count: int, noun: str) -> str:
    """Count things: `1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_loss_name(metric: str) -> str:
    """Name a loss, with the unit it counts."""
    return LOSS_NAMES.get(metric, metric.replace("_", " "))


def css_class(verdict: str) -> str:
    """Return the class of a verdict on the page: `no-significant-difference`."""
    return verdict.replace(" ", "-")
