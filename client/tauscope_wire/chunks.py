"""Tensor chunks on the writing side: what a service hands in, and the parts of a body they become."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tauscope_wire.dtypes import NUMPY_DTYPES, WireDtype, itemsize
from tauscope_wire.framing import Part, Payload, array_header, bin_header, byte_view, entry, map_header, pack

__all__ = ["TensorChunk", "chunk_head", "chunk_parts", "chunks_of"]


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


def chunks_of(
    states: npt.NDArray[Any] | Sequence[npt.NDArray[Any]], start: int, *, max_rows: int, num_rows: int | None = None
) -> list[TensorChunk]:
    """Cut states into chunks of views.

    Args:
        states: [planes, positions, hidden], or an array [positions, hidden] for each plane.
        start: position of the first row.
        max_rows: most positions of a chunk.
        num_rows: positions, where there may be no plane; else those of the first one.
    """
    if num_rows is None:
        num_rows = states.shape[1] if isinstance(states, np.ndarray) else len(states[0])
    return [
        TensorChunk(
            start + low, start + min(low + max_rows, num_rows), [plane[low : low + max_rows] for plane in states]
        )
        for low in range(0, num_rows, max_rows)
    ]


def chunk_head(start: int, stop: int, num_planes: int) -> bytes:
    """Everything of a chunk before its first bin."""
    return b"".join([map_header(4), entry("start", start), entry("stop", stop), pack("data"), array_header(num_planes)])


def chunk_parts(chunk: TensorChunk, dtype: WireDtype, data_bytes: int, max_bytes: int | None) -> Iterator[Part]:
    """The parts of a chunk; its checksum is made while they are taken.

    Args:
        chunk: the data.
        dtype: announced element type.
        data_bytes: announced length of each bin.
        max_bytes: longest piece of a payload, None for whole payloads.

    Raises:
        ValueError: data that is not what was announced.
    """
    yield chunk_head(chunk.start, chunk.stop, len(chunk.data))
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
            if state is not None:  # first, so that the socket then copies from the cache: twice as cheap as after
                state.update(piece)
            yield piece
    yield entry("xxh3_128", chunk.xxh3_128 if state is None else state.hexdigest())
