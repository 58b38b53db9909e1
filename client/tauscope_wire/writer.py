"""Writes the two tensor bodies of SPEC.md, piece by piece and without copying a payload.

Owns order and framing of the fields. Values that are known only at the end (checksums, digest, timings, logits) have a
fixed length, so that the whole length is known at the start while data is still being computed. Wrong arguments are
defects of the service and raise ValueError.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tauscope_wire.body import Body
from tauscope_wire.checksums import HEX_LENGTH, checksum
from tauscope_wire.dtypes import NUMPY_DTYPES, WireDtype, itemsize
from tauscope_wire.framing import Part, Payload, array_header, bin_header, byte_view, map_header, pack
from tauscope_wire.layers import Plane
from tauscope_wire.messages import DRAFT_SCHEMA, HIDDEN_SCHEMA, ModelInfo, Numerics
from tauscope_wire.tensors import DrafterSummary, LogitsSummary

__all__ = ["Body", "TensorChunk", "chunks_of", "draft_body", "hidden_body"]

_HEX = "0" * HEX_LENGTH


@dataclass(frozen=True, eq=False)
class TensorChunk:
    """Rows start..stop of every plane.

    Attributes:
        start, stop: half-open range of positions of the sequence (not of the answer).
        data: one C-contiguous buffer per plane, in order, each [stop - start, hidden].
        xxh3_128: checksum over `data` in order when it is known already, else it is computed while sending.
    """

    start: int
    stop: int
    data: Sequence[Payload]
    xxh3_128: str | None = None


def chunks_of(states: npt.NDArray[Any], start: int, *, max_rows: int) -> list[TensorChunk]:
    """Cut states [planes, positions, hidden] whose first row is position `start` into chunks of views."""
    num_rows = states.shape[1]
    return [
        TensorChunk(start + low, start + min(low + max_rows, num_rows), list(states[:, low : low + max_rows]))
        for low in range(0, num_rows, max_rows)
    ]


def hidden_body(
    *,
    request_id: str,
    model: ModelInfo,
    numerics: Numerics,
    requested: Mapping[str, Any],
    planes: Sequence[Plane],
    dtype: WireDtype,
    token_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
    positions: tuple[int, int],
    shape: tuple[int, int, int],
    handle: str | None,
    chunks: Iterable[TensorChunk],
    digest: str | Callable[[], str] | None,
    logits: LogitsSummary | None,
    timing_ms: Mapping[str, float],
    geometry: Sequence[tuple[int, int]] | None = None,
) -> Body:
    """Body of an answer with hidden states (`tauscope.hidden/1`).

    Args:
        request_id: as in the header `X-Request-Id`.
        model: the target.
        numerics: its fingerprint.
        requested: `convention` and `layers` of this request.
        planes: canonical plane names, in the order of the data.
        dtype: element type of the data.
        token_ids: the whole sequence.
        positions: half-open range that the data covers.
        shape: (planes, stop - start, hidden).
        handle: name of the stored states, or None.
        chunks: the data; a sequence, or with `geometry` any iterable, which is consumed while the body is sent.
        digest: xxh3_128 hex over the row-major states; a callable is called after the last chunk was taken.
        logits: its arrays are read after the chunks; their shapes must be final.
        timing_ms: its values are read last; its keys must be final.
        geometry: (start, stop) of every chunk, when `chunks` is lazy.

    Raises:
        ValueError: arguments that contradict each other.
    """
    if geometry is None:
        chunks = list(chunks)
        geometry = [(chunk.start, chunk.stop) for chunk in chunks]
    ranges = list(geometry)
    bin_bytes = shape[2] * itemsize(dtype)
    _check_hidden(planes, positions, shape, ranges, handle)
    ids = np.ascontiguousarray(token_ids, dtype="<i4")
    head = b"".join(
        [
            map_header(16),
            _entry("schema", HIDDEN_SCHEMA),
            _entry("request_id", request_id),
            _entry("model", model.model_dump(mode="json")),
            _entry("numerics", numerics.model_dump(mode="json")),
            _entry("requested", dict(requested)),
            _entry("planes", list(planes)),
            _entry("dtype", dtype),
            pack("token_ids") + bin_header(ids.nbytes) + ids.tobytes(),
            _entry("positions", list(positions)),
            _entry("shape", list(shape)),
            _entry("handle", handle),
            pack("chunks") + array_header(len(ranges)),
        ]
    )

    def tail() -> Iterator[Part]:
        final = digest() if callable(digest) else digest
        if final is not None and len(final) != HEX_LENGTH:
            raise ValueError(f"digest {final!r}: announced were {HEX_LENGTH} hex digits")
        yield _entry("digest", final)
        yield pack("logits")
        yield from _logits(logits)
        yield _entry("timing_ms", {key: float(value) for key, value in timing_ms.items()})
        yield _entry("end", True)

    # every value of the tail has a fixed length: pack it with a stand-in for what is not known yet
    tail_bytes = len(_entry("digest", _HEX if digest is not None else None)) + len(pack("logits") + pack("timing_ms"))
    tail_bytes += sum(map(len, _logits(logits))) + len(pack(dict.fromkeys(timing_ms, 0.0))) + len(_entry("end", True))
    nbytes = len(head) + tail_bytes
    for start, stop in ranges:
        data_bytes = (stop - start) * bin_bytes
        nbytes += len(_chunk_head(start, stop, len(planes))) + len(_entry("xxh3_128", _HEX))
        nbytes += len(planes) * (len(bin_header(data_bytes)) + data_bytes)

    def produce(max_bytes: int | None) -> Iterator[Iterator[Part]]:
        yield iter([head])
        source = iter(chunks)
        for expected in ranges:
            chunk = next(source, None)
            if chunk is None or (chunk.start, chunk.stop) != expected or len(chunk.data) != len(planes):
                found = None if chunk is None else (chunk.start, chunk.stop, len(chunk.data))
                raise ValueError(f"chunk {found}: announced was {(*expected, len(planes))}")
            yield _chunk(chunk, dtype, (chunk.stop - chunk.start) * bin_bytes, max_bytes)
        yield tail()

    return Body(nbytes, produce)


def draft_body(
    *,
    drafter: DrafterSummary,
    numerics: Numerics,
    anchors: npt.NDArray[np.integer[Any]],
    token_ids: npt.NDArray[np.integer[Any]],
    top_ids: npt.NDArray[np.integer[Any]],
    top_logprobs: npt.NDArray[np.floating[Any]],
    timing_ms: Mapping[str, float],
) -> Body:
    """Body of an answer with drafts (`tauscope.draft/1`).

    Args:
        drafter: who drafted.
        numerics: fingerprint of the drafter service.
        anchors: [A], ascending positions.
        token_ids: [A, K], K = `drafter.drafts`.
        top_ids: [A, K, k], sorted by (logit descending, id ascending).
        top_logprobs: [A, K, k].
        timing_ms: all values are read now.

    Raises:
        ValueError: shapes that contradict each other.
    """
    count, width = len(anchors), drafter.drafts
    if token_ids.shape != (count, width) or top_ids.shape[:2] != (count, width) or top_ids.shape != top_logprobs.shape:
        raise ValueError(
            f"token_ids {token_ids.shape}, top_ids {top_ids.shape}, top_logprobs {top_logprobs.shape}: "
            f"expected [A={count}, K={width}] and twice [A, K, k]"
        )
    arrays: dict[str, npt.NDArray[Any]] = {
        "anchors": np.ascontiguousarray(anchors, dtype="<i4"),
        "token_ids": np.ascontiguousarray(token_ids, dtype="<i4"),
        "top_ids": np.ascontiguousarray(top_ids, dtype="<i4"),
        "top_logprobs": np.ascontiguousarray(top_logprobs, dtype="<f4"),
    }
    parts: list[Part] = [
        map_header(10),
        _entry("schema", DRAFT_SCHEMA),
        _entry("drafter", drafter.model_dump(mode="json")),
        _entry("numerics", numerics.model_dump(mode="json")),
    ]
    for name, array in arrays.items():
        parts += [pack(name) + bin_header(array.nbytes), byte_view(array)]
    parts.append(_entry("xxh3_128", checksum(arrays.values())))
    parts.append(_entry("timing_ms", {key: float(value) for key, value in timing_ms.items()}))
    parts.append(_entry("end", True))
    return Body(sum(map(len, parts)), lambda _: iter([iter(parts)]))


def _entry(key: str, value: Any) -> bytes:
    return pack(key) + pack(value)


def _chunk_head(start: int, stop: int, num_planes: int) -> bytes:
    return b"".join(
        [map_header(4), _entry("start", start), _entry("stop", stop), pack("data"), array_header(num_planes)]
    )


def _chunk(chunk: TensorChunk, dtype: WireDtype, data_bytes: int, max_bytes: int | None) -> Iterator[Part]:
    yield _chunk_head(chunk.start, chunk.stop, len(chunk.data))
    state = xxhash.xxh3_128() if chunk.xxh3_128 is None else None
    for plane, payload in enumerate(chunk.data):
        allowed = (NUMPY_DTYPES[dtype], np.dtype(np.uint8), np.dtype(f"<u{itemsize(dtype)}"))
        if isinstance(payload, np.ndarray) and payload.dtype not in allowed:
            raise ValueError(
                f"data[{plane}] of rows {chunk.start}..{chunk.stop} is {payload.dtype}, announced: {dtype}"
            )
        view = byte_view(payload)
        if view.nbytes != data_bytes:
            raise ValueError(
                f"data[{plane}] of rows {chunk.start}..{chunk.stop} has {view.nbytes} bytes, announced: {data_bytes}"
            )
        yield bin_header(data_bytes)
        step = max_bytes or max(data_bytes, 1)
        for low in range(0, data_bytes, step):
            piece = view[low : low + step]
            yield piece
            if state is not None:  # after the socket took it: the bytes are in the cache, and the peer is busy already
                state.update(piece)
    yield _entry("xxh3_128", chunk.xxh3_128 if state is None else state.hexdigest())


def _logits(logits: LogitsSummary | None) -> list[Part]:
    if logits is None:
        return [pack(None)]
    arrays = [
        np.ascontiguousarray(logits.argmax_ids, dtype="<i4"),
        np.ascontiguousarray(logits.top_ids, dtype="<i4"),
        np.ascontiguousarray(logits.top_logprobs, dtype="<f4"),
    ]
    if logits.next_logprobs is not None:
        arrays.append(np.ascontiguousarray(logits.next_logprobs, dtype="<f4"))
    parts: list[Part] = [map_header(6), _entry("top_k", int(logits.top_ids.shape[1]))]
    for name, array in zip(("argmax_ids", "top_ids", "top_logprobs", "next_logprobs"), arrays, strict=False):
        parts += [pack(name) + bin_header(array.nbytes), byte_view(array)]
    if logits.next_logprobs is None:
        parts.append(_entry("next_logprobs", None))
    parts.append(_entry("xxh3_128", checksum(arrays)))
    return parts


def _check_hidden(
    planes: Sequence[Plane],
    positions: tuple[int, int],
    shape: tuple[int, int, int],
    ranges: Sequence[tuple[int, int]],
    handle: str | None,
) -> None:
    start, stop = positions
    if shape[:2] != (len(planes), stop - start) or stop <= start:
        raise ValueError(f"shape {shape} does not fit {len(planes)} planes and positions {start}..{stop}")
    if not ranges and handle is None:
        raise ValueError("neither chunks nor a handle: the answer would hold nothing")
    expected = start
    for low, high in ranges:
        if low != expected or high <= low:
            raise ValueError(f"chunk {low}..{high}: expected one that starts at {expected} and is not empty")
        expected = high
    if ranges and expected != stop:
        raise ValueError(f"chunks end at {expected}, positions at {stop}")
