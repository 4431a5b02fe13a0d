"""Which code a stage runs: the sources stage keeps its digests, so that a change re-runs what it may change, and nothing else.

One record a verb is what DVC watches. Listing the files in dvc.yaml did the same, but wrote forty entries a stage into dvc.lock, which DVC reads
and writes whole for each stage that it runs.
"""

import ast
import re
from functools import cache
from pathlib import Path

from lineage.artifacts import file_digest

PROJECT_ROOT = Path(__file__).resolve().parent.parent.parent
# A family's or a kind's own file is part of the record of the models or tasks that use it, so a new one leaves the others fresh.
DEFINES_FAMILY_OR_KIND = re.compile(r"^(FAMILY|KIND) = ", re.MULTILINE)


def stage_code_digests(stage: str) -> dict[str, str]:
    """The project's files that stages/STAGE.py imports, itself included, each with its sha256; without the families' and the kinds'."""
    return {path: file_digest(PROJECT_ROOT / path) for path in list_stage_files(stage)}


def list_stage_files(stage: str) -> list[str]:
    """Their paths from the root."""
    seen: set[str] = set()
    ahead = [f"stages.{stage}"]
    while ahead:
        module = ahead.pop()
        if module not in seen:
            seen.add(module)
            ahead += [*imported_modules(module), *dynamic_imports(module)]
    paths = (project_modules()[module] for module in seen if not is_recorded_separately(module))
    return sorted(path.relative_to(PROJECT_ROOT).as_posix() for path in paths)


@cache
def is_recorded_separately(module: str) -> bool:
    """Return whether a module defines a family or a kind of task."""
    return bool(
        DEFINES_FAMILY_OR_KIND.search(project_modules()[module].read_text(encoding="utf-8"))
    )


@cache
def project_modules() -> dict[str, Path]:
    """Module name -> file, of the library and the stages; without __init__ files, which are empty but for that of stages, and it computes nothing."""
    files = [
        path
        for folder in ("lineage", "stages")
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    return {".".join(path.relative_to(PROJECT_ROOT).with_suffix("").parts): path for path in files}


@cache
def imported_modules(module: str) -> set[str]:
    """The project's modules that a module imports, lazily too."""
    return imported_names(project_modules()[module]) & set(project_modules())


def imported_names(path: Path) -> set[str]:
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
def dynamic_imports(module: str) -> set[str]:
    """The modules of a package from which this module picks one by name: importlib.import_module(f"lineage.models.{name}")."""
    packages = re.findall(
        r'import_module\(f"(lineage\.\w+)\.\{',
        project_modules()[module].read_text(encoding="utf-8"),
    )
    return {
        name for name in project_modules() for package in packages if name.startswith(f"{package}.")
    }
