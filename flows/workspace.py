"""Choose the folder of a run: the checkout or, for a profile, a git worktree on runs/NAME.

That branch is the version history of a profile's results: each commit holds the code, params.yaml
and dvc.lock of one run.
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

PARAMS_FILE = "params.yaml"
LOCK_FILE = "dvc.lock"
TRACKED_PATHS = (*CODE_PATHS, "profiles", PARAMS_FILE)
UNUSABLE_CHARACTERS = {*',"\\'}  # that DVC's settings cannot hold in a path
MAX_FILES_SHOWN = 5


@dataclass(frozen=True)
class Workspace:
    """The folder of one run, and what identifies the run."""

    main_checkout: Path
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
    """Use the checkout itself, with its params.yaml. Raises InputError."""
    if not (checkout / PARAMS_FILE).is_file():
        raise InputError(
            f"{checkout / PARAMS_FILE}: there is no such file; run from the folder that holds it"
        )
    return Workspace(
        main_checkout=checkout,
        root=checkout,
        profile=None,
        code_commit=head_commit(checkout),
        dirty_files=list_changed_files(checkout, TRACKED_PATHS),
    )


def use_worktree(checkout: Path, profile: str, *, allow_dirty: bool, final: bool) -> Workspace:
    """Use the profile's worktree at HEAD, with its own params.yaml and the last run's dvc.lock.

    It shares the main checkout's DVC cache. Raises InputError.
    """
    dirty_files = _changed_files_of_profile(checkout, profile)
    if dirty_files and not allow_dirty:
        shown = ", ".join(dirty_files[:MAX_FILES_SHOWN])
        if len(dirty_files) > MAX_FILES_SHOWN:
            shown += " ..."
        raise InputError(
            f"{shown}: changed since HEAD, and a profile runs HEAD; commit, or give --allow-dirty"
        )
    params = compose_profile(checkout / "profiles", profile)
    if final:
        params = merge_params(params, {"report": {"split": "test"}})
    unusable = UNUSABLE_CHARACTERS & set(str(checkout.resolve()))
    if unusable:
        raise InputError(
            f"{checkout}: has {min(unusable)} in its path, which DVC's settings cannot hold; "
            "move the checkout, or run without a profile"
        )
    commit = head_commit(checkout)
    root = _ensure_worktree(checkout, profile)
    _check_out_code(root, commit)
    for name in dirty_files:
        mirror_file(checkout / name, root / name)
    write_params(root / PARAMS_FILE, params)
    share_cache(checkout, root)
    return Workspace(checkout, root, profile, commit, dirty_files)


def _changed_files_of_profile(checkout: Path, profile: str) -> tuple[str, ...]:
    """Return the changed files that a profile's run uses.

    Of params.yaml and the profiles it uses base.yaml and its own only.
    """
    own_profiles = ("profiles/base.yaml", f"profiles/{profile}.yaml")
    return tuple(
        name
        for name in list_changed_files(checkout, TRACKED_PATHS)
        if name in own_profiles or not name.startswith((PARAMS_FILE, "profiles/"))
    )


def _check_out_code(root: Path, commit: str) -> None:
    """Set the worktree's files to a commit, except dvc.lock.

    The branch stays where it is: the code comes with the next commit.
    """
    lock = root / LOCK_FILE
    kept_lock = lock.read_bytes() if lock.is_file() else None
    git_output(root, "read-tree", "--reset", "-u", commit)
    # An earlier run with --allow-dirty may have left files.
    git_output(root, "clean", "-fdq", "--", *TRACKED_PATHS)
    if kept_lock is not None:
        lock.write_bytes(kept_lock)


def _ensure_worktree(checkout: Path, profile: str) -> Path:
    """Return the profile's worktree on its branch. A missing one is made at HEAD.

    Raises InputError if something else lies there: git would find the repository around it, and
    take that for the run's. The user's other worktrees are left alone, also those that cannot be
    reached just now.
    """
    root = (checkout / ".runs" / profile).resolve()  # DVC finds no stages behind a link
    branch = f"runs/{profile}"
    if run_git(checkout, "check-ref-format", "--branch", branch).returncode != 0:
        raise InputError(
            f"profiles/{profile}.yaml: '{branch}' cannot be the name of a git branch; "
            "rename the file, to letters, digits, _ and -"
        )
    if not root.is_dir():
        add_worktree = ("worktree", "add", "--force", "--quiet")
        if git_output(checkout, "branch", "--list", branch):
            git_output(checkout, *add_worktree, str(root), branch)
        else:
            git_output(checkout, *add_worktree, "-b", branch, str(root), head_commit(checkout))
    # After the checkout was moved, the worktree points to the old place.
    if not _belongs_to_checkout(checkout, root) and (root / ".git").is_file():
        run_git(checkout, "worktree", "repair", str(root))
    if not _belongs_to_checkout(checkout, root):
        raise InputError(
            f"{root}: is not a worktree of this checkout; move it away, and the next run makes a "
            "new one (what ran is in DVC's cache)"
        )
    # Someone may have checked out an earlier run.
    git_output(root, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
    return root


def _belongs_to_checkout(checkout: Path, root: Path) -> bool:
    if not (root / ".git").is_file():
        return False
    try:
        return _git_folder(checkout) == _git_folder(root)
    except InputError:
        return False


def _git_folder(root: Path) -> Path:
    """Return the folder of the repository that a checkout or worktree belongs to."""
    return (root / git_output(root, "rev-parse", "--git-common-dir")).resolve()


def commit_run(workspace: Workspace, message: str) -> str:
    """Commit the run's code, params.yaml and dvc.lock to the profile's branch. Return the commit.

    Without changes no commit is made. The parents are the branch's last commit and, if the branch
    does not hold it yet, the code's.
    """
    assert workspace.profile is not None, "a run in place commits nothing"
    root = workspace.root
    with workspace.commit_lock:
        _stage_files(workspace)
        tree = git_output(root, "write-tree")
        tip = head_commit(root)
        ancestry = run_git(root, "merge-base", "--is-ancestor", workspace.code_commit, tip)
        has_code_commit = ancestry.returncode == 0
        if has_code_commit and git_output(root, "rev-parse", f"{tip}^{{tree}}") == tree:
            return tip
        command = [*committer_options(root), "commit-tree", tree, "-m", message, "-p", tip]
        if not has_code_commit:
            command += ["-p", workspace.code_commit]
        commit = git_output(root, *command)
        branch = f"refs/heads/runs/{workspace.profile}"
        git_output(root, "update-ref", "-m", message, branch, commit, tip)
        return commit


def _stage_files(workspace: Workspace) -> None:
    """Add what is to be committed to git's index."""
    root = workspace.root
    names = [PARAMS_FILE, LOCK_FILE, *workspace.dirty_files]
    existing = [name for name in names if (root / name).exists()]
    # DVC rewrites dvc.lock in place, and another stage may be ending right now.
    with hold_dvc_lock(root):
        git_output(root, "add", "--force", "--update", ".")
        git_output(root, "add", "--force", "--", *existing)


