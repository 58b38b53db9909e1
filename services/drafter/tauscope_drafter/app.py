"""The drafter service over HTTP: routes, checks and answers. Never imports torch; the engine is handed in."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, Request, Response

from tauscope_drafter.acceptance import acceptance_answer, draft_request_of
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.conditions import card_under, conditions_of, context_rows
from tauscope_drafter.contract import DraftingEngine, DraftJob, DraftResult, Lease, Sampling, StatesArray
from tauscope_drafter.families.names import FAMILIES
from tauscope_drafter.requests import check_limits, deadline_of, resolve_anchors
from tauscope_drafter.states import StatesSource, inline_states
from tauscope_serving.access import Admin, DraftCaller, Reader, key_to_forward
from tauscope_serving.answers import TensorResponse
from tauscope_serving.bodies import described_body, read_body
from tauscope_serving.compute import ComputeLoop
from tauscope_serving.disconnect import until_disconnect
from tauscope_serving.errors import request_id
from tauscope_serving.keys import Principal
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.packing import fair_pack
from tauscope_serving.service import Access, create_service, note
from tauscope_wire.body import Body
from tauscope_wire.errors import ErrorCode, PermissionDeniedError
from tauscope_wire.messages import (
    AcceptanceAnswer,
    AcceptanceRequest,
    DraftConditions,
    DrafterCard,
    DrafterList,
    DrafterLoadRequest,
    DrafterServiceInfo,
    DraftRequest,
    HiddenByHandle,
    Limits,
)
from tauscope_wire.tensors import DrafterSummary
from tauscope_wire.writer import draft_body

DESCRIPTION = (
    "Drafts for many anchors of a sequence at once, from the hidden states of a target model. "
    "The wire format of `/draft_block` is SPEC.md of the package tauscope_wire."
)
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
    """

    engine: DraftingEngine
    states: StatesSource
    limits: Limits
    version: str
    roots: tuple[Path, ...] = ()
    access: Access = field(default_factory=Access)


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
            await asyncio.to_thread(loop.close)

    def not_ready() -> Sequence[str]:
        state = loop.state()
        reasons = [] if state.is_alive else ["the compute thread is not running"]
        if state.busy_s > STALLED_S:
            reasons.append(f"one pass has run for {state.busy_s:.0f} s")
        return reasons

    metrics = ServiceMetrics("tauscope_drafter")
    anchors_drafted = metrics.counter("anchors", "Anchors drafted, by drafter", ("drafter",))
    app = create_service(
        "tauscope drafter",
        version=service.version,
        description=DESCRIPTION,
        metrics=metrics,
        not_ready=not_ready,
        access=service.access,
        lifespan=lifespan,
    )
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
        lease = engine.lease(asked.drafter)
        card = card_under(lease.card, conditions_of(asked.conditions))
        check_limits(asked, card, limits)
        service.access.quotas.charge_tokens(caller, len(asked.token_ids))
        work = _draft(service, loop, asked, lease, card, caller=caller, key=key_to_forward(request))
        result, anchors = await until_disconnect(request, work)
        metrics.tokens.labels(caller.name).inc(len(asked.token_ids))
        anchors_drafted.labels(lease.card.name).inc(len(anchors))
        body = _answer(service, card, anchors, result, conditions_of(asked.conditions))
        service.access.quotas.charge_bytes(caller, body.nbytes)
        metrics.answer_bytes.labels(caller.name).inc(body.nbytes)
        note(request, drafter=lease.card.name, anchors=len(anchors), **result.timing_ms)
        return TensorResponse(body, request_id(request))

    @app.post(
        "/expected_acceptance",
        tags=["draft"],
        summary="What sampling would accept, from both distributions",
        openapi_extra=described_body(AcceptanceRequest),
    )
    async def expected_acceptance(request: Request, caller: DraftCaller) -> AcceptanceAnswer:
        asked = await read_body(request, AcceptanceRequest, max_bytes=limits.max_body_bytes)
        lease = engine.lease(asked.drafter)
        draft = draft_request_of(asked)
        check_limits(draft, lease.card, limits)
        service.access.quotas.charge_tokens(caller, len(asked.token_ids))
        sampling = Sampling(asked.temperature, asked.top_k, asked.top_p)
        work = _draft(
            service, loop, draft, lease, lease.card, caller=caller, key=key_to_forward(request), sampling=sampling
        )
        result, anchors = await until_disconnect(request, work)
        note(request, drafter=lease.card.name, anchors=len(anchors), **result.timing_ms)
        return acceptance_answer(lease.card, engine.numerics(lease.card), anchors, result)

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


