"""A model's own tokenizer, with one interface for all families.

Types:

- word: a closed vocabulary for the softmax, and the bytes of any word for a character encoder.
- byte_bpe: BPE of bytes, as in GPT-2.
- bpe: BPE of characters with </w> at a word's end, as in GPT-1.
- wordpiece: as in BERT.
- pretrained: that of a public checkpoint (`lineage.networks.public_tokenizer`).

`lineage.tokenizers.train` trains all but the last.

Shapes: T tokens, B items, U distinct words, C bytes per word, M special tokens.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer as BackendTokenizer

from lineage.artifacts import read_json, write_json
from lineage.config.records import check_positive, parse_record
from lineage.errors import InputError
from lineage.language import is_spaceless, sentence_spans, to_lowercase
from lineage.networks.batch import Batch
from lineage.tokenizers.cache import TokenizationCache
from lineage.tokenizers.normalization import NORMALIZERS, NormalizerName
from lineage.tokenizers.word_bytes import MAX_WORD_BYTES_RANGE, trim_padding, word_byte_ids

TokenizerType = Literal["word", "byte_bpe", "bpe", "wordpiece", "pretrained"]
Direction = Literal["forward", "backward"]
SPECIAL_TOKENS: dict[TokenizerType, tuple[str, ...]] = {
    "word": ("<pad>", "<unk>", "<S>", "</S>"),
    "byte_bpe": ("<|endoftext|>", "<|extract|>"),
    "bpe": ("<|endoftext|>", "<|extract|>", "<|delimiter|>", "<unk>"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "pretrained": (),
}
# The special tokens before a text, between two texts, and after the last. Tokenizers of words put
# theirs around every sentence instead.
SPECIAL_TOKEN_TEMPLATES: dict[TokenizerType, tuple[tuple[str, ...], ...]] = {
    "word": ((), (), ()),
    "byte_bpe": (("<|endoftext|>",), ("<|endoftext|>",), ("<|extract|>",)),
    "bpe": (("<|endoftext|>",), ("<|delimiter|>",), ("<|extract|>",)),
    "wordpiece": (("[CLS]",), ("[SEP]",), ("[SEP]",)),
}
CONFIG_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class TokenizerSettings:
    """The block `tokenizer` of a model."""

    vocab_size: int = 16_000
    lowercase: bool = False
    min_frequency: int = 1
    # Bytes of a word with its begin and end; longer words are cut (type `word` only).
    max_word_bytes: int = 50
    direction: Direction = "forward"  # backward: read every text from its end
    # Applied before text is split: ftfy, as in GPT-1 (subwords only), or fastai, as in ULMFiT,
    # which turns case and repetitions into words.
    normalizer: NormalizerName | None = None
    # BPE of characters with </w> at a word's end, as in GPT-1, instead of BPE of bytes.
    end_of_word_suffix: bool = False
    # A control: the words of each sentence of the training text are read in a random order (Sinha et
    # al. 2021). The tokenizer is trained on the text as it is, and validation reads it as it is.
    shuffle_words: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "vocab_size", "min_frequency")
        check_max_word_bytes(self.max_word_bytes)
        if self.normalizer == "fastai" and self.lowercase:
            raise ValueError(
                "lowercase is true, and normalizer: fastai already lowers case and marks it with "
                "tokens of its own; set lowercase to false"
            )


def check_max_word_bytes(max_word_bytes: int) -> None:
    """Raise ValueError unless begin, end and the widest filter fit."""
    if max_word_bytes not in MAX_WORD_BYTES_RANGE:
        raise ValueError(
            f"max_word_bytes is {max_word_bytes}; it must be from {MAX_WORD_BYTES_RANGE[0]} "
            f"to {MAX_WORD_BYTES_RANGE[-1]:,}"
        )


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The special tokens around texts, as ids."""

    prefix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()  # between two texts
    suffix: tuple[int, ...] = ()
    pad_token_id: int = 0
    mask_token_id: int | None = None  # None: the model is not a masked one
    unk_token_id: int | None = None  # None: every text can be tokenized
    second_token_type_id: Literal[0, 1] = 1  # the segment of the second text

    @property
    def num_special_tokens(self) -> int:
        return len(self.prefix) + len(self.suffix)

    def all_ids(self) -> list[int]:
        optional = (self.mask_token_id, self.unk_token_id)
        given = [token_id for token_id in optional if token_id is not None]
        return [*self.prefix, *self.separator, *self.suffix, self.pad_token_id, *given]


