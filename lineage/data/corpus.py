"""Read, clean, split and measure a corpus, and write the files of its artifact."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.artifacts import write_json, write_table
from lineage.config.data import Corpus, CorpusSource
from lineage.data.prepared import Measures, PreparedData, locate_prepared
from lineage.data.sources import open_source_table, resolve_origin
from lineage.errors import InputError
from lineage.language import byte_count, cell_to_text, check_script, normalize_text, split_words
from lineage.synthetic import grammar

SPLITS = ("train", "valid", "test")
SCRIPT_SAMPLE_SIZE = 1000  # documents that show the script of all
MAX_DISTINCT_WORDS = 250_000  # counting stops here: enough for a vocabulary of a million


@dataclass(frozen=True)
class CorpusDocuments:
    """The documents that a corpus keeps, and how many it dropped."""

    table: pd.DataFrame  # columns document, source, language, text; one row per document
    num_read: int
    dropped: dict[str, int]  # by reason


@dataclass(frozen=True)
class CorpusMeasures:
    """The numbers of a corpus that parameters are checked against."""

    num_read: int  # documents
    train_bytes: int
    distinct_words: int  # of train, up to MAX_DISTINCT_WORDS
    num_documents: dict[str, dict[str, int]]  # split -> language -> documents


def locate_corpus(name: str, corpus: Corpus, *, seed: int, root: Path, where: str) -> PreparedData:
    """Return a corpus in the state of its data. Raises InputError."""
    fingerprint = [
        source_fingerprint(source, root, f"{where}.sources[{number}]")
        for number, source in enumerate(corpus.sources)
    ]

    def build(folder: Path) -> Measures:
        for number, source in enumerate(corpus.sources):
            place = f"{where}.sources[{number}]"
            record, origin = resolve_origin(source, root, place)
            if origin != "generated":
                open_source_table(record, root, place).check([record.text or "text"])
        documents = collect_documents(corpus, seed=seed, root=root, where=where)
        return _write_corpus(corpus, documents, folder, seed=seed, where=where)

    return locate_prepared(
        "corpus", name, build, fingerprint=fingerprint, parameters=asdict(corpus), seed=seed
    )


def _write_corpus(
    corpus: Corpus, documents: CorpusDocuments, folder: Path, *, seed: int, where: str
) -> Measures:
    """Write the files of an artifact, and return the fields of CorpusMeasures."""
    for language, table in documents.table.groupby("language"):
        check_script(table["text"].head(SCRIPT_SAMPLE_SIZE).tolist(), str(language), where)
    splits = split_corpus(documents, corpus, seed=seed, where=where)
    for split, table in splits.items():
        write_table(folder / f"{split}.parquet", table)
    write_json(folder / "counts.json", corpus_statistics(splits, documents))
    words: set[str] = set()
    for text, language in zip(splits["train"]["text"], splits["train"]["language"], strict=True):
        words.update(split_words(text, language))
        if len(words) > MAX_DISTINCT_WORDS:
            break
    measures = CorpusMeasures(
        num_read=documents.num_read,
        train_bytes=count_text_bytes(splits["train"]),
        distinct_words=len(words),
        num_documents={split: dict(Counter(table["language"])) for split, table in splits.items()},
    )
    return asdict(measures)


def source_fingerprint(source: CorpusSource, root: Path, where: str) -> dict[str, Any]:
    """Return what identifies a source's data."""
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


def collect_documents(corpus: Corpus, *, seed: int, root: Path, where: str) -> CorpusDocuments:
    """Read all sources without blank, short or repeated documents. Raises InputError."""
    rows: list[tuple[str, str, str, str]] = []
    dropped = {"blank": 0, "too_short": 0, "duplicate": 0}
    seen: set[bytes] = set()
    num_read = 0
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
            if not text:
                dropped["blank"] += 1
            elif len(text) < corpus.min_characters:
                dropped["too_short"] += 1
            elif key in seen:
                dropped["duplicate"] += 1
            else:
                seen.add(key)
                rows.append((f"{number}-{place}", source_name, language, text))
    table = pd.DataFrame(rows, columns=["document", "source", "language", "text"], dtype="str")
    return CorpusDocuments(table, num_read, dropped)


def split_corpus(
    documents: CorpusDocuments, corpus: Corpus, *, seed: int, where: str
) -> dict[str, pd.DataFrame]:
    """Split whole documents into train, valid and test, in the order of a hash of seed and text.

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


def _split_size(share: float, num_documents: int) -> int:
    return max(1, round(share * num_documents)) if share else 0
