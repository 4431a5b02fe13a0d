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
    """What names a pipeline: the flow's word, or a digest of the code and of params.yaml as they stand here."""
    given, here = os.environ.get("LINEAGE_PIPELINE_ID"), Path()
    return given or digest_of(commit(), params=read_yaml(here / "params.yaml"), root=here, changed=changed_files(here, CODE))


def digest_of(code_commit: str, *, params: Mapping[str, Any], root: Path, changed: Sequence[str]) -> str:
    """What names a run of a commit, with files of the code that are `changed` since, and some parameters: the same for the flow and for a stage that
    runs without it."""
    edits = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() if (root / name).is_file() else None for name in changed if _is_code(name)}
    said = code_commit + json.dumps(_text_keys(params), sort_keys=True, default=str) + (json.dumps(edits, sort_keys=True) if edits else "")
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def changed_files(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Files below these paths that differ from HEAD, new ones included; none outside of git."""
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", *paths]
    environment = {key: value for key, value in os.environ.items() if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return tuple(sorted(line[3:] for line in answer.stdout.split("\0") if line))


def _is_code(name: str) -> bool:
    return name.split("/")[0] in CODE


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
