"""Build a corpus from its sources: clean, drop repeats, split by document, count drops."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.config.data import Corpus, CorpusSource
from lineage.data.sources import open_source_table, resolve_origin
from lineage.errors import InputError
from lineage.language import byte_count, cell_to_text, normalize_text, split_words
from lineage.synthetic import grammar

SPLITS = ("train", "valid", "test")
ProgressCallback = Callable[[float, str], None]  # (documents done, a note)


def ignore_progress(done: float, note: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class CorpusDocuments:
    """The documents that a corpus keeps, and how many it dropped."""

    table: pd.DataFrame  # columns document, source, language, text; one row per document
    num_read: int
    dropped: dict[str, int]  # by reason


def source_fingerprint(source: CorpusSource, root: Path, where: str) -> dict[str, Any]:
    """Return what identifies a source's data.

    These are file digests, a Hub revision, or the version and numbers of a generator.
    """
    record, origin = resolve_origin(source, root, where)
    if origin == "generated":
        return {
            "read": origin,
            "generator": record.generated,
            "version": grammar.GRAMMAR_VERSION,
            "grammar_seed": grammar.resolve_grammar_seed(record.grammar_seed),
            "documents": record.num_documents,
        }
    return {"read": origin, **open_source_table(record, root, where).fingerprint()}


def collect_documents(
    corpus: Corpus,
    *,
    seed: int,
    root: Path,
    where: str,
    report_progress: ProgressCallback = ignore_progress,
) -> CorpusDocuments:
    """Read all sources and drop documents that are blank, too short or repeated.

    Raises InputError.
    """
    rows: list[tuple[str, str, str, str]] = []
    dropped = {"blank": 0, "too_short": 0, "duplicate": 0}
    seen: set[bytes] = set()
    num_read = 0
    num_characters = 0
    for number, source in enumerate(corpus.sources):
        source_name = source.generated or source.hub or source.files or ""
        language = source.language or corpus.language
        texts = _read_texts(
            source, language, seed=seed, root=root, where=f"{where}.sources[{number}]"
        )
        for place, raw_text in enumerate(texts, 1):
            num_read += 1
            text = normalize_text(raw_text)
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if reason := _drop_reason(text, corpus.min_characters, is_repeated=key in seen):
                dropped[reason] += 1
                continue
            seen.add(key)
            rows.append((f"{number}-{place}", source_name, language, text))
            num_characters += len(text)
            if num_read % 500 == 0:
                report_progress(num_read, f"{num_characters / 1e6:.1f} M characters")
    table = pd.DataFrame(rows, columns=["document", "source", "language", "text"], dtype="str")
    return CorpusDocuments(table, num_read, dropped)


def split_corpus(
    documents: CorpusDocuments, corpus: Corpus, *, seed: int, where: str
) -> dict[str, pd.DataFrame]:
    """Split whole documents into train, valid and test.

    A hash of the seed and the text orders them, so a new document moves few others.
    Raises InputError if a split would be empty.
    """
    table = documents.table
    num_valid = _split_size(corpus.validation_share, len(table))
    num_test = _split_size(corpus.test_share, len(table))
    num_heldout = num_valid + num_test
    if len(table) <= num_heldout:
        dropped = [f"{count} {reason}" for reason, count in documents.dropped.items() if count]
        noun = "document" if len(table) == 1 else "documents"
        dropped_note = f" ({', '.join(dropped)})" if dropped else ""
        raise InputError(
            f"{where}: {len(table)} usable {noun} of {documents.num_read} read{dropped_note} "
            "cannot be split into train, validation and test; add text, or break it into more "
            "documents, one per line (in params.yaml, document_unit: blank_line or file says what a "
            "document of a .txt file is)"
        )
    keys = [hashlib.blake2b(f"{seed} {text}".encode()).digest() for text in table["text"]]
    order = sorted(range(len(table)), key=keys.__getitem__)
    rows = {
        "train": order[num_heldout:],
        "valid": order[:num_valid],
        "test": order[num_valid:num_heldout],
    }
    return {name: table.iloc[sorted(rows[name])].reset_index(drop=True) for name in SPLITS}


def count_text_bytes(table: pd.DataFrame) -> int:
    """Return the bytes of all texts in UTF-8."""
    return sum(map(byte_count, table["text"]))


def corpus_statistics(
    splits: dict[str, pd.DataFrame], documents: CorpusDocuments
) -> dict[str, Any]:
    """Count documents, bytes and words of each split, and what was dropped."""
    word_counts = {}
    for name, table in splits.items():
        pairs = zip(table["text"], table["language"], strict=True)
        word_counts[name] = sum(len(split_words(text, language)) for text, language in pairs)
    return {
        "documents": {name: len(table) for name, table in splits.items()},
        "bytes": {name: count_text_bytes(table) for name, table in splits.items()},
        "words": word_counts,
        "read": documents.num_read,
        "dropped": documents.dropped,
    }


def _read_texts(
    source: CorpusSource, language: str, *, seed: int, root: Path, where: str
) -> Iterator[str]:
    record, origin = resolve_origin(source, root, where)
    if origin == "generated":
        assert record.num_documents is not None
        yield from grammar.generate_documents(
            record.num_documents,
            seed=seed,
            grammar_seed=grammar.resolve_grammar_seed(record.grammar_seed),
            language=language,
        )
        return
    table = open_source_table(record, root, where)
    column = record.text or "text"
    values = chain.from_iterable(batch[column] for batch in table.iter_batches([column]))
    for row, value in enumerate(values, 1):
        try:
            yield cell_to_text(value)
        except TypeError as error:
            raise InputError(
                f"{table.location}: row {row}: column '{column}' {error}; name a column of text"
            ) from None


def _drop_reason(text: str, min_characters: int, *, is_repeated: bool) -> str:
    """Return why a document is dropped; empty if it is kept."""
    if not text:
        return "blank"
    if len(text) < min_characters:
        return "too_short"
    return "duplicate" if is_repeated else ""


def _split_size(share: float, num_documents: int) -> int:
    return max(1, round(share * num_documents)) if share else 0