def committer_options(root: Path) -> list[str]:
    """Return git options that name a committer if the user has configured none."""
    if run_git(root, "var", "GIT_COMMITTER_IDENT").returncode == 0:
        return []
    return ["-c", "user.name=lineage", "-c", "user.email=lineage@localhost"]


def mirror_file(source: Path, target: Path) -> None:
    """Make `target` a copy of `source`, or remove it if there is no source."""
    target.unlink(missing_ok=True)  # an earlier copy may be read-only
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def share_cache(checkout: Path, root: Path) -> None:
    """Give the worktree the main checkout's DVC cache and local settings."""
    # Nothing stays of what an earlier run has set in the target.
    mirror_file(checkout / ".dvc" / "config.local", root / ".dvc" / "config.local")
    set_dvc_config(root, "cache.dir", str(cache_folder(checkout)))
    remote = default_remote(checkout)
    # A folder may be given relative to the main checkout.
    if remote is not None and Path(remote).is_absolute():
        set_default_remote(root, remote)


def ensure_remote(workspace: Workspace) -> str:
    """Return the address of the DVC remote for results.

    It is the configured remote, or a folder of the main checkout.
    """
    address = default_remote(workspace.root)
    if address is None:  # also if the last run has set one: `share_cache` has removed it
        address = str(workspace.main_checkout / STATE_DIR / "remote")
        set_default_remote(workspace.root, address)
    return address


def set_default_remote(root: Path, address: str) -> None:
    """Make `address` the default DVC remote of this checkout only."""
    set_dvc_config(root, "remote.handover.url", address)
    set_dvc_config(root, "core.remote", "handover")


def set_dvc_config(root: Path, key: str, value: str) -> None:
    """Write one local DVC setting. The file has git's own format."""
    git_output(root, "config", "--file", str(root / ".dvc" / "config.local"), key, value)


@contextlib.contextmanager
def hold_run_lock(checkout: Path, profile: str | None) -> Iterator[None]:
    """Allow one run at a time in a folder. Raises InputError."""
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
                f"{path.parent}: files cannot be locked there ({error.strerror}), "
                "as on some network drives; move the checkout"
            ) from error
        yield


def head_commit(root: Path) -> str:
    """Return the commit that is checked out.

    Raises InputError if there is none, as in a download without git.
    """
    try:
        return git_output(root, "rev-parse", "--verify", "HEAD")
    except InputError as error:
        # The checkout belongs to somebody else, as in a container: git's own words say what to do.
        if "safe.directory" in str(error):
            raise
        raise InputError(
            f"{root}: there is no git commit, and each run records its commit; make one: "
            "`git init`, `git add --all`, `git commit --message start`"
        ) from None


def git_output(root: Path, *arguments: str) -> str:
    """Run git and return what it prints. Raises InputError with git's own words."""
    # Hooks are for the user's own commands: those of `dvc install` expect stages that are not there
    # yet.
    answer = run_git(root, "-c", "core.hooksPath=/dev/null", *arguments)
    if answer.returncode != 0:
        raise InputError(
            f"{root}: `git {arguments[0]}` failed: {' '.join(answer.stderr.split())}; "
            "repair the checkout"
        )
    return answer.stdout.strip("\n")
