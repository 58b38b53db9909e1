"""Msgpack framing for the writing side: container and bin headers by hand, small values by the msgpack library.

`msgpack.packb` copies a tensor payload three times; a bin header is at most five bytes, so the writer makes it here and
hands the payload on as it is. Element types are little-endian on the wire, so is every host this project runs on.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import msgpack
import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_BIN_BYTES",
    "Part",
    "Payload",
    "array_header",
    "bin_header",
    "byte_view",
    "entry",
    "map_header",
    "pack",
    "pack_parts",
]

Part: TypeAlias = bytes | memoryview
"""A piece of a body, ready for a socket; memoryviews are flat bytes and alias the caller's memory."""

Payload: TypeAlias = npt.NDArray[Any] | bytes | bytearray | memoryview
"""What callers may hand in as tensor data: one C-contiguous buffer."""

MAX_BIN_BYTES: Final = 2**32 - 1
"""The longest bin msgpack can frame (bin32)."""

_APART_BYTES: Final = 4096
"""Byte strings from this size on travel as a part of their own instead of being copied into their neighbours."""


def pack(value: Any) -> bytes:
    """Pack a small value: str as str, bytes as bin, float as float64, maps in their own order."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def entry(key: str, value: Any) -> bytes:
    """One entry of a map, packed."""
    return pack(key) + pack(value)


def map_header(num_entries: int) -> bytes:
    """Header of a map."""
    return _container(num_entries, 0x80, 0xDE)


def array_header(num_items: int) -> bytes:
    """Header of an array."""
    return _container(num_items, 0x90, 0xDC)


def _container(count: int, fix: int, wide: int) -> bytes:
    if count < 16:
        return bytes([fix | count])
    if count < 2**16:
        return struct.pack(">BH", wide, count)
    return struct.pack(">BI", wide + 1, count)


def bin_header(nbytes: int) -> bytes:
    """Header of a bin of `nbytes` bytes.

    Raises:
        ValueError: more than bin32 can frame; use more, smaller chunks.
    """
    if nbytes < 2**8:
        return bytes([0xC4, nbytes])
    if nbytes < 2**16:
        return struct.pack(">BH", 0xC5, nbytes)
    if nbytes > MAX_BIN_BYTES:
        raise ValueError(f"payload of {nbytes} bytes: a msgpack bin holds at most {MAX_BIN_BYTES}; use smaller chunks")
    return struct.pack(">BI", 0xC6, nbytes)


def byte_view(data: Payload) -> memoryview:
    """The bytes of a contiguous buffer as a flat memoryview, without a copy (also for bfloat16 arrays).

    Raises:
        ValueError: the buffer is not C-contiguous (a copy would be needed; make it where it can be seen).
    """
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError(f"array of shape {data.shape} and strides {data.strides} is not C-contiguous")
        # bfloat16 has no buffer-protocol format of its own, uint8 has
        flat: Any = data.reshape(-1).view(np.uint8)
        return memoryview(flat) if data.size else memoryview(b"")
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("buffer is not C-contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def pack_parts(value: Any) -> list[Part]:
    """Pack any value into parts; long byte strings become parts of their own and are not copied.

    For request bodies: a draft request with inline states is a small head and one big payload.

    Args:
        value: what msgpack can pack (maps with str keys, lists, str, int, float, bool, None, bytes-like).

    Returns:
        Parts that joined are the msgpack encoding of `value`.
    """
    parts: list[Part] = []
    small = bytearray()
    _walk(value, small, parts)
    if small:
        parts.append(bytes(small))
    return parts


def _walk(value: Any, small: bytearray, parts: list[Part]) -> None:
    if isinstance(value, Mapping):
        small += map_header(len(value))
        for key, item in value.items():
            small += pack(key)
            _walk(item, small, parts)
    elif isinstance(value, bytes | bytearray | memoryview) and memoryview(value).nbytes >= _APART_BYTES:
        view = byte_view(value)
        small += bin_header(view.nbytes)
        parts += [bytes(small), view]
        small.clear()
    else:
        small += pack(value)
