"""A reverse proxy on loopback, as operators put before an inference server: it limits, and says when nobody is behind.

Over `limit` requests in a window it answers 429 with `Retry-After`; a request counts from its start to one window after
its end, so that a slow server behind does not make the limit a matter of luck. While the server behind does not answer,
502. What the server itself answers passes through, its own refusals too.
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
from itertools import count
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
        taken: when each request within the window ended, by its number; infinite while it runs.
        statuses: answers given so far, by status: its own and the server's.
    """

    url: str
    port: int
    limit: int | None = None
    window_s: float = 1.0
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    taken: dict[int, float] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def enter(self, number: int) -> float:
        """Take a place in the window for a request: 0, or the seconds until there may be one."""
        with self.lock:
            now = time.monotonic()
            self.taken = {one: end for one, end in self.taken.items() if end > now - self.window_s}
            if self.limit is None or len(self.taken) < self.limit:
                self.taken[number] = math.inf
                return 0.0
            return min(self.window_s, min(self.taken.values()) + self.window_s - now)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request: refused here, or answered by the server."""
        number = next(self.numbers)
        wait_s = self.enter(number)
        if wait_s > 0:
            return 429, {"retry-after": str(math.ceil(wait_s))}, b'{"error": {"message": "too many requests"}}'
        try:
            return self._ask(method, path, headers, body)
        finally:
            with self.lock:
                self.taken[number] = time.monotonic()

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
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
