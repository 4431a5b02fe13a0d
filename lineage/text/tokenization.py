"""A variant's own tokenizer as one `Reader` for all families. `lineage.text.vocabulary` trains it.

Units: `word` (a closed vocabulary for the softmax; any word's bytes for a character encoder), `byte_bpe` (lossless), `bpe` (of characters, with
</w> at a word's end, as in GPT-1), `wordpiece`, and `own`, a public checkpoint's (`lineage.loading.public_reader`).
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer

from lineage.artifacts import read_json, write_json
from lineage.batch import Batch
from lineage.errors import InputError
from lineage.records import load, positive
from lineage.text.language import lowered, sentence_spans, spaceless
from lineage.text.normalisation import NORMALISERS, Normaliser
from lineage.text.pieces import Pieces

Unit = Literal["word", "byte_bpe", "bpe", "wordpiece", "own"]
Direction = Literal["forward", "backward"]
MARKS = {
    "word": ("<pad>", "<unk>", "<S>", "</S>"),
    "byte_bpe": ("<|endoftext|>", "<|extract|>"),
    "bpe": ("<|endoftext|>", "<|extract|>", "<|delimiter|>", "<unk>"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "own": (),
}
FRAMES = {  # of the marks above: before a text, between two, after the last; words have theirs round every sentence
    "word": ((), (), ()),
    "byte_bpe": (("<|endoftext|>",), ("<|endoftext|>",), ("<|extract|>",)),
    "bpe": (("<|endoftext|>",), ("<|delimiter|>",), ("<|extract|>",)),
    "wordpiece": (("[CLS]",), ("[SEP]",), ("[SEP]",)),
}
# Byte ids of a word, as in AllenNLP's ELMo: 0 is padding beyond a sentence, a byte b is b + 1.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD_BYTE, BYTE_IDS = 257, 258, 259, 260, 261, 262
BYTES_OF_A_WORD = range(16, 10_001)


@dataclass(frozen=True)
class TokenizerSettings:
    """The block `tokenizer` of a model."""

    vocabulary: int
    lowercase: bool = False
    minimum_count: int = 1
    word_bytes: int = 50  # with the marks of begin and end; longer words are cut (units of words only)
    direction: Direction = "forward"  # backward: every text is read from its end, in pretraining and after
    normalise: Normaliser | None = None  # before text is cut: ftfy, as GPT-1 (pieces alone); fastai, as ULMFiT, case and repetitions as words
    end_of_word: bool = False  # BPE of characters with </w> at a word's end, as in GPT-1, instead of BPE of bytes

    def __post_init__(self) -> None:
        positive(self, "vocabulary", "minimum_count")
        if self.word_bytes not in BYTES_OF_A_WORD:
            raise ValueError(f"word_bytes is {self.word_bytes}; it is from 16, for the marks and the widest filter, to 10,000")
        if self.normalise == "fastai" and self.lowercase:
            raise ValueError("lowercase is true, and normalise: fastai lowers case itself, and says so in words of its own; set it to false")


@dataclass(frozen=True)
class Frame:
    """The marks round a text, as ids."""

    first: tuple[int, ...] = ()
    between: tuple[int, ...] = ()  # of two texts
    last: tuple[int, ...] = ()
    pad: int = 0
    mask: int | None = None  # the masked word; none where a text is read from the left
    unknown: int | None = None  # what stands for all that the vocabulary lacks; none where every text has pieces
    second: Literal[0, 1] = 1  # the segment of the second of two texts

    @property
    def round_one(self) -> int:
        """How many marks a text has."""
        return len(self.first) + len(self.last)


@dataclass(frozen=True)
class ReaderSettings:
    """reader.json: what there is to say of a reader beside its tokenizer. `frame` and `lossless` are said of a unit `own` alone."""

    unit: Unit
    language: str
    word_bytes: int
    direction: Direction
    normalise: Normaliser | None
    frame: Frame | None = None
    lossless: bool = False

    def __post_init__(self) -> None:
        if self.word_bytes not in BYTES_OF_A_WORD:
            raise ValueError(f"word_bytes is {self.word_bytes}; it is from 16 to 10,000")
        if (self.unit == "own") != (self.frame is not None):
            raise ValueError(f"the unit is '{self.unit}', and frame is {'missing' if self.frame is None else 'given'}; it belongs to the unit own")
        if (frame := self.frame) and min(*frame.first, *frame.between, *frame.last, frame.pad, frame.mask or 0, 0) < 0:
            raise ValueError("frame has a mark below 0; a mark is an id")


@dataclass(frozen=True)
class Cut:
    """One text as pieces, without marks."""

    ids: np.ndarray  # (T,)
    spans: np.ndarray  # (T, 2) of characters in the text as it is given, whatever was done to it first
    text: str  # what was cut into pieces: the text as it is given, or normalised
    own: np.ndarray  # (T, 2) of characters in that


@dataclass(frozen=True)
class Encoded:
    """One text as ids, each with its span of characters in the text; a mark such as [CLS] has an empty span."""

    ids: np.ndarray  # (T,)
    spans: np.ndarray  # (T, 2)
    words: tuple[str, ...] = ()  # unit word: the written words, marks included
    cut: bool = False  # longer than the limit
    segments: np.ndarray | None = None  # (T,) of two texts: which one a position belongs to, 0 or 1

    def turned(self) -> "Encoded":
        """The same text from its end to its beginning."""
        segments = None if self.segments is None else self.segments[::-1].copy()
        return Encoded(self.ids[::-1].copy(), self.spans[::-1].copy(), self.words[::-1], self.cut, segments)


class Reader:
    """Text in, ids out, the same way in pretraining, adaptation and evaluation."""

    def __init__(self, tokenizer: Tokenizer, settings: ReaderSettings) -> None:
        unit, frame = settings.unit, settings.frame
        self.tokenizer, self.settings, self.unit, self.language = tokenizer, settings, unit, settings.language
        self.word_bytes, self.direction, self.normalise = settings.word_bytes, settings.direction, settings.normalise
        tokenizer.encode_special_tokens = True  # a [MASK] that is written in a text is text
        self.lossless = settings.lossless if unit == "own" else unit == "byte_bpe" and tokenizer.normalizer is None and self.normalise is None
        self.lowercase = unit == "word" and tokenizer.normalizer is not None
        self.vocabulary: int = tokenizer.get_vocab_size()
        self.marks: dict[str, int] = {mark: tokenizer.token_to_id(mark) for mark in MARKS[unit]}  # type: ignore[misc]
        if frame is None:
            first, between, last = (tuple(self.marks[mark] for mark in some) for some in FRAMES[unit])
            frame = Frame(first, between, last)
        elif frame.mask is not None:
            self.marks["[MASK]"] = frame.mask
        self.frame, self.pad = frame, frame.pad
        self.memory = Pieces(tokenizer, spaced=unit != "own" and not spaceless(self.language))

    @property
    def unknown(self) -> int | None:
        """The id of the one mark for all that the vocabulary lacks; none where every text has pieces."""
        return self.frame.unknown if self.unit == "own" else self.marks.get("<unk>", self.marks.get("[UNK]"))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, in the format of `tokenizers`, and reader.json."""
        self.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        said = dataclasses.asdict(self.settings)
        write_json(folder / "reader.json", {key: said[key] for key in said if self.unit == "own" or key not in ("frame", "lossless")})

    @classmethod
    def load(cls, folder: Path) -> "Reader":
        """Read what `save` wrote. Raises InputError where it is not that."""
        path, said = folder / "tokenizer.json", folder / "reader.json"
        settings = load(ReaderSettings, read_json(said), str(said))
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library has no other class of error
            raise InputError(f"{path}: not a tokenizer: {error}; run the tokenizer's stage again") from None
        reader = cls(tokenizer, settings)
        if lost := [mark for mark, number in reader.marks.items() if number is None]:
            raise InputError(f"{path}: the mark {lost[0]} is missing, which the unit '{reader.unit}' in reader.json asks for; run its stage again")
        if reader.unit != "own" and set(reader.tokenizer.get_vocab().values()) != set(range(reader.vocabulary)):
            raise InputError(f"{path}: the ids of {reader.vocabulary} pieces are not 0 to {reader.vocabulary - 1}, each once; run its stage again")
        return reader

    def with_words(self, words: Sequence[str]) -> "Reader":
        """A reader whose closed vocabulary holds these words too, behind its own (units of words only)."""
        tree = json.loads(self.tokenizer.to_str())
        tree["model"]["vocab"] |= {word: self.vocabulary + i for i, word in enumerate(words)}
        grown = Tokenizer.from_str(json.dumps(tree))
        assert grown.get_vocab_size() == self.vocabulary + len(words), "a word is there already"
        return Reader(grown, self.settings)

    def encode(self, text: str, *, limit: int | None = None) -> Encoded:
        """One text with its family's marks: <S> .. </S> round each sentence, or [CLS] .. [SEP], or begin .. extract.

        At most `limit` positions, marks included; what is cut is said in `cut`.
        """
        return self.encode_many([text], limit=limit)[0]

    def encode_many(self, texts: Sequence[str], *, limit: int | None = None) -> list[Encoded]:
        """`encode` of several texts."""
        marked = [self._marked(text, cut, limit) for text, cut in zip(texts, self.pieces(texts), strict=True)]
        return marked if self.direction == "forward" else [item.turned() for item in marked]

    def pieces(self, texts: Sequence[str]) -> list[Cut]:
        """Each text's pieces."""
        if self.normalise is None:
            return [Cut(ids, spans, text, spans) for text, (ids, spans) in zip(texts, self.memory.encode(texts), strict=True)]
        aligned = [NORMALISERS[self.normalise](text) for text in texts]
        found = self.memory.encode([made.text for made in aligned])
        return [Cut(ids, made.raw(own), made.text, own) for made, (ids, own) in zip(aligned, found, strict=True)]

    def _marked(self, text: str, pieces: Cut, limit: int | None) -> Encoded:
        if self.unit == "word":
            return self._sentences(text, pieces, limit)
        ids, spans = pieces.ids, pieces.spans
        first, last, marks = self.frame.first, self.frame.last, self.frame.round_one
        cut = limit is not None and len(ids) > limit - marks
        if cut:
            assert limit is not None
            ids, spans = ids[: limit - marks], spans[: limit - marks]
        if not marks and not len(ids):  # such as GPT-1's of a text without a character that it knows: there must be a position to be read
            first = (self.pad,)
        before, after = (np.zeros((len(some), 2), np.int64) for some in (first, last))
        return Encoded(np.concatenate([first, ids, last]).astype(np.int64), np.concatenate([before, spans, after]), cut=cut)

    def written(self, text: str, start: int, end: int) -> str:
        """A word of a cut text as the character encoder reads it, the same in pretraining and after."""
        return lowered(text[start:end]) if self.lowercase else text[start:end]

    def sentence_marks(self, firsts: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(M,) before which of `count` words each mark round the sentences stands, and (M,) its id; `firsts` are the words that begin a sentence."""
        begin, end = self.marks["<S>"], self.marks["</S>"]
        inner = firsts[1:]
        return np.concatenate([[0], np.repeat(inner, 2), [count]]), np.array([begin, *[end, begin] * len(inner), end])

    def _sentences(self, text: str, pieces: Cut, limit: int | None) -> Encoded:
        """Marks round every sentence, since the language model has seen them there."""
        ids, spans = pieces.ids, pieces.spans
        where, marks = self.sentence_marks(sentence_starts(text, spans[:, 0], self.language), len(ids))
        begin, end = self.marks["<S>"], self.marks["</S>"]
        words = np.array([self.written(pieces.text, a, b) for a, b in pieces.own] or [""], object)[: len(ids)]
        all_ids = np.insert(ids, where, marks)
        all_spans = np.insert(spans, where, 0, axis=0)
        all_words = np.insert(words, where, ["<S>" if m == begin else "</S>" for m in marks])
        cut = limit is not None and len(all_ids) > limit
        if cut:
            all_ids, all_spans, all_words = all_ids[:limit].copy(), all_spans[:limit].copy(), all_words[:limit].copy()
            all_ids[-1], all_spans[-1], all_words[-1] = end, 0, "</S>"
        return Encoded(all_ids, all_spans, tuple(all_words), cut)

    def collate(self, items: Sequence[Encoded]) -> Batch:
        """Items padded on the right to the longest, as one batch."""
        longest = max(len(item.ids) for item in items)
        ids = np.full((len(items), longest), self.pad)
        mask, text = np.zeros_like(ids, bool), np.zeros_like(ids, bool)
        for row, item in enumerate(items):
            ids[row, : len(item.ids)] = item.ids
            mask[row, : len(item.ids)] = True
            text[row, : len(item.ids)] = item.spans[:, 1] > item.spans[:, 0]
        batch = Batch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(text), tokens=int(mask.sum()))
        if self.unit != "word":
            return batch
        characters_UC, words_BT = self._word_tensors(items, longest)
        return dataclasses.replace(batch, characters_UC=characters_UC, words_BT=words_BT)

    def _word_tensors(self, items: Sequence[Encoded], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Each distinct word's bytes once, and for each position which of them stands there; row 0 is padding."""
        order: dict[str, int] = {}
        rows = np.zeros((len(items), longest), np.int64)
        for row, item in enumerate(items):
            rows[row, : len(item.words)] = [1 + order.setdefault(word, len(order)) for word in item.words]
        table = np.stack([np.zeros(self.word_bytes, np.int64), *(_word_bytes(word, self.word_bytes) for word in order)])
        return torch.from_numpy(trimmed(table)), torch.from_numpy(rows)


@functools.lru_cache(maxsize=200_000)
def _word_bytes(word: str, size: int) -> np.ndarray:
    """(size,): a word's UTF-8 bytes between its marks, cut to `size`; a mark of a sentence is one byte id of its own."""
    inner = {"<S>": [BEGIN_SENTENCE], "</S>": [END_SENTENCE]}.get(word) or [b + 1 for b in word.encode()[: size - 2]]
    row = np.full(size, PAD_BYTE, np.int64)
    row[: len(inner) + 2] = [BEGIN_WORD, *inner, END_WORD]
    return row


def type_table(words: Iterable[str], size: int) -> np.ndarray:
    """(types, size) uint16: the byte ids of each word, in order."""
    return np.stack([_word_bytes(word, size) for word in words]).astype(np.uint16)


def trimmed(table_UC: np.ndarray) -> np.ndarray:
    """The columns that any word uses: a convolution over padding that no word reaches gives nothing but the padding's own value once.

    One column of padding is kept, so that the maximum over positions sees it as it would in the whole table.
    """
    used = int(((table_UC != PAD_BYTE) & (table_UC != 0)).sum(1).max(initial=1))
    return np.ascontiguousarray(table_UC[:, : max(used + 8, 16)])


def sentence_starts(text: str, starts: np.ndarray, language: str) -> np.ndarray:
    """For token start offsets (T,), the indices of the tokens that begin a sentence; the first is 0."""
    spans = sentence_spans(text, language)
    firsts = np.searchsorted(starts, [a for a, _ in spans]) if len(spans) else np.zeros(1, int)
    firsts = np.unique(np.append(firsts, 0))
    return firsts[firsts < max(len(starts), 1)]
