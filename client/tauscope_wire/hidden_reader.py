"""Reads the body `tauscope.hidden/1`."""

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tauscope_wire.checksums import HEX_LENGTH, digest_of
from tauscope_wire.chunks_reader import read_chunks
from tauscope_wire.dtypes import NUMPY_DTYPES, WireDtype
from tauscope_wire.errors import ErrorCode
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.fields import FieldWalk
from tauscope_wire.heads import read_end, read_model, read_schema, read_timing
from tauscope_wire.logits_reader import read_logits
from tauscope_wire.messages import HIDDEN_SCHEMA, ModelInfo, Numerics
from tauscope_wire.parser import PullParser
from tauscope_wire.payload import read_array
from tauscope_wire.planes_reader import all_integers, read_planes, read_requested
from tauscope_wire.tensors import HiddenAnswer

__all__ = ["HIDDEN_FIELDS", "HiddenReader"]

HIDDEN_FIELDS: Final = (
    "schema",
    "request_id",
    "model",
    "numerics",
    "requested",
    "planes",
    "dtype",
    "token_ids",
    "positions",
    "shape",
    "handle",
    "chunks",
    "digest",
    "logits",
    "timing_ms",
    "end",
)
"""The fields of the body, in order."""

_HEX: Final = re.compile(rf"[0-9a-f]{{{HEX_LENGTH}}}")


