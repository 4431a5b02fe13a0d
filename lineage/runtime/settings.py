"""Read runtime.yaml: how a run is computed on this machine. Nothing here may change a result."""

import errno
import getpass
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lineage.config.records import check_positive, parse_record, read_yaml
from lineage.errors import InputError

EXPERIMENT_NAME = "lineage"  # the MLflow experiment that holds all runs
STATE_DIR = Path(".lineage")  # below the study; ignored by git and DVC
METADATA_DIR = STATE_DIR / "metadata"  # times, hosts and run ids of stages
SUMMARY_FILE = STATE_DIR / "summary.json"  # of the last run, which Prefect shows
SQLITE_PREFIX = "sqlite:///"
WAITING_POOLS = ("cpu", "gpu")  # of Prefect, for stages that may run elsewhere


@dataclass(frozen=True)
class RuntimeSettings:
    """The settings of this machine. An environment variable LINEAGE_<KEY> wins over the file."""

    data_root: str = "."  # folder of relative `files:`; itself relative to the study
    jobs: int | None = None  # stages at a time; by default as many as cores and memory allow
    device_index: int = 0  # the GPU to use, with device: cuda
    tracking_uri: str | None = None  # MLflow; by default mlflow.db in the study
    checkpoint_seconds: float = 20.0  # between two checkpoints of a training run
    # How long a stage waits for a worker of a pool: {gpu: 7200}
    pool_wait_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(self, "jobs", "checkpoint_seconds")
        for pool, seconds in self.pool_wait_seconds.items():
            if pool not in WAITING_POOLS:
                raise ValueError(
                    f"pool_wait_seconds names '{pool}'; give {' or '.join(WAITING_POOLS)}"
                )
            if seconds <= 0:
                raise ValueError(f"pool_wait_seconds.{pool} is {seconds}; it must be above zero")


VARIABLE_TYPES = {
    "data_root": str,
    "jobs": int,
    "device_index": int,
    "tracking_uri": str,
    "checkpoint_seconds": float,
}


def run_git(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run git in a folder, on the repository there. A failure is in the return code."""
    # A git hook that started this process would have named its own repository here.
    environment = dict(os.environ)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)
    return subprocess.run(
        ["git", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def read_runtime_settings() -> RuntimeSettings:
    """Read runtime.yaml of the study, with LINEAGE_* variables over it. Raises InputError."""
    path = Path("runtime.yaml")
    tree = read_yaml(path) if path.is_file() else {}
    for key, value_type in VARIABLE_TYPES.items():
        variable = f"LINEAGE_{key.upper()}"
        text = os.environ.get(variable)
        if not text:
            continue
        try:
            tree[key] = value_type(text)
        except ValueError:
            raise InputError(
                f"{variable}: expected {value_type.__name__}, found {text!r}; "
                "correct the environment variable"
            ) from None
    return parse_record(RuntimeSettings, tree, "runtime.yaml")


def resolve_data_root() -> Path:
    """Return the absolute folder under which users' files are looked up."""
    return Path(read_runtime_settings().data_root).expanduser().resolve()


def resolve_tracking_uri() -> str:
    """Return the address of the MLflow store, which does not depend on the current folder."""
    given = read_runtime_settings().tracking_uri or f"{SQLITE_PREFIX}mlflow.db"
    if given.startswith(SQLITE_PREFIX):
        return f"{SQLITE_PREFIX}{Path.cwd() / given.removeprefix(SQLITE_PREFIX)}"
    return given


def get_user_name() -> str:
    """Return the name of the user; in a container that may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def prepare_environment() -> None:
    """Set what tools need in the environment: no proxy for this machine, and a user name.

    Without a proxy variable, no exceptions are set: macOS then asks its own settings.
    """
    names = ("no_proxy", "NO_PROXY")
    if any(_names_proxy(variable) for variable in os.environ):
        exceptions = []
        for name in names:
            exceptions += [part.strip() for part in os.environ.get(name, "").split(",")]
        if "*" in exceptions:
            exceptions = ["*"]
        else:
            exceptions = [part for part in exceptions if part] + ["127.0.0.1", "localhost"]
        value = ",".join(dict.fromkeys(exceptions))
        for name in names:
            os.environ[name] = value
    if get_user_name() == "unknown":
        os.environ["LOGNAME"] = get_user_name()


def _names_proxy(variable: str) -> bool:
    name = variable.lower()
    return name.endswith("_proxy") and name != "no_proxy" and bool(os.environ[variable])


def check_writable(
    name: str, root: Path = Path(), *, purpose: str = "", num_bytes: int = 0
) -> None:
    """Raise InputError if no file can be written in this folder, or its nearest existing parent.

    `purpose` tells the user what the folder is for, if its name does not. On a full disk, only a
    file of some bytes tells.
    """
    try:
        with tempfile.TemporaryFile(dir=find_existing_folder(root / name)) as stream:
            stream.write(bytes(num_bytes))
            stream.flush()
    except OSError as error:
        where = f"{name} ({purpose})" if purpose else name
        remedy = "it must be a folder in which you may create files"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space there"
        raise InputError(f"{where}: cannot be written to ({error.strerror}); {remedy}") from error


def find_existing_folder(path: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
