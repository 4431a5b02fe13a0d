"""A model's input: one record for training windows, task items and sentences to score.

Shape suffixes: B items, T positions, K negatives, M answers of the items, P pieces of the words
that a task is about, U distinct words, C bytes of a word, N targets, D width.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

IGNORE_INDEX = -100  # the target of positions where nothing is predicted


@dataclass(frozen=True)
class Batch:
    """The tensors of one batch; a bidirectional one has its backward windows in the second half."""

    ids_BT: torch.Tensor  # vocabulary ids
    mask_BT: torch.Tensor  # True at real positions, False at padding
    text_mask_BT: torch.Tensor | None = None  # True at text, False at special tokens and padding
    segment_ids_BT: torch.Tensor | None = None  # 0 for the first of two texts, 1 for the second
    # Token type id of the second text, for public checkpoints; 0 if only special
    # tokens show where the second text begins.
    second_token_type_id: int = 1
    byte_ids_UC: torch.Tensor | None = None  # byte ids of the batch's distinct words
    word_rows_BT: torch.Tensor | None = None  # rows of byte_ids_UC
    targets_BT: torch.Tensor | None = None  # IGNORE_INDEX where nothing is predicted
    negatives_BTK: torch.Tensor | None = None  # sampled words, to be distinguished from the target
    # 1 if the second segment comes from another document
    next_sentence_labels_B: torch.Tensor | None = None
    labels_M: torch.Tensor | None = None  # a task's labels
    # For each piece of the words that a task is about: its index among the B T positions, and its
    # answer, 0 to M - 1.
    answer_pieces_P2: torch.Tensor | None = None
    answers_per_item: tuple[int, ...] = ()  # number of answers that each item of a task asks for
    # For semantic roles and pronouns: for each answer, that of its item's predicate or pronoun.
    predicates_M: torch.Tensor | None = None
    # The indices of the B T positions that have a target, if known; see `target_positions`.
    target_positions_N: torch.Tensor | None = None
    no_padding: bool | None = None  # True if every position is real, if known
    text_bytes: int = 0  # bytes of raw text at the input positions
    # Real positions. Bidirectional batches read the text twice, so that `num_tokens` and
    # `text_bytes` are half of the sum over both directions.
    num_tokens: int = 0
    learning_rate_scale: float = 1.0  # factor of the learning rate, for windows of varying length
    is_backward: bool = False  # True if the text is read from its end to its beginning
    lm_index: int = 0  # which language model reads the batch, in a family with two

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device; on the same device, the batch itself.

        Copies come from page-locked memory, so that nothing waits for the GPU.
        """
        if device == self.ids_BT.device:
            return self
        targets_N = None if self.targets_BT is None else self.target_positions()
        known = dataclasses.replace(
            self, no_padding=self.has_no_padding(), target_positions_N=targets_N
        )
        moved: dict[str, Any] = {}
        for name, value in vars(known).items():
            if isinstance(value, torch.Tensor):
                if device.type == "cuda":
                    value = value.contiguous().pin_memory()
                moved[name] = value.to(device, non_blocking=True)
        return dataclasses.replace(known, **moved)

    @property
    def num_answers(self) -> int:
        """M."""
        return sum(self.answers_per_item)

    def loss_denominator(self, *, per_item: bool) -> int:
        """Return the number of terms of a mean loss: one per item, or M."""
        return len(self.answers_per_item) if per_item else self.num_answers

    def target_positions(self) -> torch.Tensor:
        """Return the (N,) indices of the B T positions that have a target, in order."""
        assert self.targets_BT is not None
        if self.target_positions_N is not None:
            return self.target_positions_N
        return (self.targets_BT.flatten() != IGNORE_INDEX).nonzero().flatten()

    def has_no_padding(self) -> bool:
        if self.no_padding is not None:
            return self.no_padding
        return bool(self.mask_BT.all())


def gather_last(x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (B, D): the vector at each item's last position where the mask is True."""
    last_B = mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1)
    return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), last_B]


def masked_mean(x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (B, D): the mean over positions where the mask is True; zero if there are none."""
    weight = mask_BT.unsqueeze(-1).to(x_BTD.dtype)
    return (x_BTD * weight).sum(1) / weight.sum(1).clamp_min(1)


def reversed_positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (B, T) positions that reverse each item's real part and leave padding at the end."""
    positions_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device)[None]
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    return torch.where(positions_1T < lengths_B1, lengths_B1 - 1 - positions_1T, positions_1T)


def gather_positions(x_BTD: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
    """Return (B, T, D): the vectors at these positions of each item."""
    return x_BTD.gather(1, positions_BT[..., None].expand_as(x_BTD))


def bucket_by_length(
    lengths: np.ndarray, *, batch_size: int, batches_per_chunk: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Group indices into batches of similar length, in random order.

    Chunks of `batches_per_chunk` shuffled batches are each sorted by length.
    """
    order = rng.permutation(len(lengths))
    chunk_size = batch_size * batches_per_chunk
    batches = []
    for chunk_start in range(0, len(order), chunk_size):
        chunk = order[chunk_start : chunk_start + chunk_size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


class BatchSampler(Protocol):
    """Batches of one epoch after another."""

    carries_state: bool  # a batch continues the one before it, so recurrent state is carried over

    def set_epoch(self, epoch: int) -> int:
        """Prepare an epoch, and return its number of batches."""

    def get_batch(self, index: int) -> Batch:
        """Return one batch of the epoch that was prepared last."""
