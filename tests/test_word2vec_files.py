"""Word vector files equal gensim's; an invalid file is refused with its line."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors

from lineage.artifacts import create_artifact
from lineage.errors import InputError
from lineage.formats.word2vec import (
    WordVectors,
    get_word_vectors,
    read_word2vec,
    set_word_vectors,
    write_word2vec,
)
from lineage.networks.static import StaticVectors, vocab_words
from lineage.serving.export import export
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from tests.helpers import tiny

VECTORS = WordVectors(
    ["the", "Käse", "乳酪", "naïve'"],
    np.array([[1, -2.5, 3e-7], [0.1, 0, 4], [7, 8, 9.25], [-1e10, 1 / 3, 2]], np.float32),
)


@pytest.mark.parametrize("name", tiny.STATIC)
@pytest.mark.parametrize("binary", [False, True])
def test_gensim_reads_our_files(name: str, tmp_path: Path, *, binary: bool) -> None:
    model = tiny.model(name).eval()
    tokenizer = tiny.tokenizer(name)
    write_word2vec(get_word_vectors(model, tokenizer), tmp_path / "v", binary=binary)
    gensim_vectors = KeyedVectors.load_word2vec_format(str(tmp_path / "v"), binary=binary)
    assert gensim_vectors.index_to_key == vocab_words(tokenizer)
    # Leave out the full stop, which would end the sentence.
    words = [word for word in gensim_vectors.index_to_key if word != "."][:9]
    batch = tokenizer.collate([tokenizer.encode(" ".join(words))])
    layer = model.encode(batch)[0][0, 1:-1].detach().numpy()
    np.testing.assert_array_equal(layer, np.stack([gensim_vectors[word] for word in words]))


@pytest.mark.parametrize("binary", [False, True])
def test_files_equal_gensim_s_byte_for_byte_and_are_read_back(
    tmp_path: Path, *, binary: bool
) -> None:
    gensim_vectors = KeyedVectors(3)
    gensim_vectors.add_vectors(VECTORS.words, VECTORS.vectors_WD)
    gensim_vectors.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    write_word2vec(VECTORS, tmp_path / "ours", binary=binary)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    loaded = read_word2vec(tmp_path / "theirs", binary=binary)
    assert loaded.words == VECTORS.words
    np.testing.assert_array_equal(loaded.vectors_WD, VECTORS.vectors_WD)
    assert loaded.vectors_WD.dtype == np.float32


def test_files_with_the_line_ends_of_the_original_program_are_read(tmp_path: Path) -> None:
    """It writes a space after the last number of a line, and a newline after each binary vector."""
    (tmp_path / "t").write_bytes(b"2 2\na 1.0 2.0 \nb 3.0 4.0 \n")
    binary_vectors = [np.array(vector, "<f4").tobytes() for vector in ([1, 2], [3, 4])]
    (tmp_path / "b").write_bytes(
        b"2 2\na " + binary_vectors[0] + b"\nb " + binary_vectors[1] + b"\n"
    )
    for file, binary in (("t", False), ("b", True)):
        loaded = read_word2vec(tmp_path / file, binary=binary)
        assert loaded.words == ["a", "b"] and loaded.vectors_WD.tolist() == [[1, 2], [3, 4]]


VALID_TEXT = b"3 2\na 1 2\nb 3 4\nc 5 6\n"
INVALID_TEXTS = {
    "no header": (b"a 1 2\nb 3 4\n", "line 1 is not the number of words .*; write both there"),
    "empty": (b"", "line 1 is not the number"),
    "nothing": (b"0 2\n", "line 1: 0 words"),
    "too few": (VALID_TEXT.replace(b"c 5 6\n", b""), "line 1 says 3 words, and 2 lines follow"),
    "too many": (VALID_TEXT + b"d 7 8\n", "line 1 says 3 words, and 4 lines follow"),
    "no words": (b"3 2\n", "line 1 says 3 words of 2 units, more numbers than bytes follow"),
    "far more words": (
        VALID_TEXT.replace(b"3 2", b"999999999999 2"),
        "more numbers than bytes follow",
    ),
    "narrow": (
        VALID_TEXT.replace(b"b 3 4", b"b 3"),
        "line 3: 1 numbers follow the word 'b', and line 1 says 2; complete the line",
    ),
    "a space in a word": (
        VALID_TEXT.replace(b"b 3 4", b"b b 3 4"),
        "line 3: 3 numbers follow the word 'b', and line 1 says 2; a word cannot have a space",
    ),
    "no number": (
        VALID_TEXT.replace(b"4", b"four"),
        "line 3: could not convert .*; write a number there",
    ),
    "not finite": (
        VALID_TEXT.replace(b"6", b"nan"),
        "line 4: the vector of 'c' has a number that is not finite",
    ),
    "too large": (
        VALID_TEXT.replace(b"6", b"1e60"),
        "line 4: the vector of 'c' has a number that is not finite",
    ),
    "twice": (VALID_TEXT.replace(b"c 5", b"a 5"), "line 4: the word 'a' stands at line 2 already"),
    "no word": (VALID_TEXT.replace(b"c 5 6", b" 5 6"), "line 4: there is no word; remove"),
    "not UTF-8": (
        VALID_TEXT.replace(b"b ", b"\xff "),
        "line 3: the word is not UTF-8: .*; save the file",
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("case", INVALID_TEXTS)
def test_an_invalid_text_file_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    content, message = INVALID_TEXTS[case]
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_word2vec(tmp_path / "v.txt")
    assert str(error.value).startswith(f"{tmp_path / 'v.txt'}: ")


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (0, -1, "word 4 of 4: the file ends before"),
        (0, -14, "word 4 of 4: the file ends before"),
        (0, 20, "word 2 of 4: the file ends before"),
    ],
)
def test_a_truncated_binary_file_is_refused_with_the_word(
    start: int, end: int, message: str, tmp_path: Path
) -> None:
    write_word2vec(VECTORS, tmp_path / "whole", binary=True)
    (tmp_path / "v.bin").write_bytes((tmp_path / "whole").read_bytes()[start:end])
    with pytest.raises(InputError, match=message):
        read_word2vec(tmp_path / "v.bin", binary=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [(b"4 3\n", b"3 3\n", "bytes follow the last of 3 words"), (b"4 3\n", b"5 3\n", "word 5 of 5: the file ends"),
     (b"4 3\n", b"4 9\n", "word [234] of 4: the file ends|word [234] of 4: the word is not UTF-8"),
     (np.float32(9.25).tobytes(), np.float32(np.inf).tobytes(), "word 3: the vector of '乳酪' has a number that is not finite"),
     ("Käse".encode(), b"the", "word 2: the word 'the' stands at word 1 already")],
)  # fmt: skip
def test_an_invalid_binary_file_is_refused(
    old: bytes, new: bytes, message: str, tmp_path: Path
) -> None:
    write_word2vec(VECTORS, tmp_path / "whole", binary=True)
    (tmp_path / "v.bin").write_bytes((tmp_path / "whole").read_bytes().replace(old, new))
    with pytest.raises(InputError, match=message):
        read_word2vec(tmp_path / "v.bin", binary=True)


def test_reading_text_as_binary_or_binary_as_text_is_refused(tmp_path: Path) -> None:
    for binary in (False, True):
        write_word2vec(VECTORS, tmp_path / "v", binary=binary)
        with pytest.raises(InputError, match=str(tmp_path)):
            read_word2vec(tmp_path / "v", binary=not binary)
    with pytest.raises(InputError, match="there is no such file; correct the path"):
        read_word2vec(tmp_path / "none")


@pytest.mark.parametrize("word", ["two words", "", "a\nb"])
def test_a_word_that_the_format_cannot_hold_is_refused_and_nothing_is_written(
    word: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is empty or has a space"):
        write_word2vec(WordVectors(["a", word], np.zeros((2, 3), np.float32)), tmp_path / "v")
    assert not [*tmp_path.iterdir()]


def test_vectors_of_a_file_replace_those_of_the_same_words() -> None:
    model = tiny.model("word2vec")
    tokenizer = tiny.tokenizer("word2vec")
    assert isinstance(model, StaticVectors)
    words = vocab_words(tokenizer)
    before = model.words.weight.detach().clone()
    file_vectors = np.random.default_rng(1).normal(size=(3, 17)).astype(np.float32)
    assert (
        set_word_vectors(
            WordVectors([words[5], "zwölfzylinder", words[2]], file_vectors), model, tokenizer
        )
        == 2
    )
    first_row = len(SPECIAL_TOKENS["word"])
    np.testing.assert_array_equal(
        model.words.weight[[first_row + 5, first_row + 2]].detach().numpy(), file_vectors[[0, 2]]
    )
    assert torch.equal(model.words.weight[first_row + 6 :], before[first_row + 6 :])
    torch.testing.assert_close(
        model.words.weight[SPECIAL_TOKENS["word"].index("<unk>")], model.words.weight[-100:].mean(0)
    )


def test_the_code_of_the_docs_writes_and_reads_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny.checkpoint("word2vec")
    model = tiny.model("word2vec")
    with create_artifact(tmp_path / "artifacts/pretrained/word2vec/0", "model") as draft:
        checkpoint.save(draft, model)
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny.ROOT / "params.yaml", tmp_path)
    export("word2vec", Path("vectors.bin"))
    (code,) = re.findall(
        r"```python\n(.*?)```",
        (tiny.ROOT / "docs/how-to/models-in-and-out.md").read_text(),
        re.DOTALL,
    )
    names: dict[str, object] = {}
    exec(code.partition("bert =")[0] + code[code.index("trained =") :], names)
    assert names["known"] == len(vocab_words(tiny.tokenizer("word2vec")))
    words = KeyedVectors.load_word2vec_format("vectors.bin", binary=True)
    np.testing.assert_array_equal(
        words.vectors, model.words.weight[len(SPECIAL_TOKENS["word"]) :].detach().numpy()
    )  # type: ignore[union-attr, operator, index]


def test_vectors_of_another_width_or_a_model_of_another_kind_are_refused() -> None:
    vectors = WordVectors(["a"], np.zeros((1, 5), np.float32))
    with pytest.raises(InputError, match="5 units and the model 17"):
        set_word_vectors(vectors, tiny.model("word2vec"), tiny.tokenizer("word2vec"))
    with pytest.raises(InputError, match="fastText's are made of n-grams"):
        set_word_vectors(vectors, tiny.model("fasttext"), tiny.tokenizer("fasttext"))
    with pytest.raises(InputError, match="depend on the context"):
        get_word_vectors(tiny.model("elmo"), tiny.tokenizer("elmo"))
