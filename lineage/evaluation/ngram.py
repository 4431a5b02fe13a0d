"""Scores of models that only count: what a pretrained language model has to beat.

A 5-gram model with tokens of its own predicts all held-out text. It and the frequencies of words
score the sentences of minimal pairs.

Shapes: N tokens, D documents, S sentences.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import pandas as pd

from lineage.answers.base import PredictionColumns
from lineage.answers.pair import pair_columns
from lineage.evaluation.kneser_ney import KneserNey, fit_kneser_ney
from lineage.evaluation.ngram_bits import NgramBits
from lineage.language import byte_count, sentence_spans, split_words
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import EvalRun, Subject
from lineage.randomness import generator
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer

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
    """A 5-gram model of sentences over byte-level BPE, which has a token for every text."""

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
    """The frequencies of words in a text: a sentence has the product of those of its words."""

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
    """Return the indices of the documents to count, in their order: as many bytes as models read."""
    max_bytes = min(text_bytes, MAX_TRAIN_BYTES)
    order_D = generator("ngram", seed).permutation(len(sizes_D))
    bytes_before_D = np.cumsum(sizes_D[order_D]) - sizes_D[order_D]
    return np.sort(order_D[bytes_before_D < max_bytes])


def boundary_token_id(tokenizer: Tokenizer) -> int:
    """Return the token that comes first in a sentence or, with subwords, in a document."""
    if tokenizer.tokenizer_type == "word":
        name = "</S>" if tokenizer.direction == "backward" else "<S>"
        return tokenizer.special_token_ids[name]
    return tokenizer.special_token_template.prefix[0]
