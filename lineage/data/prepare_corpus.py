"""Read, validate and measure a corpus, and write the files of its artifact."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.artifacts import write_json, write_table
from lineage.config.data import Corpus
from lineage.data.corpus import (
    ProgressCallback,
    collect_documents,
    corpus_statistics,
    count_text_bytes,
    ignore_progress,
    source_fingerprint,
    split_corpus,
)
from lineage.data.prepared import Measures, PreparedData, locate_prepared
from lineage.data.sources import open_source_table, resolve_origin
from lineage.language import check_script, split_words

SCRIPT_SAMPLE_SIZE = 1000  # documents that show the script of all
MAX_DISTINCT_WORDS = 250_000  # counting stops here: enough for a vocabulary of a million


@dataclass(frozen=True)
class CorpusMeasures:
    """The numbers of a corpus that parameters are checked against."""

    num_read: int  # documents
    train_bytes: int
    distinct_words: int  # of train, up to MAX_DISTINCT_WORDS
    num_documents: dict[str, dict[str, int]]  # split -> language -> documents


def corpus_fingerprint(corpus: Corpus, root: Path, where: str) -> list[dict[str, Any]]:
    """Return what identifies the data of each source. Raises InputError."""
    return [
        source_fingerprint(source, root, f"{where}.sources[{number}]")
        for number, source in enumerate(corpus.sources)
    ]


def locate_prepared_corpus(
    name: str,
    corpus: Corpus,
    fingerprint: list[dict[str, Any]],
    *,
    seed: int,
    code_digests: Mapping[str, str] | None = None,
) -> PreparedData:
    """Return the place where the sources stage keeps a corpus."""
    return locate_prepared(
        "corpus",
        name,
        fingerprint=fingerprint,
        parameters=asdict(corpus),
        seed=seed,
        code_digests=code_digests,
    )


def prepare_corpus(
    corpus: Corpus,
    folder: Path,
    *,
    seed: int,
    root: Path,
    where: str,
    report_progress: ProgressCallback = ignore_progress,
) -> Measures:
    """Read a corpus, write the files of its artifact, and return the fields of CorpusMeasures.

    Raises InputError for anything that is wrong with the data.
    """
    for number, source in enumerate(corpus.sources):
        place = f"{where}.sources[{number}]"
        record, origin = resolve_origin(source, root, place)
        if origin != "generated":
            open_source_table(record, root, place).check([record.text or "text"])
    documents = collect_documents(
        corpus, seed=seed, root=root, where=where, report_progress=report_progress
    )
    for language, table in documents.table.groupby("language"):
        check_script(table["text"].head(SCRIPT_SAMPLE_SIZE).tolist(), str(language), where)
    splits = split_corpus(documents, corpus, seed=seed, where=where)
    for split, table in splits.items():
        write_table(folder / f"{split}.parquet", table)
    write_json(folder / "counts.json", corpus_statistics(splits, documents))
    measures = CorpusMeasures(
        num_read=documents.num_read,
        train_bytes=count_text_bytes(splits["train"]),
        distinct_words=_count_distinct_words(splits["train"]),
        num_documents={split: _count_by_language(table) for split, table in splits.items()},
    )
    return asdict(measures)


def _count_by_language(table: pd.DataFrame) -> dict[str, int]:
    return {str(name): int(count) for name, count in table["language"].value_counts().items()}


def _count_distinct_words(table: pd.DataFrame) -> int:
    words: set[str] = set()
    for text, language in zip(table["text"], table["language"], strict=True):
        words.update(split_words(text, language))
        if len(words) > MAX_DISTINCT_WORDS:
            break
    return len(words)
