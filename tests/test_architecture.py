"""The rules of the source tree hold.

The tests check imports, what each stage depends on, the length of functions, and CONTRIBUTING's tree.
"""

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from lineage.config.records import read_yaml
from lineage.runtime import code
from lineage.study.source_records import WATCHED_VERBS

ROOT = Path(__file__).resolve().parent.parent
MAXIMUM_FUNCTION_LINES = 60

FLOWS_MAY_IMPORT = {
    "lineage.errors",
    "lineage.runtime.code",
    "lineage.runtime.database",
    "lineage.runtime.journal",
    "lineage.runtime.locks",
    "lineage.runtime.provenance",
    "lineage.runtime.scratch",
    "lineage.config.records",
    "lineage.runtime.settings",
}
# Commands that look at the user's parameters, data or database, which import the library when they
# run.
COMMANDS_MAY_IMPORT = {
    "flows.cli": {
        "lineage.study.resolved",
        "lineage.report.evidence",
        "lineage.serving.embed",
        "lineage.serving.export",
        "lineage.serving.neighbours",
        "lineage.serving.predict",
        "lineage.serving.server",
    },
    "flows.parameters": {"lineage.config.params", "lineage.study.source_records"},
    "flows.forecast": {
        "lineage.study.checks",
        "lineage.config.params",
        "lineage.study.source_records",
        "lineage.forecast.records",
        "lineage.forecast.time_limit",
    },
    "flows.rehearsal": {
        "lineage.config.params",
        "lineage.forecast.records",
        "lineage.forecast.rehearsal",
        "lineage.forecast.scaling",
        "lineage.study.models",
    },
    "flows.servers": {"lineage.runtime.tracking"},
    "flows.new_study": {
        "lineage.config.data",
        "lineage.study.draft",
        "lineage.study.public_proposal",
        "lineage.data.files",
        "lineage.data.inspection",
        "lineage.tasks.recognition",
    },
}
# Pairs of packages that import each other, and why.
MUTUAL_PACKAGES = {
    ("lineage.config", "lineage.networks"): "params.yaml takes the defaults of a family",
    ("lineage.networks", "lineage.tokenizers"): "a tokenizer builds batches, a checkpoint has one",
    ("lineage.study", "lineage.training"): "a training takes the blocks of a model as one record",
}
# Only these files may import a tool, so that it can be replaced in one place.
ALLOWED_USERS = {
    "mlflow": {
        "lineage/runtime/sender.py",
        "lineage/runtime/server_time.py",
        "lineage/runtime/tracking.py",
        "lineage/serving/mlflow_model.py",
        "lineage/serving/model_script.py",
        "lineage/serving/registry.py",
        "lineage/serving/server.py",
    },
    "dvc": {"flows/lock_file.py", "flows/plan.py", "flows/repository.py"},
    "prefect": {
        "flows/announce.py",
        "flows/deployments.py",
        "flows/flow.py",
        "flows/notifications.py",
        "flows/prefect_server.py",
        "flows/waiting.py",
        "flows/workers.py",
    },
    "datasets": {"lineage/data/sources.py"},
    "ftfy": {"lineage/tokenizers/normalization.py"},
    "gensim": {"lineage/families/word2vec.py", "lineage/families/fasttext.py"},
    "h5py": {"lineage/formats/bilm.py"},
    "rouge_score": {"lineage/answers/metrics.py"},
    "sacrebleu": {"lineage/answers/metrics.py"},
    "transformers": {"lineage/families/public.py"},
    "typer": {"flows/cli.py"},
}


def find_modules(*folders: str) -> dict[str, Path]:
    """Return each module's name and file, without __init__ files."""
    files = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


MODULES = find_modules("lineage", "stages", "flows")


# The cache is safe because no test here changes a file that is read twice.
imported_names = cache(code.imported_names)


def imported_modules(module: str) -> set[str]:
    """Return the project's modules that a module imports."""
    return imported_names(MODULES[module]) & set(MODULES)


def tracked_files() -> list[str]:
    answer = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return answer.stdout.splitlines()


def test_there_is_no_cycle() -> None:
    TopologicalSorter({module: imported_modules(module) for module in MODULES}).prepare()


def package_of(module: str) -> str:
    """Return the package of the library that holds a module, or the module itself."""
    return ".".join(module.split(".")[:2])


def test_few_packages_import_each_other() -> None:
    """Each pair has its reason; all other imports of packages go one way."""
    edges = {
        (package_of(module), package_of(other))
        for module in MODULES
        for other in imported_modules(module)
        if module.startswith("lineage.") and package_of(module) != package_of(other)
    }
    both_ways = {tuple(sorted(edge)) for edge in edges if edge[::-1] in edges}
    assert both_ways == set(MUTUAL_PACKAGES)


