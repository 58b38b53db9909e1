"""The drafter service over HTTP: routes, checks and answers. Never imports torch; the engine is handed in."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request, Response

from tauscope_drafter.acceptance import acceptance_answer, draft_request_of
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.conditions import card_under, conditions_of
from tauscope_drafter.contract import DraftingEngine, DraftJob, DraftResult, Sampling
from tauscope_drafter.draft_answers import draft_answer
from tauscope_drafter.drafter_metrics import DrafterMetrics
from tauscope_drafter.drafting import run_draft
from tauscope_drafter.families.names import FAMILIES
from tauscope_drafter.requests import check_limits
from tauscope_drafter.states import StatesSource
from tauscope_serving.access import Admin, DraftCaller, Reader, key_to_forward
from tauscope_serving.answers import TensorResponse
from tauscope_serving.bodies import described_body, read_body
from tauscope_serving.compute import ComputeLoop
from tauscope_serving.disconnect import until_disconnect
from tauscope_serving.errors import request_id
from tauscope_serving.gpu_memory import GpuMeter, no_gpu, publish_gpu_memory
from tauscope_serving.loop_metrics import publish_loop
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.packing import fair_pack
from tauscope_serving.service import Access, create_service, note
from tauscope_wire.errors import ErrorCode, PermissionDeniedError
from tauscope_wire.messages import (
    AcceptanceRequest,
    DrafterCard,
    DrafterList,
    DrafterLoadRequest,
    DrafterServiceInfo,
    DraftRequest,
    Limits,
)
from tauscope_wire.tracing import Tracing

DESCRIPTION = (
    "Drafts for many anchors of a sequence at once, from the hidden states of a target model. "
    "The wire format of `/draft_block` is SPEC.md of the package tauscope_wire."
)
MAX_CONSECUTIVE_FAILURES = 3  # failed passes in a row: the device is probably lost
STALLED_S = 900.0  # a pass of this length means that the device hangs: the service is not ready any more


@dataclass(frozen=True, kw_only=True)
class DrafterService:
    """What the routes work with.

    Attributes:
        engine: loads and drafts.
        states: where hidden states come from.
        limits: bounds, shown by `/info`.
        version: of the distribution.
        roots: folders that `POST /drafters` may load from; empty forbids it.
        access: keys and quotas.
        drain_s: how long drafts in flight may go on once the service stops.
        gpu_memory: tells the memory of the device against its cap.
        tracing: makes spans of requests and their stages.
    """

    engine: DraftingEngine
    states: StatesSource
    limits: Limits
    version: str
    roots: tuple[Path, ...] = ()
    access: Access = field(default_factory=Access)
    drain_s: float = 30.0
    gpu_memory: GpuMeter = no_gpu
    tracing: Tracing | None = None


def create_app(service: DrafterService) -> FastAPI:
    """The application; its lifespan owns the compute thread."""
    engine, limits = service.engine, service.limits
    # One job a pass: a job is many batches already, and a device has nothing to gain from two at a time.
    loop: ComputeLoop[DraftJob, DraftResult] = ComputeLoop(
        engine.draft, pack=fair_pack(max_cost=1, max_jobs=1), max_queued=limits.max_queued, name="draft"
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop.start()
        try:
            yield
        finally:
            await asyncio.to_thread(loop.close, drain_s=service.drain_s)

    def not_ready() -> Sequence[str]:
        state = loop.state()
        reasons = [] if state.is_alive else ["the compute thread is not running"]
        if state.busy_s > STALLED_S:
            reasons.append(f"one pass has run for {state.busy_s:.0f} s")
        if state.consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            reasons.append(f"the last {state.consecutive_failures} passes failed; see the log")
        return reasons

    metrics = ServiceMetrics("tauscope_drafter")
    reads = service.states.num_reads
    metrics.counts("contexts_mapped", "Handles read from files of a target on this machine", lambda: reads("mapped"))
    metrics.counts("contexts_http", "Handles read over HTTP", lambda: reads("http"))
    publish_loop(metrics, loop, cost="tokens")
    publish_gpu_memory(metrics, service.gpu_memory)
    metrics.counts("context_hits", "Drafts whose fused context was kept", lambda: engine.context_counts.hits)
    metrics.counts("context_misses", "Drafts whose states had to be read", lambda: engine.context_counts.misses)
    metrics.gauge("context_bytes", "Memory of fused contexts").set_function(lambda: engine.context_counts.nbytes)
    drafts = DrafterMetrics(metrics)
    app = create_service(
        "tauscope drafter",
        version=service.version,
        description=DESCRIPTION,
        metrics=metrics,
        not_ready=not_ready,
        access=service.access,
        lifespan=lifespan,
        tracing=service.tracing,
    )
    app.state.waiting_tokens = lambda: loop.state().queued_cost  # for a router that shares the load out
    run = partial(run_draft, service.states, limits, loop)
    loading = asyncio.Lock()  # one checkpoint at a time: loading is bound by disk and memory

    @app.post(
        "/draft_block",
        tags=["draft"],
        summary="Drafts of many anchors of one sequence",
        response_class=Response,
        openapi_extra=described_body(DraftRequest),
    )
    async def draft_block(request: Request, caller: DraftCaller) -> Response:
        asked = await read_body(request, DraftRequest, max_bytes=limits.max_body_bytes)
        lease = await asyncio.to_thread(engine.lease, asked.drafter)  # an engine may load it now
        card = card_under(lease.card, conditions_of(asked.conditions))
        check_limits(asked, card, limits)
        await service.access.quotas.charge_tokens(caller, len(asked.token_ids))
        work = run(
            asked=asked,
            lease=lease,
            card=card,
            caller=caller,
            key=key_to_forward(request),
            asked_as=request_id(request),
        )
        result, anchors = await until_disconnect(request, work)
        metrics.tokens.labels(caller.name).inc(len(asked.token_ids))
        drafts.observe(lease.card.name, len(anchors), result.timing_ms)
        body = draft_answer(engine.numerics(card), card, anchors, result, conditions_of(asked.conditions))
        await service.access.quotas.charge_bytes(caller, body.nbytes)
        metrics.answer_bytes.labels(caller.name).inc(body.nbytes)
        note(request, drafter=lease.card.name, anchors=len(anchors), **result.timing_ms)
        return TensorResponse(body, request_id(request))

    @app.post(
        "/expected_acceptance",
        tags=["draft"],
        summary="What sampling would accept, from both distributions",
        response_class=Response,
        openapi_extra=described_body(AcceptanceRequest),
    )
    async def expected_acceptance(request: Request, caller: DraftCaller) -> Response:
        asked = await read_body(request, AcceptanceRequest, max_bytes=limits.max_body_bytes)
        lease = await asyncio.to_thread(engine.lease, asked.drafter)  # an engine may load it now
        draft = draft_request_of(asked)
        check_limits(draft, lease.card, limits)
        await service.access.quotas.charge_tokens(caller, len(asked.token_ids))
        sampling = Sampling(asked.temperature, asked.top_k, asked.top_p)
        work = run(
            asked=draft,
            lease=lease,
            card=lease.card,
            caller=caller,
            key=key_to_forward(request),
            asked_as=request_id(request),
            sampling=sampling,
        )
        result, anchors = await until_disconnect(request, work)
        metrics.tokens.labels(caller.name).inc(len(asked.token_ids))
        drafts.observe(lease.card.name, len(anchors), result.timing_ms)
        body = acceptance_answer(lease.card, engine.numerics(lease.card), anchors, result)
        await service.access.quotas.charge_bytes(caller, body.nbytes)
        metrics.answer_bytes.labels(caller.name).inc(body.nbytes)
        note(request, drafter=lease.card.name, anchors=len(anchors), **result.timing_ms)
        return TensorResponse(body, request_id(request))

    @app.get("/drafters", tags=["drafters"], summary="Loaded drafters")
    async def list_drafters(_: Reader) -> DrafterList:
        return DrafterList(drafters=engine.cards())

    @app.post(
        "/drafters", tags=["drafters"], summary="Load a drafter", openapi_extra=described_body(DrafterLoadRequest)
    )
    async def load_drafter(request: Request, _: Admin) -> DrafterCard:
        asked = await read_body(request, DrafterLoadRequest, max_bytes=limits.max_body_bytes)
        if not service.roots:
            raise PermissionDeniedError(
                "loading over HTTP is off: the service was started without --root", ErrorCode.PATH_OUTSIDE_ROOTS
            )
        async with loading:
            return await asyncio.to_thread(
                engine.load, asked.name, Path(asked.path), options_of(asked), roots=service.roots
            )

    @app.delete("/drafters/{name}", tags=["drafters"], summary="Unload a drafter", status_code=204)
    async def unload_drafter(name: str, _: Admin) -> Response:
        engine.unload(name)
        return Response(status_code=204)

    @app.get("/info", tags=["health"], summary="Drafters, limits and numerics of this service")
    async def info(_: Reader) -> DrafterServiceInfo:
        return DrafterServiceInfo(
            version=service.version,
            drafters=engine.cards(),
            numerics=engine.numerics(),
            limits=limits,
            target_url=service.states.url,
            target_model=await asyncio.to_thread(service.states.target_model, engine.target_model()),
            families=list(FAMILIES),
        )

    return app


def options_of(asked: DrafterLoadRequest) -> LoadOptions:
    """Options of a request in the form the loader takes."""
    return LoadOptions(
        family=asked.family,
        block_size=asked.block_size,
        taps=None if asked.taps is None else tuple(asked.taps),
        convention=asked.convention,
        mask_token_id=asked.mask_token_id,
        rope_theta=asked.rope_theta,
        layout=asked.layout,
    )
