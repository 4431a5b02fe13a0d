"""GPT-1's text: what is mended, and that every word and every byte is still found in the text as it was given."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lineage.errors import InputError
from lineage.evaluation.encoding import encode_word_in_context
from lineage.tokenizers.normalization import normalize_gpt1
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests import tiny

ROOT = Path(__file__).parent.parent
RAW = "â€œWellâ€\x9d — the “bank”,   said\n \n Zoë &amp; co…  (was it?!)  donâ€™t stop "
MENDED = '" Well " - the " bank " , said \n Zoë & co... ( was it ? ! ) don\'t stop'
# the raw text of each word of it that is not only put in
PLACES = {
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
    ("raw", "mended"),
    [
        (RAW, MENDED),
        ("", ""),
        (" \n ", ""),
        ("--!!", "-- !!"),
        ("ＬＯＵＤ　ＮＯＩＳＥ", "LOUD NOISE"),
        ("a/b\\c_d|e~f", "a / b \\ c _ d | e ~ f"),
        ("3.5 a.m. it's a:b", "3.5 a.m. it's a:b"),
    ],
)
def test_text_is_mended_and_its_marks_stand_alone(raw: str, mended: str) -> None:
    assert normalize_gpt1(raw).text == mended
    assert normalize_gpt1(mended).text == mended


def test_every_word_is_found_in_the_raw_text() -> None:
    found = normalize_gpt1(RAW)
    for word, raw in PLACES.items():
        first = MENDED.index(word)
        ((start, end),) = found.to_raw_offsets(np.array([[first, first + len(word)]])).tolist()
        assert RAW[start:end] == raw
    assert (np.diff(found.starts) >= 0).all() and len(found.starts) == len(found.ends) == len(
        MENDED
    )


def reader(unit: str, **over: object) -> Tokenizer:
    """A reader of mended text."""
    settings = TokenizerSettings(
        **{"vocab_size": 499, "lowercase": True, "normalizer": "ftfy", **over}
    )  # type: ignore[arg-type]
    return train_tokenizer(
        [*tiny.documents(), RAW, RAW], settings, tokenizer_type=unit, language="en"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["byte_bpe", "bpe", "wordpiece"])
def test_bytes_are_those_of_the_raw_text_and_the_asked_word_is_the_right_one(
    unit: str, tmp_path: Path
) -> None:
    texts = [RAW, *tiny.documents()[:5]]
    made = reader(unit)
    made.save(tmp_path)
    own = Tokenizer.load(tmp_path)
    tokens = encode_corpus(texts, own)
    assert tokens.text_bytes == sum(len(text.encode()) for text in texts)
    first = encode_corpus([RAW], own)
    assert first.text_bytes == len(RAW.encode()) and not own.lossless
    plain = encode_corpus([RAW], reader(unit, normalizer=None))
    assert first.ids.tolist() != plain.ids.tolist(), "else nothing was mended"
    words = ["“the", "bank”,", "donâ€™t", "—", "stop"]
    for target, wanted in enumerate(('" the', 'bank " ,', "don't", "-", "stop")):
        item = encode_word_in_context(words, target, own, max_length=40, language="en")
        asked = [
            own.backend_tokenizer.id_to_token(int(i))
            for i in item.encoded.ids[item.word_pieces[0][:, 0]]
        ]
        alone = own.backend_tokenizer.encode(wanted, add_special_tokens=False).tokens
        assert "".join(asked).strip("Ġ") == "".join(alone).strip("Ġ")


def test_mended_text_has_the_ids_of_its_mended_self() -> None:
    own = reader("byte_bpe")
    assert own.encode(RAW).ids.tolist() == own.encode(MENDED).ids.tolist()


def test_words_of_mended_text_are_cut_as_gpt_1_s_were_and_keep_their_accents() -> None:
    """Where OpenAIGPTTokenizer without ftfy has `cafe don ' t wait . . . u . s . 3 . 5`."""
    own = reader("bpe").backend_tokenizer
    text = own.normalizer.normalize_str(
        normalize_gpt1("Café don't wait... he'll see the U.S. at 3.5 (mid-day).").text
    )
    found = [word for word, _ in own.pre_tokenizer.pre_tokenize_str(text)]
    assert " ".join(found) == "café do n't wait ... he 'll see the u.s. at 3.5 ( mid - day ) ."


def test_switches_that_a_family_has_no_use_for_are_refused() -> None:
    for name, key, said in (
        ("elmo", {"normalizer": "ftfy"}, "normalizer: elmo"),
        ("bert", {"end_of_word_suffix": True}, "end_of_word_suffix: bert"),
    ):
        with pytest.raises(InputError, match=said):
            tiny.variant(name, tokenizer=key)
    found = tiny.variant("gpt", tokenizer={"end_of_word_suffix": True})
    assert found.tokenizer_type == "bpe" and found.mechanism["unit"] == "BPE of characters"


TRAINED = """
import hashlib
from tests.test_normalisation import reader
print(hashlib.sha256(reader("bpe").backend_tokenizer.to_str().encode()).hexdigest())
"""


def test_bpe_of_characters_has_the_same_ids_in_every_process() -> None:
    found = subprocess.run(
        [sys.executable, "-c", TRAINED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (
        found
        == hashlib.sha256(reader("bpe").backend_tokenizer.to_str().encode()).hexdigest() + "\n"
    )


def test_strange_characters_do_not_fill_the_vocabulary_of_characters() -> None:
    strange = [
        " ".join(chr(first + i) for i in range(150)) for first in (0x1200, 0x3400, 0xA000, 0x10A0)
    ]
    settings = TokenizerSettings(vocab_size=499, end_of_word_suffix=True)
    known = train_tokenizer(
        [*tiny.documents(), *strange], settings, tokenizer_type="bpe", language="en"
    ).backend_tokenizer.get_vocab()
    assert len(known) <= 499 and sum(len(piece.removesuffix("</w>")) > 1 for piece in known) > 200
    chinese = [" ".join(chr(0x4E00 + i) for i in range(300)) * 3, *tiny.documents()]
    known = train_tokenizer(
        chinese, settings, tokenizer_type="bpe", language="zh"
    ).backend_tokenizer.get_vocab()  # each of these takes two entries too
    assert (
        len(known) <= 499
        and any(len(piece.removesuffix("</w>")) > 1 for piece in known)
        and "\u4e00</w>" in known
    )
