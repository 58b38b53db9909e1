"""The common FastAPI application: health, metrics, request ids, errors, access. Routes are added by each service."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tauscope_serving import errors
from tauscope_serving.bodies import BodyBudget
from tauscope_serving.keys import Keyring
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.quotas import LocalQuotas, Quotas
from tauscope_serving.record import RequestRecord, note
from tauscope_wire.messages import ErrorBody, Health
from tauscope_wire.tracing import Tracing

__all__ = ["Access", "create_service", "note"]

ERROR_RESPONSES: Mapping[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in (
        (422, "The request is wrong"),  # in place of FastAPI's own body for it
        ("4XX", "The request is refused; `error.code` says why"),
        ("5XX", "The service cannot answer; `error.code` says why"),
    )
}

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Access:
    """What decides who may call: kept on `app.state.access`."""

    keyring: Keyring = field(default_factory=lambda: Keyring(None))
    quotas: Quotas = field(default_factory=LocalQuotas)


def create_service(
    title: str,
    *,
    version: str,
    description: str,
    metrics: ServiceMetrics,
    not_ready: Callable[[], Sequence[str]],
    access: Access | None = None,
    lifespan: Lifespan | None = None,
    tracing: Tracing | None = None,
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
        tracing: makes spans of requests and their stages.
    """
    app = FastAPI(
        title=title, version=version, description=description, lifespan=lifespan, responses=dict(ERROR_RESPONSES)
    )
    app.state.access = access or Access()
    app.state.bodies = BodyBudget()
    app.state.not_ready = not_ready  # for those that ask without HTTP: a supervisor in the same process
    errors.install(app)
    app.add_middleware(RequestRecord, metrics=metrics, tracing=tracing)
    if tracing is not None:
        metrics.watch_stages(tracing.stages)

    @app.get("/healthz", tags=["health"], summary="The process answers")
    async def healthz() -> Health:
        return Health(status="ok")

    @app.get("/readyz", tags=["health"], summary="The service can work now", responses={503: {"model": Health}})
    async def readyz() -> Response:
        reasons = list(not_ready())
        health = Health(status="not_ready" if reasons else "ok", reasons=reasons)
        return JSONResponse(health.model_dump(), 503 if reasons else 200)

    @app.get("/metrics", tags=["health"], summary="Prometheus metrics", response_class=Response)
    async def prometheus(request: Request) -> Response:
        # usage per key is the operator's business: where keys exist, only an admin's key reads it
        app.state.access.keyring.principal(request.headers).require("admin")
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