def test_the_picture_shows_each_package_above_or_left_of_those_it_imports() -> None:
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text()
    shown = re.findall(r'class="package"[^>]*>(\w+)<', picture)  # top to bottom, left to right
    folders = [path.parent.name for path in (ROOT / "lineage").glob("*/__init__.py")]
    assert sorted(shown) == sorted(folders)
    packages = {f"lineage.{name}": place for place, name in enumerate(shown)}
    upward = {
        tuple(sorted((package, other)))
        for module in MODULES
        for other in map(package_of, imported_modules(module))
        if (package := package_of(module)) in packages
        and packages.get(other, len(shown)) < packages[package]
    }
    assert upward == set(MUTUAL_PACKAGES)


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("stages.")])
def test_a_stage_imports_only_the_library(module: str) -> None:
    assert all(other.startswith("lineage.") for other in imported_modules(module))


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("flows.")])
def test_flows_import_no_stage_and_little_of_the_library(module: str) -> None:
    others = {other for other in imported_modules(module) if not other.startswith("flows.")}
    assert others <= FLOWS_MAY_IMPORT | COMMANDS_MAY_IMPORT.get(module, set())


def test_only_flows_use_the_forecast() -> None:
    """It is above everything that a stage does, so no stage depends on it."""
    for module in MODULES:
        if not module.startswith(("flows.", "lineage.forecast.")):
            used = {
                name for name in imported_modules(module) if name.startswith("lineage.forecast")
            }
            assert not used, module


@pytest.mark.parametrize("tool", ALLOWED_USERS)
def test_a_tool_is_imported_only_in_its_allowed_files(tool: str) -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in MODULES.values()
        if any(name.split(".")[0] == tool for name in imported_names(path))
    }
    assert users <= ALLOWED_USERS[tool]


def test_packages_do_not_re_export_names() -> None:
    for path in [*ROOT.glob("lineage/*/**/__init__.py"), *ROOT.glob("flows/__init__.py")]:
        assert not path.read_text().strip(), f"{path} is not empty"
    _, *lines = ast.parse((ROOT / "lineage/__init__.py").read_text()).body
    assert [ast.unparse(line).split(" = ")[0] for line in lines] == ["__version__"]
    (docstring,) = ast.parse((ROOT / "stages/__init__.py").read_text()).body
    assert isinstance(docstring, ast.Expr)


def find_assignments_to_libraries(path: Path) -> list[str]:
    """Return where a file sets an attribute of something that it imports from a library."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
            packages = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
            packages = [str(node.module).split(".")[0]] * len(names)
        else:
            continue
        imported.update(
            name for name, package in zip(names, packages, strict=True) if package not in OWN
        )
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets.append(node.target)
        elif isinstance(node, ast.Delete):
            targets += node.targets
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            targets.append(ast.Attribute(node.args[0], "..."))
    flat = [one for target in targets for one in getattr(target, "elts", [target])]
    return [
        ast.unparse(target)
        for target in flat
        if isinstance(target, ast.Attribute)
        and _root_name(target) in imported
        and ast.unparse(target) not in DOCUMENTED_SETTINGS
    ]


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# Variables whose documentation says to assign to them.
DOCUMENTED_SETTINGS = {"torch.utils.deterministic.fill_uninitialized_memory"}
OWN = ("lineage", "flows", "stages", *sys.stdlib_module_names)


def test_no_name_of_a_library_is_assigned_to(tmp_path: Path) -> None:
    """A library whose functions are replaced at run time does something else than it says."""
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in MODULES.values()
        if (names := find_assignments_to_libraries(path))
    }
    assert found == {}
    patching = tmp_path / "patching.py"
    patching.write_text(
        "import dvc.fs\nimport requests as web\nfrom dvc.stage.cache import StageCache\n"
        "from lineage import own\n"
        "def patch(self):\n"
        "    dvc.fs.system.reflink = None\n"
        "    web.Session.send, self.kept = None, None\n"
        "    StageCache._load = None\n"
        "    own.thing = None\n"
        "    setattr(web, 'get', None)\n"
    )
    assert find_assignments_to_libraries(patching) == [
        "dvc.fs.system.reflink",
        "web.Session.send",
        "StageCache._load",
        "web....",
    ]


def stage_definitions() -> dict[str, dict]:
    return read_yaml(ROOT / "dvc.yaml")["stages"]


@pytest.mark.parametrize(
    "stage",
    [
        name
        for name, definition in stage_definitions().items()
        if not definition.get("always_changed")
    ],
)
def test_a_stage_depends_on_the_code_that_it_imports(stage: str) -> None:
    definition = stage_definitions()[stage]
    verb = definition["cmd"].split()[2].removeprefix("stages.")
    assert f"artifacts/sources/code/{verb}.json" in definition["deps"] and verb in WATCHED_VERBS
    assert not [path for path in definition["deps"] if path.endswith(".py")], (
        "a stage watches code by its digests, not by files"
    )


def test_a_stage_of_a_model_or_task_depends_on_its_record() -> None:
    """The record holds the digest of the family's or kind's file, which no record of code holds."""
    for name, definition in stage_definitions().items():
        for item, records in (("model", "models"), ("task", "tasks")):
            if f"${{item.{item}}}" in definition["cmd"]:
                assert f"artifacts/sources/{records}/${{item.{item}}}.json" in definition["deps"], (
                    name
                )


def test_every_stage_has_an_entry_file_a_pool_and_a_timeout_and_every_entry_file_is_one() -> None:
    used = set()
    for name, definition in stage_definitions().items():
        words = definition["cmd"].split()
        assert words[:2] == ["python", "-m"], name
        assert set(definition["meta"]) == {"pool", "timeout_s"}, name
        used.add(words[2])
    assert used == {name for name in MODULES if name.startswith("stages.")}


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in MODULES.values()])
def test_functions_fit_on_a_screen(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= MAXIMUM_FUNCTION_LINES, (
                f"{node.name} at line {node.lineno}"
            )


def contributing_tree() -> set[str]:
    """Return the files and folders that CONTRIBUTING's tree shows, folders with a slash at the end.

    The tree is the first fenced block that names lineage/ and flows/. A line holds names and a
    comment; a line that is indented lies in the folder above it.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = [
        block
        for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
        if "lineage/" in block and "flows/" in block
    ]
    assert blocks, "CONTRIBUTING.md has no fenced block with the tree"
    shown: set[str] = set()
    parent = ""
    for line in blocks[0].splitlines():
        names = line.partition("#")[0].split()
        if not line.startswith(" "):
            parent = names[0]
        prefix = parent if line.startswith(" ") else ""
        shown.update(prefix + name for name in names)
    return shown


