"""A TCP proxy on loopback that cuts connections half-way, as many as it is told to."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["CuttingProxy", "cutting_proxy"]

BUFFER_BYTES = 65536


@dataclass
class CuttingProxy:
    """Forwards to one port and cuts the answers of the next `cuts` connections after `keep_bytes`.

    Attributes:
        url: address of the proxy.
        cuts: connections still to be cut.
        keep_bytes: bytes of the answer that pass before the cut.
        num_connections: connections taken so far.
    """

    url: str
    port: int
    cuts: int = 0
    keep_bytes: int = 120
    num_connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    clients: list[socket.socket] = field(default_factory=list)

    def cut_next(self, cuts: int, *, keep_bytes: int) -> None:
        """Cut the answers of the next connections; idle ones are ended, so that the next request needs a new one."""
        with self.lock:
            self.cuts, self.keep_bytes = cuts, keep_bytes
            for client in self.clients:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def serve(self, listener: socket.socket) -> None:
        """Take connections until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self.lock:
                self.num_connections += 1
                self.clients.append(client)
                is_cut = self.cuts > 0
                self.cuts -= is_cut
            threading.Thread(target=self._join, args=(client, is_cut), daemon=True).start()

    def _join(self, client: socket.socket, is_cut: bool) -> None:
        with client, socket.create_connection(("127.0.0.1", self.port)) as server:
            upward = threading.Thread(target=_pump, args=(client, server, None), daemon=True)
            upward.start()
            _pump(server, client, self.keep_bytes if is_cut else None)


def _pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    """Copy until the source ends or `limit` bytes have passed; then end the sink's connection."""
    passed = 0
    try:
        while data := source.recv(BUFFER_BYTES):
            if limit is not None:
                data = data[: limit - passed]
            sink.sendall(data)
            passed += len(data)
            if limit is not None and passed >= limit:
                break
    except OSError:
        pass
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR if limit is not None else socket.SHUT_WR)


@contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    """A proxy in front of 127.0.0.1:`port`, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = CuttingProxy(f"http://127.0.0.1:{listener.getsockname()[1]}", port)
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy
