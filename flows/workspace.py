"""Where a run takes place: the checkout itself, or, for a profile, a git worktree of its own on the branch runs/NAME.

That branch is the version history of what a profile made: each commit holds the code, params.yaml and dvc.lock of one run.
"""

import contextlib
import fcntl
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flows.plan import cache_folder, default_remote, hold_dvc_lock
from flows.profiles import compose_profile, merge_params, write_params
from lineage.errors import InputError
from lineage.runtime.provenance import CODE_PATHS, compute_pipeline_id, list_changed_files
from lineage.runtime.settings import STATE_DIR, run_git

TRACKED_PATHS = (*CODE_PATHS, "profiles", "params.yaml")
PARAMS_FILE, LOCK_FILE = "params.yaml", "dvc.lock"


@dataclass(frozen=True)
class Workspace:
    """The folder of one run, and what identifies the run."""

    main_checkout: Path  # the main checkout
    root: Path  # where stages run
    profile: str | None
    code_commit: str  # HEAD of the main checkout at the start
    dirty_files: tuple[str, ...]  # changed files of the code, as git names them
    commit_lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    @property
    def pipeline_id(self) -> str:
        """A digest of the code, the parameters and the data as they are now."""
        return compute_pipeline_id(
            self.root, code_commit=self.code_commit, changed_files=self.dirty_files
        )


def use_checkout(checkout: Path) -> Workspace:
    """The checkout itself, with params.yaml as it stands."""
    if not (checkout / PARAMS_FILE).is_file():
        raise InputError(
            f"{checkout / PARAMS_FILE}: there is no such file; run from the folder that holds it"
        )
    return Workspace(
        checkout, checkout, None, head_commit(checkout), list_changed_files(checkout, TRACKED_PATHS)
    )


def use_worktree(checkout: Path, profile: str, *, allow_dirty: bool, final: bool) -> Workspace:
    """The profile's worktree at HEAD, with its own params.yaml and the last run's dvc.lock; the DVC cache is the main checkout's."""
    own = {
        f"profiles/{name}.yaml" for name in ("base", profile)
    }  # a profile composes its own parameters, from these alone
    dirty = tuple(
        name
        for name in list_changed_files(checkout, TRACKED_PATHS)
        if name in own or not name.startswith((PARAMS_FILE, "profiles/"))
    )
    if dirty and not allow_dirty:
        shown = ", ".join(dirty[:5]) + (" ..." if len(dirty) > 5 else "")
        raise InputError(
            f"{shown}: changed since HEAD, and a profile runs HEAD; commit, or give --allow-dirty"
        )
    params = compose_profile(checkout / "profiles", profile)
    if final:
        params = merge_params(params, {"report": {"split": "test"}})
    if strange := {*str(checkout.resolve())} & {*',"\\'}:
        raise InputError(
            f"{checkout}: has {min(strange)} in its path, which DVC's settings cannot hold; move the checkout, or run without a profile"
        )
    commit, root = head_commit(checkout), _ensure_worktree(checkout, profile)
    lock = root / LOCK_FILE
    kept = lock.read_bytes() if lock.is_file() else None
    git_output(
        root, "read-tree", "--reset", "-u", commit
    )  # the branch stays where it is: the code comes with the next commit
    git_output(
        root, "clean", "-fdq", "--", *TRACKED_PATHS
    )  # what an earlier run with --allow-dirty may have left
    if kept is not None:
        lock.write_bytes(kept)
    for name in dirty if allow_dirty else ():
        mirror_file(checkout / name, root / name)
    write_params(root / PARAMS_FILE, params)
    share_cache(checkout, root)
    return Workspace(checkout, root, profile, commit, dirty)


def _ensure_worktree(checkout: Path, profile: str) -> Path:
    """The profile's worktree on its branch, a new one at HEAD where there is none.

    Raises InputError where something else lies there: git would find the repository round it, and take that for the run's. Other worktrees of the
    user's are left alone, also such as cannot be reached just now.
    """
    root, branch = (
        (checkout / ".runs" / profile).resolve(),
        f"runs/{profile}",
    )  # resolved: DVC finds no stages behind a link
    if run_git(checkout, "check-ref-format", "--branch", branch).returncode != 0:
        raise InputError(
            f"profiles/{profile}.yaml: '{branch}' is no name that git gives a branch; rename the file, to letters, digits, _ and -"
        )
    if not root.is_dir():
        new = not git_output(checkout, "branch", "--list", branch)
        git_output(
            checkout,
            "worktree",
            "add",
            "--force",
            "--quiet",
            *(["-b", branch, str(root), head_commit(checkout)] if new else [str(root), branch]),
        )
    if (
        not _belongs_to_checkout(checkout, root) and (root / ".git").is_file()
    ):  # as after the checkout was moved
        run_git(checkout, "worktree", "repair", str(root))
    if not _belongs_to_checkout(checkout, root):
        raise InputError(
            f"{root}: is no worktree of this checkout; move it away, and the next run makes a new one (what ran is in DVC's cache)"
        )
    git_output(
        root, "symbolic-ref", "HEAD", f"refs/heads/{branch}"
    )  # someone may have looked at an earlier run
    return root


