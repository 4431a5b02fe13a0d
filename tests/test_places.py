"""Where a run could not write is found before the first stage, in one sentence."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows import forecast
from flows.forecast import check_free_space
from flows.study import check_places
from lineage.errors import InputError
from tests.helpers.toy_project import Project, assert_one_message, make_project

# Root may write anywhere, but not to a disk that is mounted read-only, or full.
OWN_MOUNTS = ("unshare", "--mount", "sh", "-c")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("toy"))


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = "mount -t tmpfs none /mnt"
    return subprocess.run([*OWN_MOUNTS, mount], capture_output=True, check=False).returncode == 0


def run_with_mount(toy: Project, mount: str) -> "subprocess.CompletedProcess[str]":
    """Run the project with a mount that only this process sees."""
    run = f"exec {sys.executable} -m flows.cli run --no-prefect"
    return subprocess.run(
        [*OWN_MOUNTS, f"{mount} && {run}"],
        cwd=toy.root,
        env=toy.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def read_only(folder: str) -> str:
    """Return the command that makes a folder read-only."""
    return (
        f"mkdir -p {folder} && mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    )


@pytest.mark.skipif(not can_mount(), reason="mounting needs rights that this user lacks")
@pytest.mark.parametrize("folder", [".dvc/cache/files/md5", "artifacts", "reports", "."])
def test_a_folder_on_a_read_only_disk_is_refused_before_anything_runs(
    folder: str, toy: Project
) -> None:
    completed = run_with_mount(toy, f"{read_only(f'$PWD/{folder}')} && cd $PWD")
    assert completed.returncode == 2
    assert_one_message(completed, "cannot be written to (Read-only file system)", folder)
    assert toy.stages_run() == []


@pytest.mark.skipif(not can_mount(), reason="mounting needs rights that this user lacks")
def test_a_full_disk_is_refused_before_anything_runs(toy: Project) -> None:
    """An empty file can still be created on it."""
    mount = "mkdir -p .dvc/cache && mount -t tmpfs -o size=512k none .dvc/cache"
    completed = run_with_mount(toy, mount)
    assert completed.returncode == 2
    assert_one_message(completed, "DVC's cache", "No space left on device", "free some space")
    assert toy.stages_run() == []


def test_a_temporary_folder_that_is_full_is_refused(
    toy: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/proc")
    with pytest.raises(
        InputError, match=r"/proc \(for temporary files; TMPDIR names another\): can"
    ):
        check_places(toy.root)

    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    with pytest.raises(InputError, match="set the environment variable TMPDIR to one"):
        check_places(toy.root)


def test_a_shared_cache_below_a_file_is_refused(toy: Project) -> None:
    config = toy.root / ".dvc/config.local"
    file = toy.root.parent / "a-file"
    file.touch()
    config.write_text(f"[cache]\n    dir = {file}/cache\n")
    try:
        completed = toy.run("run", "--no-prefect")
    finally:
        config.unlink()
    assert completed.returncode == 2
    assert_one_message(completed, f"{file}/cache", "DVC's cache", "Not a directory")


def test_a_run_that_does_not_fit_on_the_disk_is_refused_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_free_space(tmp_path, tmp_path / ".dvc/cache", free // 2)
    with pytest.raises(InputError, match=r"of this disk, and .* are free; free some, or move"):
        check_free_space(tmp_path, tmp_path / ".dvc/cache", free * 2)
    monkeypatch.setattr(forecast, "find_existing_folder", lambda path: Path(os.devnull).parent)
    with pytest.raises(InputError, match=r"/dev: the run needs about"):
        check_free_space(tmp_path, tmp_path, 10**15)
