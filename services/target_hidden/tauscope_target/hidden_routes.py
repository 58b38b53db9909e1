"""`/hidden_states`: compute, store, fetch, forget."""

import asyncio
import hashlib
import threading
import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from tauscope_serving.access import Extractor, Reader
from tauscope_serving.answers import TensorResponse
from tauscope_serving.bodies import described_body, read_body
from tauscope_serving.disconnect import until_disconnect
from tauscope_serving.errors import request_id
from tauscope_serving.keys import Principal
from tauscope_target.answers import body_of, parse_planes, part_of, receipt_of, whole
from tauscope_target.handles import handle_of, numerics_digest
from tauscope_target.jobs import HiddenJob, HiddenResult
from tauscope_target.parts import TargetParts
from tauscope_target.requests import answer_bytes, deadline_of, hidden_job, prompt_ids
from tauscope_target.stored import StoredStates, stored
from tauscope_wire.errors import GoneError, InternalError
from tauscope_wire.messages import HiddenReceipt, HiddenRequest


class Part(BaseModel):
    """Query of `GET /hidden_states/{handle}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    planes: Annotated[
        str | None, Field(description="Canonical ids and `final_norm`, comma-separated; all if left out")
    ] = None
    start: Annotated[int | None, Field(description="First position")] = None
    stop: Annotated[int | None, Field(description="One past the last position")] = None


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Pinned states of a job, fresh or found."""

    job: HiddenJob
    handle: str
    entry: StoredStates
    is_cached: bool = False
    timing_ms: dict[str, float] = field(default_factory=dict)


