"""Numbers that the reference implementations gave, in the folder that LINEAGE_GOLDEN names."""

import os
from pathlib import Path

import pytest


def golden(name: str) -> Path:
    """The folder of one reference. The test skips where no such numbers were asked for, and fails where they were and are not there."""
    root = os.environ.get("LINEAGE_GOLDEN")
    if not root:
        pytest.skip("LINEAGE_GOLDEN is not set: no reference numbers to compare with")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.fail(f"LINEAGE_GOLDEN is {root}, which has no folder {name}")
    return folder