@dataclass(frozen=True)
class TokenizerConfig:
    """The content of tokenizer_config.json, which completes tokenizer.json.

    `special_token_template` and `lossless` are given for the type `pretrained` only.
    """

    tokenizer_type: TokenizerType
    language: str
    max_word_bytes: int
    direction: Direction
    normalizer: NormalizerName | None
    special_token_template: SpecialTokenTemplate | None = None
    lossless: bool = False  # whether a text can be restored from its ids

    def __post_init__(self) -> None:
        check_max_word_bytes(self.max_word_bytes)
        template = self.special_token_template
        if self.tokenizer_type == "pretrained" and template is None:
            raise ValueError(
                "tokenizer_type is 'pretrained', and special_token_template is missing"
            )
        if self.tokenizer_type != "pretrained" and template is not None:
            raise ValueError(
                f"tokenizer_type is '{self.tokenizer_type}', and special_token_template is given; "
                "it belongs to the type pretrained"
            )
        if template is not None and min(template.all_ids()) < 0:
            raise ValueError("special_token_template has a negative id")


@dataclass(frozen=True)
class TokenizedText:
    """One text as tokens, without special tokens."""

    ids: np.ndarray  # (T,)
    offsets: np.ndarray  # (T, 2) characters in the raw text
    normalized_text: str  # the text that was split: raw, or normalized
    normalized_offsets: np.ndarray  # (T, 2) characters in the normalized text


@dataclass(frozen=True)
class Encoding:
    """One text as model input."""

    ids: np.ndarray  # (T,)
    offsets: np.ndarray  # (T, 2) characters in the raw text; empty spans for special tokens
    words: tuple[str, ...] = ()  # type `word`: the words, special tokens included
    truncated: bool = False
    token_type_ids: np.ndarray | None = None  # (T,) of two texts: 0 for the first, 1 for the second

    def reverse(self) -> "Encoding":
        token_type_ids = self.token_type_ids
        if token_type_ids is not None:
            token_type_ids = token_type_ids[::-1].copy()
        return Encoding(
            self.ids[::-1].copy(),
            self.offsets[::-1].copy(),
            self.words[::-1],
            self.truncated,
            token_type_ids,
        )


