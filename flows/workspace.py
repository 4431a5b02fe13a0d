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

from flows.plan import cache_folder, default_remote, undisturbed
from flows.profiles import compose, merge, write_params
from lineage.errors import InputError
from lineage.running.provenance import CODE, changed_files, pipeline_of
from lineage.running.runtime import STATE, git_answer

WATCHED = (*CODE, "profiles", "params.yaml")
PARAMS, LOCK = "params.yaml", "dvc.lock"


@dataclass(frozen=True)
class Workspace:
    """The folder of one run, and what identifies the run."""

    main: Path  # the main checkout
    root: Path  # where stages run
    profile: str | None
    code_commit: str  # HEAD of the main checkout at the start
    dirty: tuple[str, ...]  # changed files of the code, as git names them
    committing: threading.Lock = field(default_factory=threading.Lock, compare=False)

    @property
    def pipeline_id(self) -> str:
        """A digest of the code, the parameters and the data as they are now."""
        return pipeline_of(self.root, code_commit=self.code_commit, changed=self.dirty)


def in_place(main: Path) -> Workspace:
    """The checkout itself, with params.yaml as it stands."""
    if not (main / PARAMS).is_file():
        raise InputError(f"{main / PARAMS}: there is no such file; run from the folder that holds it")
    return Workspace(main, main, None, head(main), changed_files(main, WATCHED))


def in_worktree(main: Path, profile: str, *, allow_dirty: bool, final: bool) -> Workspace:
    """The profile's worktree at HEAD, with its own params.yaml and the last run's dvc.lock; the DVC cache is the main checkout's."""
    own = {f"profiles/{name}.yaml" for name in ("base", profile)}  # a profile composes its own parameters, from these alone
    dirty = tuple(name for name in changed_files(main, WATCHED) if name in own or not name.startswith((PARAMS, "profiles/")))
    if dirty and not allow_dirty:
        shown = ", ".join(dirty[:5]) + (" ..." if len(dirty) > 5 else "")
        raise InputError(f"{shown}: changed since HEAD, and a profile runs HEAD; commit, or give --allow-dirty")
    params = compose(main / "profiles", profile)
    if final:
        params = merge(params, {"report": {"split": "test"}})
    if strange := {*str(main.resolve())} & {*',"\\'}:
        raise InputError(f"{main}: has {min(strange)} in its path, which DVC's settings cannot hold; move the checkout, or run without a profile")
    commit, root = head(main), _worktree(main, profile)
    lock = root / LOCK
    kept = lock.read_bytes() if lock.is_file() else None
    git(root, "read-tree", "--reset", "-u", commit)  # the branch stays where it is: the code comes with the next commit
    git(root, "clean", "-fdq", "--", *WATCHED)  # what an earlier run with --allow-dirty may have left
    if kept is not None:
        lock.write_bytes(kept)
    for name in dirty if allow_dirty else ():
        copy_over(main / name, root / name)
    write_params(root / PARAMS, params)
    share_cache(main, root)
    return Workspace(main, root, profile, commit, dirty)


def _worktree(main: Path, profile: str) -> Path:
    """The profile's worktree on its branch, a new one at HEAD where there is none.

    Raises InputError where something else lies there: git would find the repository round it, and take that for the run's. Other worktrees of the
    user's are left alone, also such as cannot be reached just now.
    """
    root, branch = (main / ".runs" / profile).resolve(), f"runs/{profile}"  # resolved: DVC finds no stages behind a link
    if git_answer(main, "check-ref-format", "--branch", branch).returncode != 0:
        raise InputError(f"profiles/{profile}.yaml: '{branch}' is no name that git gives a branch; rename the file, to letters, digits, _ and -")
    if not root.is_dir():
        new = not git(main, "branch", "--list", branch)
        git(main, "worktree", "add", "--force", "--quiet", *(["-b", branch, str(root), head(main)] if new else [str(root), branch]))
    if not _is_ours(main, root) and (root / ".git").is_file():  # as after the checkout was moved
        git_answer(main, "worktree", "repair", str(root))
    if not _is_ours(main, root):
        raise InputError(f"{root}: is no worktree of this checkout; move it away, and the next run makes a new one (what ran is in DVC's cache)")
    git(root, "symbolic-ref", "HEAD", f"refs/heads/{branch}")  # someone may have looked at an earlier run
    return root


def _is_ours(main: Path, root: Path) -> bool:
    if not (root / ".git").is_file():
        return False
    try:
        own, theirs = (place / git(place, "rev-parse", "--git-common-dir") for place in (main, root))
    except InputError:
        return False
    return own.resolve() == theirs.resolve()


