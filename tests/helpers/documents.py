"""The tables of docs/reference, and the module that writes some of them."""

import importlib.util
import re
from types import ModuleType

from tests.helpers.checkout import ROOT


def load_generator() -> ModuleType:
    """Return docs/reference/generate.py as a module."""
    path = ROOT / "docs" / "reference" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described_names(page: str, heading: str) -> list[str]:
    """Return the names in the first column of the tables below a heading of a reference page."""
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
