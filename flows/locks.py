"""Locked files, which keep processes of one study from disturbing each other."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hold_lock(path: Path, *, waiting_for: str) -> Iterator[int]:
    """Keep a file locked while the block lasts, and yield its descriptor.

    While another process holds it, say what is waited for, and wait. The lock of a process that
    ends is free, unless a child has inherited the descriptor.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for {waiting_for}", file=sys.stderr, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()