def commit_run(place: Workspace, message: str) -> str:
    """Commit the code of the run, params.yaml and dvc.lock to the profile's branch; the commit. Nothing new makes no commit.

    The parents are the branch's last commit and the code's, where the branch does not hold that yet.
    """
    assert place.profile is not None, "a run in place commits nothing"
    with place.committing:
        tracked = [name for name in (PARAMS, LOCK) if (place.root / name).is_file()]
        with undisturbed(place.root):  # DVC rewrites dvc.lock in place, and another stage may be ending right now
            git(place.root, "add", "--force", "--update", ".")
            git(place.root, "add", "--force", "--", *tracked, *(name for name in place.dirty if (place.root / name).exists()))
        tree, tip = git(place.root, "write-tree"), head(place.root)
        merged = git_answer(place.root, "merge-base", "--is-ancestor", place.code_commit, tip).returncode == 0
        if merged and git(place.root, "rev-parse", f"{tip}^{{tree}}") == tree:
            return tip
        parents = ["-p", tip] + ([] if merged else ["-p", place.code_commit])
        commit = git(place.root, *identity(place.root), "commit-tree", tree, *parents, "-m", message)
        git(place.root, "update-ref", "-m", message, f"refs/heads/runs/{place.profile}", commit, tip)
        return commit


def identity(root: Path) -> list[str]:
    """Options that name a committer where the user has configured none."""
    known = git_answer(root, "var", "GIT_COMMITTER_IDENT").returncode == 0
    return [] if known else ["-c", "user.name=lineage", "-c", "user.email=lineage@localhost"]


def copy_over(source: Path, target: Path) -> None:
    """Make `target` what `source` is, or remove it where there is none."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # an earlier copy may be read-only
        shutil.copy2(source, target)
    else:
        target.unlink(missing_ok=True)


def share_cache(main: Path, root: Path) -> None:
    """Point the worktree at the main checkout's DVC cache, with the main checkout's local settings."""
    local = main / ".dvc" / "config.local"
    target = root / ".dvc" / "config.local"
    copy_over(local, target)  # nothing stays of what an earlier run has set there
    dvc_config(root, "cache.dir", str(cache_folder(main)))
    remote = default_remote(main)
    if remote is not None and Path(remote).is_absolute():  # a folder, which may be given relative to the main checkout
        set_remote(root, remote)


def ensure_remote(place: Workspace) -> str:
    """The address of the DVC remote that hands results over: the configured one, else a folder of the main checkout."""
    address = default_remote(place.root)
    if address is None:  # each run asks anew: `share_cache` has taken away what the last one has set
        address = str(place.main / STATE / "remote")
        set_remote(place.root, address)
    return address


def set_remote(root: Path, address: str) -> None:
    """Make `address` the default DVC remote of a checkout, for it alone."""
    dvc_config(root, "remote.handover.url", address)
    dvc_config(root, "core.remote", "handover")


def dvc_config(root: Path, key: str, value: str) -> None:
    """Write one local DVC setting: the file is git's own format."""
    git(root, "config", "--file", str(root / ".dvc" / "config.local"), key, value)


@contextlib.contextmanager
def alone(main: Path, profile: str | None) -> Iterator[None]:
    """One run at a time in a folder."""
    path = main / STATE / "locks" / f"run-{profile or 'here'}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{profile or main}: another run is under way; wait for it, or end it") from None
        except OSError as error:
            raise InputError(f"{path.parent}: no lock can be held there ({error.strerror}), as on some network drives; move the checkout") from error
        yield


def head(root: Path) -> str:
    """The commit that is checked out. Raises InputError where there is none, as in a download without git."""
    try:
        return git(root, "rev-parse", "--verify", "HEAD")
    except InputError as error:
        if "safe.directory" in str(error):  # it is somebody else's, as in a container: git's own words say what to do
            raise
        raise InputError(f"{root}: no git commit is here, and each run names the one that it is of; make one: `git init`, `git add --all`, "
                         "`git commit --message start`") from None  # fmt: skip


def git(root: Path, *arguments: str) -> str:
    """What git prints. Raises InputError with git's own words."""
    # Hooks are for the user's own commands: those of `dvc install` want to see stages that are not there yet.
    answer = git_answer(root, "-c", "core.hooksPath=/dev/null", *arguments)
    if answer.returncode != 0:
        raise InputError(f"{root}: `git {arguments[0]}` failed: {' '.join(answer.stderr.split())}; mend the checkout")
    return answer.stdout.strip("\n")
