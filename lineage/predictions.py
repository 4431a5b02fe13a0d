"""What was said of the items, as columns of the predictions: gold, prediction, score and correct, whoever said it.

Shapes: N items, M words of all of them, K labels or tags.
"""

from collections.abc import Sequence

import numpy as np

from lineage.metrics import pearson_shares, span_f1_shares, token_accuracy_shares
from lineage.rows import PROBABILITY

Columns = dict[str, np.ndarray]


def of_labels(names: Sequence[str], gold_N: np.ndarray, probabilities_NK: np.ndarray) -> Columns:
    """The likeliest label; score is the gold label's probability. A column of probabilities a label, too."""
    best_N, written = probabilities_NK.argmax(1), np.asarray(names, object)
    found = {"gold": written[gold_N], "prediction": written[best_N], "score": probabilities_NK[np.arange(len(gold_N)), gold_N]}
    found |= {f"{PROBABILITY}{name}": probabilities_NK[:, place].astype(np.float32) for place, name in enumerate(names)}
    return found | {"correct": (gold_N == best_N).astype(float)}


def of_numbers(gold_N: np.ndarray, said_N: np.ndarray) -> Columns:
    """Gold and prediction as texts; score is the prediction. What is correct is no number where all of one side are the same: nothing correlates."""
    shares_N = pearson_shares(gold_N, said_N)
    gold, said = (np.array([repr(float(number)) for number in numbers], object) for numbers in (gold_N, said_N))
    return {"gold": gold, "prediction": said, "score": said_N.astype(float), "correct": shares_N}


def of_tags(
    names: Sequence[str], lengths: Sequence[int], gold_M: np.ndarray, probabilities_MK: np.ndarray, said_M: np.ndarray, *, spans: bool
) -> Columns:
    """The tags of every item's words, as texts with spaces between; score is the mean probability of the gold tags."""
    ends, written = np.cumsum(lengths)[:-1], np.asarray(names, object)
    gold, said = (_sentences(written[some], ends) for some in (gold_M, said_M))
    score_N = np.array([part.mean() for part in np.split(probabilities_MK[np.arange(len(gold_M)), gold_M], ends)])
    return {"gold": gold, "prediction": said, "score": score_N, "correct": (span_f1_shares if spans else token_accuracy_shares)(gold, said)}


def _sentences(tags_M: np.ndarray, ends: np.ndarray) -> np.ndarray:
    found = np.empty(len(ends) + 1, object)
    found[:] = [" ".join(part) for part in np.split(tags_M, ends)]
    return found
