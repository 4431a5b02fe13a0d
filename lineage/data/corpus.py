"""A corpus from its sources: cleaned, each document once, split by document, and every drop counted by its reason."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.config.data import Corpus, CorpusSource
from lineage.data.language import byte_count, cell_to_text, normalize_text, split_words
from lineage.data.sources import open_source_table, resolve_origin
from lineage.errors import InputError
from lineage.synthetic import grammar

SPLITS = ("train", "valid", "test")
ProgressCallback = Callable[[float, str], None]  # (documents done, a note)


@dataclass(frozen=True)
class CorpusDocuments:
    """What a corpus keeps: one row a document (document, source, language, text), and why the others were dropped."""

    table: pd.DataFrame
    num_read: int
    dropped: dict[str, int]


def source_fingerprint(source: CorpusSource, root: Path, where: str) -> dict[str, Any]:
    """What tells a source's data from any other: the digests of its files, a Hub revision, or a generator's version and numbers."""
    record, how = resolve_origin(source, root, where)
    assert isinstance(record, CorpusSource)
    if how == "generated":
        numbers = {
            "version": grammar.GRAMMAR_VERSION,
            "grammar_seed": grammar.resolve_grammar_seed(record.grammar_seed),
            "documents": record.num_documents,
        }
        return {"read": how, "generator": record.generated, **numbers}
    return {"read": how, **open_source_table(record, root, where).fingerprint()}


def collect_documents(
    corpus: Corpus,
    *,
    seed: int,
    root: Path,
    where: str,
    report_progress: ProgressCallback = lambda done, note: None,
) -> CorpusDocuments:
    """Read all sources and keep what is not blank, not too short and not a repeat. Raises InputError."""
    rows: list[tuple[str, str, str, str]] = []
    dropped = {"blank": 0, "too_short": 0, "duplicate": 0}
    seen: set[bytes] = set()
    read = size = 0
    for number, source in enumerate(corpus.sources):
        name, language = (
            source.generated or source.hub or source.files or "",
            source.language or corpus.language,
        )
        for place, raw in enumerate(
            _read_texts(source, language, seed=seed, root=root, where=f"{where}.sources[{number}]"),
            1,
        ):
            read += 1
            text = normalize_text(raw)
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if reason := _drop_reason(text, corpus.min_characters, key in seen):
                dropped[reason] += 1
                continue
            seen.add(key)
            rows.append((f"{number}-{place}", name, language, text))
            size += len(text)
            if read % 500 == 0:
                report_progress(read, f"{size / 1e6:.1f} M characters")
    return CorpusDocuments(
        pd.DataFrame(rows, columns=["document", "source", "language", "text"], dtype="str"),
        read,
        dropped,
    )


def split_corpus(
    documents: CorpusDocuments, corpus: Corpus, *, seed: int, where: str
) -> dict[str, pd.DataFrame]:
    """Train, valid and test: whole documents, drawn by a hash of the seed and the text, so that a new document moves few others."""
    table = documents.table
    sizes = {
        "valid": _split_size(corpus.validation_share, len(table)),
        "test": _split_size(corpus.test_share, len(table)),
    }
    if len(table) <= sum(sizes.values()):
        lost = ", ".join(
            f"{count} {reason}" for reason, count in documents.dropped.items() if count
        )
        raise InputError(
            f"{where}: {len(table)} usable documents of {documents.num_read} read{f' ({lost})' if lost else ''} cannot be "
            "split into train, valid and test; add text, or set what a document of a .txt file is: 'document: blank_line'"
        )
    order = sorted(
        range(len(table)),
        key=[
            hashlib.blake2b(f"{seed} {text}".encode()).digest() for text in table["text"]
        ].__getitem__,
    )
    ends = {
        "valid": order[: sizes["valid"]],
        "test": order[sizes["valid"] : sum(sizes.values())],
        "train": order[sum(sizes.values()) :],
    }
    return {name: table.iloc[sorted(ends[name])].reset_index(drop=True) for name in SPLITS}


def count_text_bytes(table: pd.DataFrame) -> int:
    """Bytes of all texts in UTF-8."""
    return sum(map(byte_count, table["text"]))


def corpus_statistics(
    splits: dict[str, pd.DataFrame],
    documents: CorpusDocuments,
    report_progress: ProgressCallback = lambda done, note: None,
) -> dict[str, Any]:
    """Documents, bytes and words of each split, and what was dropped."""
    word_counts, done = {}, 0
    for name, table in splits.items():
        word_counts[name] = 0
        for text, language in zip(table["text"], table["language"], strict=True):
            word_counts[name] += len(split_words(text, language))
            done += 1
            if done % 100 == 0:
                report_progress(done, f"{sum(word_counts.values()) / 1e6:.1f} M words")
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
    record, how = resolve_origin(source, root, where)
    assert isinstance(record, CorpusSource)
    if how == "generated":
        assert record.num_documents is not None
        yield from grammar.generate_documents(
            record.num_documents,
            seed=seed,
            grammar_seed=grammar.resolve_grammar_seed(record.grammar_seed),
            language=language,
        )
        return
    table = open_source_table(record, root, where)
    column = "text" if record.text is None else record.text
    row = 0
    for batch in table.iter_batches([column]):
        for value in batch[column]:
            row += 1
            try:
                yield cell_to_text(value)
            except TypeError as error:
                raise InputError(
                    f"{table.location}: row {row}: column '{column}' {error}; name a column of text"
                ) from None


def _drop_reason(text: str, minimum: int, repeated: bool) -> str:
    if not text:
        return "blank"
    if len(text) < minimum:
        return "too_short"
    return "duplicate" if repeated else ""


def _split_size(share: float, documents: int) -> int:
    return max(1, round(share * documents)) if share else 0
