"""Token ids -> training batches.

A sampler can be entered at any batch of any epoch: every choice comes from a generator named by
seed, epoch and batch, so resuming needs two numbers and no saved state.

Shapes: B items, T positions, L tokens of a BPTT row.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch

from lineage.errors import EvaluationError
from lineage.networks.batch import Batch, BatchSampler
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.word_bytes import trim_padding
from lineage.training.settings import BilmPretrainSettings, PretrainSettings


def iterate_batches(
    sampler: BatchSampler, *, start_epoch: int = 0, start_index: int = 0, max_epochs: int | None = 1
) -> Iterator[tuple[int, int, Batch]]:
    """Yield the epoch, the index and the batch from any place to the end of epoch `max_epochs`, or forever if it is None.

    Raises EvaluationError if an epoch is empty.
    """
    epochs: Iterable[int] = itertools.count(start_epoch)
    if max_epochs is not None:
        epochs = range(start_epoch, max_epochs)
    for epoch in epochs:
        count = sampler.set_epoch(epoch)
        if count == 0:
            raise EvaluationError(
                "the text is too short for a single batch; "
                "add text, or lower batch_size and seq_len"
            )
        for index in range(start_index, count):
            yield epoch, index, sampler.get_batch(index)
        start_index = 0


class CorpusSampler:
    """A tokenized text and the settings of its batches, which all samplers have."""

    carries_state = False

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: PretrainSettings,
        *,
        seed: int,
    ) -> None:
        self.tokens = tokens
        self.settings = settings
        self.seed = seed
        self.epoch = 0
        self.vocab_size = tokenizer.vocab_size
        # None: every id of the corpus is in the vocabulary.
        self.unk_id: int | None = None
        if tokenizer.tokenizer_type == "word":
            self.unk_id = tokenizer.special_token_ids["<unk>"]

    def known_ids(self, ids: np.ndarray) -> np.ndarray:
        """Replace the ids of words outside the closed vocabulary."""
        if self.unk_id is not None:
            ids = np.where(ids < self.vocab_size, ids, self.unk_id)
        return ids.astype(np.int64)

    def count_bytes(self, positions: np.ndarray | slice) -> int:
        """Count the bytes of raw text at these positions of the corpus."""
        return int(self.tokens.byte_counts[positions].sum(dtype=np.int64))


class CausalWindows(CorpusSampler):
    """Windows of T tokens of the joined documents, in a new order each epoch.

    The target of a position is the token after it.
    """

    order: np.ndarray  # of the windows; `set_epoch` sets it

    def set_epoch(self, epoch: int) -> int:
        num_targets = len(self.tokens.ids) - 1
        num_windows = max(min(num_targets, 1), num_targets // self.settings.seq_len)
        self.order = generator("windows", self.seed, epoch).permutation(num_windows)
        return _ceil_div(len(self.order), self.settings.batch_size)

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids and targets."""
        seq_len = self.settings.seq_len
        first = index * self.settings.batch_size
        starts = self.order[first : first + self.settings.batch_size] * seq_len
        window_len = min(seq_len, len(self.tokens.ids) - 1)
        positions = starts[:, None] + np.arange(window_len + 1)
        ids = torch.from_numpy(self.known_ids(self.tokens.ids[positions]))
        mask = torch.ones(len(starts), window_len, dtype=torch.bool)
        return Batch(
            ids[:, :-1],
            mask,
            mask,
            targets_BT=ids[:, 1:],
            text_bytes=self.count_bytes(positions[:, :-1]),
            num_tokens=mask.numel(),
        )


class _BpttRows(NamedTuple):
    """The documents as parallel rows."""

    ids_BL: np.ndarray
    byte_counts_BL: np.ndarray  # bytes of raw text that each id stands for


