"""Vectors of words as word2vec's own program writes them, in text or binary: what gensim, spaCy, GloVe's converter and fastText's .vec share.

A first line with the number of words and of units, then each word, a space and its numbers: written out, or as 32-bit floats.
Shapes: W words, D units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lineage.errors import InputError
from lineage.models.base import Encoder
from lineage.models.static import StaticVectors, vocab_words
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Encoding, Tokenizer

MAX_WORD_BYTES = 10_000  # bytes of a word in a binary file: where no space comes so long, the file is no such one


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, in the order of a file."""

    words: list[str]
    vectors_WD: np.ndarray  # float32


@torch.inference_mode()
def get_word_vectors(model: Encoder, tokenizer: Tokenizer) -> WordVectors:
    """The vectors of a static family's whole vocabulary, most frequent word first; those of fastText with their n-grams. Raises InputError."""
    if not isinstance(model, StaticVectors):
        raise InputError(
            "only word2vec, fastText and GloVe have one vector a word; this model's depend on what stands around"
        )
    words = vocab_words(tokenizer)
    ids = np.arange(len(SPECIAL_TOKENS["word"]), len(SPECIAL_TOKENS["word"]) + len(words))
    batch = tokenizer.collate([Encoding(ids, np.zeros((len(ids), 2), np.int64), tuple(words))])
    return WordVectors(
        words,
        model.eval().encode(batch.to(next(model.parameters()).device))[0][0].float().cpu().numpy(),
    )


def set_word_vectors(vectors: WordVectors, model: Encoder, tokenizer: Tokenizer) -> int:
    """Give a model of word2vec or GloVe the vectors of the words that it knows; how many it knew. Raises InputError where widths differ.

    An unknown word gets the mean of the rarest, as after a training here; words that the file does not have keep their vectors.
    """
    if type(model) is not StaticVectors:
        raise InputError(
            "only a model of word2vec or GloVe takes vectors of words; fastText's are made of n-grams, which the file does not have"
        )
    if model.config.hidden_size != vectors.vectors_WD.shape[1]:
        raise InputError(
            f"the vectors have {vectors.vectors_WD.shape[1]} units and the model {model.config.hidden_size}; build it with that width"
        )
    own = {word: row for row, word in enumerate(vocab_words(tokenizer))}
    found = model.words.weight[len(SPECIAL_TOKENS["word"]) :].detach().cpu().numpy().copy()
    known = [(own[word], row) for row, word in enumerate(vectors.words) if word in own]
    if known:
        to, where = np.array(known).T
        found[to] = vectors.vectors_WD[where]
    model.load_vectors(found)
    return len(known)


def write_word2vec(vectors: WordVectors, path: Path, *, binary: bool = False) -> None:
    """Write a file, whole or not at all, byte by byte as gensim does. Raises InputError for a word that the format cannot hold."""
    for word in vectors.words:
        if not word or any(mark in word for mark in " \n"):
            raise InputError(
                f"the word {word!r} is empty or has a space or a line end, with which this format ends a word; leave it out"
            )
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(f"{len(vectors.words)} {vectors.vectors_WD.shape[1]}\n".encode())
        for word, vector in zip(vectors.words, vectors.vectors_WD.astype("<f4"), strict=True):
            numbers = vector.tobytes() if binary else " ".join(map(str, vector)).encode() + b"\n"
            file.write(word.encode() + b" " + numbers)
    draft.replace(path)


def read_word2vec(path: Path, *, binary: bool = False) -> WordVectors:
    """Read a file whole. Raises InputError with the file and the line, or the number of the word, that does not fit."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; correct the path")
    content = path.read_bytes()
    first, _, rest = content.partition(b"\n")
    try:
        count, width = (int(number) for number in first.split())
    except ValueError:
        raise InputError(
            f"{path}: line 1 is not the number of words and the number of units, but {first[:60]!r}; write both there"
        ) from None
    if count < 1 or width < 1:
        raise InputError(f"{path}: line 1: {count} words of {width} units; both are at least 1")
    if count * width > len(rest):
        raise InputError(
            f"{path}: line 1 says {count} words of {width} units, more numbers than bytes follow; the file is cut short, or line 1 is wrong"
        )
    words, vectors_WD = (
        _parse_binary(path, rest, count, width) if binary else _parse_text(path, rest, count, width)
    )
    unit, offset = ("word", 1) if binary else ("line", 2)
    wrong = np.flatnonzero(~np.isfinite(vectors_WD).all(1))
    if len(wrong):
        raise InputError(
            f"{path}: {unit} {wrong[0] + offset}: the vector of {words[wrong[0]]!r} has a number that is not finite; remove it"
        )
    places: dict[str, int] = {}
    for number, word in enumerate(words):
        if places.setdefault(word, number) != number:
            raise InputError(
                f"{path}: {unit} {number + offset}: the word {word!r} stands at {unit} {places[word] + offset} already; remove one"
            )
    return WordVectors(words, vectors_WD)


def _parse_text(path: Path, rest: bytes, count: int, width: int) -> tuple[list[str], np.ndarray]:
    lines = rest.removesuffix(b"\n").split(b"\n") if rest else []
    if len(lines) != count:
        raise InputError(
            f"{path}: line 1 says {count} words, and {len(lines)} lines follow; the file is cut short, or the number is wrong"
        )
    words, vectors_WD = [], np.empty((count, width), np.float32)
    for number, line in enumerate(lines):
        where = f"{path}: line {number + 2}"
        word, *numbers = line.removesuffix(b"\r").removesuffix(b" ").split(b" ")
        words.append(_decode_word(word, where))
        if len(numbers) != width:
            todo = (
                "a word cannot have a space"
                if len(numbers) > width
                else "complete the line, or remove it"
            )
            raise InputError(
                f"{where}: {len(numbers)} numbers follow the word {words[-1]!r}, and line 1 says {width}; {todo}"
            )
        vectors_WD[number] = _parse_floats(numbers, where)
    return words, vectors_WD


def _parse_floats(fields: Sequence[bytes], where: str) -> list[float]:
    try:
        return [float(field) for field in fields]
    except ValueError as error:
        raise InputError(f"{where}: {error}; write a number there, or remove the line") from None


def _parse_binary(path: Path, rest: bytes, count: int, width: int) -> tuple[list[str], np.ndarray]:
    words, vectors_WD, at = [], np.empty((count, width), np.float32), 0
    for number in range(count):
        where = f"{path}: word {number + 1} of {count}"
        at += (
            rest[at : at + 1] == b"\n"
        )  # word2vec's own program ends each vector with it, gensim does not
        space = rest.find(b" ", at, at + MAX_WORD_BYTES)
        end = space + 1 + 4 * width
        if space < 0 or end > len(rest):
            raise InputError(
                f"{where}: the file ends before its {width} numbers do; it is cut short, or is no binary file of this kind"
            )
        words.append(_decode_word(rest[at:space], where))
        vectors_WD[number], at = np.frombuffer(rest, "<f4", width, space + 1), end
    if rest[at:].strip(b"\n"):
        raise InputError(
            f"{path}: {len(rest) - at} bytes follow the last of {count} words of {width} units; line 1 is wrong, or this is a text file"
        )
    return words, vectors_WD


def _decode_word(raw: bytes, where: str) -> str:
    try:
        word = raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: the word is not UTF-8: {error}; save the file as UTF-8"
        ) from None
    if not word:
        raise InputError(f"{where}: there is no word; remove its numbers")
    return word
