"""What a model is given: one record for training windows, task items and sentences to score.

Shape suffixes: B items, T positions, K negatives, U distinct words of the batch, C bytes a word.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

NO_TARGET = -100


@dataclass(frozen=True)
class Batch:
    """Tensors of one batch. A stream of two directions holds the forward windows in the first half of B and the backward ones in the second."""

    ids_BT: torch.Tensor  # indices into the vocabulary
    mask_BT: torch.Tensor  # True at real positions, False at padding
    text_BT: torch.Tensor | None = None  # True where a piece of the text stands, False at marks such as [CLS]
    segments_BT: torch.Tensor | None = None
    characters_UC: torch.Tensor | None = None  # byte ids of the batch's distinct words
    words_BT: torch.Tensor | None = None  # rows of characters_UC
    targets_BT: torch.Tensor | None = None  # NO_TARGET where nothing is predicted
    negatives_BTK: torch.Tensor | None = None  # drawn words, against which the target is told
    next_B: torch.Tensor | None = None  # 1 where the second segment comes from another document
    labels_B: torch.Tensor | None = None  # a task's gold labels
    target_BT: torch.Tensor | None = None  # True at the pieces of the word that a task asks about
    text_bytes: int = 0  # raw text at input positions
    tokens: int = 0  # real positions
    rate_share: float = 1.0  # of the rate, where windows differ in length
    backward: bool = False  # whether the text runs from its end to its beginning

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        moved: dict[str, Any] = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return dataclasses.replace(self, **moved)


def last_positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """(B,): the last position of each item where the mask is True."""
    return mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1)


def mean_over(x_BTD: torch.Tensor, where_BT: torch.Tensor) -> torch.Tensor:
    """(B, D): the mean over the positions where `where_BT` is True, zero where there is none."""
    weight = where_BT.unsqueeze(-1).to(x_BTD.dtype)
    return (x_BTD * weight).sum(1) / weight.sum(1).clamp_min(1)


def reversal(mask_BT: torch.Tensor) -> torch.Tensor:
    """(B, T) positions that turn each item's real part round and leave its padding last; applying it twice changes nothing."""
    positions_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device)[None]
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    return torch.where(positions_1T < lengths_B1, lengths_B1 - 1 - positions_1T, positions_1T)


def turned(x_BTD: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
    """(B, T, D): what stands at these positions of each item."""
    return x_BTD.gather(1, positions_BT[..., None].expand_as(x_BTD))
