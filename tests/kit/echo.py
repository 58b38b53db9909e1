"""A weightless service on the common HTTP parts: it sums token ids in a compute loop. For tests of those parts."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from fastapi import FastAPI, Query, Request
from pydantic import Field

from tauscope_serving.access import Admin, DraftCaller, Extractor, Reader
from tauscope_serving.answers import TensorResponse
from tauscope_serving.bodies import described_body, read_body
from tauscope_serving.compute import ComputeLoop
from tauscope_serving.disconnect import until_disconnect
from tauscope_serving.errors import request_id
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.packing import fair_pack
from tauscope_serving.service import Access, create_service, note
from tauscope_wire import messages
from tauscope_wire.body import Body


class SumRequest(messages.Request):
    """What the service sums; `text` stands for a prompt that must never be logged."""

    token_ids: list[int]
    scale: float = 1.0
    text: str = Field(default="", max_length=100)
    template_kwargs: dict[str, object] = Field(default_factory=dict)


class SumAnswer(messages.Answer):
    """The sum, and how many jobs shared the pass."""

    total: float
    shared_by: int


@dataclass
class Echo:
    """The service and the levers a test pulls.

    Attributes:
        app: the application.
        execute: runs a pass; replace it to block or fail.
        gate: passes wait here; open by default.
        entered: set when a pass has begun.
        executed: ids of all jobs that reached the device.
        to_raise: what `GET /raise` raises.
        not_ready: what `/readyz` reports.
        body: what `GET /tensor` answers.
        closed: how often a tensor answer was closed.
    """

    access: Access = field(default_factory=Access)
    max_body_bytes: int = 1 << 16
    max_queued: int = 64
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    executed: list[list[int]] = field(default_factory=list)
    to_raise: BaseException | None = None
    not_ready: list[str] = field(default_factory=list)
    body: Body | None = None
    closed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self.metrics = ServiceMetrics("tauscope_echo")
        self.loop: ComputeLoop[list[int], SumAnswer] = ComputeLoop(
            self._execute, pack=fair_pack(max_cost=4096, max_jobs=8), max_queued=self.max_queued
        )
        self.app = self._create()

    def _execute(self, jobs: Sequence[list[int]]) -> list[SumAnswer]:
        self.entered.set()
        self.gate.wait(60)
        self.executed.extend(jobs)
        return [SumAnswer(total=float(np.sum(job)), shared_by=len(jobs)) for job in jobs]

    def _create(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            self.loop.start()
            yield
            await asyncio.to_thread(self.loop.close, drain_s=5.0)

        app = create_service(
            "echo",
            version="0",
            description="Sums.",
            metrics=self.metrics,
            not_ready=lambda: self.not_ready,
            access=self.access,
            lifespan=lifespan,
        )

        @app.post("/sum", openapi_extra=described_body(SumRequest))
        async def total(request: Request, caller: Reader) -> SumAnswer:
            body = await read_body(request, SumRequest, max_bytes=self.max_body_bytes)
            await self.access.quotas.charge_tokens(caller, len(body.token_ids))
            note(request, tokens=len(body.token_ids))
            work = self.loop.run(body.token_ids, cost=max(1, len(body.token_ids)), caller=caller.name, deadline_s=30)
            answer = await until_disconnect(request, work)
            return SumAnswer(total=answer.total * body.scale, shared_by=answer.shared_by)

        @app.get("/raise")
        async def fail() -> None:
            assert self.to_raise is not None
            raise self.to_raise

        @app.get("/page")
        async def page(start: int, stop: int = Query(default=1, ge=1)) -> int:
            return stop - start

        @app.get("/tensor")
        async def tensor(request: Request, caller: Reader) -> TensorResponse:
            assert self.body is not None
            await self.access.quotas.charge_bytes(caller, self.body.nbytes)
            return TensorResponse(self.body, request_id(request), on_close=self._closed)

        @app.get("/extract")
        async def extract(caller: Extractor) -> str:
            return caller.name

        @app.get("/draft")
        async def draft(caller: DraftCaller) -> str:
            return caller.name

        @app.get("/admin")
        async def admin(caller: Admin) -> str:
            return caller.name

        return app

    def _closed(self) -> None:
        self.closed += 1


def body_of(pieces: Callable[[], Iterator[bytes]], nbytes: int) -> Body:
    """A body from a producer of pieces."""
    return Body(nbytes, lambda _: (iter([piece]) for piece in pieces()))
