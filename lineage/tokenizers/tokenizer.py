"""A variant's own tokenizer as one `Reader` for all families. `lineage.tokenizers.train` trains it.

Units: `word` (a closed vocabulary for the softmax; any word's bytes for a character encoder), `byte_bpe` (lossless), `bpe` (of characters, with
</w> at a word's end, as in GPT-1), `wordpiece`, and `own`, a public checkpoint's (`lineage.models.public_tokenizer`).
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
from tokenizers import Tokenizer as BackendTokenizer

from lineage.artifacts import read_json, write_json
from lineage.config.records import check_positive, parse_record
from lineage.data.language import is_spaceless, sentence_spans, to_lowercase
from lineage.errors import InputError
from lineage.models.batch import Batch
from lineage.tokenizers.cache import TokenizationCache
from lineage.tokenizers.normalization import NORMALIZERS, NormalizerName

TokenizerType = Literal["word", "byte_bpe", "bpe", "wordpiece", "pretrained"]
Direction = Literal["forward", "backward"]
SPECIAL_TOKENS = {
    "word": ("<pad>", "<unk>", "<S>", "</S>"),
    "byte_bpe": ("<|endoftext|>", "<|extract|>"),
    "bpe": ("<|endoftext|>", "<|extract|>", "<|delimiter|>", "<unk>"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "pretrained": (),
}
SPECIAL_TOKEN_TEMPLATES = {  # of the marks above: before a text, between two, after the last; words have theirs round every sentence
    "word": ((), (), ()),
    "byte_bpe": (("<|endoftext|>",), ("<|endoftext|>",), ("<|extract|>",)),
    "bpe": (("<|endoftext|>",), ("<|delimiter|>",), ("<|extract|>",)),
    "wordpiece": (("[CLS]",), ("[SEP]",), ("[SEP]",)),
}
# Byte ids of a word, as in AllenNLP's ELMo: 0 is padding beyond a sentence, a byte b is b + 1.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD_BYTE, NUM_BYTE_IDS = (
    257,
    258,
    259,
    260,
    261,
    262,
)
MAX_WORD_BYTES_RANGE = range(16, 10_001)


@dataclass(frozen=True)
class TokenizerSettings:
    """The block `tokenizer` of a model."""

    vocab_size: int
    lowercase: bool = False
    min_frequency: int = 1
    max_word_bytes: int = (
        50  # with the marks of begin and end; longer words are cut (units of words only)
    )
    direction: Direction = (
        "forward"  # backward: every text is read from its end, in pretraining and after
    )
    normalizer: NormalizerName | None = (
        None  # before text is cut: ftfy, as GPT-1 (pieces alone); fastai, as ULMFiT, case and repetitions as words
    )
    end_of_word_suffix: bool = (
        False  # BPE of characters with </w> at a word's end, as in GPT-1, instead of BPE of bytes
    )

    def __post_init__(self) -> None:
        check_positive(self, "vocab_size", "min_frequency")
        if self.max_word_bytes not in MAX_WORD_BYTES_RANGE:
            raise ValueError(
                f"word_bytes is {self.max_word_bytes}; it is from 16, for the marks and the widest filter, to 10,000"
            )
        if self.normalizer == "fastai" and self.lowercase:
            raise ValueError(
                "lowercase is true, and normalise: fastai lowers case itself, and says so in words of its own; set it to false"
            )


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The marks round a text, as ids."""

    prefix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()  # of two texts
    suffix: tuple[int, ...] = ()
    pad_token_id: int = 0
    mask_token_id: int | None = None  # the masked word; none where a text is read from the left
    unk_token_id: int | None = (
        None  # what stands for all that the vocabulary lacks; none where every text has pieces
    )
    second_token_type_id: Literal[0, 1] = 1  # the segment of the second of two texts

    @property
    def num_special_tokens(self) -> int:
        """How many marks a text has."""
        return len(self.prefix) + len(self.suffix)


