"""The processes of `make up` and `make ui`: each carries a mark in its environment, and hands it down, so that what a killed one left is found."""

import contextlib
import json
import os
import signal
from collections.abc import Collection
from pathlib import Path

import psutil

MARKER_VARIABLE = "LINEAGE_SERVERS"  # the folder of their ids
TERMINATE_SECONDS = 30.0


def known_markers(home: Path) -> set[str]:
    """What tells the processes whose ids lie in this folder: the folder, and what it was called before the checkout was moved."""
    found = {str(home)}
    for path in home.glob("*.json"):
        with contextlib.suppress(FileNotFoundError, KeyError, ValueError, psutil.Error):
            mark = (
                psutil.Process(json.loads(path.read_text())["pid"]).environ().get(MARKER_VARIABLE)
            )
            found |= {mark} if mark and not Path(mark).exists() else set()
    return found


def find_marked_processes(
    markers: Collection[str], *, pid: int | None = None
) -> list[psutil.Process]:
    """The living processes that carry one of these marks; with `pid`, that one only."""
    found = []
    for process in psutil.process_iter():
        if pid not in (None, process.pid):
            continue
        try:
            if (
                process.pid != os.getpid()
                and process.environ().get(MARKER_VARIABLE) in markers
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def terminate_marked_processes(markers: Collection[str]) -> None:
    """End all that carry one of these marks: TERM, wait, KILL, also what they have started meanwhile."""
    left = find_marked_processes(markers)
    _send_signal(left, signal.SIGTERM)
    _, living = psutil.wait_procs(left, timeout=TERMINATE_SECONDS)
    left = list({*living, *find_marked_processes(markers)})
    _send_signal(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=5)


def _send_signal(targets: Collection[psutil.Process], number: int) -> None:
    for process in targets:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
