"""The only reader and writer of artifact folders: written whole or not at all, each with a manifest that says what it is.

Weights are safetensors, tables parquet, ids flat .npy arrays that are memory-mapped, the rest sorted JSON. Nothing is pickled,
and the same content gives the same bytes.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import InputError

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"


@contextlib.contextmanager
def create_artifact(folder: Path, kind: str, **facts: Any) -> Iterator[Path]:
    """A new folder to fill; it takes its place, manifest included, only when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        files = {
            p.relative_to(draft).as_posix(): file_digest(p)
            for p in sorted(draft.rglob("*"))
            if p.is_file()
        }
        write_json(
            draft / MANIFEST_FILE, {"kind": kind, "schema": SCHEMA_VERSION, "files": files, **facts}
        )
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_manifest(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """The manifest of an artifact, checked for its kind and schema. Raises InputError."""
    if not (folder / MANIFEST_FILE).is_file():
        raise InputError(
            f"{folder}: no artifact is here; run `dvc repro` to make it, or `dvc pull` to fetch it"
        )
    found = read_json(folder / MANIFEST_FILE)
    if found["schema"] != SCHEMA_VERSION or (kind is not None and found["kind"] != kind):
        raise InputError(
            f"{folder}: holds {found['kind']} of schema {found['schema']}, expected {kind} of schema {SCHEMA_VERSION}; run `dvc repro`"
        )
    return found


def artifact_digest(folder: Path) -> str:
    """One hash for all that an artifact holds."""
    return text_digest(json.dumps(read_manifest(folder), sort_keys=True))


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """sha256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Sorted, indented JSON; not-a-number is refused, so that every reader can read it. Written whole or not at all."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def read_json(path: Path) -> Any:
    """A JSON file's value. Raises InputError where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: there is no such file; correct the path, or run `dvc repro` where a stage makes it"
        ) from None
    except ValueError as error:
        raise InputError(
            f"{path}: not a JSON file: {error}; correct it, or run `dvc repro` where a stage makes it"
        ) from None


def write_table(path: Path, table: pd.DataFrame) -> None:
    """A parquet file (zstd), written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    table.reset_index(drop=True).to_parquet(draft, compression="zstd", index=False)
    os.replace(draft, path)


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """A parquet file's rows."""
    return pd.read_parquet(path, columns=columns)


def write_array(path: Path, array: np.ndarray) -> None:
    """A flat .npy file."""
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)


def read_array(path: Path) -> np.ndarray:
    """A .npy file, memory-mapped and read-only."""
    return np.load(path, mmap_mode="r", allow_pickle=False)
