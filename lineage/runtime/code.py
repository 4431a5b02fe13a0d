"""Digest the code that a stage runs.

The code of a stage is every file of the project that stages/VERB.py imports, directly or not, plus
the files of the families and of the kind of task that it uses. Docstrings are left out, so that a
better explanation re-runs nothing. The sources stage records the digests: one record for each verb,
and a family's or a kind's own file in the records of the models and tasks that use it. DVC depends
on the records. A stage refuses to go on if its files no longer match them, and resumes only from
state that the same code wrote.

Listing the files in dvc.yaml would write forty entries for each stage into dvc.lock, which DVC
reads and writes whole for each stage that it runs.
"""

import ast
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lineage.runtime.settings import STATE_DIR

DIGESTS_FILE = STATE_DIR / "code.json"
PROJECT_ROOT = Path(__file__).resolve().parent.parent.parent
DEFINES_FAMILY_OR_KIND = re.compile(r"^(FAMILY|KIND)\b.* = ", re.MULTILINE)
DOCUMENTED_NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Where nodes hold statements, or, as `try` and `match` do, nodes that hold them.
STATEMENT_FIELDS = ("body", "orelse", "handlers", "finalbody", "cases")
# These modules import others only for the values of parameters: the defaults of families, and the
# blocks of methods. The values are recorded for each stage that uses them.
READS_VALUES_OF = {
    "lineage.config.resolve": "lineage.networks.registry",
    "lineage.study.models": "lineage.methods.registry",
}
# Kinds of task import these for `lineage init` alone: no stage calls them.
INIT_MODULES = {"lineage.tasks.recognition", "lineage.tasks.tagged_words"}
DYNAMIC_IMPORT = re.compile(r'import_module\(f"(lineage\.\w+)\.\{')


def stage_code_digests(verb: str) -> dict[str, str]:
    """Return the digests of stages/VERB.py and of each file that it imports, by path from the root.

    Files that define a family or a kind are left out: the records of models and tasks hold their
    digests. So are INIT_MODULES.
    """
    return {path: code_digest(PROJECT_ROOT / path) for path in list_stage_files(verb)}


def list_stage_files(verb: str) -> list[str]:
    """Return the paths of `stage_code_digests`, sorted."""
    seen: set[str] = set()
    ahead = [f"stages.{verb}"]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += [*imported_modules(name), *dynamic_imports(name)]
    names = [name for name in seen - INIT_MODULES if not defines_family_or_kind(name)]
    paths = [project_modules()[name] for name in names]
    return sorted(path.relative_to(PROJECT_ROOT).as_posix() for path in paths)


def package_digest() -> str:
    """Return one digest of all code of the library and the stages.

    Two machines with the same digest compute the same results from the same inputs.
    """
    digest = hashlib.sha256()
    for name, path in sorted(project_modules().items()):
        digest.update(f"{name} {code_digest(path)}\n".encode())
    return digest.hexdigest()


def code_digest(path: Path) -> str:
    """Return the sha256 of a Python file without its docstrings."""
    state = path.stat()
    return _cached_digest(path, state.st_mtime_ns, state.st_size)


@cache
def _cached_digest(path: Path, *state: int) -> str:
    content = path.read_bytes()
    key = hashlib.sha256(content).hexdigest()
    known = _known_digests()
    if key not in known:
        known[key] = hashlib.sha256(_without_docstrings(content)).hexdigest()
    return known[key]


@cache
def _known_digests() -> dict[str, str]:
    """Return the digests of files without docstrings, by the digest of the whole file."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        kept = json.loads(DIGESTS_FILE.read_bytes())
        if kept["made_by"] == _own_digest():
            return dict(kept["digests"])
    return {}


def _own_digest() -> str:
    """Return the digest of this file: another version may cut docstrings differently."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def keep_digests() -> None:
    """Keep the digests in the study: without them, each stage parses files for half a second."""
    draft = DIGESTS_FILE.with_suffix(".tmp")
    draft.write_text(json.dumps({"made_by": _own_digest(), "digests": _known_digests()}))
    draft.replace(DIGESTS_FILE)


def _without_docstrings(source: bytes) -> bytes:
    """Cut the docstrings out of the text; syntax trees differ between versions of Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # someone is editing the file
        return source
    lines = source.splitlines(keepends=True)
    for docstring in _docstrings(tree):
        assert docstring.end_lineno is not None
        assert docstring.end_col_offset is not None
        first = docstring.lineno - 1
        last = docstring.end_lineno - 1
        before = lines[first][: docstring.col_offset]  # columns count bytes
        after = lines[last][docstring.end_col_offset :]
        lines[first : last + 1] = [before + after, *[b""] * (last - first)]
    return b"".join(lines)


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in _walk_statements(tree):
        if isinstance(node, DOCUMENTED_NODES) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            yield statement.value


def _walk_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and its statements, also nested ones, but no expressions.

    There are many more expressions, and `ast.walk` visits them too.
    """
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        for field in STATEMENT_FIELDS:
            ahead += getattr(node, field, ())


@cache
def project_modules() -> dict[str, Path]:
    """Return the files of the library and the stages by module name.

    The `__init__` files are left out: they compute nothing.
    """
    modules = {}
    for folder in ("lineage", "stages"):
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py")):
            if path.name != "__init__.py":
                parts = path.relative_to(PROJECT_ROOT).with_suffix("").parts
                modules[".".join(parts)] = path
    return modules


@cache
def defines_family_or_kind(module: str) -> bool:
    """Return whether a module defines a family or a kind of task."""
    return DEFINES_FAMILY_OR_KIND.search(_read_module(module)) is not None


@cache
def imported_modules(module: str) -> set[str]:
    """Return the project's modules that a module imports, also inside functions."""
    found = imported_names(project_modules()[module]) & set(project_modules())
    return found - {READS_VALUES_OF.get(module, "")}


def imported_names(path: Path) -> set[str]:
    """Return the full names that a file imports, also inside functions."""
    names: set[str] = set()
    for node in _walk_statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names.add(str(node.module))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@cache
def dynamic_imports(module: str) -> set[str]:
    """Return the modules of a package from which this module imports one by name."""
    found: set[str] = set()
    for package in DYNAMIC_IMPORT.findall(_read_module(module)):
        found.update(name for name in project_modules() if name.startswith(f"{package}."))
    return found


def _read_module(module: str) -> str:
    return project_modules()[module].read_text(encoding="utf-8")