def _bptt_rows(
    tokens: TokenizedCorpus,
    settings: PretrainSettings,
    rng: np.random.Generator,
    *,
    backward: bool = False,
) -> _BpttRows:
    """Join the documents in random order and cut them into B rows, or fewer for a short text."""
    order = rng.permutation(len(tokens.document_starts) - 1)
    spans = [(tokens.document_starts[d], tokens.document_starts[d + 1]) for d in order]
    ids = np.concatenate([tokens.ids[start:end] for start, end in spans])
    byte_counts = np.concatenate([tokens.byte_counts[start:end] for start, end in spans])
    if backward:
        ids = ids[::-1]
        byte_counts = byte_counts[::-1]
    max_rows = max(1, len(tokens.ids) // (2 * settings.seq_len))  # of two windows at least
    B = min(settings.batch_size, max_rows)
    L = len(ids) // B
    return _BpttRows(ids[: B * L].reshape(B, L), byte_counts[: B * L].reshape(B, L))


class BpttBatches(CorpusSampler):
    """B rows that run through the documents, with state carried from window to window.

    With `variable_bptt`, window lengths vary, and the learning rate with them, as in AWD-LSTM
    (Merity et al. 2018, section 4.1).
    """

    carries_state = True
    # `set_epoch` sets these.
    rows: _BpttRows
    window_bounds: np.ndarray

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: PretrainSettings,
        *,
        seed: int,
        variable_bptt: bool = False,
    ) -> None:
        super().__init__(tokens, tokenizer, settings, seed=seed)
        self.variable_bptt = variable_bptt
        self.is_backward = tokenizer.direction == "backward"

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the documents, cut them into rows, and the rows into windows."""
        rng = generator("lanes", self.seed, epoch)
        self.rows = _bptt_rows(self.tokens, self.settings, rng)
        num_targets = self.rows.ids_BL.shape[1] - 1
        seq_len = self.settings.seq_len
        window_lens = np.full(_ceil_div(num_targets, max(seq_len, 1)), seq_len)
        if self.variable_bptt:
            # Four times as many windows as of full length: they surely cover the row.
            full_or_half = rng.random(4 * len(window_lens) + 4) < 0.95
            means = np.where(full_or_half, seq_len, seq_len / 2)
            window_lens = np.maximum(5, rng.normal(means, 5).astype(int))
        bounds = np.concatenate([[0], np.cumsum(window_lens)])
        self.window_bounds = np.unique(np.minimum(bounds, max(num_targets, 0)))
        return len(self.window_bounds) - 1

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids and targets."""
        first, end = self.window_bounds[index : index + 2]
        window_ids = self.rows.ids_BL[:, first : end + 1]
        ids = torch.from_numpy(self.known_ids(window_ids))
        mask = torch.ones(len(ids), end - first, dtype=torch.bool)
        lr_scale = 1.0
        if self.variable_bptt:
            lr_scale = float(end - first) / self.settings.seq_len
        return Batch(
            ids[:, :-1],
            mask,
            mask,
            targets_BT=ids[:, 1:],
            text_bytes=int(self.rows.byte_counts_BL[:, first:end].sum(dtype=np.int64)),
            num_tokens=mask.numel(),
            learning_rate_scale=lr_scale,
            is_backward=self.is_backward,
        )