@dataclass(frozen=True)
class TokenizerConfig:
    """reader.json: what there is to say of a reader beside its tokenizer. `frame` and `lossless` are said of a unit `own` alone."""

    tokenizer_type: TokenizerType
    language: str
    max_word_bytes: int
    direction: Direction
    normalizer: NormalizerName | None
    special_token_template: SpecialTokenTemplate | None = None
    lossless: bool = False

    def __post_init__(self) -> None:
        if self.max_word_bytes not in MAX_WORD_BYTES_RANGE:
            raise ValueError(f"word_bytes is {self.max_word_bytes}; it is from 16 to 10,000")
        if (self.tokenizer_type == "pretrained") != (self.special_token_template is not None):
            raise ValueError(
                f"the unit is '{self.tokenizer_type}', and frame is {'missing' if self.special_token_template is None else 'given'}; it belongs to the unit own"
            )
        if (frame := self.special_token_template) and min(
            *frame.prefix,
            *frame.separator,
            *frame.suffix,
            frame.pad_token_id,
            frame.mask_token_id or 0,
            0,
        ) < 0:
            raise ValueError("frame has a mark below 0; a mark is an id")


@dataclass(frozen=True)
class TokenizedText:
    """One text as pieces, without marks."""

    ids: np.ndarray  # (T,)
    offsets: (
        np.ndarray
    )  # (T, 2) of characters in the text as it is given, whatever was done to it first
    normalized_text: str  # what was cut into pieces: the text as it is given, or normalised
    normalized_offsets: np.ndarray  # (T, 2) of characters in that


@dataclass(frozen=True)
class Encoding:
    """One text as ids, each with its span of characters in the text; a mark such as [CLS] has an empty span."""

    ids: np.ndarray  # (T,)
    offsets: np.ndarray  # (T, 2)
    words: tuple[str, ...] = ()  # unit word: the written words, marks included
    truncated: bool = False  # longer than the limit
    token_type_ids: np.ndarray | None = (
        None  # (T,) of two texts: which one a position belongs to, 0 or 1
    )

    def reverse(self) -> "Encoding":
        """The same text from its end to its beginning."""
        segments = None if self.token_type_ids is None else self.token_type_ids[::-1].copy()
        return Encoding(
            self.ids[::-1].copy(),
            self.offsets[::-1].copy(),
            self.words[::-1],
            self.truncated,
            segments,
        )


