"""Read and write artifact folders. A folder is written completely or not at all, with a manifest.

Nothing is pickled, and the same content gives the same bytes.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import DamagedError, InputError

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"


@contextlib.contextmanager
def create_artifact(folder: Path, kind: str, **facts: object) -> Iterator[Path]:
    """Yield a new folder to fill; it is moved to its place when the block ends without error.

    The manifest holds the digest of every file, and `facts`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        paths = [path for path in sorted(draft.rglob("*")) if path.is_file()]
        files = {path.relative_to(draft).as_posix(): file_digest(path) for path in paths}
        manifest = {"kind": kind, "schema": SCHEMA_VERSION, "files": files, **facts}
        write_json(draft / MANIFEST_FILE, manifest)
        for path in paths:
            flush_to_disk(path)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
        flush_to_disk(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_intact(folder: Path, kind: str | None = None, *, patterns: Sequence[str] = ("*",)) -> bool:
    """Tell whether an artifact is complete, and each file has the digest of its manifest."""
    try:
        files = read_manifest(folder, kind)["files"]
        return all(
            file_digest(folder / name) == digest
            for name, digest in files.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        )
    except (InputError, OSError, KeyError, AttributeError, TypeError):
        return False  # the manifest is damaged itself, or a file is missing or unreadable


def check_intact(folder: Path, *patterns: str) -> None:
    """Raise InputError if an artifact is missing, or a file has not the digest of its manifest.

    Every byte is read. With patterns, only files are read whose names match one.
    """
    if not (folder / MANIFEST_FILE).is_file():
        read_manifest(folder)  # says what to do
    if not is_intact(folder, patterns=patterns or ("*",)):
        raise DamagedError(folder)


def read_manifest(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """Read the manifest of an artifact. Raises InputError if its kind or schema is another one."""
    if not (folder / MANIFEST_FILE).is_file():
        raise InputError(
            f"{folder}: no artifact is here; run `dvc repro` to make it, or `dvc pull` to fetch it"
        )
    manifest = read_json(folder / MANIFEST_FILE)
    has_kind = kind is None or manifest["kind"] == kind
    if manifest["schema"] != SCHEMA_VERSION or not has_kind:
        raise InputError(
            f"{folder}: holds {manifest['kind']} of schema {manifest['schema']}, expected {kind} "
            f"of schema {SCHEMA_VERSION}; run `dvc repro`"
        )
    return manifest


def artifact_digest(folder: Path) -> str:
    """Return one hash of everything in an artifact."""
    return text_digest(json.dumps(read_manifest(folder), sort_keys=True))


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def text_digest(text: str) -> str:
    """Return the sha256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write sorted, indented JSON, completely or not at all.

    Raises ValueError for a number that is not finite, which not every JSON parser reads.
    """
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_text(text, encoding="utf-8")
    flush_to_disk(draft)
    os.replace(draft, path)


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises InputError if it is missing or invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: there is no such file; correct the path, or run `dvc repro` if a stage "
            "makes it"
        ) from None
    except ValueError as error:
        raise InputError(
            f"{path}: not a JSON file: {error}; correct it, or run `dvc repro` if a stage makes it"
        ) from None


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a parquet file (zstd), completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    table.reset_index(drop=True).to_parquet(draft, compression="zstd", index=False)
    flush_to_disk(draft)
    os.replace(draft, path)


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    return pd.read_parquet(path, columns=columns)


def write_array(path: Path, array: np.ndarray) -> None:
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)


def read_array(path: Path) -> np.ndarray:
    """Open a .npy file, memory-mapped and read-only."""
    return np.load(path, mmap_mode="r", allow_pickle=False)
