"""An httpx transport over `http.client`: several times httpx's own speed on large bodies, and a way around its chunks.

`httpx` reads bodies at 0.2 to 0.4 GB/s; `http.client` reads straight into the caller's buffer at 2 GB/s and more. The
transport keeps httpx's API. The open answer is in `response.extensions["tauscope.source"]`, which has `readinto` and
`remaining_bytes`; reading it leaves httpx's own iteration without data.

Not supported: HTTP/2, proxies (also not those of the environment), asynchronous clients.
"""

import http.client
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import httpx

from tauscope_wire.pool import MAX_CONNECTIONS, Address, ConnectionPool, PooledConnection, PoolTimeoutError
from tauscope_wire.socket_errors import as_httpx

__all__ = ["SOURCE", "AnswerStream", "FastTransport"]

SOURCE: Final = "tauscope.source"
"""Key of the open answer in `httpx.Response.extensions`."""

_READ_BYTES: Final = 1 << 20

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that may be sent again although the first one may have arrived."""


class AnswerStream(httpx.SyncByteStream):
    """The body of an open answer; gives its connection back when closed."""

    def __init__(self, answer: http.client.HTTPResponse, connection: PooledConnection, pool: ConnectionPool) -> None:
        self._answer = answer
        self._connection = connection
        self._pool = pool
        self._is_open = True

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill up to len(buffer) bytes straight from the socket; 0 at the end, also at an early one.

        Raises:
            httpx.TransportError: the connection broke or stayed silent for the read timeout.
        """
        with as_httpx("reading"):
            return self._answer.readinto(buffer)

    def remaining_bytes(self) -> int | None:
        """Bytes that Content-Length promised and that were not read yet; None without one."""
        return self._answer.length

    def __iter__(self) -> Iterator[bytes]:
        """Pieces of up to 1 MiB.

        Raises:
            httpx.TransportError: the connection broke, or the body is shorter than Content-Length.
        """
        while True:
            with as_httpx("reading"):
                piece = self._answer.read(_READ_BYTES)
            if not piece:
                break
            yield piece
        if self._answer.length:
            raise httpx.RemoteProtocolError(f"the body ended {self._answer.length} bytes before its Content-Length")

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, else close it."""
        if not self._is_open:
            return
        self._is_open = False
        length = self._answer.length  # what is left; None for a chunked body, which closes itself at its end
        is_complete = length == 0 or (length is None and self._answer.isclosed())
        self._answer.close()
        if is_complete and not self._answer.will_close:
            self._pool.release(self._connection)
        else:
            self._pool.drop(self._connection)


class FastTransport(httpx.BaseTransport):
    """Sends over a bounded pool of kept connections. Safe to share between threads.

    Args:
        uds: path of a Unix socket to send everything to.
        tls: context for https; by default certificates of the system's authorities are required.
        max_connections: open connections at once; further callers wait for the pool timeout.
        keep_s: how long idle connections are kept.
    """

    def __init__(
        self,
        *,
        uds: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        keep_s: float | None = None,
    ) -> None:
        self._tls = tls
        self._pool = ConnectionPool(uds=uds, tls=self._context, max_connections=max_connections)
        if keep_s is not None:
            self._pool.keep_s = keep_s

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Close the transport."""
        self.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the head of its answer.

        A kept connection may turn out to be closed by the server. The request is then sent once more on a new
        connection, but only if the server cannot have worked on it: it was not sent completely, or its method changes
        nothing.

        Raises:
            httpx.TransportError: as httpx's own transport.
        """
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        if request.url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{request.url.scheme}: only http and https are supported")
        address = Address(request.url.scheme, request.url.host, port)
        try:
            connection = self._acquire(address, timeouts)
            if not connection.is_reused:
                return self._exchange(request, connection, timeouts)
            try:
                return self._exchange(request, connection, timeouts)
            except _StaleError as stale:
                if not stale.is_repeatable:
                    raise
                return self._repeat(request, address, timeouts, stale)
        except httpx.TransportError as error:
            error.request = request
            raise

    def close(self) -> None:
        """Close all idle connections."""
        self._pool.close()

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _repeat(
        self, request: httpx.Request, address: Address, timeouts: dict[str, float | None], stale: "_StaleError"
    ) -> httpx.Response:
        """Send a request again, on a connection that was never used."""
        connection = self._acquire(address, timeouts)
        while connection.is_reused:  # its siblings are as old: do not try them one by one
            self._pool.drop(connection)
            connection = self._acquire(address, timeouts)
        try:
            return self._exchange(request, connection, timeouts)
        except httpx.StreamConsumed:  # its body came from a generator: there is no second time
            raise stale from None

    def _acquire(self, address: Address, timeouts: dict[str, float | None]) -> PooledConnection:
        try:
            return self._pool.acquire(
                address, timeout_s=timeouts.get("pool"), connect_timeout_s=timeouts.get("connect")
            )
        except PoolTimeoutError as error:
            raise httpx.PoolTimeout(str(error)) from None

    def _exchange(
        self, request: httpx.Request, connection: PooledConnection, timeouts: dict[str, float | None]
    ) -> httpx.Response:
        try:
            if connection.http.sock is None:
                with as_httpx("connecting"):
                    connection.http.connect()
            connection.set_timeout(timeouts.get("write"))
            failure = _send(request, connection.http)
            connection.set_timeout(timeouts.get("read"))
            answer = self._head(request, connection, failure)
        except BaseException:
            self._pool.drop(connection)
            raise
        if failure is not None:
            answer.will_close = True  # the server answered without having read everything
        stream = AnswerStream(answer, connection, self._pool)
        return httpx.Response(
            answer.status,
            headers=answer.getheaders(),
            stream=stream,
            extensions={"reason_phrase": answer.reason.encode("latin-1"), "http_version": b"HTTP/1.1", SOURCE: stream},
        )

    def _head(
        self, request: httpx.Request, connection: PooledConnection, failure: OSError | None
    ) -> http.client.HTTPResponse:
        try:
            with as_httpx("reading"):
                return connection.http.getresponse()
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            is_silent = isinstance(error.__cause__, ConnectionError)  # includes http.client.RemoteDisconnected
            if not is_silent or not connection.is_reused:
                raise
            raise _StaleError(str(error), is_repeatable=failure is not None or request.method in _HARMLESS) from error


class _StaleError(httpx.RemoteProtocolError):
    """A kept connection broke before the first byte of an answer."""

    def __init__(self, message: str, *, is_repeatable: bool) -> None:
        super().__init__(message)
        self.is_repeatable = is_repeatable


def _send(request: httpx.Request, connection: http.client.HTTPConnection) -> OSError | None:
    """Send head and body; the error when the server stopped reading before the end, which may have answered already."""
    is_chunked = request.headers.get("transfer-encoding", "").lower() == "chunked"
    with as_httpx("writing"):
        target = request.url.raw_path.decode("ascii")
        connection.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.raw:
            connection.putheader(name, value)
        try:
            connection.endheaders()
            assert isinstance(request.stream, httpx.SyncByteStream)
            for piece in request.stream:
                if is_chunked and piece:
                    connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                elif piece:
                    connection.send(piece)
            if is_chunked:
                connection.send(b"0\r\n\r\n")
        except ConnectionError as error:
            return error
    return None
