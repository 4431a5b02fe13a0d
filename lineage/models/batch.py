"""What a model is given: one record for training windows, task items and sentences to score.

Shape suffixes: B items, T positions, K negatives, M answers that a task asks for, U distinct words of the batch, C bytes a word.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

IGNORE_INDEX = -100


@dataclass(frozen=True)
class Batch:
    """Tensors of one batch. A stream of two directions holds the forward windows in the first half of B and the backward ones in the second."""

    ids_BT: torch.Tensor  # indices into the vocabulary
    mask_BT: torch.Tensor  # True at real positions, False at padding
    text_mask_BT: torch.Tensor | None = (
        None  # True where a piece of the text stands, False at marks such as [CLS]
    )
    segment_ids_BT: torch.Tensor | None = (
        None  # of two texts: which one a position belongs to, 0 or 1
    )
    second_token_type_id: int = 1  # what a public checkpoint is told of the second one: 0 where its tokenizer tells the two apart by marks alone
    byte_ids_UC: torch.Tensor | None = None  # byte ids of the batch's distinct words
    word_rows_BT: torch.Tensor | None = None  # rows of characters_UC
    targets_BT: torch.Tensor | None = None  # NO_TARGET where nothing is predicted
    negatives_BTK: torch.Tensor | None = None  # drawn words, against which the target is told
    next_sentence_labels_B: torch.Tensor | None = (
        None  # 1 where the second segment comes from another document
    )
    labels_M: torch.Tensor | None = None  # a task's gold answers
    answer_pieces_P2: torch.Tensor | None = (
        None  # each piece of what is asked about: its place among the B T positions, which of the M it is of
    )
    answers_per_item: tuple[int, ...] = ()  # how many answers each item of a task asks for
    target_positions_N: torch.Tensor | None = (
        None  # rows of (B T) that have a target, where they are known: see `predicted`
    )
    no_padding: bool | None = (
        None  # whether no position is padding, where it is known: see `unpadded`
    )
    text_bytes: int = 0  # raw text at input positions
    num_tokens: int = 0  # real positions; of windows of two ways half of them, as of `text_bytes`: the mean of both
    learning_rate_scale: float = 1.0  # of the rate, where windows differ in length
    is_backward: bool = False  # whether the text runs from its end to its beginning
    lm_index: int = 0  # which of a family's language models reads it, where there are two

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device; on a CPU the batch itself.

        What has a size or a branch that depends on data is settled before a batch goes to a GPU: to ask there is to wait for all its work. Copies
        come from page-locked memory, so that nobody waits for them either.
        """
        if device == self.ids_BT.device:
            return self
        known = dataclasses.replace(
            self,
            no_padding=self.has_no_padding(),
            target_positions_N=None if self.targets_BT is None else self.target_positions(),
        )
        tensors = {
            name: value for name, value in vars(known).items() if isinstance(value, torch.Tensor)
        }
        if device.type == "cuda":
            tensors = {name: value.contiguous().pin_memory() for name, value in tensors.items()}
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in tensors.items()
        }
        return dataclasses.replace(known, **moved)

    @property
    def num_answers(self) -> int:
        """M."""
        return sum(self.answers_per_item)

    def loss_denominator(self, *, per_item: bool) -> int:
        """How many answers a loss is the mean of: one an item, or M."""
        return len(self.answers_per_item) if per_item else self.num_answers

    def target_positions(self) -> torch.Tensor:
        """(N,): which of the B T positions have a target, in order."""
        assert self.targets_BT is not None
        return (
            (self.targets_BT.flatten() != IGNORE_INDEX).nonzero().flatten()
            if self.target_positions_N is None
            else self.target_positions_N
        )

    def has_no_padding(self) -> bool:
        """Whether every position is real."""
        return bool(self.mask_BT.all()) if self.no_padding is None else self.no_padding


def gather_last(x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """(B, D): what stands at the last position of each item where the mask is True."""
    last_B = mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1)
    return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), last_B]


def masked_mean(x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """(B, D): the mean over the positions where `where_BT` is True, zero where there is none."""
    weight = mask_BT.unsqueeze(-1).to(x_BTD.dtype)
    return (x_BTD * weight).sum(1) / weight.sum(1).clamp_min(1)


def reversed_positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """(B, T) positions that turn each item's real part round and leave its padding last; applying it twice changes nothing."""
    positions_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device)[None]
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    return torch.where(positions_1T < lengths_B1, lengths_B1 - 1 - positions_1T, positions_1T)


def gather_positions(x_BTD: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
    """(B, T, D): what stands at these positions of each item."""
    return x_BTD.gather(1, positions_BT[..., None].expand_as(x_BTD))


def bucket_by_length(
    lengths: np.ndarray, *, batch_size: int, batches_per_chunk: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Indices in batches of like length, in a random order: of all, shuffled, so many batches `together` are sorted by length."""
    order = rng.permutation(len(lengths))
    chunks = [
        order[i : i + batch_size * batches_per_chunk]
        for i in range(0, len(order), batch_size * batches_per_chunk)
    ]
    sorted_chunks = [chunk[np.argsort(lengths[chunk], kind="stable")] for chunk in chunks]
    groups = [
        chunk[i : i + batch_size]
        for chunk in sorted_chunks
        for i in range(0, len(chunk), batch_size)
    ]
    return [groups[i] for i in rng.permutation(len(groups))]
