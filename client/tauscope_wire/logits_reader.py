"""Reads the `logits` map of a hidden-states answer."""

from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tauscope_wire.checksums import checksum
from tauscope_wire.errors import ErrorCode
from tauscope_wire.fields import FieldWalk
from tauscope_wire.messages import LogitsRequest
from tauscope_wire.parser import PullParser
from tauscope_wire.payload import read_array
from tauscope_wire.tensors import LogitsSummary

__all__ = ["LOGITS_FIELDS", "read_logits"]

LOGITS_FIELDS: Final = ("top_k", "argmax_ids", "top_ids", "top_logprobs", "next_logprobs", "xxh3_128")
"""The fields of the map, in order."""


def read_logits(
    parser: PullParser,
    where: str,
    *,
    expect: LogitsRequest | Literal[False] | None,
    positions: tuple[int, int],
    num_tokens: int,
    vocab_size: int,
) -> LogitsSummary | None:
    """Read nil or the map; `next_logprobs` has one entry per position that a token follows.

    Raises:
        WireError: sizes, ids or order that cannot be, or something else than was asked for.
    """
    fields = FieldWalk.optional(parser, LOGITS_FIELDS, where)
    if expect is not None and (fields is not None) != (expect is not False):
        raise parser.fail(where, "a summary was asked for, or came, but not both", ErrorCode.LABEL_MISMATCH)
    if fields is None:
        return None
    num_rows = positions[1] - positions[0]
    top_k = parser.integer(fields.enter("top_k"))
    if not 0 <= top_k <= vocab_size or (isinstance(expect, LogitsRequest) and top_k != expect.top_k):
        asked = expect.top_k if isinstance(expect, LogitsRequest) else f"0..{vocab_size}"
        raise parser.fail(fields.path("top_k"), f"{top_k}, expected {asked}", ErrorCode.LABEL_MISMATCH)
    argmax_ids = _array(parser, fields.enter("argmax_ids"), "<i4", num_rows)
    top_ids = _array(parser, fields.enter("top_ids"), "<i4", num_rows * top_k)
    top_logprobs = _array(parser, fields.enter("top_logprobs"), "<f4", num_rows * top_k).reshape(num_rows, top_k)
    for name, ids in (("argmax_ids", argmax_ids), ("top_ids", top_ids)):
        if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
            raise parser.fail(fields.path(name), f"an id outside of 0..{vocab_size - 1}", ErrorCode.LABEL_MISMATCH)
    if (np.diff(top_logprobs, axis=1) > 0).any():
        raise parser.fail(fields.path("top_logprobs"), "rows are not in descending order", ErrorCode.LABEL_MISMATCH)
    next_place = fields.enter("next_logprobs")
    wants_next = expect.next_token if isinstance(expect, LogitsRequest) else None
    next_logprobs = None
    if not parser.skip_nil(next_place):
        next_logprobs = _array(parser, next_place, "<f4", min(positions[1], num_tokens - 1) - positions[0])
    if wants_next is not None and wants_next != (next_logprobs is not None):
        raise parser.fail(next_place, "asked for, or came, but not both", ErrorCode.LABEL_MISMATCH)
    place = fields.enter("xxh3_128")
    arrays = [argmax_ids, top_ids, top_logprobs] + ([] if next_logprobs is None else [next_logprobs])
    if parser.string(place) != checksum(arrays):
        raise parser.fail(
            place, "the data has another checksum; it was damaged: ask again", ErrorCode.CHECKSUM_MISMATCH
        )
    fields.finish()
    return LogitsSummary(
        argmax_ids=argmax_ids,
        top_ids=top_ids.reshape(num_rows, top_k),
        top_logprobs=top_logprobs,
        next_logprobs=next_logprobs,
    )


def _array(parser: PullParser, where: str, dtype: str, count: int) -> npt.NDArray[Any]:
    array = read_array(parser, dtype, where, max_bytes=parser.limits.max_tensor_bytes)
    if len(array) != count:
        raise parser.fail(where, f"{len(array)} elements, expected {count}", ErrorCode.LABEL_MISMATCH)
    return array