class HiddenReader:
    """One reading of one body; `read` is called once."""

    def __init__(self, parser: PullParser, expect: HiddenExpectation, out: npt.NDArray[Any] | None) -> None:
        self._parser = parser
        self._expect = expect
        self._out = out

    def read(self) -> HiddenAnswer:
        """Read everything; see `reader.read_hidden`."""
        parser = self._parser
        fields = read_schema(parser, HIDDEN_FIELDS, HIDDEN_SCHEMA)
        request_id = parser.string(fields.enter("request_id"))
        model = read_model(parser, fields.enter("model"), ModelInfo)
        numerics = read_model(parser, fields.enter("numerics"), Numerics)
        requested = read_requested(parser, fields.enter("requested"))
        planes = read_planes(
            parser, fields.enter("planes"), requested, num_layers=model.num_layers, expect=self._expect.planes
        )
        dtype = self._dtype(fields)
        token_ids = self._token_ids(fields, model)
        positions = self._positions(fields, len(token_ids))
        shape = self._shape(fields, (len(planes), positions[1] - positions[0], model.hidden_size))
        handle = self._handle(fields)
        states, known = self._states(fields, dtype, shape, positions, handle)
        digest = self._digest(fields, states, known)
        logits = read_logits(
            parser,
            fields.enter("logits"),
            expect=self._expect.logits,
            positions=positions,
            num_tokens=len(token_ids),
            vocab_size=model.vocab_size,
        )
        timing_ms = read_timing(parser, fields.enter("timing_ms"))
        read_end(parser, fields)
        return HiddenAnswer(
            request_id=request_id,
            model=model,
            numerics=numerics,
            requested=requested,
            planes=planes,
            dtype=dtype,
            token_ids=token_ids,
            positions=positions,
            shape=shape,
            handle=handle,
            states=states,
            digest=digest,
            logits=logits,
            timing_ms=timing_ms,
        )

    def _compare(self, where: str, found: object, expected: object) -> None:
        if expected is not None and found != expected:
            raise self._parser.fail(where, f"{found} came, {expected} was asked for", ErrorCode.LABEL_MISMATCH)

    def _dtype(self, fields: FieldWalk) -> WireDtype:
        where = fields.enter("dtype")
        found = self._parser.string(where)
        for dtype in NUMPY_DTYPES:
            if dtype == found:
                self._compare(where, found, self._expect.dtype)
                return dtype
        raise self._parser.fail(where, f"{found!r} is none of {', '.join(NUMPY_DTYPES)}", ErrorCode.LABEL_MISMATCH)

    def _token_ids(self, fields: FieldWalk, model: ModelInfo) -> npt.NDArray[np.int32]:
        where = fields.enter("token_ids")
        ids = read_array(self._parser, "<i4", where, max_bytes=4 * self._parser.limits.max_tokens)
        if not len(ids):
            raise self._parser.fail(where, "no tokens", ErrorCode.LABEL_MISMATCH)
        outside = (ids < 0) | (ids >= model.vocab_size)
        if outside.any():
            index = int(np.argmax(outside))
            raise self._parser.fail(
                f"{where}[{index}]", f"{ids[index]} is outside of 0..{model.vocab_size - 1}", ErrorCode.LABEL_MISMATCH
            )
        if self._expect.token_ids is not None:
            self._same_tokens(ids, np.asarray(self._expect.token_ids), where)
        return ids

    def _same_tokens(self, ids: npt.NDArray[np.int32], asked: npt.NDArray[Any], where: str) -> None:
        self._compare(f"{where} (their number)", len(ids), len(asked))
        different = ids != asked
        if different.any():
            index = int(np.argmax(different))
            self._compare(f"{where}[{index}]", int(ids[index]), int(asked[index]))

    def _positions(self, fields: FieldWalk, num_tokens: int) -> tuple[int, int]:
        where = fields.enter("positions")
        value = self._parser.value(where)
        if not all_integers(value) or len(value) != 2 or not 0 <= value[0] < value[1] <= num_tokens:
            raise self._parser.fail(where, f"{value!r} is not a range within 0..{num_tokens}", ErrorCode.LABEL_MISMATCH)
        found = (value[0], value[1])
        asked = {"all": (0, num_tokens), "last": (num_tokens - 1, num_tokens), None: None}
        expected = self._expect.positions
        self._compare(where, found, expected if isinstance(expected, tuple) else asked[expected])
        return found

    def _shape(self, fields: FieldWalk, implied: tuple[int, int, int]) -> tuple[int, int, int]:
        where = fields.enter("shape")
        found = self._parser.value(where)
        if found != list(implied) or not all_integers(found) or implied[2] < 1:
            raise self._parser.fail(
                where,
                f"{found!r}, but planes, positions and model.hidden_size give {list(implied)}",
                ErrorCode.LABEL_MISMATCH,
            )
        return implied

    def _handle(self, fields: FieldWalk) -> str | None:
        where = fields.enter("handle")
        handle = self._parser.value(where)
        if handle is not None and (not isinstance(handle, str) or not handle):
            raise self._parser.fail(where, "expected a string or nil")
        if self._expect.handle is not None and self._expect.handle != (handle is not None):
            asked = "a handle was" if self._expect.handle else "no handle was"
            raise self._parser.fail(where, f"{handle!r} came, {asked} asked for", ErrorCode.LABEL_MISMATCH)
        return handle

    def _states(
        self,
        fields: FieldWalk,
        dtype: WireDtype,
        shape: tuple[int, int, int],
        positions: tuple[int, int],
        handle: str | None,
    ) -> tuple[npt.NDArray[Any] | None, str | None]:
        """The data, and its digest as far as it is known already."""
        where = fields.enter("chunks")
        count = self._parser.array_length(where)
        if self._expect.data is not None and self._expect.data != bool(count):
            asked = "states were" if self._expect.data else "no states were"
            raise self._parser.fail(where, f"{count} chunks came, {asked} asked for", ErrorCode.LABEL_MISMATCH)
        if not count:
            if handle is None:
                raise self._parser.fail(where, "neither data nor a handle", ErrorCode.LABEL_MISMATCH)
            return None, None
        states = self._allocate(dtype, shape)
        return states, read_chunks(self._parser, where, count, states=states, dtype=dtype, positions=positions)

    def _allocate(self, dtype: WireDtype, shape: tuple[int, int, int]) -> npt.NDArray[Any]:
        wanted = NUMPY_DTYPES[dtype]
        if self._out is not None:
            self._compare("shape (of `out`)", list(shape), list(self._out.shape))
            self._compare("dtype (of `out`)", dtype, self._out.dtype.name)
            return self._out
        nbytes = shape[0] * shape[1] * shape[2] * wanted.itemsize
        limit = self._parser.limits.max_tensor_bytes
        promised = self._parser.stream.promised_bytes()
        if nbytes > limit:
            raise self._parser.fail(
                "shape",
                f"{list(shape)} {dtype} are {nbytes} bytes, at most {limit} are accepted; ask for fewer positions or "
                "layers at a time",
                ErrorCode.ANSWER_TOO_LARGE,
            )
        if promised is not None and promised < nbytes:
            raise self._parser.fail(
                "shape",
                f"{list(shape)} {dtype} are {nbytes} bytes, {promised} are left of the body",
                ErrorCode.BODY_TRUNCATED,
            )
        return np.empty(shape, dtype=wanted)

    def _digest(self, fields: FieldWalk, states: npt.NDArray[Any] | None, known: str | None) -> str | None:
        where = fields.enter("digest")
        digest = self._parser.value(where)
        if digest is not None and (not isinstance(digest, str) or not _HEX.fullmatch(digest)):
            raise self._parser.fail(where, f"expected {HEX_LENGTH} hex digits or nil")
        if digest is not None and states is not None and (known or digest_of(states)) != digest:
            raise self._parser.fail(
                where, f"{digest!r} is declared, the assembled data has another", ErrorCode.CHECKSUM_MISMATCH
            )
        return digest
