"""Has a pretrained language model learned more than a 5-gram model of the same text?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lineage.analysis.records import Comparison, LossCurve, NgramComparison
from lineage.analysis.statistics import estimate_ratio
from lineage.evaluation.ngram_bits import HeldoutLosses, NgramFile


def compare_with_ngrams(
    models: Sequence[str],
    ngrams: NgramFile,
    curves: Sequence[LossCurve],
    comparisons: Sequence[Comparison],
) -> Iterator[NgramComparison]:
    """Yield the comparison of each model that predicts held-out text, or scores minimal pairs.

    On minimal pairs its pretrained system counts, before any adaptation.
    """
    heldout = {one.model: compare_on_heldout_text(one) for one in ngrams.heldout}
    if not heldout:
        heldout = compare_last_validations(ngrams, curves)
    for model in models:
        tasks: dict[bool, list[str]] = {True: [], False: []}  # by whether it is better
        for comparison in comparisons:
            first = comparison.first
            is_own = first.model == model and first.init == "pretrained"
            if comparison.comparison_type == "kneser_ney" and is_own:
                tasks[comparison.verdict == "better"].append(comparison.task)
        found: Mapping[str, Any] = heldout.get(model, {"bits": None, "ngram_bits": None})
        if found["bits"] is None and not (tasks[True] or tasks[False]):
            continue
        yield NgramComparison(
            model=model,
            better_tasks=tuple(tasks[True]),
            not_better_tasks=tuple(tasks[False]),
            **found,
        )


def compare_on_heldout_text(losses: HeldoutLosses) -> dict[str, Any]:
    """Return the values of a model and of counting, and the interval of their difference.

    The losses of several pretrainings are averaged, and the interval is for these pretrainings: it
    is over blocks of text alone.
    """
    found: dict[str, Any] = {
        "bits": losses.model_bits,
        "ngram_bits": losses.ngram_bits,
        "predicted": losses.predicted,
        "num_units": sum(losses.num_units),
        "frequency_bits": losses.frequency_bits,
    }
    model_nats = np.mean(losses.model_nats, axis=0)
    bits = (model_nats - np.array(losses.ngram_nats)) / math.log(2)
    estimate = estimate_ratio(bits, losses.num_units)
    return found | {"low": estimate.low, "high": estimate.high}


def compare_last_validations(
    ngrams: NgramFile, curves: Sequence[LossCurve]
) -> dict[str, dict[str, Any]]:
    """Return the values of reports made before models predicted held-out text beside counting.

    There a 5-gram model predicted the last validation of each model, and nothing tells how much the
    difference varies.
    """
    found = {}
    for bits in ngrams.models:
        key = (bits.model, bits.metric)
        finals = [one.value[-1] for one in curves if (one.model, one.metric) == key]
        if finals:
            found[bits.model] = {
                "bits": float(np.mean(finals)),
                "ngram_bits": bits.bits_per_byte,
                "num_units": bits.text_bytes,
            }
    return found
