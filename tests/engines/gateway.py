"""A reverse proxy on loopback, as operators put before an inference server: it limits, and says when nobody is behind.

Over `limit` requests in a window it answers 429 with `Retry-After`; while the server behind does not answer, 502. What
the server itself answers passes through, its own refusals too.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Gateway", "gateway"]

UPSTREAM_TIMEOUT_S = 1800
PASSED_HEADERS = ("content-type", "authorization", "retry-after", "accept")


@dataclass
class Gateway:
    """What the proxy does and has done.

    Attributes:
        url: address of the proxy.
        port: of the server behind it.
        limit: requests in a window; None: any number.
        window_s: length of the window.
        statuses: answers given so far, by status: its own and the server's.
    """

    url: str
    port: int
    limit: int | None = None
    window_s: float = 1.0
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    taken: list[float] = field(default_factory=list)

    def wait_s(self) -> float:
        """Take a place in the window: 0, or the seconds until there is one."""
        if self.limit is None:
            return 0.0
        with self.lock:
            now = time.monotonic()
            self.taken = [at for at in self.taken if at > now - self.window_s]
            if len(self.taken) < self.limit:
                self.taken.append(now)
                return 0.0
            return self.taken[0] + self.window_s - now

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request: refused here, or answered by the server."""
        wait_s = self.wait_s()
        if wait_s > 0:
            return 429, {"retry-after": str(math.ceil(wait_s))}, b'{"error": {"message": "too many requests"}}'
        connection = HTTPConnection("127.0.0.1", self.port, timeout=UPSTREAM_TIMEOUT_S)
        try:
            connection.request(method, path, body=body or None, headers=_passed(headers))
            answer = connection.getresponse()
            return answer.status, _passed(dict(answer.getheaders())), answer.read()
        except (OSError, HTTPException):
            return 502, {}, b'{"error": {"message": "the server behind this gateway does not answer"}}'
        finally:
            connection.close()


def _passed(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() in PASSED_HEADERS}


@contextmanager
def gateway(port: int, *, limit: int | None = None, window_s: float = 1.0) -> Iterator[Gateway]:
    """A proxy before 127.0.0.1:`port`, on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, headers, content = door.answer(self.command, self.path, dict(self.headers.items()), body)
            with door.lock:
                door.statuses[status] += 1
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _pass_on

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        door = Gateway(f"http://127.0.0.1:{server.server_address[1]}", port, limit, window_s)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield door
        finally:
            server.shutdown()
