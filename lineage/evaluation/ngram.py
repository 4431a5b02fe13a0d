"""Scores of models that only count: what a pretrained language model has to beat.

A 5-gram model predicts the held-out text on which a model was validated, token by token. Another
one, and the frequencies of words, score the sentences of minimal pairs.

Shapes: N tokens, D documents, S sentences.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd

from lineage.answers.base import PredictionColumns
from lineage.answers.pair import pair_columns
from lineage.artifacts import file_digest
from lineage.evaluation.kneser_ney import KneserNey, fit_kneser_ney
from lineage.evaluation.ngram_bits import NgramBits
from lineage.language import byte_count, sentence_spans, split_words
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import EvalRun, Subject
from lineage.networks.base import Family, LanguageModelFamily
from lineage.networks.batch import BatchSampler
from lineage.randomness import generator
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.pretrain import to_validation_settings
from lineage.training.samplers import BidirectionalBpttBatches, BpttBatches, iterate_batches
from lineage.training.settings import PretrainSettings
from lineage.training.train_run import ALL_BATCHES, VALIDATION_BATCHES

KNESER_NEY = "kneser_ney"
WORD_FREQUENCY = "word_frequency"
# The tokens of `kneser_ney`: all bytes and two special tokens at least.
VOCAB_SIZES = (258, 16_000)
TEXTS_PER_BATCH = 256  # texts tokenized at a time
BYTES_PER_ENTRY = 20  # a vocabulary needs that much text for each entry
# The text that is counted at most, since the counts of 100 MB take about 6 GB. With less text the
# n-gram model is worse, so a model that loses to it would lose to one of all text, too.
MAX_TRAIN_BYTES = 25_000_000


class SentenceScorer(Protocol):
    """A model that gives a sentence a probability."""

    def log_probs(self, texts: Sequence[str]) -> np.ndarray:
        """Return (S,) nats."""


@dataclass(frozen=True)
class SentenceModel:
    """A 5-gram model of sentences over byte-level BPE, which has a token for every text.

    Each sentence is read by itself, after a boundary, and its end is predicted. The space between
    two sentences is not.
    """

    tokenizer: Tokenizer
    ngrams: KneserNey

    def log_probs(self, texts: Sequence[str]) -> np.ndarray:
        """Return (S,) nats: the log-probability of each text, with the ends of its sentences."""
        ids_by_text = boundary_separated_ids(texts, self.tokenizer)
        ids_N = np.concatenate(ids_by_text)
        starts_S = np.cumsum([0, *(len(ids) for ids in ids_by_text[:-1])])
        is_start_N = np.zeros(len(ids_N), bool)
        is_start_N[starts_S] = True
        return np.add.reduceat(self.ngrams.log_probs(ids_N, is_start_N), starts_S)


def fit_sentence_model(texts: Sequence[str], language: str) -> SentenceModel:
    """Train a tokenizer and count the n-grams of its tokens."""
    num_bytes = sum(map(byte_count, texts))
    smallest, largest = VOCAB_SIZES
    vocab_size = max(smallest, min(largest, num_bytes // BYTES_PER_ENTRY))
    settings = TokenizerSettings(vocab_size=vocab_size)
    tokenizer = train_tokenizer(texts, settings, tokenizer_type="byte_bpe", language=language)
    boundary_id = boundary_token_id(tokenizer)
    ids_N = np.concatenate(boundary_separated_ids(texts, tokenizer))
    ngrams = fit_kneser_ney(ids_N, vocab_size=tokenizer.vocab_size, boundary_id=boundary_id)
    return SentenceModel(tokenizer, ngrams)


def boundary_separated_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Return the ids of each text, with a boundary before each sentence and after the last."""
    boundary = np.array([boundary_token_id(tokenizer)], np.int32)
    ids_by_text = []
    for first in range(0, len(texts), TEXTS_PER_BATCH):
        batch = texts[first : first + TEXTS_PER_BATCH]
        spans_by_text = [sentence_spans(text, tokenizer.language) for text in batch]
        sentences = [
            text[start:end]
            for text, spans in zip(batch, spans_by_text, strict=True)
            for start, end in spans
        ]
        tokenized = iter(tokenizer.tokenize(sentences))
        for spans in spans_by_text:
            parts = [boundary]
            for _ in spans:
                parts += [next(tokenized).ids.astype(np.int32), boundary]
            ids_by_text.append(np.concatenate(parts))
    return ids_by_text


