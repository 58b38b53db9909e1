"""Reads the `chunks` of a hidden-states answer into their array."""

from typing import Any, Final

import numpy.typing as npt

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode
from tauscope_wire.fields import FieldWalk
from tauscope_wire.parser import PullParser
from tauscope_wire.payload import PayloadReader

__all__ = ["CHUNK_FIELDS", "read_chunks"]

CHUNK_FIELDS: Final = ("start", "stop", "data", "xxh3_128")
"""The fields of one chunk, in order."""


def read_chunks(
    parser: PullParser,
    where: str,
    count: int,
    *,
    states: npt.NDArray[Any],
    dtype: WireDtype,
    positions: tuple[int, int],
) -> str | None:
    """Fill `states` with chunks that follow each other without gap or overlap.

    Args:
        parser: stands behind the header of the array.
        where: for messages.
        count: how many chunks the header announced.
        states: [planes, positions, hidden], C-contiguous; all of it is written.
        dtype: element type on the wire.
        positions: the range that the chunks must cover.

    Returns:
        The verified checksum of all data when one chunk holds it all, else None.

    Raises:
        WireError: ranges that do not fit, bins of another length, damaged or non-finite data.
    """
    payload = PayloadReader(parser, dtype)
    first, last = positions
    expected, checksum = first, ""
    for index in range(count):
        fields = FieldWalk(parser, CHUNK_FIELDS, f"{where}[{index}]")
        start = parser.integer(fields.enter("start"))
        stop = parser.integer(fields.enter("stop"))
        if start != expected or not start < stop <= last:
            raise parser.fail(
                f"{where}[{index}]",
                f"rows {start}..{stop}, expected are rows from {expected} on, up to at most {last}",
                ErrorCode.LABEL_MISMATCH,
            )
        place = fields.enter("data")
        num_planes = parser.array_length(place)
        if num_planes != len(states):
            raise parser.fail(place, f"{num_planes} bins for {len(states)} planes", ErrorCode.LABEL_MISMATCH)
        for plane in range(num_planes):
            payload.read(states[plane, start - first : stop - first], f"{place}[{plane}]")
        place = fields.enter("xxh3_128")
        checksum = parser.string(place)
        payload.finish(checksum, place)
        fields.finish()
        expected = stop
    if expected != last:
        raise parser.fail(where, f"they end at {expected}, the positions at {last}", ErrorCode.LABEL_MISMATCH)
    return checksum if count == 1 else None
