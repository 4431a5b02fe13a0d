"""Faults of the machine for a run of a study: what Python loads at its start, and a power cut.

Each shim is a `sitecustomize.py` for the processes of a run. Python loads it when PYTHONPATH names
its folder.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.helpers.checkout import ROOT, command_environment
from tests.helpers.toy_project import read_dvc_lock

RUN_ONE_STAGE_AT_A_TIME = ("lineage", "run", "--no-prefect", "--jobs", "1")
# Trainings take seconds here, and a power cut should find their checkpoints.
MANY_CHECKPOINTS = {"LINEAGE_CHECKPOINT_SECONDS": "0.2"}
PAGE_BYTES = 4096
MAX_WAIT_SECONDS = 300.0
# Files of a report that hold times, such as how long a system takes.
FILES_WITH_TIMES = (
    "comparison.json",
    "comparison.html",
    "comparison.md",
    "facts.json",
    "decisions.json",
)
# A power cut does not harm these: SQLite flushes what it needs.
DATABASES = ("mlflow.db*", "cache.db*")

CLOCK_SHIM = """
import os
import time

real_time, real_time_ns = time.time, time.time_ns

def has_jumped():
    return os.path.exists(os.environ["CLOCK_JUMP"])

time.time = lambda: real_time() - 3600 * has_jumped()
time.time_ns = lambda: real_time_ns() - 3600 * 10**9 * has_jumped()
"""

SLOW_DISK_SHIM = """
import builtins
import io
import os
import shutil
import time

def delay(function, seconds):
    def delayed(*arguments, **options):
        time.sleep(seconds)
        return function(*arguments, **options)
    return delayed

def open_slowly(file, mode="r", *arguments, **options):
    if set(mode) & set("wax+") and not str(file).startswith("/dev/"):
        time.sleep(0.05)
    return real_open(file, mode, *arguments, **options)

real_open = io.open
io.open = builtins.open = open_slowly
for name in ("fsync", "fdatasync"):
    setattr(os, name, delay(getattr(os, name), 0.3))
for name in ("replace", "rename", "link"):
    setattr(os, name, delay(getattr(os, name), 0.1))
shutil.copyfile = delay(shutil.copyfile, 0.1)
"""

# Writes down each file that is flushed, and its state then.
FLUSH_SHIM = """
import os

real_fsync = os.fsync

def fsync(file):
    real_fsync(file)
    state = os.fstat(file if isinstance(file, int) else file.fileno())
    with open(os.environ["FLUSH_LOG"], "a") as log:
        log.write(f"{state.st_ino} {state.st_size} {state.st_mtime_ns}\\n")

os.fsync = os.fdatasync = fsync
"""


def write_shim(folder: Path, source: str) -> dict[str, str]:
    """Write a shim into a new folder. Return the environment that loads it."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(source)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def start_run(
    study: Path, *, prepare: Callable[[], None] | None = None, **environment: str
) -> "subprocess.Popen[str]":
    """Start a run in the background. Its own process calls `prepare` first."""
    return subprocess.Popen(
        RUN_ONE_STAGE_AT_A_TIME,
        cwd=study,
        env=command_environment(study) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=prepare,
    )


def wait_until(condition: Callable[[], bool], run: "subprocess.Popen[str]") -> None:
    """Wait until something holds, while the run is under way."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while not condition():
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline, "it has never happened"
        time.sleep(0.01)


def find_stage(study: Path, name: str, run: "subprocess.Popen[str]") -> psutil.Process:
    """Wait for the process of a stage, which holds the lock of the stage, and return it."""
    lock = str(study / ".lineage" / "locks" / f"{name}.lock")
    found: list[psutil.Process] = []

    def look() -> bool:
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(file.path == lock for file in process.open_files()):
                    found.append(process)
        return bool(found)

    wait_until(look, run)
    return found[0]


def move_to_future(folder: Path, *, seconds: int) -> None:
    """Move the times of all files of a folder into the future."""
    for path in list_files(folder):
        with contextlib.suppress(FileNotFoundError):  # the run removes files meanwhile
            state = path.stat()
            later = state.st_mtime_ns + seconds * 10**9
            os.utime(path, ns=(state.st_atime_ns, later))


@contextlib.contextmanager
def stop_all_processes(study: Path, run: "subprocess.Popen[str]") -> Iterator[None]:
    """Stop every process of a run while the block lasts: the disk stays as it is."""
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    stopped = {*processes, *_processes_in(study)}
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.Error):
                process.resume()


def copy_after_power_cut(
    study: Path, folder: Path, log: Path, count_kept: Callable[[int], int]
) -> tuple[Path, list[str]]:
    """Copy a study as its disk would be after a power cut now, with the user's data next to it.

    Files whose last state was never flushed are cut: `count_kept` gives the bytes that are left of
    so many. Return the copy and the names of these files.
    """
    lost = [str(path.relative_to(study)) for path in _list_unflushed(study, log)]
    shutil.copytree(study.parent / "mine", folder / "mine")
    copy = shutil.copytree(study, folder / study.name, symlinks=True)
    for name in lost:
        path = copy / name
        path.chmod(0o644)  # files of DVC's cache are read-only
        os.truncate(path, count_kept(path.stat().st_size))
    return copy, lost


def _processes_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.append(process)
    return found


def note_all_flushed(folder: Path, log: Path) -> None:
    """Write down that every file of a folder is on the disk."""
    with log.open("a") as stream:
        for path in list_files(folder):
            stream.write(f"{_describe_state(path)}\n")


def _list_unflushed(study: Path, log: Path) -> list[Path]:
    flushed = {*log.read_text().splitlines()}
    return [
        path
        for path in list_files(study)
        if path.stat().st_size and not is_database(path) and _describe_state(path) not in flushed
    ]


def is_database(path: Path) -> bool:
    return any(path.match(pattern) for pattern in DATABASES)


def empty(size: int) -> int:
    """Keep nothing of a file."""
    return 0


def halve(size: int) -> int:
    """Keep the first half of a file."""
    return size // 2


def cut_last_page(size: int) -> int:
    """Keep all pages of a file but the last one."""
    return (size - 1) // PAGE_BYTES * PAGE_BYTES


def _describe_state(path: Path) -> str:
    state = path.stat()
    return f"{state.st_ino} {state.st_size} {state.st_mtime_ns}"


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder, without links."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]


def digest_results(study: Path) -> dict[str, str]:
    """Return digests of artifacts and reports without times, and the entries of dvc.lock."""
    digests = {"dvc.lock": json.dumps(read_dvc_lock(study), sort_keys=True)}
    for path in [*list_files(study / "artifacts"), *list_files(study / "reports")]:
        if path.name not in FILES_WITH_TIMES:
            name = str(path.relative_to(study))
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests
