"""End the stages of a process that was killed: `python -m flows.guard`.

A process that is killed can end nothing itself, and its stages would go on as orphans, in the way
of the next run. It therefore starts a guard first and tells it the process groups of its stages.
However it ends, the system closes its end of the pipe. The guard then ends the groups that are
left, as the process itself would have done.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flows.locks import hold_lock
from flows.processes import terminate_process_group


@dataclass(frozen=True)
class Guard:
    """Where to write the process groups of stages. Without a pipe nothing is guarded."""

    pipe: int | None = None

    @contextlib.contextmanager
    def watch(self, group: int) -> Iterator[None]:
        """End this process group if this process is killed while the block lasts."""
        self._write(f"+{group}\n")
        try:
            yield
        finally:
            self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        if self.pipe is None:
            return
        with contextlib.suppress(OSError):  # a guard that was killed itself is no reason to stop
            os.write(self.pipe, line.encode())  # so short a line is written as a whole


@contextlib.contextmanager
def guard_stages(root: Path, lock: Path) -> Iterator[Guard]:
    """Start a guard for the stages of a study, which ends with the block.

    The guard holds `lock` until the last stage has ended. If it is held by the guard of a killed
    process, say so and wait.
    """
    with hold_lock(lock, waiting_for="the stages of a run that was killed") as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-m", "flows.guard"],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],  # an inherited lock is held until all its holders are gone
            process_group=0,  # Ctrl-C in a terminal must not end it
        )
        assert child.stdin is not None
        try:
            yield Guard(child.stdin.fileno())
        finally:
            child.stdin.close()
            child.wait()


def main() -> None:
    """Read process groups until the pipe is closed, and end those that are left."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    with ThreadPoolExecutor(max(1, len(groups))) as pool:  # the time for a checkpoint runs for all
        pool.map(terminate_process_group, groups)


if __name__ == "__main__":
    main()
