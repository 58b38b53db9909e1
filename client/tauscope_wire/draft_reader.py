"""Reads the body `tauscope.draft/1`."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tauscope_wire.checksums import checksum
from tauscope_wire.errors import ErrorCode
from tauscope_wire.expectations import DraftExpectation
from tauscope_wire.fields import FieldWalk
from tauscope_wire.heads import read_end, read_model, read_schema, read_timing
from tauscope_wire.messages import DRAFT_SCHEMA, Numerics
from tauscope_wire.parser import PullParser
from tauscope_wire.payload import read_array
from tauscope_wire.tensors import DraftAnswer, DrafterSummary

__all__ = ["DRAFT_FIELDS", "MAX_DRAFTS", "DraftHead", "DraftReader"]

DRAFT_FIELDS: Final = (
    "schema",
    "drafter",
    "numerics",
    "anchors",
    "token_ids",
    "top_ids",
    "top_logprobs",
    "xxh3_128",
    "timing_ms",
    "end",
)
"""The fields of the body, in order."""


MAX_DRAFTS: Final = 4096
"""Drafts per anchor, far above any block size in use."""


class DraftHead:
    """What answers of a drafter have in common: who drafted, for which anchors, and arrays within a budget.

    Args:
        parser: stands before the body.
        expect: what was asked for.
    """

    def __init__(self, parser: PullParser, expect: DraftExpectation) -> None:
        self._parser = parser
        self._expect = expect
        self._budget = parser.limits.max_tensor_bytes

    def _drafter(self, fields: FieldWalk) -> DrafterSummary:
        where = fields.enter("drafter")
        drafter = read_model(self._parser, where, DrafterSummary)
        if self._expect.drafter is not None and drafter.name != self._expect.drafter:
            raise self._parser.fail(
                f"{where}.name",
                f"{drafter.name!r} came, {self._expect.drafter!r} was asked for",
                ErrorCode.LABEL_MISMATCH,
            )
        if self._expect.conditions is not None and drafter.conditions != self._expect.conditions:
            raise self._parser.fail(
                f"{where}.conditions",
                f"{drafter.conditions or 'none'} were in force, {dict(self._expect.conditions) or 'none'} asked for",
                ErrorCode.LABEL_MISMATCH,
            )
        if not 1 <= drafter.drafts <= MAX_DRAFTS:
            raise self._parser.fail(
                f"{where}.drafts", f"{drafter.drafts} is outside of 1..{MAX_DRAFTS}", ErrorCode.LABEL_MISMATCH
            )
        return drafter

    def _anchors(self, fields: FieldWalk) -> npt.NDArray[np.int32]:
        anchors = self._array(fields, "anchors", "<i4")
        if len(anchors) and (anchors[0] < 1 or (anchors[1:] <= anchors[:-1]).any()):
            raise self._parser.fail("anchors", "positions are not ascending from 1 on", ErrorCode.LABEL_MISMATCH)
        asked = None if self._expect.anchors is None else np.asarray(self._expect.anchors, dtype=np.int64)
        if asked is not None and not np.array_equal(anchors, asked):
            raise self._parser.fail(
                "anchors", f"{_span(anchors)} came, {_span(asked)} were asked for", ErrorCode.LABEL_MISMATCH
            )
        return anchors

    def _array(self, fields: FieldWalk, name: str, dtype: str) -> npt.NDArray[Any]:
        array = read_array(self._parser, dtype, fields.enter(name), max_bytes=self._budget)
        self._budget -= array.nbytes
        return array

    def _sized(self, name: str, array: npt.NDArray[Any], count: int, why: str) -> None:
        if len(array) != count:
            raise self._parser.fail(name, f"{len(array)} elements, expected {count} ({why})", ErrorCode.LABEL_MISMATCH)


class DraftReader(DraftHead):
    """One reading of one body; `read` is called once."""

    def read(self) -> DraftAnswer:
        """Read everything; see `reader.read_draft`."""
        parser = self._parser
        fields = read_schema(parser, DRAFT_FIELDS, DRAFT_SCHEMA)
        drafter = self._drafter(fields)
        numerics = read_model(parser, fields.enter("numerics"), Numerics)
        anchors = self._anchors(fields)
        count, width = len(anchors), drafter.drafts
        token_ids = self._array(fields, "token_ids", "<i4")
        self._sized("token_ids", token_ids, count * width, f"{count} anchors x {width} drafts")
        top_ids = self._array(fields, "top_ids", "<i4")
        top_k = self._top_k(len(top_ids), count * width)
        top_logprobs = self._array(fields, "top_logprobs", "<f4")
        self._sized("top_logprobs", top_logprobs, len(top_ids), "as many as top_ids")
        for name, ids in (("token_ids", token_ids), ("top_ids", top_ids)):
            if ids.size and ids.min() < 0:
                raise parser.fail(name, f"the id {ids.min()} is negative", ErrorCode.LABEL_MISMATCH)
        logprobs = top_logprobs.reshape(count, width, top_k)
        if (np.diff(logprobs, axis=2) > 0).any():
            raise parser.fail("top_logprobs", "rows are not in descending order", ErrorCode.LABEL_MISMATCH)
        place = fields.enter("xxh3_128")
        if parser.string(place) != checksum([anchors, token_ids, top_ids, top_logprobs]):
            raise parser.fail(
                place, "the data has another checksum; it was damaged: ask again", ErrorCode.CHECKSUM_MISMATCH
            )
        timing_ms = read_timing(parser, fields.enter("timing_ms"))
        read_end(parser, fields)
        return DraftAnswer(
            drafter=drafter,
            numerics=numerics,
            anchors=anchors,
            token_ids=token_ids.reshape(count, width),
            top_ids=top_ids.reshape(count, width, top_k),
            top_logprobs=logprobs,
            timing_ms=timing_ms,
        )

    def _top_k(self, num_ids: int, num_rows: int) -> int:
        """k, from the number of ids; without rows from what was asked for."""
        asked = self._expect.top_k
        if not num_rows and not num_ids:
            return asked or 0
        top_k, rest = divmod(num_ids, max(num_rows, 1))
        if rest or not num_rows or not top_k or (asked is not None and top_k != asked):
            wanted = "a multiple of" if asked is None else f"{asked} times"
            raise self._parser.fail("top_ids", f"{num_ids} ids, expected {wanted} {num_rows}", ErrorCode.LABEL_MISMATCH)
        return top_k


def _span(anchors: npt.NDArray[Any]) -> str:
    return f"{len(anchors)} anchors from {anchors[0]} to {anchors[-1]}" if len(anchors) else "no anchors"
