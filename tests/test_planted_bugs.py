"""The tests of what the systems promise can fail: each does where its bug is planted in a copy of the project."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import HERE, copy_tree

MODULES = [
    importlib.import_module(f"tests.{path.stem}")
    for path in sorted((HERE / "tests").glob("planted*.py"))
]
BUGS = {name: bug for module in MODULES for name, bug in module.BUGS.items()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("copy") / "lineage")


def result_of(folder: Path, *tests: str, seconds: float = 300) -> tuple[int, str]:
    """Exit status and output of some tests there."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(f"tests/{test}" for test in tests),
    ]
    environment = os.environ | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(folder),
    }  # a file changes twice within a second
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_has_its_place(name: str) -> None:
    """What it spoils stands there once, so that a bug is not lost when its file is changed."""
    assert (HERE / BUGS[name].file).read_text(encoding="utf-8").count(BUGS[name].right) == 1, (
        "say in tests/planted.py how this bug would look now"
    )


@pytest.mark.slow
def test_without_a_bug_all_of_them_pass(copy: Path) -> None:
    status, said = result_of(copy, *dict.fromkeys(bug.test for bug in BUGS.values()), seconds=1800)
    assert status == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, copy: Path) -> None:
    bug = BUGS[name]
    file = copy / bug.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        status, said = result_of(copy, bug.test)
    finally:
        file.write_text(whole, encoding="utf-8")
    assert status == 1 and "1 failed" in said, said
