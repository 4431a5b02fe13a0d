"""Find outputs whose bytes are no longer those that a stage wrote, and remove them.

DVC trusts an output whose size and time have not changed, and any file of its cache that is
read-only. Here every byte is read, and compared with the digests in dvc.lock.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.plan import FIRST_STAGE, Reasons, read_lock_entries

HASH_NAME = "md5"  # of outputs; entries of DVC 2 have another one, and are left to DVC
FOLDER_SUFFIX = ".dir"  # of the digest of a folder, which is that of its listing
CACHE_MODE = 0o444
RUN_CACHE = "runs"  # next to `files/md5` in DVC's cache
OUTPUTS_LINE = b"\nouts:\n"  # begins the last part of a record
MAX_READERS = 8  # threads that read files at the same time


@dataclass(frozen=True)
class _StoredFile:
    """A file of an output: its path and its digest."""

    output: str  # the path in dvc.lock
    path: Path
    cache_path: Path
    digest: str


def remove_damaged_outputs(
    root: Path, cache: Path, reasons: Mapping[str, Reasons], *, check_cache: bool
) -> dict[str, list[str]]:
    """Remove damaged files of all stages from the study, and their copies in the cache if damaged.

    Return the damaged outputs by stage. Outputs that DVC itself finds changed, according to
    `reasons`, are left to it. With `check_cache`, the copies of intact files are read, and replaced
    if damaged.
    """
    entries = read_lock_entries(root, [name for name in reasons if name != FIRST_STAGE])
    damaged: dict[str, list[str]] = {}
    for name, entry in entries.items():
        changed = tuple(reason for reason in reasons[name] if reason.startswith("output "))
        outputs = [
            output
            for output in entry.get("outs", ())
            if not any(reason.startswith(f"output {output['path']} ") for reason in changed)
        ]
        found = remove_damaged_files(root, cache, outputs, check_cache=check_cache)
        if found:
            damaged[name] = found
    return damaged


def remove_cut_records(cache: Path) -> None:
    """Remove records of finished stages that a power cut has left empty, or without their outputs.

    DVC finds them by the inputs of a stage, which would fail each time. Hold the lock of the cache.
    """
    for folder in (cache.parent.parent / RUN_CACHE).glob("*/*"):
        for path in folder.iterdir():
            content = path.read_bytes()
            if OUTPUTS_LINE not in content or not content.endswith(b"\n"):
                path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def describe_damage(stage: str, outputs: Sequence[str]) -> str:
    """Say in one line what was found and done."""
    verb = "was" if len(outputs) == 1 else "were"
    return (
        f"{stage}: {', '.join(outputs)} {verb} damaged on the disk: the bytes are not those that "
        "the stage wrote; removed, and now restored or made again"
    )


def remove_damaged_files(
    root: Path, cache: Path, outputs: Sequence[Mapping[str, Any]], *, check_cache: bool
) -> list[str]:
    """Remove the damaged files of these outputs, and their copies in the cache if damaged.

    Return the damaged outputs.
    """
    damaged: list[str] = []
    files: list[_StoredFile] = []
    for output in outputs:
        if output.get("hash") != HASH_NAME:
            continue
        listed = _list_files(root, cache, output)
        if listed is None:
            damaged.append(output["path"])
        else:
            files += listed

    def check(file: _StoredFile) -> bool:
        return _check_file(file, check_cache=check_cache)

    with ThreadPoolExecutor(min(MAX_READERS, os.cpu_count() or 1)) as pool:
        for file, is_intact in zip(files, pool.map(check, files), strict=True):
            if not is_intact:
                damaged.append(file.output)
    return list(dict.fromkeys(damaged))


def _list_files(root: Path, cache: Path, output: Mapping[str, Any]) -> list[_StoredFile] | None:
    """Return the files of an output; None if its listing is lost, and the output with it."""
    name = output["path"]
    digest = output[HASH_NAME]
    path = root / name
    if not digest.endswith(FOLDER_SUFFIX):
        return [_StoredFile(name, path, _cache_path(cache, digest), digest)]
    listing = _read_listing(_cache_path(cache, digest), path, digest.removesuffix(FOLDER_SUFFIX))
    if listing is None:
        shutil.rmtree(path, ignore_errors=True)
        return None
    return [
        _StoredFile(
            name, path / entry["relpath"], _cache_path(cache, entry[HASH_NAME]), entry[HASH_NAME]
        )
        for entry in listing
    ]


def _read_listing(cache_path: Path, folder: Path, digest: str) -> list[dict[str, str]] | None:
    """Return DVC's listing of a folder. One that is damaged is written again from the folder."""
    if _has_digest(cache_path, digest):
        listing: list[dict[str, str]] = json.loads(cache_path.read_bytes())
        return listing
    cache_path.unlink(missing_ok=True)
    listing = [
        {HASH_NAME: _compute_digest(path), "relpath": path.relative_to(folder).as_posix()}
        for path in folder.rglob("*")
        if path.is_file()
    ]
    listing.sort(key=lambda entry: entry["relpath"])
    content = json.dumps(listing, sort_keys=True).encode()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != digest:
        return None
    _write_cache_file(cache_path, content)
    return listing


def _check_file(file: _StoredFile, *, check_cache: bool) -> bool:
    """Return whether a file is intact. Remove it, and its copy in the cache, where they are not."""
    if not _has_digest(file.path, file.digest):
        file.path.unlink(missing_ok=True)
        if not _has_digest(file.cache_path, file.digest):
            file.cache_path.unlink(missing_ok=True)
        return False
    if check_cache and not _has_digest(file.cache_path, file.digest):
        file.cache_path.unlink(missing_ok=True)
        _write_cache_file(file.cache_path, file.path.read_bytes())
    return True


def _has_digest(path: Path, digest: str) -> bool:
    """Return whether a file has this digest; a file that is missing or cannot be read has none."""
    try:
        return _compute_digest(path) == digest
    except OSError:  # also an error of the disk
        return False


def _compute_digest(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def _cache_path(cache: Path, digest: str) -> Path:
    return cache / digest[:2] / digest[2:]


def _write_cache_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_bytes(content)
    draft.chmod(CACHE_MODE)
    draft.replace(path)
