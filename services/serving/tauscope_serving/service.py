"""The common FastAPI application: health, metrics, request ids, errors, access. Routes are added by each service."""

import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tauscope_serving import errors
from tauscope_serving.keys import Keyring
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.quotas import QuotaMeter
from tauscope_wire.messages import Health

log = logging.getLogger("tauscope.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Access:
    """What decides who may call: kept on `app.state.access`."""

    keyring: Keyring = field(default_factory=lambda: Keyring(None))
    quotas: QuotaMeter = field(default_factory=QuotaMeter)


def create_service(
    title: str,
    *,
    version: str,
    description: str,
    metrics: ServiceMetrics,
    not_ready: Callable[[], Sequence[str]],
    access: Access | None = None,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """An application with everything but the service's own routes.

    Args:
        title: shown in the OpenAPI document.
        version: of the distribution.
        description: one paragraph for `/docs`.
        metrics: registry and request metrics.
        not_ready: reasons why the service cannot work now; an empty sequence means ready.
        access: keys and quotas; open by default.
        lifespan: start and stop of what the service owns.
    """
    app = FastAPI(title=title, version=version, description=description, lifespan=lifespan)
    app.state.access = access or Access()
    errors.install(app)
    app.add_middleware(RequestRecord, metrics=metrics)

    @app.get("/healthz", tags=["health"], summary="The process answers")
    async def healthz() -> Health:
        return Health(status="ok")

    @app.get("/readyz", tags=["health"], summary="The service can work now", responses={503: {"model": Health}})
    async def readyz() -> Response:
        reasons = list(not_ready())
        health = Health(status="not_ready" if reasons else "ok", reasons=reasons)
        return JSONResponse(health.model_dump(), 503 if reasons else 200)

    @app.get("/metrics", tags=["health"], summary="Prometheus metrics", response_class=Response)
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


class RequestRecord:
    """Outermost middleware: gives each request an id, counts it, and writes one structured log line for it.

    The line holds route, status, code, key name, bytes and times. Never a body, a prompt, a query or a key.
    """

    def __init__(self, app: ASGIApp, *, metrics: ServiceMetrics) -> None:
        self._app = app
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
        status, body_bytes = 0, 0

        async def record(message: Message) -> None:
            nonlocal status, body_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                if all(name.lower() != b"x-request-id" for name, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (b"x-request-id", state["request_id"].encode())]
            elif message["type"] == "http.response.body":
                body_bytes += len(message.get("body", b""))
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, record)
        finally:
            self._metrics.in_flight.dec()
            seconds = time.perf_counter() - started
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
                "ms": round(1000 * seconds, 1),
            }
            log.info("request", extra={"fields": line | state.get("log_fields", {})})


def note(request: Request, **fields: object) -> None:
    """Add facts (counts, times; never text of a prompt) to the log line of a request."""
    known = request.scope.setdefault("state", {}).setdefault("log_fields", {})
    known.update(fields)
