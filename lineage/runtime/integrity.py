"""Compare outputs of stages with their digests, for stages that DVC runs without `lineage run`.

Folders have a manifest with the digests of their files. Single files, such as tables of results,
have only the digest in dvc.lock.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

from lineage.artifacts import check_intact
from lineage.config.records import read_yaml
from lineage.errors import DamagedError
from lineage.runtime.provenance import LockEntry


def check_outputs(lock: Mapping[str, LockEntry], stages: Collection[str]) -> None:
    """Raise DamagedError if an output of these stages is damaged.

    Outputs that are missing, and stages without an entry in dvc.lock, are left to DVC.
    """
    for name in sorted(set(stages) & set(lock)):
        for output in lock[name].get("outs", ()):
            path = Path(output["path"])
            if path.is_dir():
                check_intact(path)
            elif path.is_file() and output.get("hash") == "md5":
                _check_file(path, output["md5"])


def check_result_files(folder: Path) -> None:
    """Raise DamagedError if a file of this folder has not the digest that dvc.lock has for it."""
    lock_file = Path("dvc.lock")
    if not lock_file.is_file():
        return
    for entry in read_yaml(lock_file)["stages"].values():
        for output in entry.get("outs", ()):
            path = Path(output["path"])
            is_result = path.is_relative_to(folder) and path.is_file()
            if is_result and output.get("hash") == "md5":
                _check_file(path, output["md5"])


def _check_file(path: Path, digest: str) -> None:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    if found.hexdigest() != digest:
        raise DamagedError(path)
