"""Word vectors in the text and binary formats of word2vec's program.

The first line has the numbers of words and of units; then come each word, a space and its values:
written out, or as 32-bit floats.

Shapes: W words, D units.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lineage.errors import InputError
from lineage.networks.base import Encoder
from lineage.networks.static import NUM_SPECIAL_TOKENS, StaticVectors, vocab_words
from lineage.tokenizers.tokenizer import Encoding, Tokenizer

MAX_WORD_BYTES = 10_000  # a binary file without a space within this many bytes is another format


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, in the order of a file."""

    words: list[str]
    vectors_WD: np.ndarray  # float32


@torch.inference_mode()
def get_word_vectors(model: Encoder, tokenizer: Tokenizer) -> WordVectors:
    """Return the vectors of a static model's whole vocabulary, most frequent word first."""
    if not isinstance(model, StaticVectors):
        raise InputError(
            "only word2vec, fastText and GloVe have one vector a word; this model's depend on the "
            "context"
        )
    words = vocab_words(tokenizer)
    ids = np.arange(NUM_SPECIAL_TOKENS, NUM_SPECIAL_TOKENS + len(words))
    batch = tokenizer.collate([Encoding(ids, np.zeros((len(ids), 2), np.int64), tuple(words))])
    device = next(model.parameters()).device
    (vectors_1WD,) = model.eval().encode(batch.to(device))
    return WordVectors(words, vectors_1WD[0].float().cpu().numpy())


def set_word_vectors(vectors: WordVectors, model: Encoder, tokenizer: Tokenizer) -> int:
    """Set the vectors of the words that a word2vec or GloVe model knows; return their number.

    An unknown word gets the mean of the rarest; words that the file lacks keep their vectors.
    Raises InputError if widths differ.
    """
    if type(model) is not StaticVectors:
        raise InputError(
            "only a model of word2vec or GloVe takes vectors of words; fastText's are made of "
            "n-grams, which the file does not have"
        )
    if model.config.hidden_size != vectors.vectors_WD.shape[1]:
        raise InputError(
            f"the vectors have {vectors.vectors_WD.shape[1]} units and the model "
            f"{model.config.hidden_size}; build it with that width"
        )
    row_by_word = {word: row for row, word in enumerate(vocab_words(tokenizer))}
    table = model.words.weight[NUM_SPECIAL_TOKENS:].detach().cpu().numpy().copy()
    num_known = 0
    for word, vector in zip(vectors.words, vectors.vectors_WD, strict=True):
        if word in row_by_word:
            table[row_by_word[word]] = vector
            num_known += 1
    model.load_vectors(table)
    return num_known


def write_word2vec(vectors: WordVectors, path: Path, *, binary: bool = False) -> None:
    """Write a whole file or nothing, byte by byte as gensim does.

    Raises InputError for a word that the format cannot hold.
    """
    for word in vectors.words:
        if not word or " " in word or "\n" in word:
            raise InputError(
                f"the word {word!r} is empty or has a space or a line end, with which this format "
                "ends a word; leave it out"
            )
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(f"{len(vectors.words)} {vectors.vectors_WD.shape[1]}\n".encode())
        for word, vector in zip(vectors.words, vectors.vectors_WD.astype("<f4"), strict=True):
            values = vector.tobytes() if binary else " ".join(map(str, vector)).encode() + b"\n"
            file.write(word.encode() + b" " + values)
    draft.replace(path)


def read_word2vec(path: Path, *, binary: bool = False) -> WordVectors:
    """Read a file. Raises InputError with the line, or the number of the word, that is wrong."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; correct the path")
    first_line, _, content = path.read_bytes().partition(b"\n")
    try:
        count, width = (int(number) for number in first_line.split())
    except ValueError:
        raise InputError(
            f"{path}: line 1 is not the number of words and the number of units, but "
            f"{first_line[:60]!r}; write both there"
        ) from None
    if count < 1 or width < 1:
        raise InputError(f"{path}: line 1: {count} words of {width} units; both are at least 1")
    if count * width > len(content):
        raise InputError(
            f"{path}: line 1 says {count} words of {width} units, more numbers than bytes follow; "
            "the file is cut short, or line 1 is wrong"
        )
    parse = _parse_binary if binary else _parse_text
    vectors = parse(path, content, count, width)
    _check_vectors(vectors, path, binary=binary)
    return vectors


def _check_vectors(vectors: WordVectors, path: Path, *, binary: bool) -> None:
    """Raise InputError for values that are not finite and for words that occur twice."""

    def place(index: int) -> str:
        return f"word {index + 1}" if binary else f"line {index + 2}"

    not_finite = np.flatnonzero(~np.isfinite(vectors.vectors_WD).all(1))
    if len(not_finite):
        index = int(not_finite[0])
        raise InputError(
            f"{path}: {place(index)}: the vector of {vectors.words[index]!r} has a number that is "
            "not finite; remove it"
        )
    index_by_word: dict[str, int] = {}
    for index, word in enumerate(vectors.words):
        if word in index_by_word:
            raise InputError(
                f"{path}: {place(index)}: the word {word!r} stands at "
                f"{place(index_by_word[word])} already; remove one"
            )
        index_by_word[word] = index


def _parse_text(path: Path, content: bytes, count: int, width: int) -> WordVectors:
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    if len(lines) != count:
        raise InputError(
            f"{path}: line 1 says {count} words, and {len(lines)} lines follow; the file is cut "
            "short, or the number is wrong"
        )
    words = []
    vectors_WD = np.empty((count, width), np.float32)
    for index, line in enumerate(lines):
        where = f"{path}: line {index + 2}"
        raw_word, *values = line.removesuffix(b"\r").removesuffix(b" ").split(b" ")
        word = _decode_word(raw_word, where)
        words.append(word)
        if len(values) != width:
            advice = "complete the line, or remove it"
            if len(values) > width:
                advice = "a word cannot have a space"
            raise InputError(
                f"{where}: {len(values)} numbers follow the word {word!r}, and line 1 says "
                f"{width}; {advice}"
            )
        try:
            vectors_WD[index] = [float(value) for value in values]
        except ValueError as error:
            raise InputError(
                f"{where}: {error}; write a number there, or remove the line"
            ) from None
    return WordVectors(words, vectors_WD)


def _parse_binary(path: Path, content: bytes, count: int, width: int) -> WordVectors:
    words = []
    vectors_WD = np.empty((count, width), np.float32)
    position = 0
    for index in range(count):
        where = f"{path}: word {index + 1} of {count}"
        # word2vec's program ends each vector with a newline, gensim does not.
        if content[position : position + 1] == b"\n":
            position += 1
        space = content.find(b" ", position, position + MAX_WORD_BYTES)
        end = space + 1 + 4 * width
        if space < 0 or end > len(content):
            raise InputError(
                f"{where}: the file ends before its {width} numbers do; it is cut short, or is no "
                "binary file of this kind"
            )
        words.append(_decode_word(content[position:space], where))
        vectors_WD[index] = np.frombuffer(content, "<f4", width, space + 1)
        position = end
    if content[position:].strip(b"\n"):
        raise InputError(
            f"{path}: {len(content) - position} bytes follow the last of {count} words of {width} "
            "units; line 1 is wrong, or this is a text file"
        )
    return WordVectors(words, vectors_WD)


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
