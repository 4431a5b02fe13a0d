"""What a run is named by, and what it read: pipeline, commit, and data sets by digest."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage.records import read_yaml


@dataclass(frozen=True)
class Dataset:
    """What a stage reads, by name and digest; its data is never loaded or copied."""

    name: str
    digest: str
    source: str  # a path relative to the repository
    facts: Mapping[str, object] = field(default_factory=dict)  # counts that the UI may show


def pipeline_id() -> str:
    """What names a pipeline: the flow's word, or a digest of the commit and of params.yaml as it is read here."""
    given = os.environ.get("LINEAGE_PIPELINE_ID")
    return given or digest_of(commit(), params=read_yaml(Path("params.yaml")))


def digest_of(code_commit: str, *, params: Mapping[str, Any]) -> str:
    """What names a run of some code with some parameters, as they are read: the same for the flow and for a stage that runs without it."""
    return hashlib.sha256((code_commit + json.dumps(_text_keys(params), sort_keys=True, default=str)).encode()).hexdigest()[:16]


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
