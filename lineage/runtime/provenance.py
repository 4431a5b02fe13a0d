"""Identify a run and what it read: pipeline id, commit, data sets by digest, metadata of stages."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage.config.records import parse_yaml, read_yaml
from lineage.errors import InputError
from lineage.runtime.settings import run_git

CODE_PATHS = ("flows", "stages", "lineage", "dvc.yaml")  # what makes a run, with its parameters
RECORD_FOLDERS = ("artifacts/sources/corpora", "artifacts/sources/tasks")

StageMetadata = dict[str, Any]  # what `.lineage/metadata/STAGE.json` holds
LockEntry = Mapping[str, Any]  # a stage's entry in dvc.lock


@dataclass(frozen=True)
class Dataset:
    """An artifact that a stage reads: its path in the workspace and its digest.

    Its data is never loaded or copied.
    """

    name: str
    digest: str


def get_pipeline_id() -> str:
    """Return the pipeline id that the orchestrator has set, or that of the current folder."""
    given = os.environ.get("LINEAGE_PIPELINE_ID")
    if given:
        return given
    changed_files: Sequence[str]
    if "LINEAGE_DIRTY" in os.environ:
        changed_files = os.environ["LINEAGE_DIRTY"].split(",")
    else:
        changed_files = list_changed_files(Path(), CODE_PATHS)
    return compute_pipeline_id(Path(), code_commit=get_code_commit(), changed_files=changed_files)


def compute_pipeline_id(root: Path, *, code_commit: str, changed_files: Sequence[str]) -> str:
    """Return the id of the run of a folder: 16 characters of a digest.

    It covers the commit of the code, the code files that have changed since, the values of
    params.yaml, and what the sources stage has recorded about the data. All stages but that one,
    and the flow after it, compute the same id.
    """
    paths = [root / name for name in changed_files if name.split("/")[0] in CODE_PATHS]
    for folder in RECORD_FOLDERS:
        paths += sorted((root / folder).glob("*.json"))
    contents = {}
    for path in paths:
        name = str(path.relative_to(root))
        contents[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    identity = [code_commit, _with_text_keys(read_yaml(root / "params.yaml")), contents]
    return _json_digest(identity)[:16]


def list_changed_files(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the files below these paths that differ from HEAD, new ones included.

    Outside of git there are none.
    """
    answer = run_git(
        root, "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", *paths
    )
    return tuple(sorted(line[3:] for line in answer.stdout.split("\0") if line))


def get_code_commit() -> str:
    """Return the code's commit: the flow's, or the one checked out, or `none` outside of git."""
    given = os.environ.get("LINEAGE_COMMIT")
    if given:
        return given
    answer = run_git(Path(), "rev-parse", "HEAD")
    return answer.stdout.strip() if answer.returncode == 0 else "none"


def read_lock_entry(root: Path, stage: str) -> dict[str, Any]:
    """Return a stage's entry in dvc.lock, or nothing if the stage has not run.

    Only the entry's own lines are parsed: parsing 146 stages takes 0.27 s. While DVC itself is
    writing the file, the entry may be missing or cut short, and nothing is returned; our own writer
    replaces the file in one step.
    """
    path = root / "dvc.lock"
    pattern = rf"^  {re.escape(stage)}:\n((?:(?:    .*)?\n)+)"
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
        return parse_yaml(found[1], path) if found else {}
    except (FileNotFoundError, UnicodeDecodeError, InputError):
        return {}


def lock_entry_digest(entry: LockEntry) -> str:
    """Return the digest of an entry of dvc.lock; empty if there is no entry."""
    return _json_digest(entry) if entry else ""


def archive_stage_metadata(folder: Path, stage: str, entry: LockEntry) -> StageMetadata:
    """Note in a stage's metadata which entry of dvc.lock it belongs to, and keep a copy.

    Return the metadata, or nothing if there is no metadata or no entry.
    """
    path = folder / f"{stage}.json"
    key = lock_entry_digest(entry)
    if not key or not path.is_file():
        return {}
    metadata = _read_json_or_empty(path) | {"lock": key}
    text = json.dumps(metadata, indent=1, sort_keys=True) + "\n"
    # Not written by lineage.artifacts, which would import pandas into flows.
    for target in (path, _archived_path(folder, key)):
        target.parent.mkdir(exist_ok=True)
        draft = target.with_suffix(".tmp")
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    return metadata


def read_stage_metadata(
    folder: Path, stages: Collection[str], lock: Mapping[str, LockEntry]
) -> dict[str, StageMetadata]:
    """Read the metadata of the stages whose results are here, according to dvc.lock.

    A stage that ran elsewhere may have none. A metadata file describes the last time that its stage
    ran. A copy is kept under the entry of dvc.lock that came of it, so that an older result which
    DVC brings back gets its own metadata again, or none. A run of the graph keeps the copy at once.
    After a plain `dvc repro` it is kept here, unless the entry stood there before the stage ran and
    has a copy already.
    """
    metadata_by_stage = {}
    for name in sorted(set(stages) & set(lock)):
        entry_digest = lock_entry_digest(lock[name])
        archived_path = _archived_path(folder, entry_digest)
        metadata = _read_json_or_empty(folder / f"{name}.json")
        if metadata and "lock" not in metadata:
            entry_is_new = metadata.get("lock_before") != entry_digest
            if entry_is_new or not archived_path.is_file():
                metadata = archive_stage_metadata(folder, name, lock[name])
        if metadata.get("lock") != entry_digest:
            metadata = _read_json_or_empty(archived_path)
        if metadata:
            metadata_by_stage[name] = metadata
    return metadata_by_stage


def _archived_path(folder: Path, entry_digest: str) -> Path:
    return folder / "archive" / f"{entry_digest}.json"


def _read_json_or_empty(path: Path) -> dict[str, Any]:
    # A file may be cut short, for example by a power failure.
    with contextlib.suppress(FileNotFoundError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def _with_text_keys(tree: Any) -> Any:
    """Return the tree with every key as text.

    YAML allows numbers and dates, which are refused later, with their place.
    """
    if isinstance(tree, Mapping):
        return {str(key): _with_text_keys(value) for key, value in tree.items()}
    return tree


def _json_digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