def _belongs_to_checkout(checkout: Path, root: Path) -> bool:
    if not (root / ".git").is_file():
        return False
    try:
        own, theirs = (
            place / git_output(place, "rev-parse", "--git-common-dir") for place in (checkout, root)
        )
    except InputError:
        return False
    return own.resolve() == theirs.resolve()


def commit_run(workspace: Workspace, message: str) -> str:
    """Commit the code of the run, params.yaml and dvc.lock to the profile's branch; the commit. Nothing new makes no commit.

    The parents are the branch's last commit and the code's, where the branch does not hold that yet.
    """
    assert workspace.profile is not None, "a run in place commits nothing"
    with workspace.commit_lock:
        tracked = [name for name in (PARAMS_FILE, LOCK_FILE) if (workspace.root / name).is_file()]
        with hold_dvc_lock(
            workspace.root
        ):  # DVC rewrites dvc.lock in place, and another stage may be ending right now
            git_output(workspace.root, "add", "--force", "--update", ".")
            git_output(
                workspace.root,
                "add",
                "--force",
                "--",
                *tracked,
                *(name for name in workspace.dirty_files if (workspace.root / name).exists()),
            )
        tree, tip = git_output(workspace.root, "write-tree"), head_commit(workspace.root)
        merged = (
            run_git(
                workspace.root, "merge-base", "--is-ancestor", workspace.code_commit, tip
            ).returncode
            == 0
        )
        if merged and git_output(workspace.root, "rev-parse", f"{tip}^{{tree}}") == tree:
            return tip
        parents = ["-p", tip] + ([] if merged else ["-p", workspace.code_commit])
        commit = git_output(
            workspace.root,
            *committer_options(workspace.root),
            "commit-tree",
            tree,
            *parents,
            "-m",
            message,
        )
        git_output(
            workspace.root,
            "update-ref",
            "-m",
            message,
            f"refs/heads/runs/{workspace.profile}",
            commit,
            tip,
        )
        return commit


def committer_options(root: Path) -> list[str]:
    """Options that name a committer where the user has configured none."""
    known = run_git(root, "var", "GIT_COMMITTER_IDENT").returncode == 0
    return [] if known else ["-c", "user.name=lineage", "-c", "user.email=lineage@localhost"]


def mirror_file(source: Path, target: Path) -> None:
    """Make `target` what `source` is, or remove it where there is none."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # an earlier copy may be read-only
        shutil.copy2(source, target)
    else:
        target.unlink(missing_ok=True)


def share_cache(checkout: Path, root: Path) -> None:
    """Point the worktree at the main checkout's DVC cache, with the main checkout's local settings."""
    local = checkout / ".dvc" / "config.local"
    target = root / ".dvc" / "config.local"
    mirror_file(local, target)  # nothing stays of what an earlier run has set there
    set_dvc_config(root, "cache.dir", str(cache_folder(checkout)))
    remote = default_remote(checkout)
    if (
        remote is not None and Path(remote).is_absolute()
    ):  # a folder, which may be given relative to the main checkout
        set_default_remote(root, remote)


def ensure_remote(workspace: Workspace) -> str:
    """The address of the DVC remote that hands results over: the configured one, else a folder of the main checkout."""
    address = default_remote(workspace.root)
    if (
        address is None
    ):  # each run asks anew: `share_cache` has taken away what the last one has set
        address = str(workspace.main_checkout / STATE_DIR / "remote")
        set_default_remote(workspace.root, address)
    return address


def set_default_remote(root: Path, address: str) -> None:
    """Make `address` the default DVC remote of a checkout, for it alone."""
    set_dvc_config(root, "remote.handover.url", address)
    set_dvc_config(root, "core.remote", "handover")


def set_dvc_config(root: Path, key: str, value: str) -> None:
    """Write one local DVC setting: the file is git's own format."""
    git_output(root, "config", "--file", str(root / ".dvc" / "config.local"), key, value)


@contextlib.contextmanager
def hold_run_lock(checkout: Path, profile: str | None) -> Iterator[None]:
    """One run at a time in a folder."""
    path = checkout / STATE_DIR / "locks" / f"run-{profile or 'here'}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{profile or checkout}: another run is under way; wait for it, or end it"
            ) from None
        except OSError as error:
            raise InputError(
                f"{path.parent}: no lock can be held there ({error.strerror}), as on some network drives; move the checkout"
            ) from error
        yield


def head_commit(root: Path) -> str:
    """The commit that is checked out. Raises InputError where there is none, as in a download without git."""
    try:
        return git_output(root, "rev-parse", "--verify", "HEAD")
    except InputError as error:
        if "safe.directory" in str(
            error
        ):  # it is somebody else's, as in a container: git's own words say what to do
            raise
        raise InputError(
            f"{root}: no git commit is here, and each run names the one that it is of; make one: `git init`, `git add --all`, "
            "`git commit --message start`"
        ) from None


def git_output(root: Path, *arguments: str) -> str:
    """What git prints. Raises InputError with git's own words."""
    # Hooks are for the user's own commands: those of `dvc install` want to see stages that are not there yet.
    answer = run_git(root, "-c", "core.hooksPath=/dev/null", *arguments)
    if answer.returncode != 0:
        raise InputError(
            f"{root}: `git {arguments[0]}` failed: {' '.join(answer.stderr.split())}; mend the checkout"
        )
    return answer.stdout.strip("\n")
