"""The tables of docs/reference."""

import re

from tests.helpers.checkout import ROOT


def described_names(page: str, heading: str) -> list[str]:
    """Return the names in the first column of the tables below a heading of a reference page."""
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
