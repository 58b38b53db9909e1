"""The record of every request: id, metrics, one log line, and the answer when something unexpected fails."""

import logging
import re
import secrets
import time

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tauscope_serving import errors
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.spans import RequestSpans
from tauscope_wire.errors import ErrorCode, InternalError
from tauscope_wire.tracing import Tracing

log = logging.getLogger("tauscope.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

CLIENT_CLOSED = 499
"""Status in logs and metrics (never on the wire) of a request whose caller left before the answer began."""


class RequestRecord:
    """Outermost middleware: gives each request an id, counts it, and writes one structured log line for it.

    The line holds route, status, code, key name, bytes and times. Never a body, a prompt, a query or a key.
    """

    def __init__(self, app: ASGIApp, *, metrics: ServiceMetrics, tracing: Tracing | None = None) -> None:
        self._app = app if tracing is None else RequestSpans(app, tracing=tracing)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        state["request_id"] = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8)
        started = time.perf_counter()
        status, body_bytes, complete = 0, 0, False

        async def record(message: Message) -> None:
            nonlocal status, body_bytes, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                if all(name.lower() != b"x-request-id" for name, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (b"x-request-id", state["request_id"].encode())]
            elif message["type"] == "http.response.body":
                body_bytes += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, record)
        except Exception as error:
            log.error("unexpected failure", exc_info=error, extra={"fields": {"request_id": state["request_id"]}})
            state["error_code"] = str(ErrorCode.INTERNAL)
            if status:  # half an answer is out: closing the connection is all that can tell the caller
                raise _CutShortError from None
            nameless = InternalError("unexpected failure of the service; its log has the request id")
            await errors.error_response(nameless, state["request_id"])(scope, receive, record)
        finally:
            self._metrics.in_flight.dec()
            self._write(scope, status, body_bytes, time.perf_counter() - started, complete=complete)

    def _write(self, scope: Scope, status: int, body_bytes: int, seconds: float, *, complete: bool) -> None:
        state = scope["state"]
        status = status or CLIENT_CLOSED
        route = getattr(scope.get("route"), "path", "unknown")
        key = state.get("key_name", "")
        self._metrics.requests.labels(route, str(status), key).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if status >= 400:
            self._metrics.rejected.labels(state.get("error_code", "http")).inc()
        line = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "route": route,
            "status": status,
            "code": state.get("error_code"),
            "key": key,
            "bytes": body_bytes,
            "cut_short": None if complete else True,
            "ms": round(1000 * seconds, 1),
        }
        log.info("request", extra={"fields": line | state.get("log_fields", {})})


class _CutShortError(Exception):
    """An answer failed after its first byte; the server closes the connection. The reason was logged before."""

    def __init__(self) -> None:
        super().__init__("the answer was cut short; see the line before")


def note(request: Request, **fields: object) -> None:
    """Add facts (counts, times; never text of a prompt) to the log line of a request."""
    known = request.scope.setdefault("state", {}).setdefault("log_fields", {})
    known.update(fields)
