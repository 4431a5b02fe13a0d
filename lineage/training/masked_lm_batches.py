"""Masked pairs of segments: what BERT reads in pretraining (Devlin et al. 2019, section 3.1 and appendix A.2).

Shapes: B items, T positions, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lineage.models.batch import IGNORE_INDEX, Batch, bucket_by_length
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer

MIN_MULTI_SENTENCE_SHARE = 0.5  # of the documents, of one sentence: with as many there is no next sentence to be told apart
MIN_SEQ_LEN = 8  # tokens of a sequence, the marks included


def check_min_seq_len(name: str, seq_len: int | None) -> None:
    """Raise ValueError where the tokens of a sequence, if any number is given, are too few."""
    if seq_len is not None and seq_len < MIN_SEQ_LEN:
        raise ValueError(
            f"{name} is {seq_len}; at least {MIN_SEQ_LEN} are needed, for the marks and some text"
        )


class MaskedSegmentPairs:
    """[CLS] A [SEP] B [SEP] in buckets of like length (google-research/bert, create_pretraining_data).

    Pairs and masks are new in each pass, or, with `duplicates`, in so many versions that come again (in the released data 10). Without
    `next_sentence`, or where the documents are of one sentence each, B always follows A, and no label says so.
    """

    carries_state = False
    BATCHES_PER_BUCKET = 64  # batches sorted together by length

    def __init__(
        self, tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: Any, *, seed: int
    ) -> None:
        self.tokens, self.settings, self.seed, self.data_version = tokens, settings, seed, 0
        self.special_tokens, self.vocab_size = tokenizer.special_token_ids, tokenizer.vocab_size
        self.is_continuation_V = np.zeros(tokenizer.vocab_size, bool)  # pieces that go on a word
        self.is_continuation_V[
            [
                i
                for piece, i in tokenizer.backend_tokenizer.get_vocab().items()
                if piece.startswith("##")
            ]
        ] = True
        self.sentence_bounds = (
            _split_long_sentences(tokens.sentence_starts, max_tokens=settings.length - 3)
            if settings.split_long_sentences
            else tokens.sentence_starts
        )
        # Each document's sentences as a slice of them; the last entry is the end of the text.
        self.document_starts = np.searchsorted(self.sentence_bounds[:-1], tokens.document_starts)
        # Of a lone document no pair is of two, and of lone sentences none is of one: where most are such, the label would be one thing to learn by
        # heart, and half of what is read would stand beside what has nothing to do with it.
        self.has_next_sentence_labels = (
            settings.next_sentence
            and len(tokens.document_starts) > 2
            and bool(np.mean(np.diff(self.document_starts) > 1) > MIN_MULTI_SENTENCE_SHARE)
        )
        self.pairs: list[tuple[int, int, int, int, int]] = []
        self.batch_indices: list[np.ndarray] = []

    def set_epoch(self, epoch: int) -> int:
        """Cut the documents into pairs anew, and batch them by length."""
        self.data_version = (
            epoch if self.settings.dupe_factor is None else epoch % self.settings.dupe_factor
        )
        rng = generator("pairs", self.seed, self.data_version)
        self.pairs = [
            pair
            for document in rng.permutation(len(self.document_starts) - 1)
            for pair in self._pairs_of_document(int(document), rng)
        ]
        lengths = np.array([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in self.pairs])
        self.batch_indices = bucket_by_length(
            lengths,
            batch_size=self.settings.batch,
            batches_per_chunk=self.BATCHES_PER_BUCKET,
            rng=rng,
        )
        return len(self.batch_indices)

    def _pairs_of_document(
        self, document_index: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """(A start, A end, B start, B end, 1 if B is from another document), as positions in the ids."""
        bounds, first, last = (
            self.sentence_bounds,
            self.document_starts[document_index],
            self.document_starts[document_index + 1],
        )
        max_tokens, start = self.settings.length - 3, first
        target_len = (
            max_tokens
            if rng.random() >= self.settings.short_seq_prob
            else int(rng.integers(2, max_tokens + 1))
        )
        while start < last:
            end = start + 1
            while end < last and bounds[end] - bounds[start] < target_len:
                end += 1
            cut = start + (int(rng.integers(1, end - start)) if end - start > 1 else 1)
            a0, a1 = int(bounds[start]), int(bounds[cut])
            # a lone sentence has no second part, so its pair is always random
            if self.has_next_sentence_labels and (end - start == 1 or rng.random() < 0.5):
                b0, b1 = self._random_segment(document_index, target_len - (a1 - a0), rng)
                random, start = 1, cut  # what was not used comes again
            else:
                b0, b1, random, start = a1, int(bounds[end]), 0, end
            yield (*_truncate_pair(a0, a1, b0, b1, max_tokens, rng), random)

    def _random_segment(
        self, document_index: int, target_len: int, rng: np.random.Generator
    ) -> tuple[int, int]:
        """Sentences from a random place of another document."""
        count = len(self.document_starts) - 1
        other = int(rng.integers(count - 1)) if count > 1 else document_index
        other += int(count > 1 and other >= document_index)
        first, last = self.document_starts[other], self.document_starts[other + 1]
        start = int(rng.integers(first, last)) if last > first else int(first)
        end = min(start + 1, last)
        while end < last and self.sentence_bounds[end] - self.sentence_bounds[start] < target_len:
            end += 1
        return int(self.sentence_bounds[start]), int(self.sentence_bounds[end])

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids, those of `mask_share` of the positions corrupted; targets there, and NO_TARGET elsewhere."""
        pairs = [self.pairs[i] for i in self.batch_indices[index]]
        max_len = max(a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in pairs) + 3
        ids, segments = (
            np.full((len(pairs), max_len), self.special_tokens["[PAD]"]),
            np.zeros((len(pairs), max_len), np.int64),
        )
        text = np.zeros((len(pairs), max_len), bool)
        for row, (a0, a1, b0, b1, _) in enumerate(pairs):
            a, b = self.tokens.ids[a0:a1], self.tokens.ids[b0:b1]
            sep = self.special_tokens["[SEP]"]
            sequence = np.concatenate([[self.special_tokens["[CLS]"]], a, [sep], b, [sep]])
            ids[row, : len(sequence)], segments[row, len(a) + 2 : len(sequence)] = sequence, 1
            text[row, 1 : len(sequence) - 1] = True
            text[row, len(a) + 1] = False
        lengths = np.array([a1 - a0 + b1 - b0 + 3 for a0, a1, b0, b1, _ in pairs])
        mask = np.arange(max_len) < lengths[:, None]
        text_bytes = sum(
            int(self.tokens.byte_counts[x:y].sum(dtype=np.int64))
            for a0, a1, b0, b1, _ in pairs
            for x, y in ((a0, a1), (b0, b1))
        )
        rng = generator("masks", self.seed, self.data_version, index)
        chosen = choose_mask_positions(
            text,
            lengths,
            mlm_probability=self.settings.mlm_probability,
            rng=rng,
            max_predictions=self.settings.max_predictions_per_seq,
            is_continuation_BT=self.is_continuation_V[ids]
            if self.settings.whole_word_masking
            else None,
        )
        inputs, targets = mask_tokens(
            ids,
            chosen,
            mask_replacement=self.settings.mask_replacement,
            mask_id=self.special_tokens["[MASK]"],
            vocab_size=self.vocab_size,
            rng=rng,
        )
        return Batch(
            torch.from_numpy(inputs),
            torch.from_numpy(mask),
            torch.from_numpy(text),
            torch.from_numpy(segments),
            targets_BT=torch.from_numpy(targets),
            next_sentence_labels_B=torch.tensor([p[4] for p in pairs])
            if self.has_next_sentence_labels
            else None,
            text_bytes=text_bytes,
            num_tokens=int(mask.sum()),
        )


