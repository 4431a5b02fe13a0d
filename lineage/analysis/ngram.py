"""Has a pretrained language model learned more than a 5-gram model of the same text?"""

from collections.abc import Iterator, Sequence

import numpy as np

from lineage.analysis.records import Comparison, LossCurve, NgramComparison
from lineage.evaluation.ngram_bits import NgramBits


def compare_with_ngrams(
    models: Sequence[str],
    ngram_bits: Sequence[NgramBits],
    curves: Sequence[LossCurve],
    comparisons: Sequence[Comparison],
) -> Iterator[NgramComparison]:
    """Yield the comparison of each model that has bits per byte, or scores minimal pairs.

    A model's bits per byte are those of its last validation, which the 5-gram model of its tokens
    predicts too. On minimal pairs its pretrained system counts, before any adaptation.
    """
    bits_by_model = {bits.model: bits for bits in ngram_bits}
    for model in models:
        tasks: dict[bool, list[str]] = {True: [], False: []}  # by whether it is better
        for comparison in comparisons:
            first = comparison.first
            is_own = first.model == model and first.init == "pretrained"
            if comparison.comparison_type == "kneser_ney" and is_own:
                tasks[comparison.verdict == "better"].append(comparison.task)
        bits_per_byte = None
        ngrams = bits_by_model.get(model)
        if ngrams is not None:
            bits_per_byte = _final_bits_per_byte(model, ngrams.metric, curves)
        if bits_per_byte is None and not (tasks[True] or tasks[False]):
            continue
        yield NgramComparison(
            model=model,
            bits_per_byte=bits_per_byte,
            ngram_bits_per_byte=ngrams.bits_per_byte if ngrams else None,
            better_tasks=tuple(tasks[True]),
            not_better_tasks=tuple(tasks[False]),
        )


def _final_bits_per_byte(model: str, metric: str, curves: Sequence[LossCurve]) -> float | None:
    """Return the mean over pretraining seeds of the last validation; None without any."""
    finals = [curve.value[-1] for curve in curves if (curve.model, curve.metric) == (model, metric)]
    return float(np.mean(finals)) if finals else None
