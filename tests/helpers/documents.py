"""The tables of docs/reference, the module that writes some of them, and code in the docs."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

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


def run_documented_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, output: str, **settings: int
) -> None:
    """Run the code of docs/how-to/data-and-tasks.md that writes an output, in a folder.

    `settings` replaces the values of names that the code sets in its first lines.
    """
    page = (ROOT / "docs" / "how-to" / "data-and-tasks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = [block for block in blocks if output in block]
    for name, value in settings.items():
        code, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", code, flags=re.MULTILINE)
        assert count == 1
    monkeypatch.chdir(folder)
    exec(code, {})