def measure_heldout_text(
    model: SentenceModel, texts: Sequence[str], train_texts: Sequence[str]
) -> NgramBits:
    """Return the bits per byte of all held-out text; bytes include the spaces around sentences."""
    text_bytes = sum(map(byte_count, texts))
    bits = -model.log_probs(texts).sum() / math.log(2)
    return NgramBits(
        KNESER_NEY,
        "bits_per_byte",
        float(bits / max(1, text_bytes)),
        text_bytes,
        train_bytes=sum(map(byte_count, train_texts)),
    )


@dataclass(frozen=True)
class WordFrequency:
    """The frequencies of words in a text: a sentence has the product of those of its words.

    Counts have one added, and all words that do not occur share one more entry.
    """

    counts: Mapping[str, int]
    language: str

    def log_probs(self, texts: Sequence[str]) -> np.ndarray:
        total = sum(self.counts.values()) + len(self.counts) + 1
        sums = []
        for text in texts:
            words = split_words(text, self.language)
            nats = [math.log((self.counts.get(word, 0) + 1) / total) for word in words]
            sums.append(math.fsum(nats))  # exact: the same words in another order are a tie
        return np.array(sums)


def count_words(texts: Sequence[str], language: str) -> WordFrequency:
    counts = Counter[str]()
    for text in texts:
        counts.update(split_words(text, language))
    return WordFrequency(counts, language)


@dataclass(frozen=True, kw_only=True)
class SentenceScorerMethod(BaselineMethod):
    """The sentence that a model which only counts finds more probable is the good one."""

    scorer: SentenceScorer

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return kind.answer.answered_by == "sentence_probability"

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        score = self.scorer.log_probs
        return pair_columns(score([*items["good"]]) - score([*items["bad"]]))


@dataclass(frozen=True, kw_only=True)
class KneserNeyMethod(SentenceScorerMethod):
    """A 5-gram model."""

    name: ClassVar[str] = KNESER_NEY


@dataclass(frozen=True, kw_only=True)
class WordFrequencyMethod(SentenceScorerMethod):
    """The frequencies of words."""

    name: ClassVar[str] = WORD_FREQUENCY


def select_documents(sizes_D: np.ndarray, *, text_bytes: int, seed: int) -> np.ndarray:
    """Return the indices of the documents to count, in their order: as many bytes as models read.

    With more text than that, they are random documents, about `text_bytes` in all.
    """
    max_bytes = min(text_bytes, MAX_TRAIN_BYTES)
    order_D = generator("ngram", seed).permutation(len(sizes_D))
    bytes_before_D = np.cumsum(sizes_D[order_D]) - sizes_D[order_D]
    return np.sort(order_D[bytes_before_D < max_bytes])


