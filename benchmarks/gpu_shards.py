"""Text for a machine that only trains: ids, tokenizers, settings and minimal pairs in one small folder. For benchmarks/gpu_pretrain.py.

Families with the same tokenizer share its ids. shards.json holds the blocks of `models`, which may be changed there before a training.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from lineage.artifacts import (
    create_artifact,
    file_digest,
    read_json,
    read_table,
    text_digest,
    write_json,
    write_table,
)
from lineage.config.records import parse_record
from lineage.config.resolve import fill_in_defaults, merge_trees
from lineage.config.study import load_family
from lineage.data.language import byte_count, normalize_text
from lineage.errors import InputError
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer

MOST_BYTES = 60 * 2**20  # of the whole folder
HELD_SHARE, HELD_BYTES = (
    0.02,
    1_000_000,
)  # of documents, where no validation split is there; and at most so much of it
FAMILIES = ("elmo", "ulmfit", "gpt", "bert")
TYPES = {
    "ids": np.int32,
    "byte_counts": np.uint32,
    "document_starts": np.int64,
    "sentence_starts": np.int64,
    "word_byte_ids_UC": np.uint16,
}  # of Tokens
# What differs from the defaults of the families, which are made for two cores: larger vocabularies and batches, and rates for bodies of about 20 M parameters.
BLOCKS: dict[str, dict[str, dict[str, Any]]] = {
    "elmo": {
        "tokenizer": {"vocab_size": 30000},
        "architecture": {"softmax_samples": 4096},
        "pretrain": {"batch_size": 128, "seq_len": 20, "learning_rate": 0.001},
    },
    "ulmfit": {
        "tokenizer": {"vocab_size": 30000},
        "pretrain": {"batch_size": 128, "seq_len": 70, "learning_rate": 0.002},
    },
    "gpt": {
        "tokenizer": {"vocab_size": 16000},
        "architecture": {"num_layers": 6, "num_heads": 8, "init_std": 0.02},
        "pretrain": {"batch_size": 64, "seq_len": 256, "learning_rate": 0.0005},
    },
    "bert": {
        "tokenizer": {"vocab_size": 16000},
        "architecture": {"num_layers": 6, "num_heads": 8, "init_std": 0.02},
        "pretrain": {"batch_size": 128, "seq_len": 128, "learning_rate": 0.0005},
    },
}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What to prepare."""

    source: Path  # a parquet file with a column `text`, or a folder of such
    families: tuple[str, ...]
    text_bytes: int
    language: str
    vocabulary: int | None  # of all tokenizers, in place of what the blocks say
    pairs: Path | None  # parquet with the columns good, bad and, as uid or group, the paradigm
    pairs_per_group: int


def prepare(wanted: Wanted, out: Path) -> int:
    """Write the folder and give its bytes. Raises InputError where there is no text, or too much of it."""
    texts = _splits(wanted)
    models, tokens = dict[str, dict[str, Any]](), dict[str, str]()
    with create_artifact(out, "shards") as draft:
        for name in wanted.families:
            models[name] = merge_trees(fill_in_defaults(name, {}), BLOCKS[name])
            if wanted.vocabulary:
                models[name]["tokenizer"]["vocab_size"] = wanted.vocabulary
            family, settings = (
                load_family(name),
                parse_record(
                    TokenizerSettings, models[name]["tokenizer"], f"models.{name}.tokenizer"
                ),
            )
            tokens[name] = f"{family.tokenizer_type}-{text_digest(repr(settings))[:8]}"
            if not (draft / tokens[name]).is_dir():
                _write_tokens(
                    draft / tokens[name],
                    texts,
                    train_tokenizer(
                        texts["train"],
                        settings,
                        tokenizer_type=family.tokenizer_type,
                        language=wanted.language,
                    ),
                )
        if wanted.pairs:
            write_table(draft / "pairs.parquet", _pairs(wanted.pairs, wanted.pairs_per_group))
        facts = {
            "models": {name: models[name] for name in wanted.families},
            "tokens": tokens,
            "source": wanted.source.name,
        }
        write_json(
            draft / "shards.json",
            facts
            | {"text_bytes": {split: sum(map(byte_count, some)) for split, some in texts.items()}},
        )
        size = sum(p.stat().st_size for p in draft.rglob("*") if p.is_file())
        if size > MOST_BYTES:
            fits = int(wanted.text_bytes * MOST_BYTES / size * 0.95) / 1e6
            raise InputError(
                f"{out}: {size / 2**20:.0f} MiB, and at most {MOST_BYTES / 2**20:.0f} can travel; try --text-mb {fits:.1f}"
            )
    return size


