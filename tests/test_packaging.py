"""The package declares what it imports, and its wheel holds all its files and no others."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flows import package_data
from flows.package_data import package_file
from lineage import __version__
from lineage.config.records import read_yaml
from tests.helpers.checkout import ROOT
from tests.helpers.installation import build_wheel

PACKAGES = ("lineage", "flows", "stages")
STUDIES = [f"studies/{path.name}" for path in sorted((ROOT / "studies").glob("*.yaml"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared_requirements() -> list[Requirement]:
    """Return the requirements of the project and of its extras, without the project itself."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    requirements = [Requirement(line) for line in chain.from_iterable(groups)]
    return [requirement for requirement in requirements if requirement.name != PROJECT["name"]]


def list_package_files() -> set[str]:
    """Return the paths of the files in the packages that git tracks or would add."""
    completed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in completed.stdout.splitlines() if (ROOT / name).is_file()}


def third_party_imports(path: Path) -> Iterator[str]:
    """Yield the top-level modules that a file imports from others, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            module = name.split(".")[0]
            if module not in sys.stdlib_module_names and module not in PACKAGES:
                yield module


def test_every_imported_package_is_declared() -> None:
    declared = {canonicalize_name(requirement.name) for requirement in declared_requirements()}
    distributions = packages_distributions()
    users = {
        module: name
        for name in sorted(list_package_files())
        if name.endswith(".py")
        for module in third_party_imports(ROOT / name)
    }
    assert {"torch", "pandas", "prefect"} <= set(users)
    undeclared = {
        module: name
        for module, name in users.items()
        # A package that is not installed here, such as triton, has the name of its module.
        if not declared
        & {canonicalize_name(owner) for owner in distributions.get(module, [module])}
    }
    assert not undeclared, "modules whose distribution pyproject.toml does not declare"


def test_constraints_pin_every_declared_package_to_an_allowed_version() -> None:
    pins = {}
    for name in (
        "constraints.txt",
        "benchmarks/requirements.txt",
    ):  # the second for the extra bench
        text = (ROOT / name).read_text(encoding="utf-8")
        for package, version in re.findall(r"^([\w.-]+)==([\w.+-]+)", text, re.MULTILINE):
            pins[canonicalize_name(package)] = version
    for requirement in declared_requirements():
        if requirement.name != "triton":  # only with torch's CUDA builds
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_description_and_the_version_are_the_same_everywhere() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["abstract"] == PROJECT["description"]
    assert PROJECT["description"] in readme
    assert citation["version"] == __version__
    versions = re.findall(r"^## \[(.*?)\]", changelog, re.MULTILINE)
    assert versions[versions[0] == "Unreleased"] == __version__


def test_files_of_the_package_are_found_in_a_checkout() -> None:
    for name in ("dvc.yaml", *STUDIES):
        assert package_file(name) == ROOT / name


def test_files_of_an_installed_package_are_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.setattr(package_data, "PACKAGE_DATA_DIR", tmp_path)
    assert package_file("dvc.yaml") == tmp_path / "dvc.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "lineage = flows.cli:main" in archive.read(entry_points).decode()
    shipped = ["dvc.yaml", *STUDIES]
    assert names == list_package_files() | {f"flows/data/{name}" for name in shipped}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
