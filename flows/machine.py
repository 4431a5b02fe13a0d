"""What this machine gives a run: its threads, how many stages at a time, and two helpers."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from flows.execute import StageContext
from lineage.config.records import read_yaml
from lineage.runtime.scratch import scratch_folder

RECORDER_VARIABLE = "LINEAGE_RECORDER"
FORKSERVER_VARIABLE = "LINEAGE_FORKSERVER"
CGROUP_ROOT = Path("/sys/fs/cgroup")
STAGE_MEMORY_BYTES = 3e9  # the most that a stage's process takes on small corpora (see README)


def read_threads(root: Path) -> int:
    """Return `threads` of params.yaml, or 1 if it is not a valid number; `sources` reports that."""
    threads = read_yaml(root / "params.yaml").get("threads")
    if type(threads) is not int or threads < 1:
        return 1
    return threads


def default_jobs(threads: int) -> int:
    """Return how many stages of `threads` threads may run at a time.

    The cores and the memory that this process may use, also in a container, must be enough.
    """
    cores: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # "max": there is no quota
        quota, period = (CGROUP_ROOT / "cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))
    memory_bytes = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):
        memory_bytes = min(memory_bytes, int((CGROUP_ROOT / "memory.max").read_text()))
    return max(1, int(min(cores / threads, memory_bytes / STAGE_MEMORY_BYTES)))


@contextlib.contextmanager
def start_helpers(root: Path) -> Iterator[None]:
    """Start the two processes that let stages of this machine begin faster, while the block lasts.

    One has MLflow imported (`lineage.runtime.recorder`), the other forks stages
    (`lineage.runtime.forkserver`). Variables of the environment tell stages where they are. A
    block within such a block uses the same processes.
    """
    if RECORDER_VARIABLE in os.environ:
        yield
        return
    context = StageContext(root, threads=read_threads(root))
    with contextlib.ExitStack() as exit_stack:
        # A folder with a short path: a socket's path may have 100 characters.
        folder = exit_stack.enter_context(scratch_folder())
        # By the variable that tells stages where a helper's socket is: its module and arguments,
        # the last of which is the socket.
        helpers = {RECORDER_VARIABLE: ["lineage.runtime.recorder", f"{folder}/recorder"]}
        if sys.platform == "linux":  # elsewhere a process with many imports cannot fork safely
            command = ["lineage.runtime.forkserver", "serve", f"{folder}/forkserver"]
            helpers[FORKSERVER_VARIABLE] = command
        for command in helpers.values():
            _start_helper(context, exit_stack, *command)
        for variable, command in helpers.items():
            os.environ[variable] = command[-1]
            exit_stack.callback(os.environ.pop, variable, None)
        yield


def _start_helper(context: StageContext, exit_stack: contextlib.ExitStack, *module: str) -> None:
    """Start a process that ends with the block of `exit_stack`, or with this process."""
    child = subprocess.Popen(
        [sys.executable, "-m", *module, str(os.getpid())],
        cwd=context.root,
        env=context.child_environment("helper"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    exit_stack.callback(child.wait)
    exit_stack.callback(child.terminate)
