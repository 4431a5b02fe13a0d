"""The tokenization cache returns the same ids and offsets as the tokenizer that it wraps."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.tokenizers import cache
from lineage.tokenizers.cache import TokenizationCache
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny
from tests.helpers.golden import data_folder

TOKENIZER_TYPES: tuple[TokenizerType, ...] = ("word", "byte_bpe", "wordpiece")
UNUSUAL_TEXTS = [
    "", " ", "  ", "a", " a", "a ", "a  b", "a   b", "\n a", " \na", "a \n \n b", "don't can't it's I'll x'sy", "3.5 3 .5 a.b,c", "[MASK] [CLS]a <S>",
    "na\u00efve caf\u0065\u0301 \u0301a", "\u4e2d\u6587 \u4e2da", "\u0130stanbul \u1e9e \u03a3\u03a3", "a\u00a0b \u2003c", "a\x85 b",
    "\U0001f600 \U0001f600\u200db", "a\tb \t c",
]  # fmt: skip


def assert_same_as_backend(tokenizer: Tokenizer, texts: list[str]) -> None:
    expected = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, (ids, offsets), encoding in zip(
        texts, tokenizer.cache.encode_batch(texts), expected, strict=True
    ):
        assert ids.tolist() == encoding.ids, repr(text)
        assert [tuple(offset) for offset in offsets.tolist()] == encoding.offsets, repr(text)


def train_small_tokenizer(tokenizer_type: TokenizerType, *, lowercase: bool = False) -> Tokenizer:
    runs_of_spaces = ["a   b    c"] * 20  # so that runs of spaces become tokens too
    texts = [*tiny.documents(), *UNUSUAL_TEXTS, *UNUSUAL_TEXTS, *runs_of_spaces]
    return train_tokenizer(
        texts,
        TokenizerSettings(vocab_size=600, lowercase=lowercase),
        tokenizer_type=tokenizer_type,
        language="en",
    )


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TYPES)
@pytest.mark.parametrize("lowercase", [False, True])
def test_unusual_texts_and_a_corpus_get_the_ids_and_offsets_of_the_backend(
    tokenizer_type: TokenizerType, lowercase: bool
) -> None:
    tokenizer = train_small_tokenizer(tokenizer_type, lowercase=lowercase)
    assert_same_as_backend(tokenizer, UNUSUAL_TEXTS)
    assert_same_as_backend(
        tokenizer,
        [*tiny.documents(), *UNUSUAL_TEXTS, " ".join(UNUSUAL_TEXTS), "".join(UNUSUAL_TEXTS)],
    )
    assert_same_as_backend(tokenizer, UNUSUAL_TEXTS[::-1])


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TYPES)
def test_any_text_gets_the_ids_and_offsets_of_the_backend(tokenizer_type: TokenizerType) -> None:
    tokenizer = train_small_tokenizer(tokenizer_type)
    characters = (
        st.sampled_from(
            [
                *"aB's.,3n \n-",
                "  ",
                " ",
                "\u00e9",
                "\u0301",
                "\u4e2d",
                "\u00a0",
                "\u0130",
                "\U0001f600",
            ]
        )
        | st.characters()
    )
    texts = (
        st.lists(characters, max_size=24)
        .map("".join)
        .filter(lambda text: text.isprintable() or "\n" in text)
    )

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(st.lists(texts, min_size=1, max_size=3))
    def check(batch: list[str]) -> None:
        assert_same_as_backend(tokenizer, batch)

    check()


def test_segments_dropped_from_a_full_cache_are_tokenized_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "MAX_CHARACTERS", 200)
    monkeypatch.setattr(cache, "SEGMENTS_PER_TEXT", 7)
    tokenizer = train_small_tokenizer("byte_bpe")
    for document in tiny.documents():
        assert_same_as_backend(tokenizer, [document])
        assert tokenizer.cache.num_characters <= 200 + len(document)
        assert sum(map(len, tokenizer.cache.segment_rows)) == tokenizer.cache.num_characters


def test_a_language_without_spaces_is_not_cached() -> None:
    cached = TokenizationCache(
        train_small_tokenizer("wordpiece").backend_tokenizer, uses_spaces=False
    )
    [(ids, offsets)] = cached.encode_batch([tiny.documents()[0]])
    assert not cached.segment_rows and len(ids) == len(offsets) > 0


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TYPES)
def test_real_text_gets_the_ids_and_offsets_of_the_backend(tokenizer_type: TokenizerType) -> None:
    texts = pd.read_parquet(data_folder() / "corpus-small" / "train.parquet")["text"].tolist()
    tokenizer = train_tokenizer(
        texts[:100],
        TokenizerSettings(vocab_size=8000),
        tokenizer_type=tokenizer_type,
        language="en",
    )
    assert np.sum([len(text) for text in texts]) > 1e6
    assert_same_as_backend(tokenizer, texts)
