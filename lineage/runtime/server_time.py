"""Limit how long this process waits for an MLflow server, however slowly the server answers.

The time limits of HTTP libraries count from one byte to the next, so a server that sends a byte a
second could hold a run for an hour.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import psutil
import requests

REQUEST_SECONDS = 4.0  # that a request may take from its first byte to the last
TOTAL_SECONDS = 5.0  # that all requests together may take longer than FREE_SECONDS each
FREE_SECONDS = 0.5  # a server that answers as fast as this is not slow
UPLOAD_BYTES_PER_SECOND = 1_000_000  # a file that is sent may take so much longer

_send = requests.Session.send


class _ServerTime:
    """The seconds that are left. Requests of several threads share them."""

    def __init__(self) -> None:
        self.seconds_left = TOTAL_SECONDS
        self._lock = threading.Lock()

    def send(self, session: Any, request: Any, **options: Any) -> Any:
        """Send a request, as `Session.send` does, and cut it off if it takes too long."""
        if self.seconds_left <= 0:
            raise requests.Timeout("the server is too slow; it is not asked again")
        free_seconds = FREE_SECONDS
        if request.body:
            free_seconds += requests.utils.super_len(request.body) / UPLOAD_BYTES_PER_SECOND
        limit_seconds = free_seconds + min(self.seconds_left, REQUEST_SECONDS - FREE_SECONDS)
        timer = threading.Timer(limit_seconds, _shut_connections)
        timer.daemon = True
        start_time = time.monotonic()
        timer.start()
        try:
            return _send(session, request, **options)
        finally:
            timer.cancel()
            with self._lock:
                self.seconds_left -= max(0.0, time.monotonic() - start_time - free_seconds)


def limit_server_time() -> None:
    """Let requests of this process that take too long fail from now on."""
    server_time = _ServerTime()

    def send(session: Any, request: Any, **options: Any) -> Any:
        return server_time.send(session, request, **options)

    requests.Session.send = send


def _shut_connections() -> None:
    """End all TCP connections of this process: whoever reads from one gets its end at once."""
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