def contributing_tree_entry(path: str) -> str:
    """Return what CONTRIBUTING's tree shows of a tracked file: its top-level folder, or its package."""
    parts = path.split("/")
    depth = 2 if parts[0] == "lineage" else 1
    return path if len(parts) <= depth else "/".join(parts[:depth]) + "/"


def test_the_tree_shows_every_folder_and_package() -> None:
    files = [path for path in tracked_files() if not path.startswith(".")]
    unlisted = {"__init__.py", "py.typed"}
    entries = {contributing_tree_entry(path) for path in files if Path(path).name not in unlisted}
    assert contributing_tree() == entries | {"lineage/"}


def test_a_code_change_affects_the_stages_that_import_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lazy imports and imports by name count too; docstrings do not."""
    files = {verb: set(code.list_stage_files(verb)) for verb in WATCHED_VERBS}
    assert {
        "lineage/methods/finetuning.py",
        "lineage/runtime/tracking.py",
        "stages/evaluate.py",
        "lineage/tokenizers/train.py",
    } - files["evaluate"] == {"lineage/tokenizers/train.py"}
    assert "lineage/networks/static.py" in files["pretrain"], (
        "word2vec, which is imported by name, uses it"
    )
    assert "lineage/methods/finetuning.py" not in files["pretrain"]
    for paths in files.values():
        assert not paths & {"lineage/families/bert.py", "lineage/tasks/text_classification.py"}
        assert "lineage/tasks/recognition.py" not in paths, "it serves lineage init alone"
    shutil.copytree(ROOT / "lineage", tmp_path / "lineage")
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    monkeypatch.setattr(code, "PROJECT_ROOT", tmp_path)
    for cached in (code.project_modules, code.imported_modules, code.dynamic_imports):
        cached.cache_clear()
    before = {verb: code.stage_code_digests(verb) for verb in WATCHED_VERBS}
    samplers = tmp_path / "lineage" / "training" / "samplers.py"
    text = samplers.read_text()
    assert text.startswith('"""')
    samplers.write_text('"""Another\ndocstring.\n' + text.removeprefix('"""'))
    assert before == {verb: code.stage_code_digests(verb) for verb in WATCHED_VERBS}
    samplers.write_text(text + "\nCHANGED = True\n")
    changed = {verb for verb in WATCHED_VERBS if code.stage_code_digests(verb) != before[verb]}
    for cached in (code.project_modules, code.imported_modules, code.dynamic_imports):
        cached.cache_clear()
    assert changed == {
        verb for verb in WATCHED_VERBS if "lineage/training/samplers.py" in files[verb]
    }
    assert {"pretrain", "adapt"} <= changed < set(WATCHED_VERBS)