def _splits(wanted: Wanted) -> dict[str, list[str]]:
    """Clean documents of train and valid, in an order of their own, up to the bytes that are wanted."""
    files = sorted(wanted.source.glob("*.parquet")) if wanted.source.is_dir() else [wanted.source]
    named = {file.stem: file for file in files if file.is_file()}
    held = named.get("valid") or named.get("validation")
    train = (
        [named["train"]] if "train" in named else [file for file in named.values() if file != held]
    )
    if not train:
        raise InputError(
            f"{wanted.source}: no parquet file is here; name a file with a column 'text', or a folder of such files"
        )
    documents = [text for file in train for text in _texts(file)]
    order = generator("shards", 0).permutation(len(documents))
    if held is not None:
        valid = _texts(held)
    else:
        count = max(1, round(HELD_SHARE * len(order)))
        valid, order = [documents[i] for i in order[:count]], order[count:]
    splits = {
        "train": _first([documents[i] for i in order], wanted.text_bytes),
        "valid": _first(valid, HELD_BYTES),
    }
    if not all(splits.values()):
        raise InputError(
            f"{wanted.source}: {len(documents)} documents are too few to train on some and hold others out; add text"
        )
    return splits


def _texts(path: Path) -> list[str]:
    try:
        column = pd.read_parquet(path, columns=["text"])["text"]
    except (ValueError, KeyError, OSError):
        raise InputError(
            f"{path}: no column 'text' can be read; name the column of text 'text'"
        ) from None
    return [
        text
        for text in (normalize_text(value) for value in column if isinstance(value, str))
        if text
    ]


def _first(texts: Sequence[str], text_bytes: int) -> list[str]:
    found, size = [], 0
    for text in texts:
        if size >= text_bytes:
            break
        found.append(text)
        size += byte_count(text)
    return found


def _pairs(path: Path, per_group: int) -> pd.DataFrame:
    table = pd.read_parquet(path)
    table = table.rename(
        columns={"sentence_good": "good", "sentence_bad": "bad", "uid": "group", "UID": "group"}
    )
    if not {"good", "bad"} <= {*table.columns}:
        raise InputError(
            f"{path}: minimal pairs have columns good and bad; found {', '.join(table.columns)}"
        )
    table = (table if "group" in table else table.assign(group="all"))[["group", "good", "bad"]]
    return (
        table[table["good"] != table["bad"]]
        .groupby("group", sort=True)
        .head(per_group)
        .reset_index(drop=True)
    )


def _write_tokens(folder: Path, texts: dict[str, list[str]], reader: Tokenizer) -> None:
    folder.mkdir()
    reader.save(folder)
    for split, some in texts.items():
        tokens = encode_corpus(some, reader)
        arrays = {
            name: _narrowed(getattr(tokens, name))
            for name in TYPES
            if getattr(tokens, name) is not None
        }
        np.savez_compressed(folder / f"{split}.npz", **arrays)


def _narrowed(array: np.ndarray) -> np.ndarray:
    """The same numbers in the smallest type that holds them."""
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))


def settings_of(shards: Path) -> dict[str, Any]:
    """shards.json, and the digests of what lies beside it. Raises InputError."""
    if not (shards / "shards.json").is_file():
        raise InputError(
            f"{shards}: no shards are here; make them with --prepare FOLDER --out {shards}, where lineage is installed"
        )
    found = read_json(shards / "shards.json")
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), dict) for key in ("models", "tokens", "text_bytes")
    ):
        raise InputError(
            f"{shards / 'shards.json'}: models, tokens and text_bytes are not all there; make the shards again with --prepare"
        )
    if (shards / "pairs.parquet").is_file():
        try:
            read_table(shards / "pairs.parquet", ["good", "bad"])
        except (OSError, ValueError):  # pyarrow's are of these
            raise InputError(
                f"{shards / 'pairs.parquet'}: no pairs can be read; make the shards again with --prepare"
            ) from None
    files = [
        p
        for p in sorted(shards.rglob("*"))
        if p.is_file() and p.name not in ("shards.json", "manifest.json")
    ]
    return found | {"files": {p.relative_to(shards).as_posix(): file_digest(p) for p in files}}


def unpack(shards: Path, key: str, work: Path) -> Path:
    """A tokenizer's ids as the flat arrays that training maps into memory, made once."""
    folder = work / "tokens" / key
    if not folder.is_dir():
        with create_artifact(folder, "tokens") as draft:
            for split in ("train", "valid"):
                path = shards / key / f"{split}.npz"
                try:
                    with np.load(path, allow_pickle=False) as arrays:
                        tokens = TokenizedCorpus(
                            **{name: arrays[name].astype(TYPES[name]) for name in arrays.files}
                        )
                except (
                    OSError,
                    ValueError,
                    KeyError,
                    TypeError,
                    AttributeError,
                    BadZipFile,
                    zlib.error,
                ) as error:
                    raise InputError(
                        f"{path}: cannot be read ({error}); make the shards again with --prepare, or copy them whole"
                    ) from None
                tokens.save(draft, split)
    return folder
