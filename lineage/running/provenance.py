"""What a run is named by, and what it read: pipeline, commit, and data sets by digest."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage.records import read_yaml

CODE = ("flows", "stages", "lineage", "dvc.yaml")  # what a run is made by, beside its parameters


@dataclass(frozen=True)
class Dataset:
    """What a stage reads, by name and digest; its data is never loaded or copied."""

    name: str
    digest: str
    source: str  # a path relative to the repository
    facts: Mapping[str, object] = field(default_factory=dict)  # counts that the UI may show


def pipeline_id() -> str:
    """What names a pipeline: what its orchestrator said to a worker, or else what stands here."""
    changed = os.environ["LINEAGE_DIRTY"].split(",") if "LINEAGE_DIRTY" in os.environ else changed_files(Path(), CODE)
    return os.environ.get("LINEAGE_PIPELINE_ID") or pipeline_of(Path(), code_commit=commit(), changed=changed)


def pipeline_of(root: Path, *, code_commit: str, changed: Sequence[str]) -> str:
    """What names the run of a folder: a digest of the commit of its code, the files of it that are `changed` since, params.yaml as it is read, and
    what the sources stage has recorded of the data. All stages but that one, and the flow after it, agree on it."""
    files = [root / name for name in changed if name.split("/")[0] in CODE]
    files += [path for records in ("corpora", "tasks") for path in sorted((root / "artifacts/sources" / records).glob("*.json"))]
    contents = {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in files}
    said = [code_commit, _text_keys(read_yaml(root / "params.yaml")), contents]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]


def changed_files(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Files below these paths that differ from HEAD, new ones included; none outside of git."""
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", *paths]
    environment = {key: value for key, value in os.environ.items() if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return tuple(sorted(line[3:] for line in answer.stdout.split("\0") if line))


def _text_keys(tree: Any) -> Any:
    """The tree with every key as text: what YAML lets be a number or a date is refused later, with its place."""
    return {str(key): _text_keys(value) for key, value in tree.items()} if isinstance(tree, Mapping) else tree


def commit() -> str:
    """The commit of the code: the flow's word, or what is checked out here, or `none` outside of git."""
    given = os.environ.get("LINEAGE_COMMIT")
    if given:
        return given
    answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else "none"
