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
            key = (model, ngrams.metric)
            finals = [one.value[-1] for one in curves if (one.model, one.metric) == key]
            bits_per_byte = float(np.mean(finals)) if finals else None
        if bits_per_byte is None and not (tasks[True] or tasks[False]):
            continue
        yield NgramComparison(
            model=model,
            bits_per_byte=bits_per_byte,
            ngram_bits_per_byte=ngrams.bits_per_byte if ngrams else None,
            better_tasks=tuple(tasks[True]),
            not_better_tasks=tuple(tasks[False]),
        )
