"""Find and end processes: the groups of stages, and those of `lineage up` and `lineage ui`.

Each of the latter has a marker in its environment, which its children inherit, so that children of
a killed process are found too.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import psutil

MARKER_VARIABLE = "LINEAGE_SERVERS"  # holds the folder of the processes' ids
TERMINATE_SECONDS = 30.0
GRACE_SECONDS = 20.0  # for a last checkpoint; less than the 30 s that Prefect gives a cancelled run
KILL_SECONDS = 5.0  # to wait for processes that were sent KILL


@contextlib.contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment while the block lasts, for processes that it starts."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def repeat_in_background(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function every so many seconds while the block lasts, and once at its end."""
    has_ended = threading.Event()

    def repeat() -> None:
        is_last = False
        while not is_last:
            is_last = has_ended.wait(seconds)
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def read_server_entry(path: Path) -> tuple[int, int] | None:
    """Return the process id and the port in a server's file; None if it is missing or damaged.

    Its process is found by the marker too.
    """
    try:
        entry = json.loads(path.read_bytes())
        return int(entry["pid"]), int(entry["port"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def known_markers(home: Path) -> set[str]:
    """Return the markers of the processes whose ids lie in this folder.

    They are the folder itself and, if the study has been moved, what it was called before.
    """
    markers = {str(home)}
    for path in home.glob("*.json"):
        entry = read_server_entry(path)
        if entry is None:
            continue
        with contextlib.suppress(ValueError, OverflowError, psutil.Error):
            marker = psutil.Process(entry[0]).environ().get(MARKER_VARIABLE)
            if marker and not Path(marker).exists():
                markers.add(marker)
    return markers


def find_marked_processes(
    markers: Collection[str], *, pid: int | None = None
) -> list[psutil.Process]:
    """Return the living processes that have one of these markers; with `pid`, that process only."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid() or pid not in (None, process.pid):
            continue
        try:
            is_marked = process.environ().get(MARKER_VARIABLE) in markers
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def terminate_marked_processes(markers: Collection[str]) -> None:
    """End all processes with a marker, also those started meanwhile: TERM, wait, KILL."""
    found = find_marked_processes(markers)
    _send_signal(found, signal.SIGTERM)
    _, living = psutil.wait_procs(found, timeout=TERMINATE_SECONDS)
    remaining = {*living, *find_marked_processes(markers)}
    _send_signal(remaining, signal.SIGKILL)
    psutil.wait_procs(list(remaining), timeout=KILL_SECONDS)


def _send_signal(targets: Collection[psutil.Process], number: int) -> None:
    for process in targets:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def terminate_process_group(group: int, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End all processes of a group: TERM, wait, KILL."""
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        if not _has_living_member(group):
            return
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        while _has_living_member(group) and time.monotonic() < deadline:
            time.sleep(0.05)


def _has_living_member(group: int) -> bool:
    """Return whether a process of the group is alive."""
    for process in psutil.process_iter(["status"]):
        try:
            in_group = os.getpgid(process.pid) == group
            if in_group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return False
