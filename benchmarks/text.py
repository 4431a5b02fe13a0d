"""Text to ids beside the tokenizers library, and skip-gram beside gensim alone; and the text that is read: real where LINEAGE_DATA has some."""

import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from gensim.models import Word2Vec

from benchmarks.contest import Bar, Contest, Turn
from lineage.data.language import normalize_text, split_words
from lineage.models import word2vec
from lineage.models.gensim_training import NegativeSamplingSettings, gensim_options
from lineage.models.static import (
    StaticConfig,
    StaticTrainingText,
    StaticVectors,
    count_word_frequencies,
    vocab_words,
)
from lineage.synthetic import grammar
from lineage.tokenizers.cache import TokenizationCache
from lineage.tokenizers.token_ids import DOCUMENTS_PER_BATCH, encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer

READ_BYTES = 12_000_000


@functools.cache
def documents(text_bytes: int) -> tuple[tuple[str, ...], str]:
    """Documents of about so many bytes, and what they are."""
    root = os.environ.get("LINEAGE_DATA")
    if root:
        frame = pd.read_parquet(Path(root) / "corpus-medium" / "train.parquet", columns=["text"])
        some, size = [], 0
        for text in frame["text"]:
            some.append(normalize_text(text))
            size += len(some[-1].encode())
            if size >= text_bytes:
                break
        return tuple(some), f"{size / 1e6:.1f} MB of real text"
    made = grammar.generate_documents(
        max(40, text_bytes // 1000), seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED
    )
    return (
        tuple(made),
        f"{sum(len(text) for text in made) / 1e6:.1f} MB of the generated language, whose words repeat more than real ones",
    )


def sample_words(count: int) -> list[str]:
    """Running words of the text."""
    found: list[str] = []
    for text in documents(50_000)[0]:
        found += split_words(text, "en")
        if len(found) >= count:
            break
    return found[:count]


def ids_contest(*, quick: bool, unit: TokenizerType) -> Contest:
    """All documents to ids and spans from a cold start, in one thread, both from strings to arrays."""
    texts, what = documents(30_000 if quick else READ_BYTES)
    reader = train_tokenizer(
        texts[:100],
        TokenizerSettings(vocab_size=600 if quick else 30_000),
        tokenizer_type=unit,
        language="en",
    )
    batches = [
        texts[i : i + DOCUMENTS_PER_BATCH] for i in range(0, len(texts), DOCUMENTS_PER_BATCH)
    ]

    def ours() -> list[np.ndarray]:
        pieces = TokenizationCache(reader.backend_tokenizer, uses_spaces=True)
        return [ids for batch in batches for ids, _ in pieces.encode_batch(batch)]

    def theirs(method: str) -> Callable[[], list[np.ndarray]]:
        encode = getattr(reader.backend_tokenizer, method)
        return lambda: [
            np.array(found.ids, np.int64)
            for batch in batches
            for found in encode(list(batch), add_special_tokens=False)
        ]

    turns = {
        "ours": ours,
        "encode_batch": theirs("encode_batch"),
        "encode_batch_fast": theirs("encode_batch_fast"),
    }
    bars = [Bar("ours", "encode_batch", 1.5, 4.0), Bar("ours", "encode_batch_fast")]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    contest = Contest(
        f"ids, {unit}",
        f"{what}, {reader.vocab_size:,} pieces, nothing remembered at the start",
        megabytes,
        "MB",
        turns,
        bars,
        rounds=3,
    )
    one, other = (np.concatenate(turns[side]()) for side in ("ours", "encode_batch"))
    assert np.array_equal(one, other), "every id of the corpus is the same"
    contest.alike("ids", len(one), len(other))
    contest.alike("sum of ids", int(one.sum()), int(other.sum()), tolerance=0)
    return contest


def skip_gram_contest(*, quick: bool) -> Contest:
    """The family's whole training against gensim on the same sentences: what our wrapping costs."""
    texts, what = documents(30_000 if quick else 2_000_000)
    reader = train_tokenizer(
        texts,
        TokenizerSettings(vocab_size=600 if quick else 30_000),
        tokenizer_type="word",
        language="en",
    )
    tokens = encode_corpus(texts, reader)
    known = [
        np.array([i for i in tokens.ids[a:b] if 4 <= i < reader.vocab_size])
        for a, b in itertools.pairwise(tokens.sentence_starts)
    ]
    text = StaticTrainingText([known], tokens.text_bytes, len(tokens.ids), 1.0)
    settings = NegativeSamplingSettings(
        "skip_gram",
        window=5,
        num_negatives=5,
        negative_exponent=0.75,
        subsample=0.001,
        learning_rate=0.025,
        min_learning_rate=0.0001,
    )
    named = vocab_words(reader)
    plain = [[named[i - 4] for i in sentence] for sentence in known]

    def started() -> StaticVectors:
        model = StaticVectors(StaticConfig(100), vocab_size=reader.vocab_size)
        model.init_weights(torch.Generator().manual_seed(1))
        return model

    def ours() -> np.ndarray:
        model = started()
        word2vec.fit_static(model, text, reader, settings, seed=1, report=lambda *_: None)
        return model.words.weight[-len(named) :].detach().numpy()

    def theirs() -> np.ndarray:
        model = Word2Vec(**gensim_options(settings, hidden_size=100, seed=1))
        model.build_vocab_from_freq(count_word_frequencies(text, named))
        model.wv.vectors[:] = started().words.weight[-len(named) :].detach().numpy()
        model.train(plain, total_examples=len(plain), epochs=1, start_alpha=0.025, end_alpha=0.0001)
        return model.wv.vectors

    turns: dict[str, Turn] = {"ours": ours, "gensim, one worker": theirs}
    bars, work = [Bar("ours", "gensim, one worker")], f"{what}, width 100, window 5, 5 negatives"
    contest = Contest("skip-gram", work, sum(map(len, known)), "words", turns, bars)
    one, other = ours(), theirs()
    assert np.array_equal(one, other), "every vector is the same"
    contest.alike(
        "norm of all vectors", float(np.linalg.norm(one)), float(np.linalg.norm(other)), tolerance=0
    )
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "wordpiece": lambda *, quick: ids_contest(quick=quick, unit="wordpiece"),
    "byte_bpe": lambda *, quick: ids_contest(quick=quick, unit="byte_bpe"),
    "skip_gram": skip_gram_contest,
}
