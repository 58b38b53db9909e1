"""A server of scripted bytes on a free port: it behaves as badly as a test needs."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Script = Callable[["Caller", int], None]
"""What is done with one connection; the number counts connections from 0."""


@dataclass
class Caller:
    """One accepted connection."""

    sock: socket.socket
    requests: list[bytes]
    _rest: bytes = b""

    def head(self) -> bytes:
        """Read one request up to its empty line; b"" when the client has gone."""
        while b"\r\n\r\n" not in self._rest:
            piece = self.sock.recv(65536)
            if not piece:
                return b""
            self._rest += piece
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        self.requests.append(head)
        return head

    def body(self, num_bytes: int) -> bytes:
        """Read a body of known length."""
        while len(self._rest) < num_bytes:
            piece = self.sock.recv(1 << 20)
            if not piece:
                break
            self._rest += piece
        body, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return body

    def skip(self, num_bytes: int) -> None:
        """Read a body without keeping it."""
        num_bytes -= len(self._rest)
        self._rest = b""
        while num_bytes > 0 and (piece := self.sock.recv(min(num_bytes, 1 << 20))):
            num_bytes -= len(piece)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.sock.sendall(data)

    def reset(self) -> None:
        """Break the connection off: the peer gets an error, not an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass
class Record:
    """What the server saw.

    Attributes:
        url: base URL (with the port, also for a Unix socket).
        requests: heads of all requests.
        num_connections: accepted connections.
    """

    url: str
    requests: list[bytes] = field(default_factory=list)
    num_connections: int = 0


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A complete answer with its Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def scripted(script: Script, *, uds: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Record]:
    """Run `script` for every connection, each in a thread, until the block ends."""
    if uds is None:
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(uds)
        listener.listen()
        url = f"unix://{uds}"
    record = Record(url)
    open_sockets: list[socket.socket] = []

    def serve(sock: socket.socket, index: int) -> None:
        with contextlib.suppress(OSError), sock:  # a client that goes away is what many tests are about
            script(Caller(sock, record.requests), index)

    def accept() -> None:
        while True:
            try:
                sock = listener.accept()[0]
                if tls is not None:
                    sock = tls.wrap_socket(sock, server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            open_sockets.append(sock)
            threading.Thread(target=serve, args=(sock, record.num_connections), daemon=True).start()
            record.num_connections += 1

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield record
    finally:
        for sock in [listener, *open_sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes whoever waits on it
            sock.close()
        thread.join(10)


def every(*answers: bytes) -> Script:
    """Answer every request, in turn, on kept connections."""

    def script(caller: Caller, index: int) -> None:
        del index
        while caller.head():
            caller.send(answers[(len(caller.requests) - 1) % len(answers)])

    return script
