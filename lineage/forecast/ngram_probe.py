"""Measure the stage ngram on a sample of the corpus."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lineage.artifacts import read_table
from lineage.config.params import Params
from lineage.evaluation.kneser_ney import fit_kneser_ney
from lineage.evaluation.ngram import (
    MAX_TRAIN_BYTES,
    boundary_separated_ids,
    boundary_token_id,
    fit_sentence_model,
)
from lineage.forecast.measure import Stopwatch, peak_memory_bytes, time_call
from lineage.language import byte_count

SAMPLE_BYTES = 300_000


@dataclass(frozen=True)
class NgramCosts:
    """Seconds and memory for each byte of text."""

    corpus_seconds: float  # of training a tokenizer, reading the text with it and counting
    sentence_seconds: float  # of reading and scoring other text
    count_seconds: float  # of counting the tokens of a model
    memory_bytes: float


def probe_ngram(params: Params, scratch: Path) -> NgramCosts:
    """Fit a 5-gram model of sentences to a part of the sample."""
    corpus = params.budget.corpus
    table = read_table(scratch / "corpora" / corpus / "train.parquet", ["text"])
    sizes = np.array([byte_count(text) for text in table["text"]])
    num_taken = max(1, int((np.cumsum(sizes) < SAMPLE_BYTES).sum()))
    texts = table["text"].tolist()[:num_taken]
    num_bytes = int(sizes[:num_taken].sum())
    earlier_peak = peak_memory_bytes()
    stopwatch = Stopwatch()
    model = fit_sentence_model(texts, params.corpora[corpus].language)
    corpus_seconds = stopwatch.seconds
    growth = peak_memory_bytes() - earlier_peak
    sentence_seconds = time_call(partial(model.log_probs, texts))
    ids_N = np.concatenate(boundary_separated_ids(texts, model.tokenizer))
    fit = partial(
        fit_kneser_ney,
        ids_N,
        vocab_size=model.tokenizer.vocab_size,
        boundary_id=boundary_token_id(model.tokenizer),
    )
    return NgramCosts(
        corpus_seconds=corpus_seconds / num_bytes,
        sentence_seconds=sentence_seconds / num_bytes,
        count_seconds=time_call(fit) / num_bytes,
        memory_bytes=growth / num_bytes,
    )


def count_train_bytes(params: Params, corpus_bytes: int) -> int:
    """Return how many bytes of the corpus are counted."""
    return min(params.budget.text_bytes, MAX_TRAIN_BYTES, corpus_bytes)