class MaskedWindows:
    """Windows of the joined documents between their marks, in a new order each pass: what a public masked model goes on with."""

    carries_state = False

    def __init__(
        self, tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: Any, *, seed: int
    ) -> None:
        self.tokens, self.settings, self.seed, self.epoch = tokens, settings, seed, 0
        self.template, self.vocab_size = tokenizer.special_token_template, tokenizer.vocab_size
        self.window_len = min(
            settings.length - tokenizer.special_token_template.num_special_tokens, len(tokens.ids)
        )  # pieces of a window
        self.order = np.zeros(0, int)

    def set_epoch(self, epoch: int) -> int:
        """Shuffle the windows."""
        self.epoch = epoch
        self.order = generator("windows", self.seed, epoch).permutation(
            len(self.tokens.ids) // max(1, self.window_len)
        )
        return -(-len(self.order) // self.settings.batch)

    def get_batch(self, index: int) -> Batch:
        """(B, T) corrupted ids; targets at a share of the positions."""
        starts, template = (
            self.order[index * self.settings.batch :][: self.settings.batch] * self.window_len,
            self.template,
        )
        positions = starts[:, None] + np.arange(self.window_len)
        rows = [
            np.tile(np.array(some, np.int64), (len(positions), 1))
            for some in (template.prefix, template.suffix)
        ]
        ids = np.concatenate([rows[0], self.tokens.ids[positions].astype(np.int64), rows[1]], 1)
        text = np.zeros(ids.shape, bool)
        text[:, len(template.prefix) : len(template.prefix) + self.window_len] = True
        rng = generator("masks", self.seed, self.epoch, index)
        chosen = choose_mask_positions(
            text,
            np.full(len(ids), ids.shape[1]),
            mlm_probability=self.settings.mlm_probability,
            rng=rng,
        )
        assert template.mask_token_id is not None, "the family asks"
        inputs, targets = mask_tokens(
            ids,
            chosen,
            mask_replacement=self.settings.mask_replacement,
            mask_id=template.mask_token_id,
            vocab_size=self.vocab_size,
            rng=rng,
        )
        text_bytes = int(self.tokens.byte_counts[positions].sum(dtype=np.int64))
        mask = torch.ones(ids.shape, dtype=torch.bool)
        return Batch(
            torch.from_numpy(inputs),
            mask,
            torch.from_numpy(text),
            targets_BT=torch.from_numpy(targets),
            text_bytes=text_bytes,
            num_tokens=ids.size,
        )


def _split_long_sentences(sentence_bounds: np.ndarray, *, max_tokens: int) -> np.ndarray:
    """The sentences' bounds, with those that alone would overfill a pair cut into halves of a pair: else most of their text would never be read."""
    long = np.flatnonzero(np.diff(sentence_bounds) > max_tokens)
    return np.unique(
        np.concatenate(
            [
                sentence_bounds,
                *(
                    np.arange(sentence_bounds[i], sentence_bounds[i + 1], max(1, max_tokens // 2))
                    for i in long
                ),
            ]
        )
    )


def _truncate_pair(
    a0: int, a1: int, b0: int, b1: int, max_tokens: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Take pieces off the longer segment, at its front or its back by the toss of a coin, until both fit."""
    while a1 - a0 + b1 - b0 > max_tokens:
        front = rng.random() < 0.5
        if a1 - a0 > b1 - b0:
            a0, a1 = (a0 + 1, a1) if front else (a0, a1 - 1)
        else:
            b0, b1 = (b0 + 1, b1) if front else (b0, b1 - 1)
    return a0, a1, b0, b1


def choose_mask_positions(
    text_BT: np.ndarray,
    lengths_B: np.ndarray,
    *,
    mlm_probability: float,
    rng: np.random.Generator,
    max_predictions: int | None = None,
    is_continuation_BT: np.ndarray | None = None,
) -> np.ndarray:
    """(B, T) True at exactly max(1, round(share x length)) positions an item, at `most` so many, marks never among them but counted in its length.

    With `goes_on`, True at pieces that go on a word, whole words are chosen in random order while they fit (whole-word masking): at most as many.
    """
    num_predictions = np.minimum(
        np.maximum(1, np.rint(mlm_probability * lengths_B)), text_BT.sum(1)
    ).astype(int)
    num_predictions = (
        num_predictions if max_predictions is None else np.minimum(num_predictions, max_predictions)
    )
    keys = np.where(text_BT, rng.random(text_BT.shape), 2.0)
    if is_continuation_BT is None:
        ranks = keys.argsort(1, kind="stable").argsort(1, kind="stable")
        return (ranks < num_predictions[:, None]) & text_BT
    chosen = np.zeros_like(text_BT)
    for row, (text, is_continuation, count) in enumerate(
        zip(text_BT, is_continuation_BT, num_predictions, strict=True)
    ):
        positions = np.flatnonzero(text)
        word_starts = np.flatnonzero(
            ~is_continuation[positions] | (np.diff(positions, prepend=-2) > 1)
        )  # a text may begin within a word; a mark ends it
        words = np.split(positions, word_starts[word_starts > 0])
        for word in sorted(words, key=lambda some: keys[row, some[0]] if len(some) else 2.0):
            if chosen[row].sum() + len(word) <= count:
                chosen[row, word] = True
    return chosen


def mask_tokens(
    ids_BT: np.ndarray,
    chosen_BT: np.ndarray,
    *,
    mask_replacement: tuple[float, ...],
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupted ids and targets. Of the chosen, the first share of `become` is masked, the second a word drawn from the whole vocabulary.

    The rest stays as it is: 0.8 and 0.1 in the paper (Devlin et al. 2019, section 3.1), position by position.
    """
    targets = np.where(chosen_BT, ids_BT, IGNORE_INDEX)
    draws, random_words = rng.random(ids_BT.shape), rng.integers(0, vocab_size, ids_BT.shape)
    inputs = np.where(
        chosen_BT & (draws < mask_replacement[0]),
        mask_id,
        np.where(chosen_BT & (draws >= 1 - mask_replacement[1]), random_words, ids_BT),
    )
    return inputs, targets
