"""Compare tokenization with the tokenizers library, and skip-gram training with gensim alone.

The text is real if LINEAGE_DATA names a data folder, and synthetic if not.
"""

import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from gensim.models import Word2Vec

from benchmarks.contest import Contest, SpeedTarget, TimedCall
from lineage.families import word2vec
from lineage.families.gensim_training import NegativeSamplingSettings, gensim_options
from lineage.language import normalize_text, split_words
from lineage.networks.static import (
    NUM_SPECIAL_TOKENS,
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

TOKENIZATION_BYTES = 12_000_000
SKIP_GRAM_BYTES = 2_000_000
QUICK_BYTES = 30_000
SAMPLE_BYTES = 50_000  # of text, for `sample_words`
VOCAB_SIZE = 30_000
QUICK_VOCAB_SIZE = 600
VECTOR_SIZE = 100


@functools.cache
def load_documents(text_bytes: int) -> tuple[tuple[str, ...], str]:
    """Return documents of about `text_bytes`, and a description of them."""
    root = os.environ.get("LINEAGE_DATA")
    if not root:
        return _generate_documents(text_bytes)
    table = pd.read_parquet(Path(root) / "corpus-medium" / "train.parquet", columns=["text"])
    documents = []
    size_bytes = 0
    for text in table["text"]:
        document = normalize_text(text)
        documents.append(document)
        size_bytes += len(document.encode())
        if size_bytes >= text_bytes:
            break
    return tuple(documents), f"{size_bytes / 1e6:.1f} MB of real text"


def _generate_documents(text_bytes: int) -> tuple[tuple[str, ...], str]:
    documents = tuple(
        grammar.generate_documents(
            max(40, text_bytes // 1000), seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED
        )
    )
    megabytes = sum(len(text) for text in documents) / 1e6
    return documents, (
        f"{megabytes:.1f} MB of the generated language, whose words repeat more than real ones"
    )


def sample_words(count: int) -> list[str]:
    """Return the first words of the text."""
    documents, _ = load_documents(SAMPLE_BYTES)
    words: list[str] = []
    for document in documents:
        words += split_words(document, "en")
        if len(words) >= count:
            break
    return words[:count]


def tokenization_contest(*, quick: bool, tokenizer_type: TokenizerType) -> Contest:
    """Turn all documents into arrays of ids, in one thread and with an empty cache at the start."""
    texts, description = load_documents(QUICK_BYTES if quick else TOKENIZATION_BYTES)
    tokenizer = train_tokenizer(
        texts[:100],
        TokenizerSettings(vocab_size=QUICK_VOCAB_SIZE if quick else VOCAB_SIZE),
        tokenizer_type=tokenizer_type,
        language="en",
    )
    backend = tokenizer.backend_tokenizer
    batch_starts = range(0, len(texts), DOCUMENTS_PER_BATCH)
    batches = [texts[start : start + DOCUMENTS_PER_BATCH] for start in batch_starts]

    def encode_with_lineage() -> list[np.ndarray]:
        cache = TokenizationCache(backend, uses_spaces=True)
        arrays = []
        for batch in batches:
            arrays += [ids for ids, _ in cache.encode_batch(batch)]
        return arrays

    def encode_with_tokenizers(method: str) -> list[np.ndarray]:
        encode = getattr(backend, method)
        arrays = []
        for batch in batches:
            encodings = encode(list(batch), add_special_tokens=False)
            arrays += [np.array(encoding.ids, np.int64) for encoding in encodings]
        return arrays

    contest = Contest(
        f"ids, {tokenizer_type}",
        f"{description}, {tokenizer.vocab_size:,} pieces, nothing remembered at the start",
        units_per_step=sum(len(text.encode()) for text in texts) / 1e6,
        unit="MB",
        sides={
            "ours": encode_with_lineage,
            "encode_batch": lambda: encode_with_tokenizers("encode_batch"),
            "encode_batch_fast": lambda: encode_with_tokenizers("encode_batch_fast"),
        },
        targets=[
            SpeedTarget("ours", "encode_batch", 1.5, 4.0),
            SpeedTarget("ours", "encode_batch_fast"),
        ],
        max_rounds=3,
    )
    our_ids = np.concatenate(encode_with_lineage())
    their_ids = np.concatenate(encode_with_tokenizers("encode_batch"))
    assert np.array_equal(our_ids, their_ids), "every id of the corpus is the same"
    contest.check_equal("ids", len(our_ids), len(their_ids))
    contest.check_equal("sum of ids", int(our_ids.sum()), int(their_ids.sum()), tolerance=0)
    return contest


def skip_gram_contest(*, quick: bool) -> Contest:
    """Train skip-gram on the same sentences with our family and with gensim alone."""
    texts, description = load_documents(QUICK_BYTES if quick else SKIP_GRAM_BYTES)
    tokenizer = train_tokenizer(
        texts,
        TokenizerSettings(vocab_size=QUICK_VOCAB_SIZE if quick else VOCAB_SIZE),
        tokenizer_type="word",
        language="en",
    )
    tokens = encode_corpus(texts, tokenizer)
    id_sentences = []
    for start, end in itertools.pairwise(tokens.sentence_starts):
        ids = tokens.ids[start:end]
        is_word = (ids >= NUM_SPECIAL_TOKENS) & (ids < tokenizer.vocab_size)
        id_sentences.append(np.array(ids[is_word]))
    training_text = StaticTrainingText([id_sentences], tokens.text_bytes, len(tokens.ids), 1.0)
    settings = NegativeSamplingSettings(
        "skip_gram",
        window=5,
        num_negatives=5,
        negative_exponent=0.75,
        subsample=0.001,
        learning_rate=0.025,
        min_learning_rate=0.0001,
    )
    words = vocab_words(tokenizer)
    word_sentences = [[words[id_ - NUM_SPECIAL_TOKENS] for id_ in ids] for ids in id_sentences]

    def build_model() -> StaticVectors:
        model = StaticVectors(StaticConfig(VECTOR_SIZE), vocab_size=tokenizer.vocab_size)
        model.init_weights(torch.Generator().manual_seed(1))
        return model

    def get_vectors(model: StaticVectors) -> np.ndarray:
        return model.words.weight[-len(words) :].detach().numpy()

    def train_with_lineage() -> np.ndarray:
        model = build_model()
        word2vec.fit_static(
            model, training_text, tokenizer, settings, seed=1, report=lambda *_: None
        )
        return get_vectors(model)

    def train_with_gensim() -> np.ndarray:
        model = Word2Vec(**gensim_options(settings, hidden_size=VECTOR_SIZE, seed=1))
        model.build_vocab_from_freq(count_word_frequencies(training_text, words))
        model.wv.vectors[:] = get_vectors(build_model())
        model.train(
            word_sentences,
            total_examples=len(word_sentences),
            epochs=1,
            start_alpha=settings.learning_rate,
            end_alpha=settings.min_learning_rate,
        )
        return model.wv.vectors

    sides: dict[str, TimedCall] = {
        "ours": train_with_lineage,
        "gensim, one worker": train_with_gensim,
    }
    contest = Contest(
        "skip-gram",
        f"{description}, width {VECTOR_SIZE}, window 5, 5 negatives",
        units_per_step=sum(map(len, id_sentences)),
        unit="words",
        sides=sides,
        targets=[SpeedTarget("ours", "gensim, one worker")],
    )
    our_vectors = train_with_lineage()
    their_vectors = train_with_gensim()
    assert np.array_equal(our_vectors, their_vectors), "every vector is the same"
    contest.check_equal(
        "norm of all vectors",
        float(np.linalg.norm(our_vectors)),
        float(np.linalg.norm(their_vectors)),
        tolerance=0,
    )
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "wordpiece": lambda *, quick: tokenization_contest(quick=quick, tokenizer_type="wordpiece"),
    "byte_bpe": lambda *, quick: tokenization_contest(quick=quick, tokenizer_type="byte_bpe"),
    "skip_gram": skip_gram_contest,
}
