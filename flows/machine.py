"""The resources of this machine for a run: threads, stages at a time, a server of processes."""

import contextlib
import os
from pathlib import Path

import psutil

from flows.execute import StageContext
from flows.stage_process import start_server
from lineage.config.records import read_yaml

CGROUP_ROOT = Path("/sys/fs/cgroup")
STAGE_MEMORY_BYTES = 3e9  # the most that a stage's process takes on small corpora (see README)


def read_threads(root: Path) -> int:
    """Return `threads` of params.yaml, or 1 if it is not a valid number; `sources` reports that."""
    threads = read_yaml(root / "params.yaml").get("threads")
    if type(threads) is not int or threads < 1:
        return 1
    return threads


def default_jobs(threads: int) -> int:
    """Return how many stages of `threads` threads may run at a time."""
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


def start_stage_server(root: Path) -> None:
    """Start what lets the stages of a study begin faster, in the background."""
    context = StageContext(root, threads=read_threads(root))
    start_server(context.child_environment("server"))
