"""Looked-up pieces are the tokenizer's own: ids and spans, for every unit, on whole corpora and on strange text."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.tokenizers import cache
from lineage.tokenizers.cache import TokenizationCache
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer
from tests import tiny

UNITS: tuple[TokenizerType, ...] = ("word", "byte_bpe", "wordpiece")
STRANGE = [
    "", " ", "  ", "a", " a", "a ", "a  b", "a   b", "\n a", " \na", "a \n \n b", "don't can't it's I'll x'sy", "3.5 3 .5 a.b,c", "[MASK] [CLS]a <S>",
    "na\u00efve caf\u0065\u0301 \u0301a", "\u4e2d\u6587 \u4e2da", "\u0130stanbul \u1e9e \u03a3\u03a3", "a\u00a0b \u2003c", "a\x85 b",
    "\U0001f600 \U0001f600\u200db", "a\tb \t c",
]  # fmt: skip


def same(reader: Tokenizer, texts: list[str]) -> None:
    expected = reader.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, (ids, spans), theirs in zip(
        texts, reader.cache.encode_batch(texts), expected, strict=True
    ):
        assert ids.tolist() == theirs.ids, repr(text)
        assert [tuple(span) for span in spans.tolist()] == theirs.offsets, repr(text)


def reader(unit: TokenizerType, *, lowercase: bool = False) -> Tokenizer:
    texts = [
        *tiny.documents(),
        *STRANGE,
        *STRANGE,
        *["a   b    c" for _ in range(20)],
    ]  # so that runs of spaces are pieces too
    return train_tokenizer(
        texts,
        TokenizerSettings(vocab_size=600, lowercase=lowercase),
        tokenizer_type=unit,
        language="en",
    )


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_strange_text_and_a_whole_corpus_get_the_tokenizer_s_ids_and_spans(
    unit: TokenizerType, lowercase: bool
) -> None:
    found = reader(unit, lowercase=lowercase)
    same(found, STRANGE)
    same(found, [*tiny.documents(), *STRANGE, " ".join(STRANGE), "".join(STRANGE)])
    same(found, STRANGE[::-1])


@pytest.mark.parametrize("unit", UNITS)
def test_any_text_gets_the_tokenizer_s_ids_and_spans(unit: TokenizerType) -> None:
    found = reader(unit)
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
    def check(some: list[str]) -> None:
        same(found, some)

    check()


def test_what_is_forgotten_is_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_SEGMENTS", 40)
    monkeypatch.setattr(cache, "SEGMENTS_PER_TEXT", 7)
    found = reader("byte_bpe")
    for document in tiny.documents():
        same(found, [document])
        assert len(found.cache.segment_rows) < 40 + len(set(document.split(" ")))


def test_a_language_without_spaces_is_not_remembered() -> None:
    found = TokenizationCache(reader("wordpiece").backend_tokenizer, uses_spaces=False)
    [(ids, spans)] = found.encode_batch([tiny.documents()[0]])
    assert not found.segment_rows and len(ids) == len(spans) > 0


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_real_text_gets_the_tokenizer_s_ids_and_spans(unit: TokenizerType) -> None:
    root = os.environ.get("LINEAGE_DATA")
    if not root:
        pytest.skip("LINEAGE_DATA is not set: no real text to read")
    texts = pd.read_parquet(Path(root) / "corpus-small" / "train.parquet")["text"].tolist()
    found = train_tokenizer(
        texts[:100], TokenizerSettings(vocab_size=8000), tokenizer_type=unit, language="en"
    )
    assert np.sum([len(text) for text in texts]) > 1e6
    same(found, texts)
