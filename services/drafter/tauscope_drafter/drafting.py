"""One drafting request from checked fields to a result: states fetched, job queued, abandoned work stopped."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from tauscope_drafter.conditions import conditions_of, context_rows
from tauscope_drafter.contract import DraftJob, DraftResult, Lease, Sampling, StatesArray
from tauscope_drafter.requests import check_answer, deadline_of, resolve_anchors
from tauscope_drafter.states import StatesSource, inline_states
from tauscope_serving.compute import ComputeLoop
from tauscope_serving.keys import Principal
from tauscope_wire.messages import DrafterCard, DraftRequest, HiddenByHandle, Limits

Anchors = npt.NDArray[np.int32]


async def run_draft(
    source: StatesSource,
    limits: Limits,
    loop: ComputeLoop[DraftJob, DraftResult],
    *,
    asked: DraftRequest,
    lease: Lease,
    card: DrafterCard,
    caller: Principal,
    key: str | None,
    asked_as: str,
    sampling: Sampling | None = None,
) -> tuple[DraftResult, Anchors]:
    """Fetch the states where needed, then draft.

    Args:
        source: of states by handle.
        limits: of the service.
        loop: the compute thread.
        asked: the request, checked against limits and vocabulary.
        lease: the drafter.
        card: the drafter as it is under the request's conditions.
        caller: who asks; contexts are kept apart by key.
        key: handed on to the target service.
        asked_as: id of the request, handed on too: it is in the logs of both services.
        sampling: compare with the target in place of ranking.

    Returns:
        The result and the anchors, ascending; its times say how the states came (`read_mapped` or `read_http`).
    """
    anchors = resolve_anchors(asked, limits)
    if not len(anchors):
        return _nothing(card, asked.top_k), anchors
    check_answer(len(anchors), card, asked.top_k, limits)
    conditions = conditions_of(asked.conditions)
    # a comparison with the target reads its states at the drafted places too
    num_rows = len(asked.token_ids) if sampling is not None else context_rows(int(anchors[-1]), conditions)
    behalf = _Behalf(caller.tag, key, asked_as)
    begun = time.perf_counter()
    if sampling is not None and isinstance(asked.hidden, HiddenByHandle):
        fetch = partial(source.fetch, key=key, final_norm=True, request_id=asked_as)
        handle = quote(asked.hidden.handle, safe="")
        context_key: str | None = None
        states: StatesArray | None = await asyncio.to_thread(fetch, handle, card, asked.token_ids, num_rows)
    else:
        states, context_key = await _states(source, asked, lease, card, num_rows=num_rows, behalf=behalf)
    doubts = [] if card.taps else await asyncio.to_thread(source.compare, card, key=key, request_id=asked_as)
    reading = (
        {} if states is None or states.way is None else {f"read_{states.way}": 1e3 * (time.perf_counter() - begun)}
    )
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
    queued = time.perf_counter()
    try:
        result = await loop.run(
            job,
            cost=len(anchors) * card.block_size,
            caller=caller.name,
            deadline_s=deadline_of(asked, limits),
        )
    finally:
        job.stop.set()
    computing = sum(result.timing_ms.values())
    waiting = {"queue": max(0.0, 1e3 * (time.perf_counter() - queued) - computing)}
    times = {**reading, **waiting, **result.timing_ms}
    return replace(result, timing_ms=times, warnings=[*result.warnings, *doubts]), anchors


class _Behalf(NamedTuple):
    """For whom states are read: a context that one key has fetched is not another key's to use."""

    tag: str
    key: str | None
    request_id: str


async def _states(
    source: StatesSource, asked: DraftRequest, lease: Lease, card: DrafterCard, *, num_rows: int, behalf: _Behalf
) -> tuple[StatesArray | None, str | None]:
    if not card.taps:
        return None, None
    if not isinstance(asked.hidden, HiddenByHandle):
        return inline_states(asked.hidden, card, num_rows), None
    handle = asked.hidden.handle
    # contexts under conditions are never kept
    context_key = None if conditions_of(asked.conditions) else f"{behalf.tag}/{handle}"
    if context_key is not None and lease.has_context(context_key, asked.token_ids, num_rows):
        return None, context_key
    fetch = partial(source.fetch, key=behalf.key, request_id=behalf.request_id)
    return await asyncio.to_thread(fetch, quote(handle, safe=""), card, asked.token_ids, num_rows), context_key


def _nothing(card: DrafterCard, top_k: int) -> DraftResult:
    return DraftResult(
        token_ids=np.zeros((0, card.drafts), np.int32),
        top_ids=np.zeros((0, card.drafts, top_k), np.int32),
        top_logprobs=np.zeros((0, card.drafts, top_k), np.float32),
        warnings=list(card.warnings),
        timing_ms={},
    )
