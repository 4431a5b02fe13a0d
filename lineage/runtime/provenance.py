"""What a run is named by, what it read, and which run made what is here: pipeline, commit, data sets by digest, side files."""

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

CODE_PATHS = (
    "flows",
    "stages",
    "lineage",
    "dvc.yaml",
)  # what a run is made by, beside its parameters


@dataclass(frozen=True)
class Dataset:
    """What a stage reads, by its path in the workspace and its digest; its data is never loaded or copied."""

    name: str
    digest: str


def get_pipeline_id() -> str:
    """What names a pipeline: what its orchestrator said to a worker, or else what stands here."""
    changed = (
        os.environ["LINEAGE_DIRTY"].split(",")
        if "LINEAGE_DIRTY" in os.environ
        else list_changed_files(Path(), CODE_PATHS)
    )
    return os.environ.get("LINEAGE_PIPELINE_ID") or compute_pipeline_id(
        Path(), code_commit=get_code_commit(), changed_files=changed
    )


def compute_pipeline_id(root: Path, *, code_commit: str, changed_files: Sequence[str]) -> str:
    """What names the run of a folder: a digest of the commit of its code, the files of it that are `changed` since, params.yaml as it is read, and
    what the sources stage has recorded of the data. All stages but that one, and the flow after it, agree on it."""
    files = [root / name for name in changed_files if name.split("/")[0] in CODE_PATHS]
    files += [
        path
        for records in ("corpora", "tasks")
        for path in sorted((root / "artifacts/sources" / records).glob("*.json"))
    ]
    contents = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in files
    }
    identity = [code_commit, _stringify_keys(read_yaml(root / "params.yaml")), contents]
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[
        :16
    ]


def list_changed_files(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Files below these paths that differ from HEAD, new ones included; none outside of git."""
    answer = run_git(
        root, "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", *paths
    )
    return tuple(sorted(line[3:] for line in answer.stdout.split("\0") if line))


def _stringify_keys(tree: Any) -> Any:
    """The tree with every key as text: what YAML lets be a number or a date is refused later, with its place."""
    return (
        {str(key): _stringify_keys(value) for key, value in tree.items()}
        if isinstance(tree, Mapping)
        else tree
    )


def get_code_commit() -> str:
    """The commit of the code: the flow's word, or what is checked out here, or `none` outside of git."""
    given = os.environ.get("LINEAGE_COMMIT")
    if given:
        return given
    answer = run_git(Path(), "rev-parse", "HEAD")
    return answer.stdout.strip() if answer.returncode == 0 else "none"


def read_lock_entry(root: Path, stage: str) -> dict[str, Any]:
    """What dvc.lock says of a stage, empty where it has not run: of its lines alone: to parse 146 stages takes 0.27 s.

    Empty or cut short where DVC itself is writing it right now; the walk's own writer puts the file in its place at once.
    """
    path = root / "dvc.lock"
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError, InputError):
        if found := re.search(
            rf"^  {re.escape(stage)}:\n((?:(?:    .*)?\n)+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        ):
            return parse_yaml(found[1], path)
    return {}


def lock_entry_digest(entry: Mapping[str, Any]) -> str:
    """What an entry of dvc.lock is known by; nothing where there is none."""
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest() if entry else ""


def archive_stage_metadata(folder: Path, stage: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Note, and keep under it, which entry of dvc.lock a side file is of; empty where there is none of either."""
    path, key = folder / f"{stage}.json", lock_entry_digest(entry)
    if not key or not path.is_file():
        return {}
    metadata = _read_json_or_empty(path) | {"lock": key}
    for place in (
        path,
        folder / "kept" / f"{key}.json",
    ):  # not by lineage.artifacts, with which pandas would come into flows
        place.parent.mkdir(exist_ok=True)
        draft = place.with_suffix(".tmp")
        draft.write_text(json.dumps(metadata, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(place)
    return metadata


def _read_json_or_empty(path: Path) -> dict[str, Any]:
    with contextlib.suppress(
        FileNotFoundError, ValueError
    ):  # one may be cut short, as when the power failed
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def read_stage_metadata(
    folder: Path, stages: Collection[str], lock: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The side files of these stages that belong to what is here, by its entry in dvc.lock; a stage that ran elsewhere may have none.

    A side file is of the last time that its stage ran. It is kept with the entry that came of it, so that an older result which DVC brings back has
    its own again, or none: a run of the graph notes that at once, a plain `dvc repro` here, unless the entry had a side file before.
    """
    metadata_by_stage = {}
    for name in sorted({*stages} & {*lock}):
        path, entry = folder / f"{name}.json", lock_entry_digest(lock[name])
        archived_path = folder / "kept" / f"{entry}.json"
        metadata = _read_json_or_empty(path)
        if (
            metadata
            and "lock" not in metadata
            and (metadata.get("lock_before") != entry or not archived_path.is_file())
        ):
            metadata = archive_stage_metadata(folder, name, lock[name])
        if metadata.get("lock") != entry:
            metadata = _read_json_or_empty(archived_path)
        if metadata:
            metadata_by_stage[name] = metadata
    return metadata_by_stage
