"""runtime.yaml: how a run is computed. Nothing here may change a result."""

import getpass
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lineage.config.records import check_positive, parse_record, read_yaml
from lineage.errors import InputError

EXPERIMENT_NAME = "lineage"  # the one of MLflow in which all runs are
STATE_DIR = Path(".lineage")  # below the workspace; ignored by git and DVC


@dataclass(frozen=True)
class RuntimeSettings:
    """The settings of this machine. An environment variable LINEAGE_<KEY> wins over the file."""

    data_root: str = (
        "."  # relative `files:` are looked up here; itself relative to the main checkout
    )
    jobs: int | None = None  # stages at a time; by default as many as have cores and memory enough
    device_index: int = 0  # which GPU, with device: cuda
    tracking_uri: str | None = None  # MLflow; by default sqlite in the main checkout
    checkpoint_seconds: float = 20.0  # between two resume points of a training

    def __post_init__(self) -> None:
        check_positive(self, "jobs", "checkpoint_seconds")


def run_git(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What git says in a folder, of the repository there: one of its hooks that started us would name its own in the environment."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    return subprocess.run(
        ["git", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def find_main_checkout() -> Path:
    """The repository's main checkout: the folder itself, or, in a git worktree, the one that it hangs on."""
    if "LINEAGE_MAIN" in os.environ:
        return Path(os.environ["LINEAGE_MAIN"])
    answer = run_git(Path(), "rev-parse", "--git-common-dir")
    common = Path.cwd() / (
        answer.stdout.strip() if answer.returncode == 0 and answer.stdout.strip() else ".git"
    )
    return common.parent if common.name == ".git" else Path.cwd()


def read_runtime_settings() -> RuntimeSettings:
    """runtime.yaml of the main checkout, with LINEAGE_* variables over it. Raises InputError."""
    path = find_main_checkout() / "runtime.yaml"
    tree = read_yaml(path) if path.is_file() else {}
    kinds = {
        "data_root": str,
        "jobs": int,
        "device_index": int,
        "tracking_uri": str,
        "checkpoint_seconds": float,
    }
    for key, kind in kinds.items():
        text = os.environ.get(f"LINEAGE_{key.upper()}")
        if text:
            try:
                tree[key] = kind(text)
            except ValueError:
                raise InputError(
                    f"LINEAGE_{key.upper()}: expected {kind.__name__}, found {text!r}; correct the environment variable"
                ) from None
    return parse_record(RuntimeSettings, tree, "runtime.yaml")


def resolve_data_root() -> Path:
    """The folder under which users' files are looked up, absolute."""
    return (find_main_checkout() / Path(read_runtime_settings().data_root).expanduser()).resolve()


def resolve_tracking_uri() -> str:
    """Where MLflow writes: an absolute address, since MLflow's own default depends on the current folder."""
    given, scheme = read_runtime_settings().tracking_uri, "sqlite:///"
    if given is None or given.startswith(scheme):
        return f"{scheme}{find_main_checkout() / (given.removeprefix(scheme) if given else 'mlflow.db')}"
    return given


def get_user_name() -> str:
    """Who runs this; in a container that may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def prepare_environment() -> None:
    """Take out of this process's environment what the tools would trip over: no proxy stands before this machine, and its user has a name.

    Where no variable names a proxy, nothing is said of exceptions either: macOS then asks its own settings. The name in small letters wins with most
    tools, so that both names say the same.
    """
    names = ("no_proxy", "NO_PROXY")
    if any(
        value and key.lower().endswith("_proxy") and key not in names
        for key, value in os.environ.items()
    ):
        known = [part.strip() for key in names for part in os.environ.get(key, "").split(",")]
        all_of_them = ["*"] if "*" in known else [*filter(None, known), "127.0.0.1", "localhost"]
        os.environ |= dict.fromkeys(names, ",".join(dict.fromkeys(all_of_them)))
    if get_user_name() == "unknown":
        os.environ["LOGNAME"] = get_user_name()


def check_writable(name: str, root: Path = Path()) -> None:
    """Raise InputError where nothing can be written in this folder, or, where there is none yet, in the one that would hold it."""
    home = root / name
    while not home.exists() and home != home.parent:
        home = home.parent
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise InputError(
            f"{name}: cannot be written to ({error.strerror}); it must be a folder in which you may create files"
        ) from error