class ModelNgrams:
    """5-gram models over the tokens of pretrained models, each fitted once for equal tokens."""

    def __init__(self, documents: np.ndarray) -> None:
        self._documents = documents
        self._last: tuple[Any, KneserNey, int] | None = None

    def measure(
        self, name: str, family: Family, settings: PretrainSettings, tokens_dir: Path
    ) -> NgramBits:
        """Predict the tokens of the last validation of a model's pretraining.

        The n-gram model has the model's vocabulary and its unknown token, and a context never goes
        back beyond the batch's window unless the model carries its state.
        """
        assert isinstance(family, LanguageModelFamily) and family.predicts_next_token
        tokenizer = Tokenizer.load(tokens_dir)
        ngrams, train_bytes = self._fit(tokenizer, tokens_dir)
        last_phase = settings.phases[-1].settings
        sampler = family.batch_sampler(
            TokenizedCorpus.load(tokens_dir, "valid"),
            tokenizer,
            to_validation_settings(last_phase),
            seed=0,
        )
        max_batches = ALL_BATCHES if settings.nt_asgd else VALIDATION_BATCHES
        text = _collect_validation_tokens(sampler, max_batches)
        nats = -ngrams.log_probs(text.ids_N, text.is_start_N).sum()
        bits_per_byte = float(nats / math.log(2) / text.text_bytes)
        return NgramBits(name, _metric_name(sampler), bits_per_byte, text.text_bytes, train_bytes)

    def _fit(self, tokenizer: Tokenizer, tokens_dir: Path) -> tuple[KneserNey, int]:
        """Count the n-grams of the chosen documents; keep the model for the next, equal tokens."""
        key = (file_digest(tokens_dir / "train.ids.npy"), tokenizer.vocab_size)
        if self._last is None or self._last[0] != key:
            self._last = None  # free it first: two do not fit into memory
            corpus = TokenizedCorpus.load(tokens_dir, "train")
            spans = [slice(*corpus.document_starts[[d, d + 1]]) for d in self._documents]
            ids_N = np.concatenate([corpus.ids[span] for span in spans])
            train_bytes = sum(int(corpus.byte_counts[span].sum(dtype=np.int64)) for span in spans)
            unk_id = tokenizer.unk_token_id or 0
            ids_N = np.where(ids_N < tokenizer.vocab_size, ids_N, unk_id)
            boundary_id = boundary_token_id(tokenizer)
            ngrams = fit_kneser_ney(ids_N, vocab_size=tokenizer.vocab_size, boundary_id=boundary_id)
            self._last = (key, ngrams, train_bytes)
        return self._last[1], self._last[2]


def boundary_token_id(tokenizer: Tokenizer) -> int:
    """Return the token that comes first in a sentence or, with subwords, in a document."""
    if tokenizer.tokenizer_type == "word":
        name = "</S>" if tokenizer.direction == "backward" else "<S>"
        return tokenizer.special_token_ids[name]
    return tokenizer.special_token_template.prefix[0]


@dataclass(frozen=True)
class _ValidationTokens:
    """The tokens of some batches, row by row, with the first of each row, which is only read."""

    ids_N: np.ndarray
    is_start_N: np.ndarray
    text_bytes: int


def _collect_validation_tokens(sampler: BatchSampler, max_batches: int) -> _ValidationTokens:
    """Read the forward rows of batches; rows that carry state go on from batch to batch."""
    rows: list[np.ndarray] = []
    text_bytes = 0
    for _, index, batch in iterate_batches(sampler):
        if index >= max_batches:
            break
        ids_BT = batch.ids_BT.numpy()
        assert batch.targets_BT is not None
        targets_BT = batch.targets_BT.numpy()
        if isinstance(sampler, BidirectionalBpttBatches):
            num_forward = len(ids_BT) // 2
            ids_BT = ids_BT[:num_forward]
            targets_BT = targets_BT[:num_forward]
        if sampler.carries_state and rows:
            rows = [np.append(row, targets) for row, targets in zip(rows, targets_BT, strict=True)]
        else:
            rows += [*np.concatenate([ids_BT[:, :1], targets_BT], axis=1)]
        text_bytes += batch.text_bytes
    ids_N = np.concatenate(rows)
    is_start_N = np.zeros(len(ids_N), bool)
    is_start_N[np.cumsum([0, *(len(row) for row in rows[:-1])])] = True
    return _ValidationTokens(ids_N, is_start_N, text_bytes)


def _metric_name(sampler: BatchSampler) -> str:
    """Name the metric of the loss whose targets are the next tokens of these batches."""
    if isinstance(sampler, BidirectionalBpttBatches):
        return "bits_per_byte_forward"
    if isinstance(sampler, BpttBatches):
        return "bits_per_byte_backward" if sampler.is_backward else "bits_per_byte_forward"
    return "bits_per_byte"
