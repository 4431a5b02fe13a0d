"""Where a profile runs: a worktree of its own, beside whatever else the user has, of which nothing is lost."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.plan import GraphError, default_remote, read_graph
from flows.run import interrupt_on_signals
from flows.servers import start_prefect
from flows.workspace import ensure_remote, git_output, head_commit, use_checkout, use_worktree
from lineage.config.records import read_yaml
from lineage.errors import InputError
from tests.checkout import clone, commit
from tests.user_project import write

EDITS = {"README.md": "an edit that is not committed", "CHANGELOG.md": "another, which is staged"}


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = clone(tmp_path_factory.mktemp("cloned") / "lineage")
    subprocess.run(["git", "config", "user.name", "user"], cwd=folder, check=True)
    return folder


@pytest.fixture
def main(cloned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cloned, tmp_path / "lineage", symlinks=True))


def run(main: Path) -> Path:
    return use_worktree(main, "smoke", allow_dirty=False, final=False).root


def stages(root: Path) -> set[str]:
    return {node.name for node in read_graph(root)}


def test_a_profile_has_its_own_parameters_on_its_own_branch(main: Path) -> None:
    root = run(main)
    assert (
        root == main / ".runs/smoke"
        and git_output(root, "symbolic-ref", "--short", "HEAD") == "runs/smoke"
    )
    assert read_yaml(root / "params.yaml")["grid"]["models"] == [
        "gpt"
    ] and "pretrain@gpt-0" in stages(root)
    assert (
        head_commit(root) == head_commit(main) and git_output(main, "status", "--porcelain") == ""
    )


def test_runs_may_lie_behind_a_link(main: Path, tmp_path: Path) -> None:
    """DVC finds no stages behind one, and a run of none would look done."""
    (tmp_path / "large disk").mkdir()
    (main / ".runs").symlink_to(tmp_path / "large disk")
    assert run(main) == tmp_path / "large disk/smoke" and "pretrain@gpt-0" in stages(run(main))


def plain_folder(main: Path) -> Path:
    (main / ".runs/smoke").mkdir(parents=True)
    return main


def copied_checkout(main: Path) -> Path:
    run(main)
    return Path(shutil.copytree(main, main.parent / "copy", symlinks=True))


@pytest.mark.parametrize("made", [plain_folder, copied_checkout])
def test_what_is_no_worktree_of_this_checkout_is_refused_and_nothing_is_lost(
    made: Callable[[Path], Path], main: Path
) -> None:
    here = made(main)
    before = head_commit(main / ".runs/smoke"), git_output(main, "for-each-ref")
    for name, text in EDITS.items():
        (here / name).write_text(text)
    git_output(here, "add", "CHANGELOG.md")
    with pytest.raises(InputError, match="is not a worktree of this checkout; move it away"):
        run(here)
    assert {name: (here / name).read_text() for name in EDITS} == EDITS
    assert (head_commit(main / ".runs/smoke"), git_output(main, "for-each-ref")) == before


def test_other_worktrees_stay_also_such_as_cannot_be_reached_now(
    main: Path, tmp_path: Path
) -> None:
    git_output(main, "worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    (tmp_path / "other").rename(tmp_path / "away")
    run(main)
    (tmp_path / "away").rename(tmp_path / "other")
    assert head_commit(tmp_path / "other") == head_commit(main)


def test_a_worktree_that_was_removed_is_made_anew_and_one_of_a_moved_checkout_is_mended(
    main: Path,
) -> None:
    shutil.rmtree(run(main))
    assert "pretrain@gpt-0" in stages(run(main))
    moved = main.rename(main.parent / "moved")
    assert run(moved) == moved / ".runs/smoke" and git_output(moved, "status", "--porcelain") == ""


def test_an_earlier_run_may_be_looked_at_in_its_worktree(main: Path) -> None:
    root = run(main)
    git_output(root, "checkout", "--quiet", "--detach", "HEAD")
    assert git_output(run(main), "symbolic-ref", "--short", "HEAD") == "runs/smoke"


def test_hooks_are_for_the_users_own_commands(main: Path) -> None:
    hook = main / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 3\n")
    hook.chmod(0o755)
    assert "pretrain@gpt-0" in stages(run(main))


def test_a_name_that_git_gives_no_branch_is_refused(main: Path) -> None:
    shutil.copy(main / "profiles/smoke.yaml", main / "profiles/one..two.yaml")
    commit(main)
    with pytest.raises(
        InputError,
        match=r"profiles/one\.\.two\.yaml: 'runs/one\.\.two' cannot be the name of a git branch; rename the file",
    ):
        use_worktree(main, "one..two", allow_dirty=False, final=False)


def test_a_remote_beside_the_checkout_is_the_same_folder_for_its_worktrees(main: Path) -> None:
    config = main / ".dvc/config"
    config.write_text(
        config.read_text().replace("[core]\n", "[core]\n    remote = store\n")
        + "['remote \"store\"']\n    url = ../../store\n"
    )
    commit(main)
    assert default_remote(main) == default_remote(run(main)) == str(main.parent / "store")


@pytest.mark.parametrize("value", [None, 0, "gpt", [""]])
def test_values_that_dvc_trips_over_are_no_graph(value: object, main: Path) -> None:
    tree = read_yaml(main / "params.yaml")
    write(main, tree | {"grid": tree["grid"] | {"models": value}})
    with pytest.raises(GraphError):
        read_graph(main)


def test_a_worktree_keeps_no_setting_of_dvc_that_an_earlier_run_made(main: Path) -> None:
    """With pools and no remote a folder of the checkout is one; where the user names one later, or moves the checkout, it is that."""
    place = use_worktree(main, "smoke", allow_dirty=False, final=False)
    assert ensure_remote(place) == str(main / ".lineage/remote") == default_remote(place.root)
    moved = Path(shutil.move(main, main.parent / "moved"))
    assert ensure_remote(use_worktree(moved, "smoke", allow_dirty=False, final=False)) == str(
        moved / ".lineage/remote"
    )
    config = moved / ".dvc/config"
    config.write_text(
        config.read_text().replace("[core]\n", "[core]\n    remote = store\n")
        + "['remote \"store\"']\n    url = ssh://host/store\n"
    )
    commit(moved)
    assert (
        ensure_remote(use_worktree(moved, "smoke", allow_dirty=False, final=False))
        == "ssh://host/store"
    )


def test_a_checkout_of_somebody_else_is_not_said_to_have_no_commit(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(InputError, match=r"dubious ownership .* safe\.directory"):
        use_checkout(main)


def test_a_folder_without_a_commit_says_how_to_make_one(main: Path) -> None:
    shutil.rmtree(main / ".git")
    with pytest.raises(InputError, match=r"there is no git commit.*`git init`"):
        use_checkout(main)


def test_nohup_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        for before in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, before)
            interrupt_on_signals()
            assert (signal.getsignal(signal.SIGHUP) is before) == (before is signal.SIG_IGN)
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("said", ["abc", "70000", "-1", "0"])
def test_what_is_no_port_is_said_to_be_none(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_PREFECT_PORT", said)
    with pytest.raises(
        InputError,
        match=f"LINEAGE_PREFECT_PORT: '{said}' is not a port; give a number from 1 to 65535",
    ):
        start_prefect(tmp_path)
