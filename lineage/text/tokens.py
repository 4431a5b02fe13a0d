"""A corpus as ids: flat, memory-mapped arrays, so that training reads no text and any document or sentence is a slice."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lineage.artifacts import read_array, write_array
from lineage.errors import InputError
from lineage.text.tokenization import Cut, Reader, sentence_starts, type_table

CHUNK = 256  # documents encoded at a time
ARRAYS = ("ids", "bytes", "documents", "sentences", "types_UC", "languages")


@dataclass(frozen=True)
class Tokens:
    """One split. For units of words, ids of the vocabulary and above it: the closed vocabulary first, then every other word once."""

    ids: np.ndarray  # (N,) marks included: <S> .. </S> round a sentence, <|endoftext|> before a document, none for WordPiece
    bytes: np.ndarray  # (N,) bytes of raw text that each id stands for; their sum is the text's size
    documents: np.ndarray  # (D + 1,) first id of each document, and N
    sentences: np.ndarray  # (S + 1,) first id of each sentence, and N
    types_UC: np.ndarray | None = None  # (types, word_bytes), units of words only
    languages: np.ndarray | None = None  # (D,) of each document, such as en; where a corpus has more than one

    @property
    def text_bytes(self) -> int:
        """Bytes of raw text in all."""
        return int(self.bytes.sum(dtype=np.int64))

    def save(self, folder: Path, split: str) -> None:
        """Write the arrays as SPLIT.NAME.npy."""
        for name in ARRAYS:
            if getattr(self, name) is not None:
                write_array(folder / f"{split}.{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path, split: str) -> "Tokens":
        """Read what `save` wrote."""
        return cls(**{n: read_array(folder / f"{split}.{n}.npy") for n in ARRAYS if (folder / f"{split}.{n}.npy").is_file()})

    def part(self, language: str | None) -> "Tokens":
        """The documents of one language; all of them where none is named, or where none is known. Raises InputError where it has none."""
        if language is None or self.languages is None:
            return self
        chosen = np.flatnonzero(self.languages == language)
        if not len(chosen):
            raise InputError(f"the corpus: train or valid holds no document in '{language}'; add text with `language: {language}`, or raise "
                             "validation_share")  # fmt: skip
        firsts, ends = self.documents[chosen], self.documents[chosen + 1]
        where = np.concatenate([np.arange(a, b) for a, b in zip(firsts, ends, strict=True)])
        starts = self.sentences[:-1]
        sentences = np.append(np.searchsorted(where, starts[np.isin(starts, where)]), len(where))
        documents = np.concatenate([[0], np.cumsum(ends - firsts)])
        return Tokens(self.ids[where], self.bytes[where], documents, sentences, self.types_UC)


def encode_corpus(
    texts: Sequence[str], reader: Reader, *, languages: Sequence[str] = (), report: Callable[[float, str], None] = lambda done, note: None
) -> Tokens:
    """Texts as one flat array of ids, each a document; `languages` is that of each where there are several; `report` is told how many are done."""
    parts: list[_Encoded] = []
    types: dict[str, int] = dict(sorted(reader.tokenizer.get_vocab().items(), key=lambda pair: pair[1])) if reader.unit == "word" else {}
    for first in range(0, len(texts), CHUNK):
        some = list(texts[first : first + CHUNK])
        parts += [_document(text, cut, reader, types) for text, cut in zip(some, reader.pieces(some), strict=True)]
        report(first + len(some), "documents")
    found = _joined(parts, list(types), reader)
    return dataclasses.replace(found, languages=np.array(languages, np.str_)) if len(languages) else found


@dataclass(frozen=True)
class _Encoded:
    ids: np.ndarray
    bytes: np.ndarray
    sentences: np.ndarray


def _document(text: str, cut: Cut, reader: Reader, types: dict[str, int]) -> _Encoded:
    ids, sizes = cut.ids, _token_bytes(text, cut.spans)
    firsts = sentence_starts(text, cut.spans[:, 0], reader.language)
    if reader.unit == "word":
        unknown = reader.marks["<unk>"]
        ids = np.array(
            [i if i != unknown else types.setdefault(reader.written(cut.text, a, b), len(types)) for i, (a, b) in zip(ids, cut.own, strict=True)],
            np.int64,
        )
        where, marks = reader.sentence_marks(firsts, len(ids))
        ids, sizes = np.insert(ids, where, marks), np.insert(sizes, where, 0)
        firsts = firsts + 2 * np.arange(len(firsts))
    elif reader.unit != "wordpiece" and reader.frame.first and reader.frame.mask is None:
        ids, sizes = np.insert(ids, 0, reader.frame.first), np.insert(sizes, 0, np.zeros(len(reader.frame.first), sizes.dtype))
        firsts = np.where(firsts > 0, firsts + len(reader.frame.first), 0)
    if reader.direction == "backward":
        ids, sizes, firsts = ids[::-1], sizes[::-1], (len(ids) - np.append(firsts[1:], len(ids)))[::-1]
    return _Encoded(ids.astype(np.int32), sizes, firsts)


def _token_bytes(text: str, offsets: np.ndarray) -> np.ndarray:
    """Bytes from each token's start to the next one's, so that they add up to the whole text, spaces included."""
    if len(offsets) == 0:
        return np.zeros(0, np.uint32)
    size = len(text.encode())
    cuts = offsets[:, 0]
    if size != len(text):
        before = np.concatenate([[0], np.cumsum([len(c.encode()) for c in text])])
        cuts = before[cuts]
    return np.diff(np.concatenate([[0], cuts[1:], [size]])).astype(np.uint32)


def _joined(parts: list[_Encoded], types: list[str], reader: Reader) -> Tokens:
    lengths = np.array([len(p.ids) for p in parts], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    sentences = np.concatenate([*(p.sentences + start for p, start in zip(parts, starts, strict=False)), starts[-1:]])
    ids, sizes = np.concatenate([p.ids for p in parts]), np.concatenate([p.bytes for p in parts])
    table = type_table(types, reader.word_bytes) if reader.unit == "word" else None
    return Tokens(ids, sizes, starts, sentences.astype(np.int64), table)
