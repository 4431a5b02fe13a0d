"""A corpus as token ids: flat, memory-mapped arrays.

Training reads no text, and any document or sentence is a slice.
Shapes: N tokens, D documents, S sentences, U distinct words, C bytes per word.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lineage.artifacts import read_array, write_array
from lineage.errors import InputError
from lineage.tokenizers.tokenizer import TokenizedText, Tokenizer, find_sentence_starts
from lineage.tokenizers.word_bytes import word_byte_table

DOCUMENTS_PER_BATCH = 256  # documents tokenized at a time


@dataclass(frozen=True)
class TokenizedCorpus:
    """One split of a corpus."""

    # (N,) special tokens included: <S> .. </S> around a sentence, <|endoftext|> before a document,
    # none for WordPiece, the tokenizer of masked models, which add [CLS] and [SEP] to each pair
    ids: np.ndarray
    byte_counts: np.ndarray  # (N,) bytes of raw text per token; their sum is the text's size
    document_starts: np.ndarray  # (D + 1,) first token of each document, and N
    sentence_starts: np.ndarray  # (S + 1,) first token of each sentence, and N
    word_byte_ids_UC: np.ndarray | None = None  # tokenizers of words only
    languages: np.ndarray | None = None  # (D,) such as en, if a corpus has more than one

    @property
    def text_bytes(self) -> int:
        return int(self.byte_counts.sum(dtype=np.int64))

    def save(self, folder: Path, split: str) -> None:
        """Write the arrays as SPLIT.NAME.npy."""
        for name, array in vars(self).items():
            if array is not None:
                write_array(folder / f"{split}.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path, split: str) -> "TokenizedCorpus":
        arrays = {}
        for field in dataclasses.fields(cls):
            path = folder / f"{split}.{field.name}.npy"
            if path.is_file():
                arrays[field.name] = read_array(path)
        return cls(**arrays)

    def select_language(self, language: str | None) -> "TokenizedCorpus":
        """Return the documents of one language, or all if no language is named or known.

        Raises InputError if there are none.
        """
        if language is None or self.languages is None:
            return self
        chosen = np.flatnonzero(self.languages == language)
        if not len(chosen):
            raise InputError(
                f"the corpus: train or valid has no document in '{language}'; add text with "
                f"`language: {language}`, or raise validation_share"
            )
        starts = self.document_starts[chosen]
        ends = self.document_starts[chosen + 1]
        spans = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        positions = np.concatenate(spans)
        sentence_starts = self.sentence_starts[:-1]
        kept_starts = sentence_starts[np.isin(sentence_starts, positions)]
        return TokenizedCorpus(
            self.ids[positions],
            self.byte_counts[positions],
            document_starts=np.concatenate([[0], np.cumsum(ends - starts)]),
            sentence_starts=np.append(np.searchsorted(positions, kept_starts), len(positions)),
            word_byte_ids_UC=self.word_byte_ids_UC,
        )


def encode_corpus(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    languages: Sequence[str] = (),
    on_progress: Callable[[float, str], None] = lambda num_done, note: None,
) -> TokenizedCorpus:
    """Tokenize texts, each a document, into one flat array.

    `languages` gives the language of each text if there are several; `on_progress` receives the
    number of finished texts.
    """
    is_word = tokenizer.tokenizer_type == "word"
    word_ids: dict[str, int] = {}
    if is_word:
        vocab = tokenizer.backend_tokenizer.get_vocab()
        word_ids = dict(sorted(vocab.items(), key=lambda item: item[1]))
    documents: list[_EncodedDocument] = []
    for first in range(0, len(texts), DOCUMENTS_PER_BATCH):
        batch = list(texts[first : first + DOCUMENTS_PER_BATCH])
        for text, tokenized in zip(batch, tokenizer.tokenize(batch), strict=True):
            documents.append(_encode_document(text, tokenized, tokenizer, word_ids))
        on_progress(first + len(batch), "documents")
    corpus = _concatenate(documents)
    if is_word:
        table = word_byte_table(word_ids, tokenizer.max_word_bytes)
        corpus = dataclasses.replace(corpus, word_byte_ids_UC=table)
    if len(languages):
        corpus = dataclasses.replace(corpus, languages=np.array(languages, np.str_))
    return corpus


@dataclass(frozen=True)
class _EncodedDocument:
    """One document of a TokenizedCorpus; `sentence_starts` are relative to its first token."""

    ids: np.ndarray
    byte_counts: np.ndarray
    sentence_starts: np.ndarray

    def reverse(self) -> "_EncodedDocument":
        sentence_ends = np.append(self.sentence_starts[1:], len(self.ids))
        return _EncodedDocument(
            self.ids[::-1], self.byte_counts[::-1], (len(self.ids) - sentence_ends)[::-1]
        )


def _encode_document(
    text: str, tokenized: TokenizedText, tokenizer: Tokenizer, word_ids: dict[str, int]
) -> _EncodedDocument:
    """Add the special tokens, which have no bytes, and move the sentence starts accordingly."""
    starts = find_sentence_starts(text, tokenized.offsets[:, 0], tokenizer.language)
    byte_counts = _token_bytes(text, tokenized.offsets)
    if tokenizer.tokenizer_type == "word":
        ids = _open_vocabulary_ids(tokenized, tokenizer, word_ids)
        positions, boundary_ids = tokenizer.sentence_boundary_tokens(starts, len(ids))
        ids = np.insert(ids, positions, boundary_ids)
        byte_counts = np.insert(byte_counts, positions, 0)
        starts = starts + 2 * np.arange(len(starts))  # two for each sentence before
    else:
        # A masked model has no special tokens around documents in pretraining.
        template = tokenizer.special_token_template
        prefix = template.prefix if template.mask_token_id is None else ()
        ids = np.insert(tokenized.ids, 0, prefix)
        byte_counts = np.insert(byte_counts, 0, np.zeros(len(prefix), byte_counts.dtype))
        starts = np.where(starts > 0, starts + len(prefix), 0)  # the first one includes the prefix
    document = _EncodedDocument(ids.astype(np.int32), byte_counts, starts)
    if tokenizer.direction == "backward":
        return document.reverse()
    return document


def _open_vocabulary_ids(
    tokenized: TokenizedText, tokenizer: Tokenizer, word_ids: dict[str, int]
) -> np.ndarray:
    """Replace unknown words by ids of their own, and add these to `word_ids`."""
    unk_id = tokenizer.special_token_ids["<unk>"]
    ids = tokenized.ids.astype(np.int64)
    for position in np.flatnonzero(ids == unk_id):
        start, end = tokenized.normalized_offsets[position]
        word = tokenizer.surface_form(tokenized.normalized_text, start, end)
        ids[position] = word_ids.setdefault(word, len(word_ids))
    return ids


def _token_bytes(text: str, offsets: np.ndarray) -> np.ndarray:
    """Count bytes from each token's start to the next one's."""
    if len(offsets) == 0:
        return np.zeros(0, np.uint32)
    num_bytes = len(text.encode())
    starts = offsets[:, 0]
    if num_bytes != len(text):
        bytes_before = np.concatenate([[0], np.cumsum([len(c.encode()) for c in text])])
        starts = bytes_before[starts]
    return np.diff(np.concatenate([[0], starts[1:], [num_bytes]])).astype(np.uint32)


def _concatenate(documents: list[_EncodedDocument]) -> TokenizedCorpus:
    lengths = np.array([len(document.ids) for document in documents], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    sentence_starts = [
        document.sentence_starts + start
        for document, start in zip(documents, starts[:-1], strict=True)
    ]
    return TokenizedCorpus(
        np.concatenate([document.ids for document in documents]),
        np.concatenate([document.byte_counts for document in documents]),
        starts,
        np.concatenate([*sentence_starts, starts[-1:]]).astype(np.int64),
    )
