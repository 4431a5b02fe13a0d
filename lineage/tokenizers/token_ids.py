"""A corpus as ids: flat, memory-mapped arrays, so that training reads no text and any document or sentence is a slice."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lineage.artifacts import read_array, write_array
from lineage.errors import InputError
from lineage.tokenizers.tokenizer import (
    TokenizedText,
    Tokenizer,
    find_sentence_starts,
    word_byte_table,
)

DOCUMENTS_PER_BATCH = 256  # documents encoded at a time
ARRAY_NAMES = (
    "ids",
    "byte_counts",
    "document_starts",
    "sentence_starts",
    "word_byte_ids_UC",
    "languages",
)


@dataclass(frozen=True)
class TokenizedCorpus:
    """One split. For units of words, ids of the vocabulary and above it: the closed vocabulary first, then every other word once."""

    ids: np.ndarray  # (N,) marks included: <S> .. </S> round a sentence, <|endoftext|> before a document, none for WordPiece
    byte_counts: (
        np.ndarray
    )  # (N,) bytes of raw text that each id stands for; their sum is the text's size
    document_starts: np.ndarray  # (D + 1,) first id of each document, and N
    sentence_starts: np.ndarray  # (S + 1,) first id of each sentence, and N
    word_byte_ids_UC: np.ndarray | None = None  # (types, word_bytes), units of words only
    languages: np.ndarray | None = (
        None  # (D,) of each document, such as en; where a corpus has more than one
    )

    @property
    def text_bytes(self) -> int:
        """Bytes of raw text in all."""
        return int(self.byte_counts.sum(dtype=np.int64))

    def save(self, folder: Path, split: str) -> None:
        """Write the arrays as SPLIT.NAME.npy."""
        for name in ARRAY_NAMES:
            if getattr(self, name) is not None:
                write_array(folder / f"{split}.{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path, split: str) -> "TokenizedCorpus":
        """Read what `save` wrote."""
        return cls(
            **{
                n: read_array(folder / f"{split}.{n}.npy")
                for n in ARRAY_NAMES
                if (folder / f"{split}.{n}.npy").is_file()
            }
        )

    def select_language(self, language: str | None) -> "TokenizedCorpus":
        """The documents of one language; all of them where none is named, or where none is known. Raises InputError where it has none."""
        if language is None or self.languages is None:
            return self
        chosen = np.flatnonzero(self.languages == language)
        if not len(chosen):
            raise InputError(
                f"the corpus: train or valid holds no document in '{language}'; add text with `language: {language}`, or raise "
                "validation_share"
            )
        firsts, ends = self.document_starts[chosen], self.document_starts[chosen + 1]
        where = np.concatenate([np.arange(a, b) for a, b in zip(firsts, ends, strict=True)])
        starts = self.sentence_starts[:-1]
        sentences = np.append(np.searchsorted(where, starts[np.isin(starts, where)]), len(where))
        documents = np.concatenate([[0], np.cumsum(ends - firsts)])
        return TokenizedCorpus(
            self.ids[where], self.byte_counts[where], documents, sentences, self.word_byte_ids_UC
        )


def encode_corpus(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    languages: Sequence[str] = (),
    on_progress: Callable[[float, str], None] = lambda done, note: None,
) -> TokenizedCorpus:
    """Texts as one flat array of ids, each a document; `languages` is that of each where there are several; `report` is told how many are done."""
    parts: list[_EncodedDocument] = []
    types: dict[str, int] = (
        dict(sorted(tokenizer.backend_tokenizer.get_vocab().items(), key=lambda pair: pair[1]))
        if tokenizer.tokenizer_type == "word"
        else {}
    )
    for first in range(0, len(texts), DOCUMENTS_PER_BATCH):
        some = list(texts[first : first + DOCUMENTS_PER_BATCH])
        parts += [
            _encode_document(text, cut, tokenizer, types)
            for text, cut in zip(some, tokenizer.tokenize(some), strict=True)
        ]
        on_progress(first + len(some), "documents")
    found = _concatenate(parts, list(types), tokenizer)
    return (
        dataclasses.replace(found, languages=np.array(languages, np.str_))
        if len(languages)
        else found
    )


@dataclass(frozen=True)
class _EncodedDocument:
    ids: np.ndarray
    byte_counts: np.ndarray
    sentence_starts: np.ndarray


def _encode_document(
    text: str, tokenized: TokenizedText, tokenizer: Tokenizer, word_ids: dict[str, int]
) -> _EncodedDocument:
    ids, sizes = tokenized.ids, _token_bytes(text, tokenized.offsets)
    firsts = find_sentence_starts(text, tokenized.offsets[:, 0], tokenizer.language)
    if tokenizer.tokenizer_type == "word":
        unknown = tokenizer.special_token_ids["<unk>"]
        ids = np.array(
            [
                i
                if i != unknown
                else word_ids.setdefault(
                    tokenizer.surface_form(tokenized.normalized_text, a, b), len(word_ids)
                )
                for i, (a, b) in zip(ids, tokenized.normalized_offsets, strict=True)
            ],
            np.int64,
        )
        where, marks = tokenizer.sentence_boundary_tokens(firsts, len(ids))
        ids, sizes = np.insert(ids, where, marks), np.insert(sizes, where, 0)
        firsts = firsts + 2 * np.arange(len(firsts))
    elif (
        tokenizer.tokenizer_type != "wordpiece"
        and tokenizer.special_token_template.prefix
        and tokenizer.special_token_template.mask_token_id is None
    ):
        ids, sizes = (
            np.insert(ids, 0, tokenizer.special_token_template.prefix),
            np.insert(
                sizes, 0, np.zeros(len(tokenizer.special_token_template.prefix), sizes.dtype)
            ),
        )
        firsts = np.where(firsts > 0, firsts + len(tokenizer.special_token_template.prefix), 0)
    if tokenizer.direction == "backward":
        ids, sizes, firsts = (
            ids[::-1],
            sizes[::-1],
            (len(ids) - np.append(firsts[1:], len(ids)))[::-1],
        )
    return _EncodedDocument(ids.astype(np.int32), sizes, firsts)


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


def _concatenate(
    parts: list[_EncodedDocument], words: list[str], tokenizer: Tokenizer
) -> TokenizedCorpus:
    lengths = np.array([len(p.ids) for p in parts], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    sentences = np.concatenate(
        [*(p.sentence_starts + start for p, start in zip(parts, starts, strict=False)), starts[-1:]]
    )
    ids, sizes = (
        np.concatenate([p.ids for p in parts]),
        np.concatenate([p.byte_counts for p in parts]),
    )
    table = (
        word_byte_table(words, tokenizer.max_word_bytes)
        if tokenizer.tokenizer_type == "word"
        else None
    )
    return TokenizedCorpus(ids, sizes, starts, sentences.astype(np.int64), table)
