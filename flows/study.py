"""A study: a folder with params.yaml, dvc.yaml, reports, and what DVC and MLflow store."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.package_data import package_file
from flows.plan import (
    RemoteStore,
    check_remote_access,
    drop_default_remote,
    init_dvc,
    let_dvc_use_git,
    read_cache_folder,
    read_default_remote,
    set_cache_folder,
    set_default_remote,
)
from lineage import __version__
from lineage.config.records import read_yaml, suggest_nearest
from lineage.errors import InputError
from lineage.runtime.locks import try_lock
from lineage.runtime.scratch import scratch_folder
from lineage.runtime.settings import STATE_DIR, check_writable, run_git

PARAMS_FILE = "params.yaml"
GRAPH_FILE = "dvc.yaml"
OWN_FILES = (".gitignore", ".dvcignore", ".dvc/config")  # that `create_study` writes
COMMITTED_FILES = (PARAMS_FILE, GRAPH_FILE, "dvc.lock", "reports", *OWN_FILES)
PROBE_BYTES = 1 << 20  # that must fit into a folder which a run writes to
LOCAL_REMOTE = "workers"  # the name of the DVC remote for workers on this machine
GIT_IGNORE = """\
# Stages write these files, and DVC stores their versions.
/artifacts/
/reports/results.csv
/reports/results.json
/.dvc/cache/
/.dvc/tmp/
/.dvc/config.local
# The state of runs, and the records of MLflow.
/.lineage/
/mlflow.db*
/mlruns/
# Pages of `dvc plots`.
/dvc_plots/
"""
DVC_IGNORE = """\
.lineage
mlruns
mlflow.db
"""


def open_study(root: Path) -> Path:
    """Return this folder, which is a study. Add the graph and DVC's folder if they are missing.

    Raises InputError if there is no study, or if its graph is not that of this package.
    """
    if not (root / PARAMS_FILE).is_file():
        raise InputError(
            f"{root}: no study is here, since there is no {PARAMS_FILE}; change into the folder "
            "of a study, or make one with `lineage init`"
        )
    for name in (str(STATE_DIR), "artifacts", "reports"):
        check_writable(name, root)
    graph = root / GRAPH_FILE
    if not graph.exists():
        shutil.copyfile(package_file(GRAPH_FILE), graph)
    _check_graph(graph)
    if not (root / ".dvc").is_dir():
        init_dvc(root)
    let_dvc_use_git(root, has_git=_lies_in_git(root))
    return root


def check_places(root: Path) -> None:
    """Raise InputError if a run could not write, before it has computed anything."""
    check_writable(str(root.absolute()), purpose="the study", num_bytes=PROBE_BYTES)
    check_writable(
        str(read_cache_folder(root)),
        purpose="DVC's cache; `dvc cache dir` sets another",
        num_bytes=PROBE_BYTES,
    )
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise InputError(
            f"no folder for temporary files can be written to ({error.strerror}); set the "
            "environment variable TMPDIR to one"
        ) from error
    check_writable(
        folder, purpose="for temporary files; TMPDIR names another", num_bytes=PROBE_BYTES
    )


def _check_graph(graph: Path) -> None:
    """Raise InputError unless a study has the graph of this package.

    `meta` may differ: it says where a stage runs, and changes no result.
    """
    if _read_stages(graph) != _read_stages(package_file(GRAPH_FILE)):
        raise InputError(
            f"{graph}: differs from the graph of lineage {__version__}: it was edited, or the "
            "study was made by another version; move the file away, and the next command writes "
            "the right one"
        )


def _read_stages(graph: Path) -> dict[str, Any]:
    stages = read_yaml(graph).get("stages")
    if not isinstance(stages, dict):
        return {}
    return {name: _without_meta(definition) for name, definition in stages.items()}


def _without_meta(definition: object) -> Any:
    if not isinstance(definition, dict):
        return definition
    return {key: value for key, value in definition.items() if key != "meta"}


def read_ready_made_study(name: str) -> str:
    """Return the params.yaml of a ready-made study. Raises InputError if there is none."""
    known = {path.stem for path in package_file("studies").glob("*.yaml")}
    if name not in known:
        raise InputError(
            f"--from: there is no ready-made study {name}{suggest_nearest(name, known)}"
        )
    return package_file(f"studies/{name}.yaml").read_text(encoding="utf-8")


def check_new_folder(folder: Path) -> None:
    """Raise InputError unless a study can be created in this folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already and is not empty; name a new folder")
    check_writable(folder.absolute().name, folder.absolute().parent)


