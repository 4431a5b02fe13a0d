"""Locked files, which keep processes of one study from disturbing each other.

The lock of a process that ends is free, unless a child has inherited the open file.
"""

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def try_lock(stream: IO[str]) -> bool:
    """Lock an open file until it is closed; return whether it was free."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def hold_lock(path: Path, *, message: str = "") -> Iterator[None]:
    """Keep a file locked while the block lasts. Print the message if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        if not try_lock(stream):
            if message:
                print(message, file=sys.stderr, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