class Tokenizer:
    """Text in, ids out, the same way in pretraining, adaptation and evaluation."""

    def __init__(self, backend_tokenizer: BackendTokenizer, config: TokenizerConfig) -> None:
        unit, frame = config.tokenizer_type, config.special_token_template
        self.backend_tokenizer, self.config, self.tokenizer_type, self.language = (
            backend_tokenizer,
            config,
            unit,
            config.language,
        )
        self.max_word_bytes, self.direction, self.normalizer = (
            config.max_word_bytes,
            config.direction,
            config.normalizer,
        )
        backend_tokenizer.encode_special_tokens = True  # a [MASK] that is written in a text is text
        self.lossless = (
            config.lossless
            if unit == "pretrained"
            else unit == "byte_bpe"
            and backend_tokenizer.normalizer is None
            and self.normalizer is None
        )
        self.lowercase = unit == "word" and backend_tokenizer.normalizer is not None
        self.vocab_size: int = backend_tokenizer.get_vocab_size()
        self.special_token_ids: dict[str, int] = {
            mark: backend_tokenizer.token_to_id(mark) for mark in SPECIAL_TOKENS[unit]
        }  # type: ignore[misc]
        if frame is None:
            first, between, last = (
                tuple(self.special_token_ids[mark] for mark in some)
                for some in SPECIAL_TOKEN_TEMPLATES[unit]
            )
            frame = SpecialTokenTemplate(first, between, last)
        elif frame.mask_token_id is not None:
            self.special_token_ids["[MASK]"] = frame.mask_token_id
        self.special_token_template, self.pad_token_id = frame, frame.pad_token_id
        self.cache = TokenizationCache(
            backend_tokenizer, uses_spaces=unit != "pretrained" and not is_spaceless(self.language)
        )

    @property
    def unk_token_id(self) -> int | None:
        """The id of the one mark for all that the vocabulary lacks; none where every text has pieces."""
        return (
            self.special_token_template.unk_token_id
            if self.tokenizer_type == "pretrained"
            else self.special_token_ids.get("<unk>", self.special_token_ids.get("[UNK]"))
        )

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, in the format of `tokenizers`, and reader.json."""
        self.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        said = dataclasses.asdict(self.config)
        write_json(
            folder / "reader.json",
            {
                key: said[key]
                for key in said
                if self.tokenizer_type == "pretrained"
                or key not in ("special_token_template", "lossless")
            },
        )

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read what `save` wrote. Raises InputError where it is not that."""
        path, config_path = folder / "tokenizer.json", folder / "reader.json"
        settings = parse_record(TokenizerConfig, read_json(config_path), str(config_path))
        try:
            tokenizer = BackendTokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library has no other class of error
            raise InputError(
                f"{path}: not a tokenizer: {error}; run the tokenizer's stage again"
            ) from None
        reader = cls(tokenizer, settings)
        if lost := [mark for mark, number in reader.special_token_ids.items() if number is None]:
            raise InputError(
                f"{path}: the mark {lost[0]} is missing, which the unit '{reader.tokenizer_type}' in reader.json asks for; run its stage again"
            )
        if reader.tokenizer_type != "pretrained" and set(
            reader.backend_tokenizer.get_vocab().values()
        ) != set(range(reader.vocab_size)):
            raise InputError(
                f"{path}: the ids of {reader.vocab_size} pieces are not 0 to {reader.vocab_size - 1}, each once; run its stage again"
            )
        return reader

    def with_added_words(self, words: Sequence[str]) -> "Tokenizer":
        """A reader whose closed vocabulary holds these words too, behind its own (units of words only)."""
        tree = json.loads(self.backend_tokenizer.to_str())
        tree["model"]["vocab"] |= {word: self.vocab_size + i for i, word in enumerate(words)}
        grown = BackendTokenizer.from_str(json.dumps(tree))
        assert grown.get_vocab_size() == self.vocab_size + len(words), "a word is there already"
        return Tokenizer(grown, self.config)

    def encode(self, text: str, *, max_length: int | None = None) -> Encoding:
        """One text with its family's marks: <S> .. </S> round each sentence, or [CLS] .. [SEP], or begin .. extract.

        At most `limit` positions, marks included; what is cut is said in `cut`.
        """
        return self.encode_batch([text], max_length=max_length)[0]

    def encode_batch(
        self, texts: Sequence[str], *, max_length: int | None = None
    ) -> list[Encoding]:
        """`encode` of several texts."""
        marked = [
            self._add_special_tokens(text, cut, max_length)
            for text, cut in zip(texts, self.tokenize(texts), strict=True)
        ]
        return marked if self.direction == "forward" else [item.reverse() for item in marked]

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Each text's pieces."""
        if self.normalizer is None:
            return [
                TokenizedText(ids, spans, text, spans)
                for text, (ids, spans) in zip(texts, self.cache.encode_batch(texts), strict=True)
            ]
        aligned = [NORMALIZERS[self.normalizer](text) for text in texts]
        found = self.cache.encode_batch([made.text for made in aligned])
        return [
            TokenizedText(ids, made.to_raw_offsets(own), made.text, own)
            for made, (ids, own) in zip(aligned, found, strict=True)
        ]

    def _add_special_tokens(
        self, text: str, tokenized: TokenizedText, max_length: int | None
    ) -> Encoding:
        if self.tokenizer_type == "word":
            return self._encode_sentences(text, tokenized, max_length)
        ids, spans = tokenized.ids, tokenized.offsets
        first, last, marks = (
            self.special_token_template.prefix,
            self.special_token_template.suffix,
            self.special_token_template.num_special_tokens,
        )
        cut = max_length is not None and len(ids) > max_length - marks
        if cut:
            assert max_length is not None
            ids, spans = ids[: max_length - marks], spans[: max_length - marks]
        if (
            not marks and not len(ids)
        ):  # such as GPT-1's of a text without a character that it knows: there must be a position to be read
            first = (self.pad_token_id,)
        before, after = (np.zeros((len(some), 2), np.int64) for some in (first, last))
        return Encoding(
            np.concatenate([first, ids, last]).astype(np.int64),
            np.concatenate([before, spans, after]),
            truncated=cut,
        )

    def surface_form(self, text: str, start: int, end: int) -> str:
        """A word of a cut text as the character encoder reads it, the same in pretraining and after."""
        return to_lowercase(text[start:end]) if self.lowercase else text[start:end]

    def sentence_boundary_tokens(
        self, sentence_starts: np.ndarray, num_words: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(M,) before which of `count` words each mark round the sentences stands, and (M,) its id; `firsts` are the words that begin a sentence."""
        begin, end = self.special_token_ids["<S>"], self.special_token_ids["</S>"]
        inner = sentence_starts[1:]
        return np.concatenate([[0], np.repeat(inner, 2), [num_words]]), np.array(
            [begin, *[end, begin] * len(inner), end]
        )

    def _encode_sentences(
        self, text: str, tokenized: TokenizedText, max_length: int | None
    ) -> Encoding:
        """Marks round every sentence, since the language model has seen them there."""
        ids, spans = tokenized.ids, tokenized.offsets
        where, marks = self.sentence_boundary_tokens(
            find_sentence_starts(text, spans[:, 0], self.language), len(ids)
        )
        begin, end = self.special_token_ids["<S>"], self.special_token_ids["</S>"]
        words = np.array(
            [
                self.surface_form(tokenized.normalized_text, a, b)
                for a, b in tokenized.normalized_offsets
            ]
            or [""],
            object,
        )[: len(ids)]
        all_ids = np.insert(ids, where, marks)
        all_spans = np.insert(spans, where, 0, axis=0)
        all_words = np.insert(words, where, ["<S>" if m == begin else "</S>" for m in marks])
        cut = max_length is not None and len(all_ids) > max_length
        if cut:
            all_ids, all_spans, all_words = (
                all_ids[:max_length].copy(),
                all_spans[:max_length].copy(),
                all_words[:max_length].copy(),
            )
            all_ids[-1], all_spans[-1], all_words[-1] = end, 0, "</S>"
        return Encoding(all_ids, all_spans, tuple(all_words), cut)

    def collate(self, items: Sequence[Encoding]) -> Batch:
        """Items padded on the right to the longest, as one batch."""
        longest = max(len(item.ids) for item in items)
        ids = np.full((len(items), longest), self.pad_token_id)
        mask, text = np.zeros_like(ids, bool), np.zeros_like(ids, bool)
        for row, item in enumerate(items):
            ids[row, : len(item.ids)] = item.ids
            mask[row, : len(item.ids)] = True
            text[row, : len(item.ids)] = item.offsets[:, 1] > item.offsets[:, 0]
        batch = Batch(
            torch.from_numpy(ids),
            torch.from_numpy(mask),
            torch.from_numpy(text),
            num_tokens=int(mask.sum()),
        )
        if self.tokenizer_type != "word":
            return batch
        characters_UC, words_BT = self._word_byte_tensors(items, longest)
        return dataclasses.replace(batch, byte_ids_UC=characters_UC, word_rows_BT=words_BT)

    def _word_byte_tensors(
        self, items: Sequence[Encoding], max_length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each distinct word's bytes once, and for each position which of them stands there; row 0 is padding."""
        order: dict[str, int] = {}
        rows = np.zeros((len(items), max_length), np.int64)
        for row, item in enumerate(items):
            rows[row, : len(item.words)] = [
                1 + order.setdefault(word, len(order)) for word in item.words
            ]
        table = np.stack(
            [
                np.zeros(self.max_word_bytes, np.int64),
                *(_word_byte_ids(word, self.max_word_bytes) for word in order),
            ]
        )
        return torch.from_numpy(trim_padding(table)), torch.from_numpy(rows)


@functools.lru_cache(maxsize=200_000)
def _word_byte_ids(word: str, max_word_bytes: int) -> np.ndarray:
    """(size,): a word's UTF-8 bytes between its marks, cut to `size`; a mark of a sentence is one byte id of its own."""
    inner = {"<S>": [BEGIN_SENTENCE], "</S>": [END_SENTENCE]}.get(word) or [
        b + 1 for b in word.encode()[: max_word_bytes - 2]
    ]
    row = np.full(max_word_bytes, PAD_BYTE, np.int64)
    row[: len(inner) + 2] = [BEGIN_WORD, *inner, END_WORD]
    return row


def word_byte_table(words: Iterable[str], max_word_bytes: int) -> np.ndarray:
    """(types, size) uint16: the byte ids of each word, in order."""
    return np.stack([_word_byte_ids(word, max_word_bytes) for word in words]).astype(np.uint16)


def trim_padding(table_UC: np.ndarray) -> np.ndarray:
    """The columns that any word uses: a convolution over padding that no word reaches gives nothing but the padding's own value once.

    One column of padding is kept, so that the maximum over positions sees it as it would in the whole table.
    """
    used = int(((table_UC != PAD_BYTE) & (table_UC != 0)).sum(1).max(initial=1))
    return np.ascontiguousarray(table_UC[:, : max(used + 8, 16)])


def find_sentence_starts(text: str, token_starts: np.ndarray, language: str) -> np.ndarray:
    """For token start offsets (T,), the indices of the tokens that begin a sentence; the first is 0."""
    spans = sentence_spans(text, language)
    firsts = (
        np.searchsorted(token_starts, [a for a, _ in spans]) if len(spans) else np.zeros(1, int)
    )
    firsts = np.unique(np.append(firsts, 0))
    return firsts[firsts < max(len(token_starts), 1)]
