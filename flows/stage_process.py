"""Run a module as a process of its own, forked from a server that has imported torch already.

A cold start of Python with torch takes four seconds of a stage. The server is that of Python's
multiprocessing: it imports packages of other projects only. A stage watches the process that
started it, and ends itself as it would be ended by it if that one is gone.
"""

import contextlib
import fcntl
import gc
import multiprocessing
import os
import runpy
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

from flows.processes import environment_variables, terminate_process_group

# Imports of stages from other projects. The last two are for publish.
PRELOADED_MODULES = (
    "torch",
    "pandas",
    "psutil",
    "pyarrow.parquet",
    "tokenizers",
    "safetensors.torch",
    "rich.progress",
    "ruamel.yaml",
    "typer",
    "sklearn.linear_model",
    "scipy.stats",
    "mlflow",
    "mlflow.store.tracking.sqlalchemy_store",
)
FILES_OF_SERVER = 16  # that its start may open
POLL_SECONDS = 0.2
SERVER_IS_GONE = 255  # multiprocessing's exit code of a process whose server was killed
KILLED = -9

CommandEnd = int | Literal["stopped", "timeout"]  # an exit code, or why a command was ended

# Elsewhere a process with many imports cannot fork safely.
_context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
# multiprocessing looks after all processes whenever it starts one, and is not made for threads.
_processes_lock = threading.Lock()


@dataclass(frozen=True)
class Command:
    """A command of dvc.yaml, and the surroundings of its process."""

    text: str
    folder: Path
    environment: Mapping[str, str]
    log: Path  # for everything that it prints
    lock: Path  # shared by all stages of a study that are alive


def start_server(environment: Mapping[str, str], further_modules: Sequence[str] = ()) -> None:
    """Let the server start and import its modules, which takes seconds, in the background."""
    with contextlib.ExitStack() as exit_stack:
        for _ in range(FILES_OF_SERVER):
            exit_stack.enter_context(Path(os.devnull).open("rb"))
    if sys.platform == "linux":
        _context.set_forkserver_preload([*PRELOADED_MODULES, *further_modules])
        with environment_variables(environment):  # torch reads the number of threads
            forkserver.ensure_running()


def run_command(
    command: Command, *, stop_event: threading.Event, timeout_seconds: float
) -> CommandEnd:
    """Run a command in a process group of its own, and wait for it.

    Return its exit code, or why it was ended. Its whole group has ended then.
    """
    command.log.parent.mkdir(parents=True, exist_ok=True)
    command.log.write_text("")
    command.lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_seconds
    process = _context.Process(target=_run_in_child, args=(command,))  # type: ignore[attr-defined]
    if stop_event.is_set():
        return "stopped"
    with _processes_lock:
        process.start()
    try:
        while not wait([process.sentinel], POLL_SECONDS):
            if stop_event.is_set():
                return "stopped"
            if time.monotonic() > deadline:
                return "timeout"
    finally:
        _end(process)
    exit_status = int(process.exitcode)
    return KILLED if exit_status == SERVER_IS_GONE else exit_status


def _end(process: multiprocessing.Process) -> None:
    """End a process and the rest of its group."""
    assert process.pid is not None
    with _processes_lock:
        if process.is_alive():
            process.terminate()  # it may not have made its group yet
    terminate_process_group(process.pid)
    while not wait([process.sentinel], POLL_SECONDS):
        pass
    with _processes_lock:
        process.join()


def _run_in_child(command: Command) -> None:
    """Turn into the process of a command. `SystemExit` carries its exit code."""
    os.setpgid(0, 0)
    gc.freeze()  # so that garbage collection does not copy the server's pages
    with command.log.open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with command.lock.open("w") as lock:
        # Held to the end. A run that comes after a killed one waits for it.
        fcntl.flock(lock, fcntl.LOCK_SH)
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
        os.environ.clear()
        os.environ.update(command.environment)
        os.chdir(command.folder)
        words = shlex.split(command.text)
        if words[:2] != ["python", "-m"]:
            sys.exit(subprocess.call(["/bin/sh", "-c", command.text]))
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = words[2:]
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    terminate_process_group(os.getpgrp())