class Tokenizer:
    """Turn text into ids, alike in pretraining, adaptation and evaluation."""

    def __init__(self, backend_tokenizer: BackendTokenizer, config: TokenizerConfig) -> None:
        self.backend_tokenizer = backend_tokenizer
        self.config = config
        self.tokenizer_type = config.tokenizer_type
        self.language = config.language
        self.max_word_bytes = config.max_word_bytes
        self.direction = config.direction
        self.normalizer = config.normalizer
        backend_tokenizer.encode_special_tokens = True  # a [MASK] written in a text is text
        has_normalizer = backend_tokenizer.normalizer is not None
        if config.tokenizer_type == "pretrained":
            self.lossless = config.lossless
        else:
            is_normalized = has_normalizer or self.normalizer is not None
            self.lossless = config.tokenizer_type == "byte_bpe" and not is_normalized
        # The normalizer of words only lowers case; the bytes of words do not pass through it.
        self.lowercase = config.tokenizer_type == "word" and has_normalizer
        self.vocab_size: int = backend_tokenizer.get_vocab_size()
        self.special_token_ids: dict[str, int] = {  # `load` checks that all exist
            token: backend_tokenizer.token_to_id(token)  # type: ignore[misc]
            for token in SPECIAL_TOKENS[config.tokenizer_type]
        }
        self.special_token_template = config.special_token_template or self._default_template()
        self.pad_token_id = self.special_token_template.pad_token_id
        self.unk_token_id = self.special_token_template.unk_token_id
        uses_spaces = config.tokenizer_type != "pretrained" and not is_spaceless(config.language)
        self.cache = TokenizationCache(backend_tokenizer, uses_spaces=uses_spaces)

    def _default_template(self) -> SpecialTokenTemplate:
        prefix, separator, suffix = (
            tuple(self.special_token_ids[token] for token in tokens)
            for tokens in SPECIAL_TOKEN_TEMPLATES[self.tokenizer_type]
        )
        ids = self.special_token_ids
        return SpecialTokenTemplate(
            prefix,
            separator,
            suffix,
            mask_token_id=ids.get("[MASK]"),
            unk_token_id=ids.get("<unk>", ids.get("[UNK]")),
        )

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, in the format of `tokenizers`, and tokenizer_config.json."""
        self.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        config = dataclasses.asdict(self.config)
        if self.tokenizer_type != "pretrained":
            del config["special_token_template"]
            del config["lossless"]
        write_json(folder / CONFIG_FILE, config)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a saved tokenizer. Raises InputError if the files are damaged."""
        path = folder / "tokenizer.json"
        config_path = folder / CONFIG_FILE
        config = parse_record(TokenizerConfig, read_json(config_path), str(config_path))
        try:
            backend = BackendTokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library has no other class of error
            raise InputError(
                f"{path}: not a tokenizer: {error}; run the tokenizer's stage again"
            ) from None
        for token in SPECIAL_TOKENS[config.tokenizer_type]:
            if backend.token_to_id(token) is None:
                raise InputError(
                    f"{path}: the special token {token} is missing, which the type "
                    f"'{config.tokenizer_type}' in {CONFIG_FILE} requires; run its stage again"
                )
        tokenizer = cls(backend, config)
        ids = set(backend.get_vocab().values())
        if config.tokenizer_type != "pretrained" and ids != set(range(tokenizer.vocab_size)):
            raise InputError(
                f"{path}: the ids of {tokenizer.vocab_size} tokens are not 0 to "
                f"{tokenizer.vocab_size - 1}, each once; run its stage again"
            )
        return tokenizer

    def with_added_words(self, words: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer whose closed vocabulary ends with these new words (type `word`)."""
        tree = json.loads(self.backend_tokenizer.to_str())
        for token_id, word in enumerate(words, self.vocab_size):
            tree["model"]["vocab"][word] = token_id
        extended = BackendTokenizer.from_str(json.dumps(tree))
        assert extended.get_vocab_size() == self.vocab_size + len(words), "a word is there already"
        return Tokenizer(extended, self.config)

    def encode(self, text: str, *, max_length: int | None = None) -> Encoding:
        """Encode a text with its special tokens, as at most `max_length` tokens in all."""
        return self.encode_batch([text], max_length=max_length)[0]

    def encode_batch(
        self, texts: Sequence[str], *, max_length: int | None = None
    ) -> list[Encoding]:
        """Encode several texts; see `encode`."""
        encodings = [
            self._add_special_tokens(text, tokenized, max_length)
            for text, tokenized in zip(texts, self.tokenize(texts), strict=True)
        ]
        if self.direction == "backward":
            return [encoding.reverse() for encoding in encodings]
        return encodings

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Split texts into tokens, without special tokens."""
        if self.normalizer is None:
            return [
                TokenizedText(ids, offsets, text, offsets)
                for text, (ids, offsets) in zip(texts, self.cache.encode_batch(texts), strict=True)
            ]
        normalized = [NORMALIZERS[self.normalizer](text) for text in texts]
        tokens = self.cache.encode_batch([aligned.text for aligned in normalized])
        return [
            TokenizedText(ids, aligned.to_raw_offsets(offsets), aligned.text, offsets)
            for aligned, (ids, offsets) in zip(normalized, tokens, strict=True)
        ]

    def _add_special_tokens(
        self, text: str, tokenized: TokenizedText, max_length: int | None
    ) -> Encoding:
        if self.tokenizer_type == "word":
            return self._encode_sentences(text, tokenized, max_length)
        template = self.special_token_template
        ids = tokenized.ids
        offsets = tokenized.offsets
        truncated = False
        if max_length is not None:
            max_tokens = max_length - template.num_special_tokens
            truncated = len(ids) > max_tokens
            ids = ids[:max_tokens]
            offsets = offsets[:max_tokens]
        prefix = template.prefix
        if not template.num_special_tokens and not len(ids):
            # A model needs a position even for a text without tokens: GPT-1's public tokenizer
            # gives none for characters that it does not know.
            prefix = (self.pad_token_id,)
        empty_before = np.zeros((len(prefix), 2), np.int64)
        empty_after = np.zeros((len(template.suffix), 2), np.int64)
        return Encoding(
            np.concatenate([prefix, ids, template.suffix]).astype(np.int64),
            np.concatenate([empty_before, offsets, empty_after]),
            truncated=truncated,
        )

    def _encode_sentences(
        self, text: str, tokenized: TokenizedText, max_length: int | None
    ) -> Encoding:
        """Put <S> and </S> around every sentence, as in pretraining."""
        starts = find_sentence_starts(text, tokenized.offsets[:, 0], self.language)
        positions, boundary_ids = self.sentence_boundary_tokens(starts, len(tokenized.ids))
        surface_forms = [
            self.surface_form(tokenized.normalized_text, start, end)
            for start, end in tokenized.normalized_offsets
        ]
        begin_id = self.special_token_ids["<S>"]
        boundary_words = ["<S>" if token_id == begin_id else "</S>" for token_id in boundary_ids]
        ids = np.insert(tokenized.ids, positions, boundary_ids)
        offsets = np.insert(tokenized.offsets, positions, 0, axis=0)
        words = np.insert(np.array(surface_forms, object), positions, boundary_words)
        if max_length is None or len(ids) <= max_length:
            return Encoding(ids, offsets, tuple(words))
        # The last sentence, also if it is cut, ends with </S>.
        ids = ids[:max_length].copy()
        offsets = offsets[:max_length].copy()
        words = words[:max_length].copy()
        ids[-1] = self.special_token_ids["</S>"]
        offsets[-1] = 0
        words[-1] = "</S>"
        return Encoding(ids, offsets, tuple(words), truncated=True)

    def surface_form(self, text: str, start: int, end: int) -> str:
        """Return a word of a tokenized text as the character encoder reads it."""
        word = text[start:end]
        return to_lowercase(word) if self.lowercase else word

    def sentence_boundary_tokens(
        self, sentence_starts: np.ndarray, num_words: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions and the ids of the tokens around sentences, both (M,)."""
        begin = self.special_token_ids["<S>"]
        end = self.special_token_ids["</S>"]
        inner_starts = sentence_starts[1:]
        positions = np.concatenate([[0], np.repeat(inner_starts, 2), [num_words]])
        ids = np.array([begin, *[end, begin] * len(inner_starts), end])
        return positions, ids

    def collate(self, items: Sequence[Encoding]) -> Batch:
        """Pad items on the right to the longest, and return them as one batch."""
        max_len = max(len(item.ids) for item in items)
        ids = np.full((len(items), max_len), self.pad_token_id)
        mask = np.zeros_like(ids, bool)
        text_mask = np.zeros_like(ids, bool)
        for row, item in enumerate(items):
            length = len(item.ids)
            ids[row, :length] = item.ids
            mask[row, :length] = True
            text_mask[row, :length] = item.offsets[:, 1] > item.offsets[:, 0]
        batch = Batch(
            torch.from_numpy(ids),
            torch.from_numpy(mask),
            torch.from_numpy(text_mask),
            num_tokens=int(mask.sum()),
        )
        if self.tokenizer_type != "word":
            return batch
        byte_ids_UC, word_rows_BT = self._word_byte_tensors(items, max_len)
        return dataclasses.replace(batch, byte_ids_UC=byte_ids_UC, word_rows_BT=word_rows_BT)

    def _word_byte_tensors(
        self, items: Sequence[Encoding], max_len: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (U, C) bytes of each distinct word, and the (B, T) row of each position."""
        row_by_word: dict[str, int] = {}
        word_rows = np.zeros((len(items), max_len), np.int64)
        for item_index, item in enumerate(items):
            for position, word in enumerate(item.words):
                word_rows[item_index, position] = row_by_word.setdefault(word, 1 + len(row_by_word))
        padding = np.zeros(self.max_word_bytes, np.int64)
        table = [padding, *(word_byte_ids(word, self.max_word_bytes) for word in row_by_word)]
        return torch.from_numpy(trim_padding(np.stack(table))), torch.from_numpy(word_rows)


def find_sentence_starts(text: str, token_starts: np.ndarray, language: str) -> np.ndarray:
    """Return the indices of the tokens that begin a sentence; the first is 0."""
    sentence_offsets = np.array([start for start, _ in sentence_spans(text, language)], int)
    indices = np.searchsorted(token_starts, sentence_offsets)
    indices = np.unique(np.append(indices, 0))
    return indices[indices < max(len(token_starts), 1)]
