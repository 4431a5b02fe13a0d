"""Ids -> training batches. A stream can be entered at any batch of any pass: every choice comes from a generator named by seed, pass and
batch, so resuming needs two numbers and no saved state.

Shapes: B items, T positions.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
import torch

from lineage.errors import EvaluationError
from lineage.models.batch import Batch
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer, trim_padding


class BatchSampler(Protocol):
    """Batches of one pass after another."""

    carries_state: bool  # whether a batch goes on where the one before it stopped, so that recurrent state is carried

    def set_epoch(self, epoch: int) -> int:
        """Lay out pass number `passed`, and say how many batches it has."""

    def get_batch(self, index: int) -> Batch:
        """One batch of the pass laid out last."""


def iterate_batches(
    sampler: BatchSampler, *, start_epoch: int = 0, start_index: int = 0, max_epochs: int | None = 1
) -> Iterator[tuple[int, int, Batch]]:
    """(pass, index, batch) from any place to the end of the last pass, or without end where `passes` is None.

    Raises CellError where a pass is empty.
    """
    for epoch in (
        itertools.count(start_epoch) if max_epochs is None else range(start_epoch, max_epochs)
    ):
        count = sampler.set_epoch(epoch)
        if count == 0:
            raise EvaluationError(
                "the text is too short for a single batch; add text, or lower the batch and the length"
            )
        for batch_index in range(start_index, count):
            yield epoch, batch_index, sampler.get_batch(batch_index)
        start_index = 0


class CausalWindows:
    """Windows of T tokens of the joined documents, in a new order each pass; the target of a position is the token after it."""

    carries_state = False

    def __init__(
        self, tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: Any, *, seed: int
    ) -> None:
        self.tokens, self.settings, self.seed = tokens, settings, seed
        self.order = np.zeros(0, int)

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the windows."""
        T, n = self.settings.length, len(self.tokens.ids) - 1
        self.order = generator("windows", self.seed, epoch).permutation(max(min(n, 1), n // T))
        return -(-len(self.order) // self.settings.batch)

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids and targets."""
        B, T = self.settings.batch, self.settings.length
        starts = self.order[index * B : (index + 1) * B] * T
        T = min(T, len(self.tokens.ids) - 1)
        positions = starts[:, None] + np.arange(T + 1)
        ids = torch.from_numpy(self.tokens.ids[positions].astype(np.int64))
        mask = torch.ones(len(starts), T, dtype=torch.bool)
        text_bytes = int(self.tokens.byte_counts[positions[:, :-1]].sum(dtype=np.int64))
        return Batch(
            ids[:, :-1],
            mask,
            mask,
            targets_BT=ids[:, 1:],
            text_bytes=text_bytes,
            num_tokens=mask.numel(),
        )


def _bptt_rows(
    tokens: TokenizedCorpus, settings: Any, rng: np.random.Generator, *, step: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """(B, L) ids and their bytes: the documents in random order, forwards or backwards, cut into B lanes, or fewer where there is little text."""
    spans = [
        (tokens.document_starts[d], tokens.document_starts[d + 1])
        for d in rng.permutation(len(tokens.document_starts) - 1)
    ]
    B = min(settings.batch, max(1, len(tokens.ids) // (2 * settings.length)))
    ids, byte_counts = (
        np.concatenate([array[a:b] for a, b in spans])[::step]
        for array in (tokens.ids, tokens.byte_counts)
    )
    length = len(ids) // B
    return ids[: B * length].reshape(B, length), byte_counts[: B * length].reshape(B, length)


class BpttBatches:
    """B lanes that run through the documents, with state carried; windows of `length` positions, or of about that where it varies.

    Varied as in AWD-LSTM (Merity et al. 2018, section 4.1): one in twenty is of half the length, a normal of deviation 5 is added, at least 5; the
    rate goes with the length.
    """

    carries_state = True

    def __init__(
        self, tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: Any, *, seed: int
    ) -> None:
        self.tokens, self.settings, self.seed, self.backward = (
            tokens,
            settings,
            seed,
            tokenizer.direction == "backward",
        )
        self.vocab_size, self.unk_id = (
            tokenizer.vocab_size,
            tokenizer.special_token_ids.get("<unk>", 0),
        )  # pieces of bytes are never unknown
        self.ids = self.byte_counts = np.zeros((1, 0), int)
        self.window_bounds = np.zeros(1, int)
        self.variable_bptt = getattr(settings, "vary_length", False)

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the documents, cut them into lanes, and the lanes into windows."""
        rng = generator("lanes", self.seed, epoch)
        self.ids, self.byte_counts = _bptt_rows(self.tokens, self.settings, rng)
        length, T = self.ids.shape[1] - 1, self.settings.length
        steps = np.full(-(-length // max(T, 1)), T)
        if self.variable_bptt:
            base = np.where(rng.random(4 * len(steps) + 4) < 0.95, T, T / 2)
            steps = np.maximum(5, rng.normal(base, 5).astype(int))
        self.window_bounds = np.unique(
            np.minimum(np.concatenate([[0], np.cumsum(steps)]), max(length, 0))
        )
        return len(self.window_bounds) - 1

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids and targets."""
        first, end = self.window_bounds[index : index + 2]
        window_ids = self.ids[:, first : end + 1]
        ids = torch.from_numpy(
            np.where(window_ids < self.vocab_size, window_ids, self.unk_id).astype(np.int64)
        )
        mask = torch.ones(len(ids), end - first, dtype=torch.bool)
        text_bytes = int(self.byte_counts[:, first:end].sum(dtype=np.int64))
        lr_scale = float(end - first) / self.settings.length if self.variable_bptt else 1.0
        return Batch(
            ids[:, :-1],
            mask,
            mask,
            targets_BT=ids[:, 1:],
            text_bytes=text_bytes,
            num_tokens=mask.numel(),
            learning_rate_scale=lr_scale,
            is_backward=self.backward,
        )


class BidirectionalBpttBatches:
    """B lanes that run through the documents, and B more that run through them backwards in another order, with state carried where `stateful`.

    As in bilm-tf the two directions are independent: a step does not see the same sentences twice. A text that has been read once each way counts
    once; below a pass the directions have, for the most part, read different ones, and the mean of both is what counts.
    """

    def __init__(
        self, tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: Any, *, seed: int
    ) -> None:
        self.tokens, self.settings, self.seed = tokens, settings, seed
        self.carries_state = settings.carry_state
        self.vocab_size, self.unk_id = tokenizer.vocab_size, tokenizer.special_token_ids["<unk>"]
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the documents, for each direction on its own, and cut them into lanes."""
        self.rows = [
            _bptt_rows(
                self.tokens, self.settings, generator("lanes", way, self.seed, epoch), step=step
            )
            for way, step in (("forward", 1), ("backward", -1))
        ]
        return max(0, -(-(self.rows[0][0].shape[1] - 1) // self.settings.length))

    def get_batch(self, index: int) -> Batch:
        """(2 B, T): the forward lanes' windows, then the backward lanes'."""
        first, T = index * self.settings.length, self.settings.length
        ids = np.concatenate([lane[:, first : first + T + 1] for lane, _ in self.rows])
        byte_counts = np.concatenate([size[:, first : first + T + 1] for _, size in self.rows])
        inputs, targets = ids[:, :-1], ids[:, 1:]
        assert self.tokens.word_byte_ids_UC is not None
        distinct, words = np.unique(inputs, return_inverse=True)
        characters = trim_padding(self.tokens.word_byte_ids_UC[distinct].astype(np.int64))
        known = np.where(targets < self.vocab_size, targets, self.unk_id).astype(np.int64)
        mask = torch.ones(inputs.shape, dtype=torch.bool)
        return Batch(
            torch.from_numpy(
                np.where(inputs < self.vocab_size, inputs, self.unk_id).astype(np.int64)
            ),
            mask,
            mask,
            byte_ids_UC=torch.from_numpy(characters),
            word_rows_BT=torch.from_numpy(words.reshape(inputs.shape)),
            targets_BT=torch.from_numpy(known),
            text_bytes=(int(byte_counts[:, :-1].sum(dtype=np.int64)) + 1) // 2,
            num_tokens=inputs.size // 2,
        )


class SentenceBatches:
    """Sentences, or documents, cut every `length` positions, each from a cold start; a batch holds spans of one length, so that none is padded.

    (As in context2vec's own reader.) What is to be predicted are the span's own ids.
    """

    carries_state = False

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: Any,
        *,
        seed: int,
        unit: Literal["sentences", "documents"],
    ) -> None:
        self.tokens, self.settings, self.seed, self.epoch = tokens, settings, seed, 0
        self.vocab_size, self.unk_id = tokenizer.vocab_size, tokenizer.special_token_ids["<unk>"]
        self.special_token_ids = [
            number for mark, number in tokenizer.special_token_ids.items() if mark != "<unk>"
        ]
        bounds, T = getattr(tokens, unit).astype(np.int64), settings.length
        pieces = -(-np.diff(bounds) // T)
        within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self.starts = np.repeat(bounds[:-1], pieces) + T * within
        self.lengths = np.minimum(self.starts + T, np.repeat(bounds[1:], pieces)) - self.starts
        self.batch_indices: list[np.ndarray] = []

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the spans, put those of one length together, and shuffle the batches."""
        self.epoch, rng, B = epoch, generator("spans", self.seed, epoch), self.settings.batch
        order = rng.permutation(np.flatnonzero(self.lengths > 1))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        same_length_groups = np.split(order, np.flatnonzero(np.diff(self.lengths[order])) + 1)
        groups = [some[i : i + B] for some in same_length_groups for i in range(0, len(some), B)]
        self.batch_indices = [groups[i] for i in rng.permutation(len(groups))]
        return len(self.batch_indices)

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids, which are the targets too."""
        indices = self.batch_indices[index]
        positions = self.starts[indices][:, None] + np.arange(self.lengths[indices[0]])
        span_ids = self.tokens.ids[positions].astype(np.int64)
        ids = torch.from_numpy(np.where(span_ids < self.vocab_size, span_ids, self.unk_id))
        text = torch.from_numpy(~np.isin(span_ids, self.special_token_ids))
        text_bytes = int(self.tokens.byte_counts[positions].sum(dtype=np.int64))
        return Batch(
            ids,
            torch.ones_like(text),
            text,
            targets_BT=ids,
            text_bytes=text_bytes,
            num_tokens=ids.numel(),
        )
