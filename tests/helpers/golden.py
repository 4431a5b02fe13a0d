"""Folders from others: reference numbers, which LINEAGE_GOLDEN names, and data, LINEAGE_DATA."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file


def golden_settings(name: str, file: str = "config.json") -> Any:
    """Return the settings of one reference."""
    return json.loads((golden_folder(name) / file).read_text())


def golden_tensors(name: str, file: str = "cases.safetensors") -> dict[str, torch.Tensor]:
    """Return the recorded tensors of one reference."""
    return load_file(golden_folder(name) / file)


def golden_folder(name: str) -> Path:
    """Return the folder of one reference.

    Skip the test if LINEAGE_GOLDEN is not set; fail if it is set and the folder is missing.
    """
    root = os.environ.get("LINEAGE_GOLDEN")
    if not root:
        pytest.skip("LINEAGE_GOLDEN is not set: no reference numbers to compare with")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.fail(f"LINEAGE_GOLDEN is {root}, which has no folder {name}")
    return folder


def data_folder() -> Path:
    """Return the folder of public data sets; skip the test if LINEAGE_DATA is not set."""
    root = os.environ.get("LINEAGE_DATA")
    if not root:
        pytest.skip("LINEAGE_DATA is not set: no real data to read")
    return Path(root)
