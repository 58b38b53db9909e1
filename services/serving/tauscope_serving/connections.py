"""Bounds on a connection before any route sees it: how long and how large the head of a request may be.

uvicorn bounds neither. A caller that connects and stays silent, or that sends its headers byte by byte or without end,
would hold a descriptor and memory for as long as it likes. TCP options on the listener take care of peers that vanish.
"""

import asyncio
import contextlib
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT_S = 20.0
"""From connecting (or the first byte of a later request) to the end of its headers; a slow mobile line needs one."""

MAX_HEAD_BYTES = 64 << 10
"""Headers of one request; a bearer key and a trace context need less than one KiB."""

UNACKNOWLEDGED_TIMEOUT_S = 60
"""The kernel drops a connection whose peer has neither taken nor acknowledged anything for so long."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a deadline and a size limit on the head of every request."""

    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._head_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a head that does not end."""
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._head_done()
                self.send_400_response(f"The head of a request may have {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A request starts: its head gets a time of its own."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._head_done()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_done()
        self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.abort)

    def _head_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None
        self._head_bytes = 0


def drop_dead_peers(listener: socket.socket) -> None:
    """Set TCP options that accepted connections inherit: keep-alive probes, and a bound on unacknowledged data."""
    if listener.family == socket.AF_UNIX:
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", UNACKNOWLEDGED_TIMEOUT_S),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 1000 * UNACKNOWLEDGED_TIMEOUT_S),
    ):
        option = getattr(socket, name, None)  # not every platform has every one
        if option is not None:
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_TCP, option, value)
