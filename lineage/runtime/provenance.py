"""Identify a run and what it read: pipeline id, versions, data sets by digest, stage metadata."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage.config.records import parse_yaml
from lineage.errors import InputError
from lineage.runtime.settings import get_user_name, run_git

SOURCES_DIR = Path("artifacts/sources")  # what the sources stage has recorded
PACKAGE_RECORD = "package.json"  # there: the version and the code digest of this package
WRITTEN_BY_RUNS = ("dvc.lock", "reports", "artifacts", ".dvc/config")  # files that a run changes

StageMetadata = dict[str, Any]  # what `.lineage/metadata/STAGE.json` holds
LockEntry = Mapping[str, Any]  # a stage's entry in dvc.lock


@dataclass(frozen=True)
class Dataset:
    """An artifact that a stage reads: its path in the workspace and its digest."""

    name: str
    digest: str
    schema: str = ""  # its columns and their types, as MLflow's JSON; empty without tables
    profile: str = ""  # JSON: the rows of all tables, and of each

    @property
    def short_digest(self) -> str:
        """The digest as MLflow has it, which takes at most 36 characters."""
        return self.digest[:16]


@dataclass(frozen=True)
class PackageVersion:
    """The package that runs a study: its version, and the digest of its code."""

    version: str
    code_digest: str


@dataclass(frozen=True)
class StudyVersion:
    """The commit of a study's own git repository, `none` without one, and changed files."""

    commit: str
    changed_files: tuple[str, ...]


def get_pipeline_id() -> str:
    """Return the id of the run of the current study: 16 characters of a digest.

    A worker, which has only what its stage reads, gets the id from the orchestrator.
    """
    given = os.environ.get("LINEAGE_PIPELINE_ID")
    return given or compute_pipeline_id(Path())


def compute_pipeline_id(root: Path) -> str:
    """Return the id of the run of a study. All stages but sources compute the same id."""
    contents = {}
    for path in sorted((root / SOURCES_DIR).rglob("*.json")):
        name = path.relative_to(root).as_posix()
        contents[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return _json_digest(contents)[:16]


def read_package_version(root: Path = Path()) -> PackageVersion:
    """Return the package that the sources stage has recorded; of unknown values if there is none."""
    record = _read_json_or_empty(root / SOURCES_DIR / PACKAGE_RECORD)
    return PackageVersion(record.get("version", "unknown"), record.get("code_digest", "unknown"))


def find_study_version(root: Path) -> StudyVersion:
    """Return the commit of the study's git repository, and which of its files have changed since.

    Files that a run writes do not count as changed.
    """
    answer = run_git(root, "rev-parse", "--verify", "HEAD")
    if answer.returncode != 0:
        return StudyVersion("none", ())
    options = ("--porcelain", "--untracked-files=all", "--no-renames", "-z")
    excluded = [f":(exclude){name}" for name in WRITTEN_BY_RUNS]
    status = run_git(root, "status", *options, "--", ".", *excluded)
    changed = tuple(sorted(line[3:] for line in status.stdout.split("\0") if line))
    return StudyVersion(answer.stdout.strip(), changed)


def get_study_version() -> StudyVersion:
    """Return the version of the study: as the run found it, or as it is in the current folder."""
    commit = os.environ.get("LINEAGE_STUDY_COMMIT")
    if not commit:
        return find_study_version(Path())
    changed = os.environ.get("LINEAGE_STUDY_CHANGES", "")
    return StudyVersion(commit, tuple(name for name in changed.split(",") if name))


def common_tags(pipeline: str) -> dict[str, str]:
    """Return the tags of every run."""
    study = get_study_version()
    package = read_package_version()
    tags = {
        "pipeline": pipeline,
        "study": os.environ.get("LINEAGE_STUDY") or Path.cwd().name,
        "study_commit": study.commit,
        "lineage_version": package.version,
        "code_digest": package.code_digest,
        "prefect_flow_run": os.environ.get("LINEAGE_FLOW_RUN", "none"),
        "mlflow.user": get_user_name(),
        "mlflow.source.name": "lineage",
    }
    if study.commit != "none":
        tags["mlflow.source.git.commit"] = study.commit
    if study.changed_files:
        tags["changed_files"] = ", ".join(study.changed_files)
    return tags


def read_lock_entry(root: Path, stage: str) -> dict[str, Any]:
    """Return a stage's entry in dvc.lock, or nothing if the stage has not run.

    Only the entry's own lines are parsed: parsing 146 stages takes 0.27 s. Nothing is returned
    either while DVC itself is writing the file.
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

    A file describes the last time that its stage ran. A copy is kept under the entry of dvc.lock
    that came of it, so that an older result which DVC brings back gets its own metadata again, or
    none. After a plain `dvc repro` the copy is made here.
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


def _json_digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
