"""Tokenizers are trained deterministically, and read corpora and task texts alike."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from lineage.errors import InputError
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny

HASH_SCRIPT = "import sys, hashlib; from tests.helpers import tiny; print(hashlib.sha256(tiny.tokenizer(sys.argv[1]).backend_tokenizer.to_str().encode()).hexdigest())"


def test_rare_characters_do_not_fill_a_wordpiece_vocabulary() -> None:
    rare_texts = [
        " ".join(chr(first + i) for i in range(150)) for first in (0x1200, 0x3400, 0xA000, 0x10A0)
    ]
    settings = TokenizerSettings(vocab_size=499)
    tokenizer = train_tokenizer(
        [*tiny.documents(), *rare_texts], settings, tokenizer_type="wordpiece", language="en"
    )
    vocab = tokenizer.backend_tokenizer.get_vocab()
    assert len(vocab) <= 499 and sum(len(piece.removeprefix("##")) > 1 for piece in vocab) > 250
    chinese = train_tokenizer(
        ["今天天气很好我们去公园" * 3], settings, tokenizer_type="wordpiece", language="zh"
    ).backend_tokenizer.get_vocab()
    assert "天" in chinese and "##天" not in chinese


# One model of each tokenizer type; WordPiece once failed.
@pytest.mark.parametrize("name", [*tiny.mark_slow(("elmo", "gpt")), "bert"])
def test_tokenizer_training_is_deterministic_across_processes(name: str) -> None:
    command = [sys.executable, "-c", HASH_SCRIPT, name]
    output = subprocess.run(
        command, cwd=tiny.ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (
        output
        == hashlib.sha256(tiny.tokenizer(name).backend_tokenizer.to_str().encode()).hexdigest()
        + "\n"
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_a_special_token_written_in_a_text_is_read_as_text(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    encoded = tokenizer.encode(" ".join(tokenizer.special_token_ids))
    text_ids = encoded.ids[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    assert not set(text_ids) & (
        set(tokenizer.special_token_ids.values())
        - {tokenizer.special_token_ids.get("<unk>"), tokenizer.special_token_ids.get("[UNK]")}
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_the_corpus_and_task_texts_get_the_same_ids(name: str) -> None:
    """Compare the first document in the flat arrays with `encode`, without special tokens."""
    tokenizer = tiny.tokenizer(name)
    tokens = tiny.corpus(name)
    text = tiny.documents()[0]
    corpus_ids = tokens.ids[: tokens.document_starts[1]]
    encoded = tokenizer.encode(text)
    text_ids = encoded.ids[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    special_ids = set(tokenizer.special_token_ids.values()) - {
        tokenizer.special_token_ids.get("<unk>")
    }
    corpus_ids = np.array([id_ for id_ in corpus_ids if id_ not in special_ids])
    if tokenizer.tokenizer_type == "word":
        corpus_ids = np.where(
            corpus_ids < tokenizer.vocab_size, corpus_ids, tokenizer.special_token_ids["<unk>"]
        )
    assert np.array_equal(corpus_ids, text_ids)


@pytest.mark.parametrize("name", ["elmo", "word2vec"])
def test_a_min_frequency_that_no_word_reaches_is_refused(name: str) -> None:
    config = tiny.model_config(name, tokenizer={"min_frequency": 10**6})
    with pytest.raises(
        InputError,
        match=r"tokenizer\.min_frequency: no word of the corpus occurs 1,000,000 times; lower it",
    ):
        train_tokenizer(
            tiny.documents(), config.tokenizer, tokenizer_type=config.tokenizer_type, language="en"
        )


def test_lowercasing_is_the_same_in_pretraining_and_afterwards() -> None:
    """Python's lower() looks at the neighbours of a final capital sigma; `tokenizers` does not."""
    tokenizer = train_tokenizer(
        ["λογοσ και ΛΟΓΟΣ ."] * 4,
        TokenizerSettings(vocab_size=99, lowercase=True),
        tokenizer_type="word",
        language="el",
    )
    assert tokenizer.surface_form("ΛΟΓΟΣ", 0, 5) == "λογοσ"
    tokens = encode_corpus(["λογοσ και ΛΟΓΟΣ ."], tokenizer)
    assert (
        {*np.asarray(tokens.ids).tolist()}
        >= {*tokenizer.encode("λογοσ").ids.tolist()}
        == {*tokenizer.encode("ΛΟΓΟΣ").ids.tolist()}
    )
