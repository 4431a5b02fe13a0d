"""Which code a stage runs: the sources stage keeps its digests, so that a change re-runs what it may change, and nothing else.

One record a verb is what DVC watches. Listing the files in dvc.yaml did the same, but wrote forty entries a stage into dvc.lock, which DVC reads
and writes whole for each stage that it runs.
"""

import ast
import re
from functools import cache
from pathlib import Path

from lineage.artifacts import file_digest

ROOT = Path(__file__).resolve().parent.parent.parent
BY_DIGEST = ("lineage.families.", "lineage.tasks.")  # in the record of the variant or task that uses them, so that a new one leaves others fresh


def code_of(stage: str) -> dict[str, str]:
    """The project's files that stages/STAGE.py imports, itself included, each with its sha256; without the families' and the kinds'."""
    return {path: file_digest(ROOT / path) for path in code_files(stage)}


def code_files(stage: str) -> list[str]:
    """Their paths from the root."""
    seen: set[str] = set()
    ahead = [f"stages.{stage}"]
    while ahead:
        module = ahead.pop()
        if module not in seen:
            seen.add(module)
            ahead += [*imports(module), *chosen_by_name(module)]
    return sorted(modules()[module].relative_to(ROOT).as_posix() for module in seen if not module.startswith(BY_DIGEST))


@cache
def modules() -> dict[str, Path]:
    """Module name -> file, of the library and the stages; without __init__ files, which are empty but for that of stages, and it computes nothing."""
    files = [path for folder in ("lineage", "stages") for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "__init__.py"]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


@cache
def imports(module: str) -> set[str]:
    """The project's modules that a module imports, lazily too."""
    return named(modules()[module]) & set(modules())


def named(path: Path) -> set[str]:
    """Everything that a file imports, lazily too, by full name; a name from a package may be a module or something in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def chosen_by_name(module: str) -> set[str]:
    """The modules of a package from which this module picks one by name: importlib.import_module(f"lineage.families.{name}")."""
    packages = re.findall(r'import_module\(f"(lineage\.\w+)\.\{', modules()[module].read_text(encoding="utf-8"))
    return {name for name in modules() for package in packages if name.startswith(f"{package}.")}
