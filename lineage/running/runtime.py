"""runtime.yaml: how a run is computed. Nothing here may change a result."""

import getpass
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lineage.errors import InputError
from lineage.records import load, positive, read_yaml

EXPERIMENT = "lineage"  # the one of MLflow in which all runs are


@dataclass(frozen=True)
class Runtime:
    """The settings of this machine. An environment variable LINEAGE_<KEY> wins over the file."""

    data_root: str = "."  # relative `files:` are looked up here; itself relative to the main checkout
    jobs: int | None = None  # stages at a time; by default cores / threads
    device_index: int = 0  # which GPU, with device_class: cuda
    tracking_uri: str | None = None  # MLflow; by default sqlite in the main checkout
    checkpoint_seconds: float = 20.0  # between two resume points of a training

    def __post_init__(self) -> None:
        positive(self, "jobs", "checkpoint_seconds")


def main_checkout() -> Path:
    """The repository's main checkout: the folder itself, or, in a git worktree, the one that it hangs on."""
    if "LINEAGE_MAIN" in os.environ:
        return Path(os.environ["LINEAGE_MAIN"])
    answer = subprocess.run(["git", "rev-parse", "--git-common-dir"], capture_output=True, text=True, check=False)
    common = Path.cwd() / (answer.stdout.strip() if answer.returncode == 0 and answer.stdout.strip() else ".git")
    return common.parent if common.name == ".git" else Path.cwd()


def read_runtime() -> Runtime:
    """runtime.yaml of the main checkout, with LINEAGE_* variables over it. Raises InputError."""
    path = main_checkout() / "runtime.yaml"
    tree = read_yaml(path) if path.is_file() else {}
    kinds = {"data_root": str, "jobs": int, "device_index": int, "tracking_uri": str, "checkpoint_seconds": float}
    for key, kind in kinds.items():
        text = os.environ.get(f"LINEAGE_{key.upper()}")
        if text:
            try:
                tree[key] = kind(text)
            except ValueError:
                raise InputError(f"LINEAGE_{key.upper()}: expected {kind.__name__}, found {text!r}; correct the environment variable") from None
    return load(Runtime, tree, "runtime.yaml")


def data_root() -> Path:
    """The folder under which users' files are looked up, absolute."""
    return (main_checkout() / Path(read_runtime().data_root).expanduser()).resolve()


def tracking_uri() -> str:
    """Where MLflow writes: an absolute address, since MLflow's own default depends on the current folder."""
    given, scheme = read_runtime().tracking_uri, "sqlite:///"
    if given is None or given.startswith(scheme):
        return f"{scheme}{main_checkout() / (given.removeprefix(scheme) if given else 'mlflow.db')}"
    return given


def user() -> str:
    """Who runs this; in a container that may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def settle() -> None:
    """Take out of this process's environment what the tools would trip over: no proxy stands before this machine, and its user has a name."""
    for key in ("no_proxy", "NO_PROXY"):
        known = os.environ.get(key, "").split(",")
        os.environ[key] = ",".join(dict.fromkeys([*filter(None, known), "127.0.0.1", "localhost"]))
    if user() == "unknown":
        os.environ["LOGNAME"] = user()


def check_folder(name: str, root: Path = Path()) -> None:
    """Raise InputError where nothing can be written in this folder, or, where there is none yet, in the one that would hold it."""
    home = root / name
    while not home.exists() and home != home.parent:
        home = home.parent
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise InputError(f"{name}: cannot be written to ({error.strerror}); it must be a folder in which you may create files") from error
