"""Limit how long this process waits for an MLflow server, however slowly the server answers.

The time limits of HTTP libraries count from one byte to the next, so a server that sends a byte a
second could hold a run for an hour. Here a timer of the system interrupts the main thread.
"""

import functools
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

from mlflow import MlflowClient

from lineage.runtime.database import find_database

REQUEST_SECONDS = 4.0  # that the main thread waits for one answer
TOTAL_SECONDS = 5.0  # that all answers together may take longer than FREE_SECONDS each
FREE_SECONDS = 0.5  # a server that answers as fast as this is not slow
UPLOAD_BYTES_PER_SECOND = 1_000_000  # a file that is sent may take so much longer


class ServerTime:
    """The seconds that the main thread may still wait for a slow server; a file is not slow."""

    def __init__(self) -> None:
        self._seconds_left = TOTAL_SECONDS if find_database() is None else math.inf

    @contextmanager
    def limit(self, *, upload: Path | None = None, num_requests: int = 1) -> Iterator[None]:
        """Raise TimeoutError in the block if its requests make this process wait too long.

        The computing of the process itself does not count. `upload` is what is sent: a file, or a
        folder, each file of which is a request.
        """
        if self._seconds_left == math.inf:
            yield
            return
        if self._seconds_left <= 0:
            raise TimeoutError("the server is too slow; it is not asked again")
        files = _list_files(upload)
        free_seconds = FREE_SECONDS * max(num_requests, len(files))
        free_seconds += sum(path.stat().st_size for path in files) / UPLOAD_BYTES_PER_SECOND
        limit_seconds = free_seconds + min(self._seconds_left, REQUEST_SECONDS - FREE_SECONDS)
        start = _waited_seconds()

        def check(number: int, frame: FrameType | None) -> None:
            seconds_left = limit_seconds - (_waited_seconds() - start)
            if seconds_left <= 0:
                raise TimeoutError("the server is too slow")
            signal.setitimer(signal.ITIMER_REAL, max(seconds_left, 0.01))

        handler_before = signal.signal(signal.SIGALRM, check)
        signal.setitimer(signal.ITIMER_REAL, limit_seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler_before)
            self._seconds_left -= max(0.0, _waited_seconds() - start - free_seconds)


def limit_client(client: MlflowClient, server_time: ServerTime) -> MlflowClient:
    """Return a client each of whose calls waits no longer than it may."""
    return cast(MlflowClient, _LimitedClient(client, server_time))


class _LimitedClient:
    """Calls the methods of an MlflowClient."""

    def __init__(self, client: MlflowClient, server_time: ServerTime) -> None:
        self._client = client
        self._server_time = server_time

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            is_upload = name in ("log_artifact", "log_artifacts")
            upload = Path(arguments[1]) if is_upload else None
            with self._server_time.limit(upload=upload):
                return method(*arguments, **options)

        return call


def _waited_seconds() -> float:
    """Return a time that stands still while the main thread computes."""
    return time.monotonic() - time.thread_time()


def _list_files(upload: Path | None) -> list[Path]:
    if upload is None:
        return []
    return [upload] if upload.is_file() else [path for path in upload.rglob("*") if path.is_file()]