class BidirectionalBpttBatches(CorpusSampler):
    """B rows that read the documents forward, and B more that read them backward.

    State is carried if `carry_state` is set. As in bilm-tf a step does not read the same sentences
    in both directions. A text that was read once in each direction counts once.
    """

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: BilmPretrainSettings,
        *,
        seed: int,
    ) -> None:
        super().__init__(tokens, tokenizer, settings, seed=seed)
        self.carries_state = settings.carry_state
        self.rows_by_direction: list[_BpttRows] = []

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the documents separately for each direction, and cut them into rows."""
        self.rows_by_direction = [
            _bptt_rows(
                self.tokens,
                self.settings,
                generator("lanes", direction, self.seed, epoch),
                backward=direction == "backward",
            )
            for direction in ("forward", "backward")
        ]
        num_targets = self.rows_by_direction[0].ids_BL.shape[1] - 1
        return max(0, _ceil_div(num_targets, self.settings.seq_len))

    def get_batch(self, index: int) -> Batch:
        """(2 B, T): the windows of the forward rows, then those of the backward rows."""
        seq_len = self.settings.seq_len
        window = slice(index * seq_len, (index + 1) * seq_len + 1)
        ids = np.concatenate([rows.ids_BL[:, window] for rows in self.rows_by_direction])
        byte_counts = np.concatenate(
            [rows.byte_counts_BL[:, window] for rows in self.rows_by_direction]
        )
        inputs = ids[:, :-1]
        targets = ids[:, 1:]
        assert self.tokens.word_byte_ids_UC is not None
        distinct, word_rows = np.unique(inputs, return_inverse=True)
        byte_ids = trim_padding(self.tokens.word_byte_ids_UC[distinct].astype(np.int64))
        mask = torch.ones(inputs.shape, dtype=torch.bool)
        return Batch(
            torch.from_numpy(self.known_ids(inputs)),
            mask,
            mask,
            byte_ids_UC=torch.from_numpy(byte_ids),
            word_rows_BT=torch.from_numpy(word_rows.reshape(inputs.shape)),
            targets_BT=torch.from_numpy(self.known_ids(targets)),
            text_bytes=(int(byte_counts[:, :-1].sum(dtype=np.int64)) + 1) // 2,
            num_tokens=inputs.size // 2,
        )


class SentenceBatches(CorpusSampler):
    """Sentences, or documents, cut every `seq_len` tokens, each read from a zero state.

    As in context2vec's own code, a batch holds spans of one length. The targets are the span's own
    ids.
    """

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: PretrainSettings,
        *,
        seed: int,
        unit: Literal["sentences", "documents"],
    ) -> None:
        super().__init__(tokens, tokenizer, settings, seed=seed)
        self.special_token_ids = [
            token_id for token, token_id in tokenizer.special_token_ids.items() if token != "<unk>"
        ]
        bounds = tokens.sentence_starts if unit == "sentences" else tokens.document_starts
        self.starts, self.lengths = _split_spans(bounds.astype(np.int64), settings.seq_len)
        self.batch_indices: list[np.ndarray] = []

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the spans, group those of one length, and shuffle the batches."""
        self.epoch = epoch
        rng = generator("spans", self.seed, epoch)
        order = rng.permutation(np.flatnonzero(self.lengths > 1))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        length_changes = np.flatnonzero(np.diff(self.lengths[order])) + 1
        batches: list[np.ndarray] = []
        for group in np.split(order, length_changes):
            size = self.settings.batch_size
            batches += [group[first : first + size] for first in range(0, len(group), size)]
        self.batch_indices = [batches[i] for i in rng.permutation(len(batches))]
        return len(self.batch_indices)

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids, which are also the targets."""
        indices = self.batch_indices[index]
        positions = self.starts[indices][:, None] + np.arange(self.lengths[indices[0]])
        span_ids = self.tokens.ids[positions]
        ids = torch.from_numpy(self.known_ids(span_ids))
        text_mask = torch.from_numpy(~np.isin(span_ids, self.special_token_ids))
        return Batch(
            ids,
            torch.ones_like(text_mask),
            text_mask,
            targets_BT=ids,
            text_bytes=self.count_bytes(positions),
            num_tokens=ids.numel(),
        )


def _split_spans(bounds: np.ndarray, max_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the spans between bounds every `max_len` tokens; return the starts and lengths."""
    num_pieces = -(-np.diff(bounds) // max_len)  # rounded up
    first_pieces = np.cumsum(num_pieces) - num_pieces
    piece_in_span = np.arange(num_pieces.sum()) - np.repeat(first_pieces, num_pieces)
    starts = np.repeat(bounds[:-1], num_pieces) + max_len * piece_in_span
    ends = np.minimum(starts + max_len, np.repeat(bounds[1:], num_pieces))
    return starts, ends - starts


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
