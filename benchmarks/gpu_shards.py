"""Prepare text for a machine that only trains, in one small folder. For gpu_pretrain.py.

The folder holds token ids, tokenizers, settings and minimal pairs. Families with the same tokenizer
share its token ids. shards.json has the block `models`, which may be edited before a training.
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
from lineage.errors import InputError
from lineage.language import byte_count, normalize_text
from lineage.networks.registry import load_family
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer

MAX_FOLDER_BYTES = 60 * 2**20
VALID_SHARE = 0.02  # of the documents, if the source has no validation split
MAX_VALID_BYTES = 1_000_000
SPLITS = ("train", "valid")
FAMILIES = ("elmo", "ulmfit", "gpt", "bert")
# The types of the arrays of `TokenizedCorpus`.
ARRAY_TYPES = {
    "ids": np.int32,
    "byte_counts": np.uint32,
    "document_starts": np.int64,
    "sentence_starts": np.int64,
    "word_byte_ids_UC": np.uint16,
}
# The defaults of the families are made for two CPU cores. A GPU gets larger vocabularies and
# batches, and learning rates for bodies of about 20 million parameters.
FAMILY_OVERRIDES: dict[str, dict[str, dict[str, Any]]] = {
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
class ShardRequest:
    """The inputs of `prepare_shards`."""

    source: Path  # a parquet file with a column `text`, or a folder of such files
    families: tuple[str, ...]
    text_bytes: int  # of training text
    language: str
    vocab_size: int | None  # of all tokenizers; None: those of the families
    # A parquet file with columns good and bad, and optionally uid or group for the paradigm.
    pairs: Path | None
    pairs_per_group: int


def prepare_shards(request: ShardRequest, out: Path) -> int:
    """Write the folder and return its size in bytes.

    Raises InputError if there is not enough text, or if the folder would be too large.
    """
    texts = _read_splits(request)
    models: dict[str, dict[str, Any]] = {}
    token_folders: dict[str, str] = {}
    with create_artifact(out, "shards") as draft:
        for name in request.families:
            models[name] = _model_settings(name, request.vocab_size)
            tokenizer_type = load_family(name).tokenizer_type
            settings = parse_record(
                TokenizerSettings, models[name]["tokenizer"], f"models.{name}.tokenizer"
            )
            token_folders[name] = f"{tokenizer_type}-{text_digest(repr(settings))[:8]}"
            folder = draft / token_folders[name]
            if not folder.is_dir():
                tokenizer = train_tokenizer(
                    texts["train"],
                    settings,
                    tokenizer_type=tokenizer_type,
                    language=request.language,
                )
                _write_token_ids(folder, texts, tokenizer)
        if request.pairs:
            pairs = _read_pairs(request.pairs, request.pairs_per_group)
            write_table(draft / "pairs.parquet", pairs)
        facts = {
            "models": models,
            "tokens": token_folders,
            "source": request.source.name,
            "text_bytes": {split: sum(map(byte_count, texts[split])) for split in texts},
        }
        write_json(draft / "shards.json", facts)
        size_bytes = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
        if size_bytes > MAX_FOLDER_BYTES:
            fitting_mb = int(request.text_bytes * MAX_FOLDER_BYTES / size_bytes * 0.95) / 1e6
            raise InputError(
                f"{out}: {size_bytes / 2**20:.0f} MiB, and at most "
                f"{MAX_FOLDER_BYTES / 2**20:.0f} can travel; try --text-mb {fitting_mb:.1f}"
            )
    return size_bytes


def _model_settings(name: str, vocab_size: int | None) -> dict[str, Any]:
    settings = merge_trees(fill_in_defaults(name, {}), FAMILY_OVERRIDES[name])
    if vocab_size:
        settings["tokenizer"]["vocab_size"] = vocab_size
    return settings


def _read_splits(request: ShardRequest) -> dict[str, list[str]]:
    """Return shuffled documents for train and documents for valid, up to the requested bytes."""
    source = request.source
    paths = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    path_by_name = {path.stem: path for path in paths if path.is_file()}
    valid_path = path_by_name.get("valid") or path_by_name.get("validation")
    if "train" in path_by_name:
        train_paths = [path_by_name["train"]]
    else:
        train_paths = [path for path in path_by_name.values() if path != valid_path]
    if not train_paths:
        raise InputError(
            f"{source}: no parquet file is here; name a file with a column 'text', "
            "or a folder of such files"
        )
    documents = [text for path in train_paths for text in _read_documents(path)]
    order = generator("shards", 0).permutation(len(documents))
    if valid_path is not None:
        valid_documents = _read_documents(valid_path)
    else:
        num_valid = max(1, round(VALID_SHARE * len(order)))
        valid_documents = [documents[i] for i in order[:num_valid]]
        order = order[num_valid:]
    splits = {
        "train": _take_bytes([documents[i] for i in order], request.text_bytes),
        "valid": _take_bytes(valid_documents, MAX_VALID_BYTES),
    }
    if not all(splits.values()):
        raise InputError(
            f"{source}: {len(documents)} documents are too few to train on some and hold others "
            "out; add text"
        )
    return splits


def _read_documents(path: Path) -> list[str]:
    try:
        column = pd.read_parquet(path, columns=["text"])["text"]
    except (ValueError, KeyError, OSError):
        raise InputError(
            f"{path}: no column 'text' can be read; name the column of text 'text'"
        ) from None
    documents = [normalize_text(value) for value in column if isinstance(value, str)]
    return [document for document in documents if document]


def _take_bytes(texts: Sequence[str], text_bytes: int) -> list[str]:
    """Return the first texts, until they have `text_bytes`."""
    taken = []
    size_bytes = 0
    for text in texts:
        if size_bytes >= text_bytes:
            break
        taken.append(text)
        size_bytes += byte_count(text)
    return taken


def _read_pairs(path: Path, pairs_per_group: int) -> pd.DataFrame:
    table = pd.read_parquet(path)
    table = table.rename(
        columns={"sentence_good": "good", "sentence_bad": "bad", "uid": "group", "UID": "group"}
    )
    if not {"good", "bad"} <= {*table.columns}:
        raise InputError(
            f"{path}: minimal pairs have columns good and bad; found {', '.join(table.columns)}"
        )
    if "group" not in table:
        table = table.assign(group="all")
    is_different = table["good"] != table["bad"]
    table = table.loc[is_different, ["group", "good", "bad"]]
    return table.groupby("group", sort=True).head(pairs_per_group).reset_index(drop=True)


def _write_token_ids(folder: Path, texts: dict[str, list[str]], tokenizer: Tokenizer) -> None:
    folder.mkdir()
    tokenizer.save(folder)
    for split, documents in texts.items():
        corpus = encode_corpus(documents, tokenizer)
        arrays = {}
        for name in ARRAY_TYPES:
            array = getattr(corpus, name)
            if array is not None:
                arrays[name] = _to_smallest_type(array)
        np.savez_compressed(folder / f"{split}.npz", **arrays)


def _to_smallest_type(array: np.ndarray) -> np.ndarray:
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))


def load_settings(shards: Path) -> dict[str, Any]:
    """Read shards.json and add the digests of all other files, as `files`. Raises InputError."""
    path = shards / "shards.json"
    if not path.is_file():
        raise InputError(
            f"{shards}: no shards are here; make them with --prepare FOLDER --out {shards}, "
            "where lineage is installed"
        )
    settings = read_json(path)
    blocks = ("models", "tokens", "text_bytes")
    if not isinstance(settings, dict) or not all(
        isinstance(settings.get(block), dict) for block in blocks
    ):
        raise InputError(
            f"{path}: models, tokens and text_bytes are not all there; "
            "make the shards again with --prepare"
        )
    pairs_path = shards / "pairs.parquet"
    if pairs_path.is_file():
        try:
            read_table(pairs_path, ["good", "bad"])
        except (OSError, ValueError):  # base classes of pyarrow's errors
            raise InputError(
                f"{pairs_path}: no pairs can be read; make the shards again with --prepare"
            ) from None
    digests = {}
    for file in sorted(shards.rglob("*")):
        if file.is_file() and file.name not in ("shards.json", "manifest.json"):
            digests[file.relative_to(shards).as_posix()] = file_digest(file)
    return settings | {"files": digests}


def unpack_token_ids(shards: Path, token_folder: str, work: Path) -> Path:
    """Unpack the token ids of a tokenizer into arrays that training maps into memory.

    Returns their folder. If it exists, nothing is done. Raises InputError if a file is damaged.
    """
    folder = work / "tokens" / token_folder
    if not folder.is_dir():
        with create_artifact(folder, "tokens") as draft:
            for split in SPLITS:
                corpus = _read_token_ids(shards / token_folder / f"{split}.npz")
                corpus.save(draft, split)
    return folder


def _read_token_ids(path: Path) -> TokenizedCorpus:
    unreadable = (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        BadZipFile,
        zlib.error,
    )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name].astype(ARRAY_TYPES[name]) for name in file.files}
        return TokenizedCorpus(**arrays)
    except unreadable as error:
        raise InputError(
            f"{path}: cannot be read ({error}); make the shards again with --prepare, "
            "or copy them whole"
        ) from None
