"""A bounded pool of kept `http.client` connections to any number of addresses. Thread-safe."""

import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["Address", "ConnectionPool", "PoolTimeoutError"]

KEEP_S: Final = 4.0
"""How long an idle connection is kept: less than the 5 s after which a default uvicorn closes it."""

MAX_CONNECTIONS: Final = 64
"""Open connections at once, busy and idle; more callers wait."""


class PoolTimeoutError(Exception):
    """No connection became free in time."""


class Address(NamedTuple):
    """Where a connection goes; connections are shared between equal ones."""

    scheme: str
    host: str
    port: int


@dataclass(eq=False)
class PooledConnection:
    """One connection: `is_reused` when it has served a request before, `idle_since` on the pool's clock."""

    address: Address
    http: http.client.HTTPConnection
    is_reused: bool = False
    idle_since: float = 0.0

    def set_timeout(self, timeout_s: float | None) -> None:
        """Bound every following wait on the socket; also for a connection that is not open yet."""
        self.http.timeout = timeout_s
        if self.http.sock is not None:
            self.http.sock.settimeout(timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix domain socket."""

    def __init__(self, path: str, *, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise


@dataclass
class ConnectionPool:
    """Hands out connections, newest idle one first; the caller gives each back or drops it.

    Attributes:
        uds: path of a Unix socket that takes all requests, whatever their host.
        tls: context for https.
        max_connections: bound on busy and idle connections together.
        keep_s: how long an idle connection is kept.
        clock: seconds, monotonic.
    """

    uds: str | None
    tls: Callable[[], ssl.SSLContext]
    max_connections: int = MAX_CONNECTIONS
    keep_s: float = KEEP_S
    clock: Callable[[], float] = time.monotonic
    _idle: list[PooledConnection] = field(default_factory=list, init=False, repr=False)
    _num_open: int = field(default=0, init=False)
    _is_closed: bool = field(default=False, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False, repr=False)

    def acquire(
        self, address: Address, *, timeout_s: float | None, connect_timeout_s: float | None
    ) -> PooledConnection:
        """A kept connection that is still open, or a new one that is not connected yet.

        Raises:
            PoolTimeoutError: all connections stayed busy for `timeout_s`.
            RuntimeError: the pool was closed.
        """
        deadline = None if timeout_s is None else self.clock() + timeout_s
        with self._changed:
            while True:
                if self._is_closed:
                    raise RuntimeError("the transport is closed")
                self._drop_stale()
                for index in range(len(self._idle) - 1, -1, -1):
                    if self._idle[index].address == address:
                        return self._idle.pop(index)
                if self._num_open >= self.max_connections and self._idle:
                    self._close(self._idle.pop(0))  # kept for another address, the least recently used
                if self._num_open < self.max_connections:
                    self._num_open += 1
                    return PooledConnection(address, self._new(address, connect_timeout_s))
                left = None if deadline is None else deadline - self.clock()
                if (left is not None and left <= 0) or not self._changed.wait(left):
                    raise PoolTimeoutError(f"all {self.max_connections} connections stayed busy for {timeout_s} s")

    def release(self, connection: PooledConnection) -> None:
        """Keep a connection whose answer was read to its end."""
        with self._changed:
            if self._is_closed or connection.http.sock is None:
                self._close(connection)
            else:
                connection.is_reused = True
                connection.idle_since = self.clock()
                self._idle.append(connection)
            self._changed.notify()

    def drop(self, connection: PooledConnection) -> None:
        """Close a connection that cannot be used again."""
        with self._changed:
            self._close(connection)
            self._changed.notify()

    def close(self) -> None:
        """Close what is idle, and what is busy as soon as it is given back."""
        with self._changed:
            self._is_closed = True
            while self._idle:
                self._close(self._idle.pop())
            self._changed.notify_all()

    def _close(self, connection: PooledConnection) -> None:
        self._num_open -= 1
        connection.http.close()

    def _drop_stale(self) -> None:
        """Close idle connections that are too old, or that the server closed (or wrote to: nobody asked)."""
        now = self.clock()
        for connection in list(self._idle):
            if now - connection.idle_since > self.keep_s or _is_readable(connection.http.sock):
                self._idle.remove(connection)
                self._close(connection)

    def _new(self, address: Address, timeout_s: float | None) -> http.client.HTTPConnection:
        if self.uds is not None:
            return _UnixConnection(self.uds, timeout=timeout_s)
        if address.scheme == "https":
            return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=self.tls())
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()  # select.select cannot watch descriptors from 1024 on
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
