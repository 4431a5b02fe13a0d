"""The families by name: one file of `lineage/families` each."""

import importlib
import re
from functools import cache
from pathlib import Path

from lineage.config.records import suggest_nearest
from lineage.errors import InputError
from lineage.networks.base import Family

FAMILIES_DIR = Path(__file__).parent.parent / "families"
FAMILY_LINE = re.compile(r"^FAMILY\b.*=", re.MULTILINE)


@cache
def family_names() -> tuple[str, ...]:
    """Return the names of the files in `lineage/families` that define a family, sorted."""
    return tuple(
        file.stem
        for file in sorted(FAMILIES_DIR.glob("*.py"))
        if FAMILY_LINE.search(file.read_text(encoding="utf-8"))
    )


def load_family(name: str, where: str = "models") -> Family:
    """Load a family by name. Raises InputError that names the nearest."""
    known = family_names()
    if name not in known:
        raise InputError(f"{where}: there is no family '{name}'{suggest_nearest(name, known)}")
    family = importlib.import_module(f"lineage.families.{name}").FAMILY
    assert isinstance(family, Family)
    if family.name != name:
        raise InputError(
            f"lineage/families/{name}.py: its FAMILY is named '{family.name}'; name it '{name}', "
            "like its file"
        )
    return family


def family_source_file(family: str) -> Path:
    return FAMILIES_DIR / f"{family}.py"