def create_study(folder: Path, params_text: str, *, cache: Path | None = None) -> None:
    """Create a study in a new or empty folder, completely or not at all. Raises InputError.

    With `cache`, studies share one DVC cache.
    """
    folder = folder.absolute()
    check_new_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.parent) as scratch:
        draft = scratch / "study"
        (draft / "reports").mkdir(parents=True)
        (draft / PARAMS_FILE).write_text(params_text, encoding="utf-8")
        (draft / ".gitignore").write_text(GIT_IGNORE)
        (draft / ".dvcignore").write_text(DVC_IGNORE)
        shutil.copyfile(package_file(GRAPH_FILE), draft / GRAPH_FILE)
        init_dvc(draft)
        let_dvc_use_git(draft, has_git=_lies_in_git(draft))
        if cache is not None:
            set_cache_folder(draft, cache.absolute())
        folder.mkdir(exist_ok=True)
        for path in [*draft.iterdir()]:  # an empty folder stays: a shell may be in it
            path.replace(folder / path.name)


def prepare_remote(root: Path) -> None:
    """Check that the DVC remote can be used. Without one, use a folder of the study.

    Raises InputError.
    """
    drop_default_remote(root, LOCAL_REMOTE)  # of an earlier run
    if read_default_remote(root) is None:
        folder = (root / STATE_DIR / "remote").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        set_default_remote(root, RemoteStore(LOCAL_REMOTE, {"url": str(folder)}))
    check_remote_access(root)


@contextlib.contextmanager
def hold_run_lock(root: Path) -> Iterator[None]:
    """Allow one run at a time in a study. Raises InputError."""
    path = run_lock_path(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Nothing is written before the lock is held: `lineage status` reads when its run began.
    with path.open("a") as stream:
        try:
            is_free = try_lock(stream)
        except OSError as error:
            raise InputError(
                f"{path.parent}: files cannot be locked there ({error.strerror}), "
                "as on some network drives; move the study"
            ) from error
        if not is_free:
            raise InputError(
                f"{root}: another run of this study is under way; wait for it, or end it"
            )
        os.utime(path)
        yield


def run_lock_path(root: Path) -> Path:
    """Return the file that a run keeps locked."""
    return root / STATE_DIR / "locks" / "run.lock"


def is_running(root: Path) -> bool:
    """Return whether a run of the study has begun and not ended."""
    path = run_lock_path(root)
    if not path.is_file():
        return False
    with path.open() as stream:
        return not try_lock(stream)


def check_can_commit(root: Path) -> None:
    """Raise InputError unless the study is in a git repository."""
    if not _lies_in_git(root):
        raise InputError(
            f"--commit: {root} is not in a git repository; run `git init` there, or leave "
            "--commit out"
        )


def _lies_in_git(root: Path) -> bool:
    return run_git(root, "rev-parse", "--git-dir").returncode == 0


def commit_results(root: Path, message: str) -> None:
    """Commit params.yaml, dvc.yaml, dvc.lock and the report to the study's git repository.

    Without a change of the parameters or the results, no commit is made.
    """
    results = run_git(root, "status", "--porcelain", "--", PARAMS_FILE, GRAPH_FILE, "dvc.lock")
    if results.returncode == 0 and not results.stdout.strip():
        return  # the report differs in its provenance only
    names = [name for name in COMMITTED_FILES if (root / name).exists()]
    # Git hooks are meant for commits by hand.
    git = ("-c", "core.hooksPath=/dev/null", *_committer_options(root))
    _check_git(root, *git, "add", "--", *names)
    if run_git(root, "diff", "--cached", "--quiet", "--", *names).returncode != 0:
        _check_git(root, *git, "commit", "--quiet", "--message", message, "--", *names)


def _check_git(root: Path, *arguments: str) -> None:
    """Run git. Raises InputError with git's own words."""
    answer = run_git(root, *arguments)
    if answer.returncode != 0:
        words = " ".join(answer.stderr.split())
        raise InputError(f"{root}: the results could not be committed: {words}; commit them")


def _committer_options(root: Path) -> list[str]:
    """Return git options that name a committer if the user has configured none."""
    if run_git(root, "var", "GIT_COMMITTER_IDENT").returncode == 0:
        return []
    return ["-c", "user.name=lineage", "-c", "user.email=lineage@localhost"]
