"""Reads the body `tauscope.acceptance/1`."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tauscope_wire.checksums import checksum
from tauscope_wire.draft_reader import DraftHead
from tauscope_wire.errors import ErrorCode
from tauscope_wire.fields import FieldWalk
from tauscope_wire.heads import read_end, read_model, read_schema, read_timing
from tauscope_wire.messages import ACCEPTANCE_SCHEMA, Numerics
from tauscope_wire.tensors import AcceptanceAnswer

__all__ = ["ACCEPTANCE_FIELDS", "AcceptanceReader"]

ACCEPTANCE_FIELDS: Final = (
    "schema",
    "drafter",
    "numerics",
    "anchors",
    "sampled",
    "greedy",
    "xxh3_128",
    "timing_ms",
    "end",
)
"""The fields of the body, in order."""

_LARGEST: Final = 1.001
"""A probability, and what sums of float32 shares over a vocabulary may add to it."""


class AcceptanceReader(DraftHead):
    """One reading of one body; `read` is called once."""

    def read(self) -> AcceptanceAnswer:
        """Read everything; see `reader.read_acceptance`."""
        parser = self._parser
        fields = read_schema(parser, ACCEPTANCE_FIELDS, ACCEPTANCE_SCHEMA)
        drafter = self._drafter(fields)
        numerics = read_model(parser, fields.enter("numerics"), Numerics)
        anchors = self._anchors(fields)
        sampled, greedy = (self._rates(fields, name, len(anchors), drafter.drafts) for name in ("sampled", "greedy"))
        place = fields.enter("xxh3_128")
        if parser.string(place) != checksum([anchors, sampled, greedy]):
            raise parser.fail(
                place, "the data has another checksum; it was damaged: ask again", ErrorCode.CHECKSUM_MISMATCH
            )
        timing_ms = read_timing(parser, fields.enter("timing_ms"))
        read_end(parser, fields)
        for rates in (sampled, greedy):
            rates[rates < 0] = np.nan
        return AcceptanceAnswer(
            drafter=drafter, numerics=numerics, anchors=anchors, sampled=sampled, greedy=greedy, timing_ms=timing_ms
        )

    def _rates(self, fields: FieldWalk, name: str, count: int, width: int) -> npt.NDArray[Any]:
        rates = self._array(fields, name, "<f4")
        self._sized(name, rates, count * width, f"{count} anchors x {width} drafts")
        wrong = (rates > _LARGEST) | ((rates < 0) & (rates != -1))
        if wrong.any():
            raise self._parser.fail(name, f"{rates[wrong][0]} is no probability, and not -1", ErrorCode.LABEL_MISMATCH)
        return rates.reshape(count, width)
