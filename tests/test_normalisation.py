"""GPT-1's text normalization repairs text and keeps the offsets and bytes of the raw text."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lineage.errors import InputError
from lineage.methods.encoding import encode_word_in_context
from lineage.tokenizers.normalization import normalize_gpt1
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny

ROOT = Path(__file__).parent.parent
RAW = "â€œWellâ€\x9d — the “bank”,   said\n \n Zoë &amp; co…  (was it?!)  donâ€™t stop "
NORMALIZED = '" Well " - the " bank " , said \n Zoë & co... ( was it ? ! ) don\'t stop'
# the raw text of normalized words
RAW_WORDS = {
    "Well": "Well",
    "-": "—",
    "bank": "bank",
    "said": "said",
    "&": "&amp;",
    "co...": "co…",
    "?": "?",
    "don't": "donâ€™t",
    "stop": "stop",
}


@pytest.mark.parametrize(
    ("raw", "normalized"),
    [
        (RAW, NORMALIZED),
        ("", ""),
        (" \n ", ""),
        ("--!!", "-- !!"),
        ("ＬＯＵＤ　ＮＯＩＳＥ", "LOUD NOISE"),
        ("a/b\\c_d|e~f", "a / b \\ c _ d | e ~ f"),
        ("3.5 a.m. it's a:b", "3.5 a.m. it's a:b"),
    ],
)
def test_text_is_repaired_and_punctuation_is_separated(raw: str, normalized: str) -> None:
    assert normalize_gpt1(raw).text == normalized
    assert normalize_gpt1(normalized).text == normalized


def test_offsets_of_every_word_point_into_the_raw_text() -> None:
    normalized = normalize_gpt1(RAW)
    for word, raw in RAW_WORDS.items():
        position = NORMALIZED.index(word)
        ((start, end),) = normalized.to_raw_offsets(
            np.array([[position, position + len(word)]])
        ).tolist()
        assert RAW[start:end] == raw
    assert (np.diff(normalized.starts) >= 0).all()
    assert len(normalized.starts) == len(normalized.ends) == len(NORMALIZED)


def train_gpt_tokenizer(tokenizer_type: str, **overrides: object) -> Tokenizer:
    """Train a tokenizer that normalizes text as for GPT-1."""
    settings = TokenizerSettings(
        **{"vocab_size": 499, "lowercase": True, "normalizer": "ftfy", **overrides}
    )  # type: ignore[arg-type]
    return train_tokenizer(
        [*tiny.documents(), RAW, RAW], settings, tokenizer_type=tokenizer_type, language="en"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("tokenizer_type", ["byte_bpe", "bpe", "wordpiece"])
def test_byte_counts_and_target_words_refer_to_the_raw_text(
    tokenizer_type: str, tmp_path: Path
) -> None:
    texts = [RAW, *tiny.documents()[:5]]
    trained = train_gpt_tokenizer(tokenizer_type)
    trained.save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    corpus = encode_corpus(texts, tokenizer)
    assert corpus.text_bytes == sum(len(text.encode()) for text in texts)
    raw_corpus = encode_corpus([RAW], tokenizer)
    assert raw_corpus.text_bytes == len(RAW.encode()) and not tokenizer.lossless
    unnormalized_corpus = encode_corpus([RAW], train_gpt_tokenizer(tokenizer_type, normalizer=None))
    assert raw_corpus.ids.tolist() != unnormalized_corpus.ids.tolist(), (
        "otherwise nothing was normalized"
    )
    words = ["“the", "bank”,", "donâ€™t", "—", "stop"]
    for target, expected_text in enumerate(('" the', 'bank " ,', "don't", "-", "stop")):
        item = encode_word_in_context(words, target, tokenizer, max_length=40, language="en")
        actual = [
            tokenizer.backend_tokenizer.id_to_token(int(token_id))
            for token_id in item.encoded.ids[item.word_pieces[0][:, 0]]
        ]
        expected = tokenizer.backend_tokenizer.encode(
            expected_text, add_special_tokens=False
        ).tokens
        assert "".join(actual).strip("Ġ") == "".join(expected).strip("Ġ")


def test_raw_and_normalized_text_have_the_same_ids() -> None:
    tokenizer = train_gpt_tokenizer("byte_bpe")
    assert tokenizer.encode(RAW).ids.tolist() == tokenizer.encode(NORMALIZED).ids.tolist()


def test_normalized_text_is_split_as_for_gpt_1_and_keeps_its_accents() -> None:
    """OpenAIGPTTokenizer without ftfy gives `cafe don ' t wait . . . u . s . 3 . 5`."""
    backend_tokenizer = train_gpt_tokenizer("bpe").backend_tokenizer
    text = backend_tokenizer.normalizer.normalize_str(
        normalize_gpt1("Café don't wait... he'll see the U.S. at 3.5 (mid-day).").text
    )
    words = [word for word, _ in backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert " ".join(words) == "café do n't wait ... he 'll see the u.s. at 3.5 ( mid - day ) ."


def test_tokenizer_options_that_a_family_does_not_support_are_refused() -> None:
    for name, options, message in (
        ("elmo", {"normalizer": "ftfy"}, "normalizer: elmo"),
        ("bert", {"end_of_word_suffix": True}, "end_of_word_suffix: bert"),
    ):
        with pytest.raises(InputError, match=message):
            tiny.model_config(name, tokenizer=options)
    config = tiny.model_config("gpt", tokenizer={"end_of_word_suffix": True})
    assert config.tokenizer_type == "bpe"
    assert config.mechanism["unit"] == "BPE of characters"


TRAIN_SCRIPT = """
import hashlib
from tests.test_normalisation import train_gpt_tokenizer
print(hashlib.sha256(train_gpt_tokenizer("bpe").backend_tokenizer.to_str().encode()).hexdigest())
"""


def test_character_bpe_gives_the_same_ids_in_every_process() -> None:
    digest = subprocess.run(
        [sys.executable, "-c", TRAIN_SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    serialized = train_gpt_tokenizer("bpe").backend_tokenizer.to_str()
    assert digest == hashlib.sha256(serialized.encode()).hexdigest() + "\n"


def test_rare_characters_do_not_fill_the_vocabulary() -> None:
    rare_texts = [
        " ".join(chr(first + offset) for offset in range(150))
        for first in (0x1200, 0x3400, 0xA000, 0x10A0)
    ]
    settings = TokenizerSettings(vocab_size=499, end_of_word_suffix=True)
    vocabulary = train_tokenizer(
        [*tiny.documents(), *rare_texts], settings, tokenizer_type="bpe", language="en"
    ).backend_tokenizer.get_vocab()
    assert (
        len(vocabulary) <= 499
        and sum(len(token.removesuffix("</w>")) > 1 for token in vocabulary) > 200
    )
    chinese_texts = [" ".join(chr(0x4E00 + offset) for offset in range(300)) * 3, *tiny.documents()]
    vocabulary = train_tokenizer(
        chinese_texts, settings, tokenizer_type="bpe", language="zh"
    ).backend_tokenizer.get_vocab()  # each of these also takes two entries
    assert len(vocabulary) <= 499
    assert any(len(token.removesuffix("</w>")) > 1 for token in vocabulary)
    assert "\u4e00</w>" in vocabulary
