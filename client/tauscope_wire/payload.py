"""Reads payload bins into arrays and checks them while their bytes are in the cache."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode
from tauscope_wire.framing import byte_view
from tauscope_wire.parser import PullParser
from tauscope_wire.source import SLICE_BYTES

__all__ = ["PayloadReader", "first_non_finite", "read_array"]

# An IEEE value is infinite or NaN when all bits of its exponent are set. As signed integers the positive ones are those
# from +inf upwards; as unsigned integers the negative ones are those from -inf upwards. Two maxima, no temporary.
_INFINITY_BITS: Final[dict[WireDtype, tuple[type[Any], type[Any], int, int]]] = {
    "bfloat16": (np.int16, np.uint16, 0x7F80, 0xFF80),
    "float32": (np.int32, np.uint32, 0x7F800000, 0xFF800000),
}


def first_non_finite(data: memoryview, dtype: WireDtype) -> int | None:
    """Index of the first infinite or NaN element of flat little-endian bytes, or None."""
    signed, unsigned, positive, negative = _INFINITY_BITS[dtype]
    bits: npt.NDArray[Any] = np.frombuffer(data, dtype=unsigned)
    if not bits.size or (bits.view(signed).max() < positive and bits.max() < negative):
        return None
    return int(np.argmax((bits & positive) == positive))


class PayloadReader:
    """Reads bins of one dtype straight into arrays and keeps the checksum over them."""

    def __init__(self, parser: PullParser, dtype: WireDtype) -> None:
        self._parser = parser
        self._dtype = dtype
        self._state = xxhash.xxh3_128()

    def read(self, target: npt.NDArray[Any], where: str) -> None:
        """Fill a C-contiguous [rows, hidden] view.

        Raises:
            WireError: another length than the view's, the end of the body, or a non-finite value.
        """
        view = byte_view(target)
        length = self._parser.bin_length(where)
        if length != len(view):
            raise self._parser.fail(
                where,
                f"{length} bytes for {target.shape[0]} rows of {target.shape[1]} {self._dtype} values, "
                f"expected {len(view)}",
                ErrorCode.LABEL_MISMATCH,
            )
        for low in range(0, length, SLICE_BYTES):
            piece = view[low : low + SLICE_BYTES]
            self._parser.stream.read_into(piece, where)
            self._state.update(piece)
            index = first_non_finite(piece, self._dtype)
            if index is not None:
                row, column = divmod(low // target.itemsize + index, target.shape[1])
                raise self._parser.fail(
                    where,
                    f"row {row}, column {column} of the chunk is infinite or NaN",
                    ErrorCode.NON_FINITE_PAYLOAD,
                    row=row,
                    column=column,
                )

    def finish(self, declared: str, where: str) -> None:
        """Compare the checksum over everything read so far, and start anew.

        Raises:
            WireError: `checksum_mismatch`.
        """
        found = self._state.hexdigest()
        self._state.reset()
        if found != declared:
            raise self._parser.fail(
                where,
                f"{declared!r} is declared, the data has {found!r}; it was damaged on the way: ask again",
                ErrorCode.CHECKSUM_MISMATCH,
            )


def read_array(parser: PullParser, dtype: str, where: str, *, max_bytes: int) -> npt.NDArray[Any]:
    """Read a bin of 4-byte elements as a flat array of its own.

    Args:
        parser: stands before the bin.
        dtype: `<i4` or `<f4`.
        where: for messages.
        max_bytes: limit, checked before memory is taken.

    Raises:
        WireError: too long, not a whole number of elements, the end of the body, NaN or infinite floats.
    """
    length = parser.bin_length(where)
    if length > max_bytes:
        raise parser.fail(where, f"{length} bytes, at most {max_bytes} are accepted", ErrorCode.LIMIT_EXCEEDED)
    if length % 4:
        raise parser.fail(where, f"{length} bytes are not a whole number of 4-byte elements")
    promised = parser.stream.promised_bytes()
    if promised is not None and promised < length:
        raise parser.fail(
            where, f"{length} bytes are declared, {promised} are left of the body", ErrorCode.BODY_TRUNCATED
        )
    array: npt.NDArray[Any] = np.empty(length // 4, dtype=dtype)
    if length:  # drafts of no anchor are empty arrays, which have no memory to read into
        parser.stream.read_into(byte_view(array), where)
    if dtype == "<f4" and not np.isfinite(array).all():
        index = int(np.argmin(np.isfinite(array)))
        raise parser.fail(where, f"value {index} is {array[index]}", ErrorCode.NON_FINITE_PAYLOAD, index=index)
    return array
