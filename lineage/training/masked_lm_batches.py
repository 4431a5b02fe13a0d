"""Masked batches: BERT's pairs of segments, and plain windows for public masked models.

(Devlin et al. 2019, section 3.1 and appendix A.2.) Shapes: B items, T positions, V vocabulary.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from lineage.networks.batch import IGNORE_INDEX, Batch, bucket_by_length
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.samplers import CorpusSampler
from lineage.training.settings import MaskedLmPretrainSettings, MaskReplacement

# Below this share of documents with several sentences, next-sentence labels are not used.
MIN_MULTI_SENTENCE_SHARE = 0.5
BATCHES_PER_BUCKET = 64  # batches that are sorted together by length
NUM_PAIR_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


class SegmentPair(NamedTuple):
    """Two segments as positions in the corpus."""

    start_a: int
    end_a: int
    start_b: int
    end_b: int
    is_random: bool = False  # segment B comes from another document

    @property
    def length(self) -> int:
        """Tokens of both segments, without special tokens."""
        return self.end_a - self.start_a + self.end_b - self.start_b


class MaskedSegmentPairs(CorpusSampler):
    """[CLS] A [SEP] B [SEP], sorted into buckets by length.

    (google-research/bert, create_pretraining_data.) Pairs and masks are new in each epoch, or
    repeat after `dupe_factor` versions. Without `next_sentence_prediction`, or if most documents
    have one sentence, B always follows A and there are no labels.
    """

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: MaskedLmPretrainSettings,
        *,
        seed: int,
    ) -> None:
        super().__init__(tokens, tokenizer, settings, seed=seed)
        self.settings: MaskedLmPretrainSettings = settings
        self.data_version = 0
        self.max_tokens = settings.seq_len - NUM_PAIR_SPECIAL_TOKENS
        self.special_tokens = tokenizer.special_token_ids
        self.is_continuation_V = np.zeros(tokenizer.vocab_size, bool)  # pieces inside a word
        for piece, token_id in tokenizer.backend_tokenizer.get_vocab().items():
            if piece.startswith("##"):
                self.is_continuation_V[token_id] = True
        self.sentence_bounds = tokens.sentence_starts
        if settings.split_long_sentences:
            self.sentence_bounds = _split_long_sentences(
                tokens.sentence_starts, max_tokens=self.max_tokens
            )
        # Each document's sentences as a slice; the last entry is the end of the text.
        self.document_starts = np.searchsorted(self.sentence_bounds[:-1], tokens.document_starts)
        self.has_next_sentence_labels = (
            settings.next_sentence_prediction and self._has_enough_sentences()
        )
        self.pairs: list[SegmentPair] = []
        self.batch_indices: list[np.ndarray] = []

    def _has_enough_sentences(self) -> bool:
        """Return whether next-sentence labels can be learned from this corpus.

        A single document has no random pair. If most documents are single sentences, the label
        would be easy to memorize, and half of the text would be read next to unrelated text.
        """
        if len(self.tokens.document_starts) <= 2:
            return False
        share = np.mean(np.diff(self.document_starts) > 1)
        return bool(share > MIN_MULTI_SENTENCE_SHARE)

    def set_epoch(self, epoch: int) -> int:
        """Cut the documents into new pairs, and batch them by length."""
        self.data_version = epoch
        if self.settings.dupe_factor is not None:
            self.data_version = epoch % self.settings.dupe_factor
        rng = generator("pairs", self.seed, self.data_version)
        self.pairs = []
        for document in rng.permutation(len(self.document_starts) - 1):
            self.pairs.extend(self._pairs_of_document(int(document), rng))
        self.batch_indices = bucket_by_length(
            np.array([pair.length for pair in self.pairs]),
            batch_size=self.settings.batch_size,
            batches_per_chunk=BATCHES_PER_BUCKET,
            rng=rng,
        )
        return len(self.batch_indices)

    def _pairs_of_document(
        self, document_index: int, rng: np.random.Generator
    ) -> Iterator[SegmentPair]:
        bounds = self.sentence_bounds
        start = self.document_starts[document_index]
        last = self.document_starts[document_index + 1]
        target_len = self.max_tokens
        if rng.random() < self.settings.short_seq_prob:
            target_len = int(rng.integers(2, self.max_tokens + 1))
        while start < last:
            end = self._segment_end(start, last, target_len)
            cut = start + 1
            if end - start > 1:
                cut = start + int(rng.integers(1, end - start))
            start_a = int(bounds[start])
            end_a = int(bounds[cut])
            # A single sentence has no second part, so its pair is always random.
            is_random = self.has_next_sentence_labels and (end - start == 1 or rng.random() < 0.5)
            if is_random:
                remaining_len = target_len - (end_a - start_a)
                start_b, end_b = self._random_segment(document_index, remaining_len, rng)
                start = cut  # the unused sentences are read again
            else:
                start_b = end_a
                end_b = int(bounds[end])
                start = end
            pair = SegmentPair(start_a, end_a, start_b, end_b, is_random)
            yield _truncate_pair(pair, self.max_tokens, rng)

    def _segment_end(self, start: int, last: int, target_len: int) -> int:
        """Return the end of sentences from `start` that have `target_len` tokens, at least one."""
        end = min(start + 1, last)
        while end < last and self.sentence_bounds[end] - self.sentence_bounds[start] < target_len:
            end += 1
        return end

    def _random_segment(
        self, document_index: int, target_len: int, rng: np.random.Generator
    ) -> tuple[int, int]:
        """Return sentences from a random place of another document."""
        count = len(self.document_starts) - 1
        other = document_index
        if count > 1:
            other = int(rng.integers(count - 1))
            if other >= document_index:
                other += 1
        first = int(self.document_starts[other])
        last = int(self.document_starts[other + 1])
        start = first
        if last > first:
            start = int(rng.integers(first, last))
        end = self._segment_end(start, last, target_len)
        return int(self.sentence_bounds[start]), int(self.sentence_bounds[end])

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids, some of them masked; targets there, and IGNORE_INDEX elsewhere."""
        pairs = [self.pairs[i] for i in self.batch_indices[index]]
        lengths = np.array([pair.length for pair in pairs]) + NUM_PAIR_SPECIAL_TOKENS
        ids, segments, is_text = self._lay_out(pairs, lengths)
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        rng = generator("masks", self.seed, self.data_version, index)
        is_continuation = None
        if self.settings.whole_word_masking:
            is_continuation = self.is_continuation_V[ids]
        chosen = choose_mask_positions(
            is_text,
            lengths,
            mlm_probability=self.settings.mlm_probability,
            rng=rng,
            max_predictions=self.settings.max_predictions_per_seq,
            is_continuation_BT=is_continuation,
        )
        inputs, targets = mask_tokens(
            ids,
            chosen,
            mask_replacement=self.settings.mask_replacement,
            mask_id=self.special_tokens["[MASK]"],
            vocab_size=self.vocab_size,
            rng=rng,
        )
        labels = None
        if self.has_next_sentence_labels:
            labels = torch.tensor([int(pair.is_random) for pair in pairs])
        return Batch(
            torch.from_numpy(inputs),
            torch.from_numpy(mask),
            torch.from_numpy(is_text),
            torch.from_numpy(segments),
            targets_BT=torch.from_numpy(targets),
            next_sentence_labels_B=labels,
            text_bytes=sum(self._pair_bytes(pair) for pair in pairs),
            num_tokens=int(mask.sum()),
        )

    def _lay_out(
        self, pairs: list[SegmentPair], lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (B, T) ids, segments, and a mask of the text without special tokens."""
        shape = (len(pairs), int(lengths.max()))
        ids = np.full(shape, self.special_tokens["[PAD]"])
        segments = np.zeros(shape, np.int64)
        is_text = np.zeros(shape, bool)
        for row, (pair, length) in enumerate(zip(pairs, lengths, strict=True)):
            ids[row, :length] = self._pair_ids(pair)
            separator = pair.end_a - pair.start_a + 1
            segments[row, separator + 1 : length] = 1
            is_text[row, 1 : length - 1] = True
            is_text[row, separator] = False
        return ids, segments, is_text

    def _pair_ids(self, pair: SegmentPair) -> np.ndarray:
        cls = [self.special_tokens["[CLS]"]]
        sep = [self.special_tokens["[SEP]"]]
        segment_a = self.tokens.ids[pair.start_a : pair.end_a]
        segment_b = self.tokens.ids[pair.start_b : pair.end_b]
        return np.concatenate([cls, segment_a, sep, segment_b, sep])

    def _pair_bytes(self, pair: SegmentPair) -> int:
        bytes_a = self.count_bytes(slice(pair.start_a, pair.end_a))
        return bytes_a + self.count_bytes(slice(pair.start_b, pair.end_b))


class MaskedWindows(CorpusSampler):
    """Windows of the joined documents between special tokens, in a new order each epoch."""

    order: np.ndarray  # of the windows; `set_epoch` sets it

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: Any,  # with mlm_probability and mask_replacement
        *,
        seed: int,
    ) -> None:
        super().__init__(tokens, tokenizer, settings, seed=seed)
        self.mlm_probability: float = settings.mlm_probability
        self.mask_replacement: MaskReplacement = settings.mask_replacement
        self.template = tokenizer.special_token_template
        text_len = settings.seq_len - self.template.num_special_tokens
        self.window_len = min(text_len, len(tokens.ids))  # without special tokens

    def set_epoch(self, epoch: int) -> int:
        self.epoch = epoch
        num_windows = len(self.tokens.ids) // max(1, self.window_len)
        self.order = generator("windows", self.seed, epoch).permutation(num_windows)
        return -(-len(self.order) // self.settings.batch_size)

    def get_batch(self, index: int) -> Batch:
        """(B, T) masked ids; targets at a share of the positions."""
        batch = self.read_windows(index)
        assert batch.text_mask_BT is not None
        assert self.template.mask_token_id is not None, "the family checks this"
        ids, is_text = batch.ids_BT.numpy(), batch.text_mask_BT.numpy()
        rng = generator("masks", self.seed, self.epoch, index)
        chosen = choose_mask_positions(
            is_text, np.full(len(ids), ids.shape[1]), mlm_probability=self.mlm_probability, rng=rng
        )
        inputs, targets = mask_tokens(
            ids,
            chosen,
            mask_replacement=self.mask_replacement,
            mask_id=self.template.mask_token_id,
            vocab_size=self.vocab_size,
            rng=rng,
        )
        return dataclasses.replace(
            batch, ids_BT=torch.from_numpy(inputs), targets_BT=torch.from_numpy(targets)
        )

    def get_causal_batch(self, index: int) -> Batch:
        """(B, T) ids as they are; each position's target is the token after it, if it is text."""
        batch = self.read_windows(index)
        assert batch.text_mask_BT is not None
        targets_BT = batch.ids_BT.masked_fill(~batch.text_mask_BT, IGNORE_INDEX)
        return dataclasses.replace(batch, targets_BT=shift_targets(targets_BT))

    def read_windows(self, index: int) -> Batch:
        """(B, T) ids as they are in the text."""
        template = self.template
        first = index * self.settings.batch_size
        starts = self.order[first : first + self.settings.batch_size] * self.window_len
        positions = starts[:, None] + np.arange(self.window_len)
        prefix = np.tile(np.array(template.prefix, np.int64), (len(positions), 1))
        suffix = np.tile(np.array(template.suffix, np.int64), (len(positions), 1))
        window_ids = self.tokens.ids[positions].astype(np.int64)
        ids = np.concatenate([prefix, window_ids, suffix], 1)
        is_text = np.zeros(ids.shape, bool)
        is_text[:, len(template.prefix) : len(template.prefix) + self.window_len] = True
        return Batch(
            torch.from_numpy(ids),
            torch.ones(ids.shape, dtype=torch.bool),
            torch.from_numpy(is_text),
            text_bytes=self.count_bytes(positions),
            num_tokens=ids.size,
        )


def shift_targets(targets_BT: torch.Tensor) -> torch.Tensor:
    """Move each target to the position before it."""
    next_BT = torch.full_like(targets_BT, IGNORE_INDEX)
    next_BT[:, :-1] = targets_BT[:, 1:]
    return next_BT


def _split_long_sentences(sentence_bounds: np.ndarray, *, max_tokens: int) -> np.ndarray:
    """Cut sentences that alone would overfill a pair into halves of a pair."""
    bounds = [sentence_bounds]
    for i in np.flatnonzero(np.diff(sentence_bounds) > max_tokens):
        step = max(1, max_tokens // 2)
        bounds.append(np.arange(sentence_bounds[i], sentence_bounds[i + 1], step))
    return np.unique(np.concatenate(bounds))


def _truncate_pair(pair: SegmentPair, max_tokens: int, rng: np.random.Generator) -> SegmentPair:
    """Drop tokens from the longer segment, at a random end, until both fit."""
    start_a, end_a, start_b, end_b, is_random = pair
    while end_a - start_a + end_b - start_b > max_tokens:
        at_front = rng.random() < 0.5
        if end_a - start_a > end_b - start_b:
            if at_front:
                start_a += 1
            else:
                end_a -= 1
        elif at_front:
            start_b += 1
        else:
            end_b -= 1
    return SegmentPair(start_a, end_a, start_b, end_b, is_random)


def choose_mask_positions(
    text_BT: np.ndarray,
    lengths_B: np.ndarray,
    *,
    mlm_probability: float,
    rng: np.random.Generator,
    max_predictions: int | None = None,
    is_continuation_BT: np.ndarray | None = None,
) -> np.ndarray:
    """Return a (B, T) mask, True at max(1, round(probability x length)) positions per item.

    At most `max_predictions` are chosen. Special tokens count in the length but are never chosen.
    With `is_continuation_BT`, True at pieces that continue a word, whole words are chosen in random
    order as long as they fit (whole-word masking), so there may be fewer positions.
    """
    num_wanted = np.maximum(1, np.rint(mlm_probability * lengths_B))
    num_predictions = np.minimum(num_wanted, text_BT.sum(1)).astype(int)
    if max_predictions is not None:
        num_predictions = np.minimum(num_predictions, max_predictions)
    keys = np.where(text_BT, rng.random(text_BT.shape), 2.0)
    if is_continuation_BT is None:
        ranks = keys.argsort(1, kind="stable").argsort(1, kind="stable")
        return (ranks < num_predictions[:, None]) & text_BT
    chosen = np.zeros_like(text_BT)
    for row in range(len(text_BT)):
        words = _words_of_text(text_BT[row], is_continuation_BT[row])
        words.sort(key=lambda positions: keys[row, positions[0]] if len(positions) else 2.0)
        for positions in words:
            if chosen[row].sum() + len(positions) <= num_predictions[row]:
                chosen[row, positions] = True
    return chosen


def _words_of_text(is_text_T: np.ndarray, is_continuation_T: np.ndarray) -> list[np.ndarray]:
    """Return the positions of each word. A text may begin within one; a special token ends one."""
    positions = np.flatnonzero(is_text_T)
    follows_gap = np.diff(positions, prepend=-2) > 1
    word_starts = np.flatnonzero(~is_continuation_T[positions] | follows_gap)
    return np.split(positions, word_starts[word_starts > 0])


def mask_tokens(
    ids_BT: np.ndarray,
    chosen_BT: np.ndarray,
    *,
    mask_replacement: MaskReplacement,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return masked ids and targets.

    Each chosen position becomes the mask with the first probability of `mask_replacement`, a word
    from the whole vocabulary with the second, and else keeps its id: 0.8 and 0.1 in the paper
    (Devlin et al. 2019, section 3.1).
    """
    targets = np.where(chosen_BT, ids_BT, IGNORE_INDEX)
    uniform = rng.random(ids_BT.shape)
    random_words = rng.integers(0, vocab_size, ids_BT.shape)
    becomes_mask = chosen_BT & (uniform < mask_replacement.mask)
    becomes_random = chosen_BT & (uniform >= 1 - mask_replacement.random)
    inputs = np.where(becomes_mask, mask_id, np.where(becomes_random, random_words, ids_BT))
    return inputs, targets
