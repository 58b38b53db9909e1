"""Answers of `/hidden_states` from stored or fresh states: the msgpack body and the JSON receipt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from tauscope_target.jobs import TargetFacts
from tauscope_target.stored import StoredStates
from tauscope_wire.body import Body
from tauscope_wire.errors import ErrorCode, RequestError
from tauscope_wire.layers import FINAL_NORM, Plane
from tauscope_wire.messages import HIDDEN_SCHEMA, HiddenReceipt
from tauscope_wire.tensors import LogitsSummary
from tauscope_wire.writer import TensorChunk, chunks_of, hidden_body

CHUNK_BYTES = 64 << 20
"""Payload of a chunk: a checksum error is found after at most this much, and a reader can stop there."""


@dataclass(frozen=True, eq=False)
class Selection:
    """What an answer takes of an entry; views, nothing is copied.

    Attributes:
        entry: where it is from.
        planes: names in the order of the answer.
        states: one view [n, H] for each plane.
        start: position of the first row.
        stop: one past the last position.
        logits: summary at the same positions, or None.
        digest: xxh3_128 over the states, where it is known.
    """

    entry: StoredStates
    planes: tuple[Plane, ...]
    states: Sequence[npt.NDArray[Any]]
    start: int
    stop: int
    logits: LogitsSummary | None
    digest: str | None

    def chunks(self, *, max_bytes: int) -> list[TensorChunk]:
        """All of it, in chunks of at most `max_bytes`, or a row."""
        rows = max(1, max_bytes // max(1, sum(plane[:1].nbytes for plane in self.states)))
        return chunks_of(self.states, self.start, max_rows=rows, num_rows=self.stop - self.start)


def whole(entry: StoredStates) -> Selection:
    """All of an entry."""
    states = list(entry.states)
    return Selection(entry, entry.planes, states, entry.start, entry.stop, entry.logits, entry.digest or None)


def body_of(
    selection: Selection,
    *,
    facts: TargetFacts,
    request_id: str,
    requested: Mapping[str, Any],
    handle: str | None,
    timing_ms: Mapping[str, float],
    with_data: bool = True,
) -> Body:
    """The msgpack answer with all states of a selection, or with everything but them; payloads alias the entry."""
    entry = selection.entry
    return hidden_body(
        request_id=request_id,
        model=facts.model,
        numerics=facts.numerics,
        requested=requested,
        planes=selection.planes,
        dtype=entry.dtype,
        token_ids=entry.token_ids,
        positions=(selection.start, selection.stop),
        shape=(len(selection.planes), selection.stop - selection.start, entry.states.shape[2]),
        handle=handle,
        chunks=selection.chunks(max_bytes=CHUNK_BYTES) if with_data else (),
        digest=selection.digest,
        logits=selection.logits,
        timing_ms=timing_ms,
    )


def receipt_of(
    entry: StoredStates,
    *,
    facts: TargetFacts,
    request_id: str,
    requested: Mapping[str, Any],
    handle: str,
    cached: bool,
    timing_ms: Mapping[str, float],
) -> HiddenReceipt:
    """The JSON answer that names where the states are; a summary of logits never goes through JSON."""
    num_planes, num_rows, hidden = entry.states.shape
    return HiddenReceipt(
        schema=HIDDEN_SCHEMA,
        request_id=request_id,
        model=facts.model,
        numerics=facts.numerics,
        requested=dict(requested),
        planes=list(entry.planes),
        dtype=entry.dtype,
        positions=(entry.start, entry.stop),
        shape=(num_planes, num_rows, hidden),
        num_tokens=len(entry.token_ids),
        handle=handle,
        digest=entry.digest,
        cached=cached,
        timing_ms=dict(timing_ms),
    )


def part_of(entry: StoredStates, *, planes: Sequence[Plane] | None, start: int | None, stop: int | None) -> Selection:
    """Some planes and positions of an entry, in the order asked for.

    Raises:
        RequestError: a plane or position that the entry does not hold.
    """
    names = entry.planes if planes is None else tuple(planes)
    for index, plane in enumerate(names):
        if plane not in entry.planes:
            raise RequestError(
                f"planes[{index}]={plane}: the handle holds {', '.join(map(str, entry.planes))}",
                ErrorCode.LAYER_OUT_OF_RANGE,
            )
        if plane in names[:index]:
            raise RequestError(f"planes[{index}]={plane}: asked for twice", ErrorCode.DUPLICATE_LAYER)
    low = entry.start if start is None else start
    high = entry.stop if stop is None else stop
    if not entry.start <= low < high <= entry.stop:
        raise RequestError(
            f"positions [{low}, {high}): the handle holds [{entry.start}, {entry.stop})",
            ErrorCode.POSITION_OUT_OF_RANGE,
            details={"low": entry.start, "high": entry.stop},
        )
    if names == entry.planes and (low, high) == (entry.start, entry.stop):
        return whole(entry)
    rows = slice(low - entry.start, high - entry.start)
    states = [entry.states[entry.planes.index(plane), rows] for plane in names]
    logits = None if entry.logits is None else _rows_of(entry.logits, rows)
    return Selection(entry, names, states, low, high, logits, digest=None)


def parse_planes(text: str) -> list[Plane]:
    """Plane names of a query such as `1,16,final_norm`.

    Raises:
        RequestError: a part that is neither a number nor `final_norm`.
    """
    planes: list[Plane] = []
    for part in text.split(","):
        name = part.strip()
        if name == FINAL_NORM:
            planes.append(FINAL_NORM)
        else:
            try:
                planes.append(int(name))
            except ValueError:
                raise RequestError(f"planes={name!r}: give canonical layer ids or {FINAL_NORM!r}") from None
    return planes


def _rows_of(summary: LogitsSummary, rows: slice) -> LogitsSummary:
    following = summary.next_logprobs
    return LogitsSummary(
        argmax_ids=summary.argmax_ids[rows],
        top_ids=summary.top_ids[rows],
        top_logprobs=summary.top_logprobs[rows],
        next_logprobs=None if following is None else following[rows],
    )