class HiddenRoutes:
    """Handlers of `/hidden_states`."""

    def __init__(self, parts: TargetParts) -> None:
        self._parts = parts
        self._context = numerics_digest(parts.engine.facts.model, parts.engine.facts.numerics)

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(tags=["hidden states"])
        router.add_api_route(
            "/hidden_states",
            self.compute,
            methods=["POST"],
            summary="Hidden states of one sequence, inline or as a handle",
            openapi_extra=described_body(HiddenRequest),
            response_model=None,
            responses={200: {"model": HiddenReceipt, "content": {"application/msgpack": {}}}},
        )
        path = "/hidden_states/{handle}"
        router.add_api_route(path, self.fetch, methods=["GET"], summary="Stored states", response_model=None)
        router.add_api_route(
            path,
            self.fetch,
            methods=["HEAD"],
            summary="Whether states are stored, their length and digest",
            operation_id="head_hidden_states",  # else it has the name of the route above
            response_model=None,
        )
        router.add_api_route(path, self.forget, methods=["DELETE"], summary="Forget stored states", status_code=204)
        return router

    async def compute(self, request: Request, caller: Extractor) -> Response:
        """Compute hidden states, or find them under the handle of an equal request."""
        parts, limits = self._parts, self._parts.settings.limits
        body = await read_body(request, HiddenRequest, max_bytes=limits.max_body_bytes)
        facts = parts.engine.facts
        ids = await asyncio.to_thread(prompt_ids, body, tokens=parts.tokens, facts=facts, limits=limits)
        gone = threading.Event()
        job = hidden_job(body, ids, facts=facts, limits=limits, is_cancelled=gone.is_set)
        deadline_s = deadline_of(body.deadline_s, limits)
        handle = await asyncio.to_thread(handle_of, job, self._context, secret=self._secret(caller))
        found = await asyncio.to_thread(self._found, handle, caller, is_shared=body.shared)
        if found is not None:
            return await self._answer(request, caller, body, _Outcome(job, handle, found, is_cached=True))
        await parts.charge(request, caller, num_tokens=job.stop)
        try:
            work = self._run(job, body, caller, deadline_s=deadline_s, handle=handle)
            return await self._answer(request, caller, body, await until_disconnect(request, work))
        finally:
            gone.set()  # a pass that still computes for a caller who left may stop

    async def _answer(self, request: Request, caller: Principal, body: HiddenRequest, outcome: "_Outcome") -> Response:
        """Answer with pinned states; whatever happens, they are unpinned once."""
        parts, facts, entry = self._parts, self._parts.engine.facts, outcome.entry
        requested = {"convention": body.convention, "layers": list(body.layers)}
        is_sent_later = False
        try:
            if body.return_ == "handle" and entry.logits is None:
                receipt = receipt_of(
                    entry,
                    facts=facts,
                    request_id=request_id(request),
                    requested=requested,
                    handle=outcome.handle,
                    cached=outcome.is_cached,
                    timing_ms=outcome.timing_ms,
                )
                return JSONResponse(receipt.model_dump(mode="json", by_alias=True))
            with_data = body.return_ != "handle"
            if with_data:
                await parts.charge_answer(request, caller, num_bytes=answer_bytes(outcome.job, facts))
            answer = body_of(
                whole(entry),
                facts=facts,
                request_id=request_id(request),
                requested=requested,
                handle=outcome.handle if body.return_ != "inline" else None,
                timing_ms=outcome.timing_ms,
                with_data=with_data,
            )
            response = TensorResponse(answer, request_id(request), on_close=lambda: parts.store.unpin(entry))
            is_sent_later = True
            return response
        finally:
            if not is_sent_later:
                parts.store.unpin(entry)

    async def fetch(self, request: Request, caller: Reader, handle: str, part: Annotated[Part, Query()]) -> Response:
        """Stored states: all, or some planes and positions."""
        parts, facts = self._parts, self._parts.engine.facts
        entry = await asyncio.to_thread(parts.store.pin, handle, caller.name)
        is_sent_later = False
        try:
            planes = parse_planes(part.planes) if part.planes is not None else None
            chosen = part_of(entry, planes=planes, start=part.start, stop=part.stop)
            layers = [plane for plane in chosen.planes if isinstance(plane, int)]
            body = body_of(
                chosen,
                facts=facts,
                request_id=request_id(request),
                requested={"convention": "output", "layers": layers},
                handle=handle,
                timing_ms={},
            )
            if request.method == "HEAD":
                headers = {"Content-Length": str(body.nbytes), "X-Tauscope-Digest": entry.digest}
                return Response(headers=headers, media_type="application/msgpack")
            await parts.charge_answer(request, caller, num_bytes=body.nbytes)
            response = TensorResponse(body, request_id(request), on_close=lambda: parts.store.unpin(entry))
            is_sent_later = True
            return response
        finally:
            if not is_sent_later:
                parts.store.unpin(entry)

    async def forget(self, caller: Extractor, handle: str) -> None:
        """Forget stored states of the calling key."""
        await asyncio.to_thread(self._parts.store.delete, handle, caller.name)

    async def _run(
        self, job: HiddenJob, body: HiddenRequest, caller: Principal, *, deadline_s: float, handle: str
    ) -> "_Outcome":
        """Run the job, keep the states if a handle is wanted, and give them pinned."""
        parts = self._parts
        begun = time.perf_counter()
        result = await parts.loop.run(job, cost=job.stop, caller=caller.name, deadline_s=deadline_s)
        total_ms = (time.perf_counter() - begun) * 1e3
        if not isinstance(result, HiddenResult):
            raise InternalError(f"a hidden-states job gave {type(result).__name__}")
        pass_ms = result.timing_ms["pass"]
        timing = {"queue": max(0.0, total_ms - pass_ms), "pass": pass_ms, "pass_tokens": float(result.pass_tokens)}
        keep = body.return_ != "inline"
        begun = time.perf_counter()
        if keep:
            entry = await asyncio.to_thread(
                stored,
                planes=job.planes,
                dtype=job.dtype,
                token_ids=job.token_ids,
                start=job.start,
                states=result.states,
                logits=result.logits,
                owner=caller.name,
                shared=body.shared,
            )
        else:
            entry = StoredStates(
                job.planes, job.dtype, job.token_ids, job.start, result.states, result.logits, caller.name, False, ""
            )
        if keep:
            await asyncio.to_thread(parts.store.put, handle, entry, owner_bytes=caller.quota.store_bytes)
            timing["store"] = (time.perf_counter() - begun) * 1e3
        parts.metrics.observe_stages(timing)
        entry.pins += 1  # last, with nothing awaited after it: a caller who leaves cannot leave a pin behind
        return _Outcome(job, handle, entry, timing_ms=timing)

    def _found(self, handle: str, caller: Principal, *, is_shared: bool) -> StoredStates | None:
        """Pinned states of an equal request of this caller: the handle is keyed by it, so they are its own to share."""
        store = self._parts.store
        try:
            entry = store.pin(handle, caller.name)
        except GoneError:
            return None
        try:
            if is_shared and not entry.shared:
                store.share(handle, entry)
        except BaseException:
            store.unpin(entry)
            raise
        return entry

    def _secret(self, caller: Principal) -> bytes:
        """Keyed by service and caller: equal requests of two keys have different handles."""
        is_open = self._parts.settings.serving.keys_file is None  # the local principal's secret is not kept
        own = b"" if is_open else caller.handle_secret.encode()
        return hashlib.sha256(self._parts.secret + own).digest()
