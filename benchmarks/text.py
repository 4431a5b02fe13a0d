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
from lineage.families import word2vec
from lineage.microworld import grammar
from lineage.text.language import normalise, words
from lineage.text.pieces import Pieces
from lineage.text.tokenization import TokenizerSettings, Unit
from lineage.text.tokens import CHUNK, encode_corpus
from lineage.text.vocabulary import train_tokenizer
from lineage.training.neighbours import Neighbours, options
from lineage.training.static import StaticConfig, StaticVectors, Text, frequencies, vocabulary_words

READ_BYTES = 12_000_000


@functools.cache
def documents(text_bytes: int) -> tuple[tuple[str, ...], str]:
    """Documents of about so many bytes, and what they are."""
    root = os.environ.get("LINEAGE_DATA")
    if root:
        frame = pd.read_parquet(Path(root) / "corpus-medium" / "train.parquet", columns=["text"])
        some, size = [], 0
        for text in frame["text"]:
            some.append(normalise(text))
            size += len(some[-1].encode())
            if size >= text_bytes:
                break
        return tuple(some), f"{size / 1e6:.1f} MB of real text"
    made = grammar.documents(max(40, text_bytes // 1000), seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED)
    return tuple(made), f"{sum(len(text) for text in made) / 1e6:.1f} MB of the generated language, whose words repeat more than real ones"


def sample_words(count: int) -> list[str]:
    """Running words of the text."""
    found: list[str] = []
    for text in documents(50_000)[0]:
        found += words(text, "en")
        if len(found) >= count:
            break
    return found[:count]


def ids_contest(*, quick: bool, unit: Unit) -> Contest:
    """All documents to ids and spans from a cold start, in one thread, both from strings to arrays."""
    texts, what = documents(30_000 if quick else READ_BYTES)
    reader = train_tokenizer(texts[:100], TokenizerSettings(vocabulary=600 if quick else 30_000), unit=unit, language="en")
    batches = [texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK)]

    def ours() -> list[np.ndarray]:
        pieces = Pieces(reader.tokenizer, spaced=True)
        return [ids for batch in batches for ids, _ in pieces.encode(batch)]

    def theirs(method: str) -> Callable[[], list[np.ndarray]]:
        encode = getattr(reader.tokenizer, method)
        return lambda: [np.array(found.ids, np.int64) for batch in batches for found in encode(list(batch), add_special_tokens=False)]

    turns = {"ours": ours, "encode_batch": theirs("encode_batch"), "encode_batch_fast": theirs("encode_batch_fast")}
    bars = [Bar("ours", "encode_batch", 1.5, 4.0), Bar("ours", "encode_batch_fast")]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    contest = Contest(
        f"ids, {unit}", f"{what}, {reader.vocabulary:,} pieces, nothing remembered at the start", megabytes, "MB", turns, bars, rounds=3
    )
    one, other = (np.concatenate(turns[side]()) for side in ("ours", "encode_batch"))
    assert np.array_equal(one, other), "every id of the corpus is the same"
    contest.alike("ids", len(one), len(other))
    contest.alike("sum of ids", int(one.sum()), int(other.sum()), tolerance=0)
    return contest


def skip_gram_contest(*, quick: bool) -> Contest:
    """The family's whole training against gensim on the same sentences: what our wrapping costs."""
    texts, what = documents(30_000 if quick else 2_000_000)
    reader = train_tokenizer(texts, TokenizerSettings(vocabulary=600 if quick else 30_000), unit="word", language="en")
    tokens = encode_corpus(texts, reader)
    known = [np.array([i for i in tokens.ids[a:b] if 4 <= i < reader.vocabulary]) for a, b in itertools.pairwise(tokens.sentences)]
    text = Text([known], tokens.text_bytes, len(tokens.ids), 1.0)
    settings = Neighbours("skip_gram", window=5, negatives=5, power=0.75, subsample=0.001, rate=0.025, last_rate=0.0001)
    named = vocabulary_words(reader)
    plain = [[named[i - 4] for i in sentence] for sentence in known]

    def started() -> StaticVectors:
        model = StaticVectors(StaticConfig(100), vocabulary=reader.vocabulary)
        model.initialise(torch.Generator().manual_seed(1))
        return model

    def ours() -> np.ndarray:
        model = started()
        word2vec.fit(model, text, reader, settings, seed=1, report=lambda *_: None)
        return model.words.weight[-len(named) :].detach().numpy()

    def theirs() -> np.ndarray:
        model = Word2Vec(**options(settings, width=100, seed=1))
        model.build_vocab_from_freq(frequencies(text, named))
        model.wv.vectors[:] = started().words.weight[-len(named) :].detach().numpy()
        model.train(plain, total_examples=len(plain), epochs=1, start_alpha=0.025, end_alpha=0.0001)
        return model.wv.vectors

    turns: dict[str, Turn] = {"ours": ours, "gensim, one worker": theirs}
    bars, work = [Bar("ours", "gensim, one worker")], f"{what}, width 100, window 5, 5 negatives"
    contest = Contest("skip-gram", work, sum(map(len, known)), "words", turns, bars)
    one, other = ours(), theirs()
    assert np.array_equal(one, other), "every vector is the same"
    contest.alike("norm of all vectors", float(np.linalg.norm(one)), float(np.linalg.norm(other)), tolerance=0)
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "wordpiece": lambda *, quick: ids_contest(quick=quick, unit="wordpiece"),
    "byte_bpe": lambda *, quick: ids_contest(quick=quick, unit="byte_bpe"),
    "skip_gram": skip_gram_contest,
}