async def _draft(
    service: DrafterService,
    loop: ComputeLoop[DraftJob, DraftResult],
    asked: DraftRequest,
    lease: Lease,
    card: DrafterCard,
    *,
    caller: Principal,
    key: str | None,
    sampling: Sampling | None = None,
) -> tuple[DraftResult, "np.ndarray[tuple[int, ...], np.dtype[np.int32]]"]:
    """Fetch the states where needed, then draft."""
    anchors = resolve_anchors(asked, service.limits)
    if not len(anchors):
        return _nothing(card, asked.top_k), anchors
    conditions = conditions_of(asked.conditions)
    # a comparison with the target reads its states at the drafted places too
    num_rows = len(asked.token_ids) if sampling is not None else context_rows(int(anchors[-1]), conditions)
    behalf = _Behalf(caller.tag, key)
    if sampling is not None and isinstance(asked.hidden, HiddenByHandle):
        fetch = partial(service.states.fetch, key=key, final_norm=True)
        handle = quote(asked.hidden.handle, safe="")
        context_key: str | None = None
        states: StatesArray | None = await asyncio.to_thread(fetch, handle, card, asked.token_ids, num_rows)
    else:
        states, context_key = await _states(service, asked, lease, card, num_rows=num_rows, behalf=behalf)
    job = DraftJob(
        lease=lease,
        token_ids=np.asarray(asked.token_ids, dtype=np.int64),
        anchors=anchors,
        states=states,
        context_key=context_key,
        top_k=asked.top_k,
        labels=asked.labels,
        conditions=conditions,
        sampling=sampling,
    )
    try:
        result = await loop.run(
            job,
            cost=len(anchors) * card.block_size,
            caller=caller.name,
            deadline_s=deadline_of(asked, service.limits),
        )
    finally:
        job.stop.set()
    return result, anchors


class _Behalf(NamedTuple):
    """For whom states are read: a context that one key has fetched is not another key's to use."""

    tag: str
    key: str | None


async def _states(
    service: DrafterService, asked: DraftRequest, lease: Lease, card: DrafterCard, *, num_rows: int, behalf: _Behalf
) -> tuple[StatesArray | None, str | None]:
    if not card.taps:
        return None, None
    if not isinstance(asked.hidden, HiddenByHandle):
        return inline_states(asked.hidden, card, num_rows), None
    handle = asked.hidden.handle
    # contexts under conditions are never kept
    context_key = None if conditions_of(asked.conditions) else f"{behalf.tag}/{handle}"
    if context_key is not None and lease.has_context(context_key, num_rows):
        return None, context_key
    fetch = partial(service.states.fetch, key=behalf.key)
    return await asyncio.to_thread(fetch, quote(handle, safe=""), card, asked.token_ids, num_rows), context_key


def _nothing(card: DrafterCard, top_k: int) -> DraftResult:
    return DraftResult(
        token_ids=np.zeros((0, card.drafts), np.int32),
        top_ids=np.zeros((0, card.drafts, top_k), np.int32),
        top_logprobs=np.zeros((0, card.drafts, top_k), np.float32),
        warnings=list(card.warnings),
        timing_ms={},
    )


def _answer(
    service: DrafterService,
    card: DrafterCard,
    anchors: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]",
    result: DraftResult,
    conditions: DraftConditions | None,
) -> Body:
    summary = DrafterSummary(
        name=card.name,
        family=card.family,
        block_size=card.block_size,
        layout=card.layout,
        drafts=card.drafts,
        taps=card.taps,
        sha256=card.sha256,
        warnings=result.warnings,
        conditions={} if conditions is None else conditions.in_force(),
    )
    return draft_body(
        drafter=summary,
        numerics=service.engine.numerics(card),
        anchors=anchors,
        token_ids=result.token_ids,
        top_ids=result.top_ids,
        top_logprobs=result.top_logprobs,
        timing_ms=result.timing_ms,
    )
