"""The place of a word or a span relative to the predicate of its item, as features.

Shapes: M answers.
"""

import torch
from torch.nn import functional as F

# The first distances, in words, of all but the nearest of the bins of `place_features`.
DISTANCE_BINS = (2, 3, 4, 6, 11)
NUM_PLACES = 2 * (len(DISTANCE_BINS) + 1) + 1  # bins before, the predicate, bins after


def place_features(offsets_M: torch.Tensor) -> torch.Tensor:
    """Return (M, NUM_PLACES): one for the bin of a word's distance from the predicate, by side.

    offsets_M: the word's place less that of the predicate, in words.
    """
    bins = torch.tensor(DISTANCE_BINS, device=offsets_M.device)
    distance_M = 1 + torch.bucketize(offsets_M.abs(), bins, right=True)
    distance_M = torch.where(offsets_M == 0, 0, distance_M)
    return F.one_hot(NUM_PLACES // 2 + offsets_M.sign() * distance_M, NUM_PLACES)
