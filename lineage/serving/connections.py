"""Connections that are bounded in number, and in the time that a client has to send a request.

uvicorn ends a connection that is idle between two requests, but waits for ever for the rest of a
request that has begun.
"""

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_REQUESTS = 64  # with more connections, requests get the status 503
MAX_CONNECTIONS = 128  # more are closed at once
REQUEST_SECONDS = 20.0  # to send a request, from its first byte to its last


class BoundedConnection(H11Protocol):
    """A connection whose client must send whole requests in time."""

    timeout: asyncio.TimerHandle | None = None  # runs while a request is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request, if there are not too many connections."""
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > MAX_CONNECTIONS:
            self.transport.abort()
        else:
            self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if not self._waits_for_rest():
            self._stop_timeout()
        elif self.timeout is None:
            self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._stop_timeout()
        super().connection_lost(exc)

    def _waits_for_rest(self) -> bool:
        """Return whether a request has begun and is not complete."""
        has_begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return has_begun or self.conn.their_state is h11.SEND_BODY

    def _start_timeout(self) -> None:
        self.timeout = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _stop_timeout(self) -> None:
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None
