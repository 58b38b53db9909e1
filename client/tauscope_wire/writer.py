"""Writes the tensor bodies of SPEC.md, piece by piece and without copying a payload.

Owns order and framing of the fields. Values that are known only at the end (checksums, digest, timings, logits) have a
fixed length, so that the whole length is known at the start while data is still being computed. Wrong arguments are
defects of the service and raise ValueError.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_wire.body import Body
from tauscope_wire.checksums import HEX_LENGTH, checksum
from tauscope_wire.chunks import TensorChunk, chunk_head, chunk_parts, chunks_of
from tauscope_wire.dtypes import WireDtype, itemsize
from tauscope_wire.framing import Part, array_header, bin_header, byte_view, entry, map_header, pack
from tauscope_wire.layers import Plane
from tauscope_wire.messages import ACCEPTANCE_SCHEMA, DRAFT_SCHEMA, HIDDEN_SCHEMA, ModelInfo, Numerics
from tauscope_wire.tensors import DrafterSummary, LogitsSummary

__all__ = ["Body", "TensorChunk", "acceptance_body", "chunks_of", "draft_body", "hidden_body"]

_HEX = "0" * HEX_LENGTH
PAST_THE_TEXT = -1.0
"""In place of a probability where the text has no token: answers hold no NaN."""


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
            entry("schema", HIDDEN_SCHEMA),
            entry("request_id", request_id),
            entry("model", model.model_dump(mode="json")),
            entry("numerics", numerics.model_dump(mode="json")),
            entry("requested", dict(requested)),
            entry("planes", list(planes)),
            entry("dtype", dtype),
            pack("token_ids") + bin_header(ids.nbytes) + ids.tobytes(),
            entry("positions", list(positions)),
            entry("shape", list(shape)),
            entry("handle", handle),
            pack("chunks") + array_header(len(ranges)),
        ]
    )

    def tail() -> Iterator[Part]:
        final = digest() if callable(digest) else digest
        if final is not None and len(final) != HEX_LENGTH:
            raise ValueError(f"digest {final!r}: announced were {HEX_LENGTH} hex digits")
        yield entry("digest", final)
        yield pack("logits")
        yield from _logits(logits)
        yield entry("timing_ms", {key: float(value) for key, value in timing_ms.items()})
        yield entry("end", True)

    # every value of the tail has a fixed length: pack it with a stand-in for what is not known yet
    tail_bytes = len(entry("digest", _HEX if digest is not None else None)) + len(pack("logits") + pack("timing_ms"))
    tail_bytes += sum(map(len, _logits(logits))) + len(pack(dict.fromkeys(timing_ms, 0.0))) + len(entry("end", True))
    nbytes = len(head) + tail_bytes
    for start, stop in ranges:
        data_bytes = (stop - start) * bin_bytes
        nbytes += len(chunk_head(start, stop, len(planes))) + len(entry("xxh3_128", _HEX))
        nbytes += len(planes) * (len(bin_header(data_bytes)) + data_bytes)

    def produce(max_bytes: int | None) -> Iterator[Iterator[Part]]:
        yield iter([head])
        source = iter(chunks)
        for expected in ranges:
            chunk = next(source, None)
            if chunk is None or (chunk.start, chunk.stop) != expected or len(chunk.data) != len(planes):
                found = None if chunk is None else (chunk.start, chunk.stop, len(chunk.data))
                raise ValueError(f"chunk {found}: announced was {(*expected, len(planes))}")
            yield chunk_parts(chunk, dtype, (chunk.stop - chunk.start) * bin_bytes, max_bytes)
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
    return _arrays_body(DRAFT_SCHEMA, drafter, numerics, arrays, timing_ms)


def acceptance_body(
    *,
    drafter: DrafterSummary,
    numerics: Numerics,
    anchors: npt.NDArray[np.integer[Any]],
    sampled: npt.NDArray[np.floating[Any]],
    greedy: npt.NDArray[np.floating[Any]],
    timing_ms: Mapping[str, float],
) -> Body:
    """Body of an answer with expectations (`tauscope.acceptance/1`).

    Args:
        drafter: whose drafts.
        numerics: fingerprint of the drafter service.
        anchors: [A], ascending positions.
        sampled: [A, K], K = `drafter.drafts`; NaN past the end of the text, written as -1.
        greedy: the same.
        timing_ms: all values are read now.

    Raises:
        ValueError: shapes that contradict each other.
    """
    expected = (len(anchors), drafter.drafts)
    if sampled.shape != expected or greedy.shape != expected:
        raise ValueError(f"sampled {sampled.shape}, greedy {greedy.shape}: expected twice [A, K] = {expected}")
    arrays: dict[str, npt.NDArray[Any]] = {"anchors": np.ascontiguousarray(anchors, dtype="<i4")}
    for name, rates in (("sampled", sampled), ("greedy", greedy)):
        arrays[name] = np.ascontiguousarray(np.where(np.isnan(rates), PAST_THE_TEXT, rates), dtype="<f4")
    return _arrays_body(ACCEPTANCE_SCHEMA, drafter, numerics, arrays, timing_ms)


def _arrays_body(
    schema: str,
    drafter: DrafterSummary,
    numerics: Numerics,
    arrays: Mapping[str, npt.NDArray[Any]],
    timing_ms: Mapping[str, float],
) -> Body:
    """A head, arrays with one checksum over all, and the end."""
    parts: list[Part] = [
        map_header(6 + len(arrays)),
        entry("schema", schema),
        entry("drafter", drafter.model_dump(mode="json")),
        entry("numerics", numerics.model_dump(mode="json")),
    ]
    for name, array in arrays.items():
        parts += [pack(name) + bin_header(array.nbytes), byte_view(array)]
    parts.append(entry("xxh3_128", checksum(arrays.values())))
    parts.append(entry("timing_ms", {key: float(value) for key, value in timing_ms.items()}))
    parts.append(entry("end", True))
    return Body(sum(map(len, parts)), lambda _: iter([iter(parts)]))


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
    parts: list[Part] = [map_header(6), entry("top_k", int(logits.top_ids.shape[1]))]
    for name, array in zip(("argmax_ids", "top_ids", "top_logprobs", "next_logprobs"), arrays, strict=False):
        parts += [pack(name) + bin_header(array.nbytes), byte_view(array)]
    if logits.next_logprobs is None:
        parts.append(entry("next_logprobs", None))
    parts.append(entry("xxh3_128", checksum(arrays)))
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
