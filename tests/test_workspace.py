"""A profile runs in its own worktree, and nothing else in the user's checkout is lost."""

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
from tests.user_project import write_params

EDITS = {"README.md": "an edit that is not committed", "CHANGELOG.md": "another, which is staged"}


@pytest.fixture(scope="module")
def cloned_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of this repository."""
    folder = clone(tmp_path_factory.mktemp("cloned") / "lineage")
    subprocess.run(["git", "config", "user.name", "user"], cwd=folder, check=True)
    return folder


@pytest.fixture
def main(cloned_checkout: Path, tmp_path: Path) -> Path:
    """Return a copy of the clone that a test may change."""
    return Path(shutil.copytree(cloned_checkout, tmp_path / "lineage", symlinks=True))


def create_worktree(main: Path) -> Path:
    """Create or reuse the worktree of the smoke profile."""
    return use_worktree(main, "smoke", allow_dirty=False, final=False).root


def stage_names(root: Path) -> set[str]:
    """Return the names of the stages that DVC finds."""
    return {node.name for node in read_graph(root)}


def test_a_profile_has_its_own_parameters_on_its_own_branch(main: Path) -> None:
    root = create_worktree(main)
    assert root == main / ".runs/smoke"
    assert git_output(root, "symbolic-ref", "--short", "HEAD") == "runs/smoke"
    assert read_yaml(root / "params.yaml")["grid"]["models"] == ["gpt"]
    assert "pretrain@gpt-0" in stage_names(root)
    assert head_commit(root) == head_commit(main)
    assert git_output(main, "status", "--porcelain") == ""


def test_the_runs_folder_may_be_a_symlink(main: Path, tmp_path: Path) -> None:
    """DVC finds no stages behind a symlink, and a run without stages would look finished."""
    (tmp_path / "large disk").mkdir()
    (main / ".runs").symlink_to(tmp_path / "large disk")
    assert create_worktree(main) == tmp_path / "large disk/smoke"
    assert "pretrain@gpt-0" in stage_names(create_worktree(main))


def make_plain_folder(main: Path) -> Path:
    """Put a plain folder where the worktree should be."""
    (main / ".runs/smoke").mkdir(parents=True)
    return main


def copy_checkout(main: Path) -> Path:
    """Copy a checkout together with its worktree."""
    create_worktree(main)
    return Path(shutil.copytree(main, main.parent / "copy", symlinks=True))


@pytest.mark.parametrize("prepare", [make_plain_folder, copy_checkout])
def test_a_folder_that_is_not_our_worktree_is_refused_and_left_alone(
    prepare: Callable[[Path], Path], main: Path
) -> None:
    folder = prepare(main)
    before = head_commit(main / ".runs/smoke"), git_output(main, "for-each-ref")
    for name, text in EDITS.items():
        (folder / name).write_text(text)
    git_output(folder, "add", "CHANGELOG.md")
    with pytest.raises(InputError, match="is not a worktree of this checkout; move it away"):
        create_worktree(folder)
    assert {name: (folder / name).read_text() for name in EDITS} == EDITS
    assert (head_commit(main / ".runs/smoke"), git_output(main, "for-each-ref")) == before


def test_other_worktrees_are_kept_even_if_they_cannot_be_reached(
    main: Path, tmp_path: Path
) -> None:
    git_output(main, "worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    (tmp_path / "other").rename(tmp_path / "away")
    create_worktree(main)
    (tmp_path / "away").rename(tmp_path / "other")
    assert head_commit(tmp_path / "other") == head_commit(main)


def test_a_removed_worktree_is_recreated_and_that_of_a_moved_checkout_repaired(
    main: Path,
) -> None:
    shutil.rmtree(create_worktree(main))
    assert "pretrain@gpt-0" in stage_names(create_worktree(main))
    moved = main.rename(main.parent / "moved")
    assert create_worktree(moved) == moved / ".runs/smoke"
    assert git_output(moved, "status", "--porcelain") == ""


def test_a_worktree_with_another_commit_checked_out_returns_to_its_branch(main: Path) -> None:
    root = create_worktree(main)
    git_output(root, "checkout", "--quiet", "--detach", "HEAD")
    assert git_output(create_worktree(main), "symbolic-ref", "--short", "HEAD") == "runs/smoke"


def test_git_hooks_of_the_user_do_not_run(main: Path) -> None:
    hook = main / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 3\n")
    hook.chmod(0o755)
    assert "pretrain@gpt-0" in stage_names(create_worktree(main))


def test_a_profile_name_that_is_not_a_branch_name_is_refused(main: Path) -> None:
    shutil.copy(main / "profiles/smoke.yaml", main / "profiles/one..two.yaml")
    commit(main)
    with pytest.raises(
        InputError,
        match=r"profiles/one\.\.two\.yaml: 'runs/one\.\.two' cannot be the name of a git branch; rename the file",
    ):
        use_worktree(main, "one..two", allow_dirty=False, final=False)


def test_a_relative_remote_is_the_same_folder_for_checkout_and_worktree(main: Path) -> None:
    config = main / ".dvc/config"
    config.write_text(
        config.read_text().replace("[core]\n", "[core]\n    remote = store\n")
        + "['remote \"store\"']\n    url = ../../store\n"
    )
    commit(main)
    assert (
        default_remote(main) == default_remote(create_worktree(main)) == str(main.parent / "store")
    )


@pytest.mark.parametrize("value", [None, 0, "gpt", [""]])
def test_values_that_break_dvc_raise_a_graph_error(value: object, main: Path) -> None:
    tree = read_yaml(main / "params.yaml")
    write_params(main, tree | {"grid": tree["grid"] | {"models": value}})
    with pytest.raises(GraphError):
        read_graph(main)


def test_a_worktree_does_not_keep_the_default_remote_of_an_earlier_run(main: Path) -> None:
    """Without a remote, pools use a folder in the checkout.

    It must change when the user configures a remote or moves the checkout.
    """
    workspace = use_worktree(main, "smoke", allow_dirty=False, final=False)
    assert (
        ensure_remote(workspace) == str(main / ".lineage/remote") == default_remote(workspace.root)
    )
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


def test_a_checkout_of_another_user_is_reported_as_dubious_ownership(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(InputError, match=r"dubious ownership .* safe\.directory"):
        use_checkout(main)


def test_a_folder_without_a_commit_is_refused_with_advice(main: Path) -> None:
    shutil.rmtree(main / ".git")
    with pytest.raises(InputError, match=r"there is no git commit.*`git init`"):
        use_checkout(main)


def test_an_ignored_hangup_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        for handler_before in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, handler_before)
            interrupt_on_signals()
            assert (signal.getsignal(signal.SIGHUP) is handler_before) == (
                handler_before is signal.SIG_IGN
            )
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("port", ["abc", "70000", "-1", "0"])
def test_an_invalid_port_is_refused(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_PREFECT_PORT", port)
    with pytest.raises(
        InputError,
        match=f"LINEAGE_PREFECT_PORT: '{port}' is not a port; give a number from 1 to 65535",
    ):
        start_prefect(tmp_path)
