"""Whatever the writer sends, the reader gives back, for any shape, dtype, cut and source."""

import io
import itertools

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_wire.body import Body
from tauscope_wire.checksums import digest_of
from tauscope_wire.dtypes import NUMPY_DTYPES, WireDtype
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.messages import LogitsRequest
from tauscope_wire.reader import read_draft, read_hidden
from tauscope_wire.source import BytesSource, IterSource
from tauscope_wire.tensors import DrafterSummary, LogitsSummary
from tauscope_wire.writer import TensorChunk, draft_body, hidden_body
from vectors.wire import make


class Trickle:
    """Gives as many bytes as the plan says, one plan entry a call; 1 when the plan is used up."""

    def __init__(self, body: bytes, plan: list[int]) -> None:
        self._inner = io.BytesIO(body)
        self._plan = plan

    def readinto(self, buffer: memoryview, /) -> int:
        size = self._plan.pop() if self._plan else 1
        return self._inner.readinto(buffer[:size])


@st.composite
def hidden_cases(draw: st.DrawFn) -> tuple[Body, HiddenExpectation, np.ndarray, LogitsSummary | None]:
    num_planes, rows, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    dtype: WireDtype = draw(st.sampled_from(["bfloat16", "float32"]))
    total = before + rows + after
    layers = draw(st.permutations(range(-1, 8)))[: num_planes - 1]
    planes = [*layers, "final_norm"]
    # every finite bit pattern may come, also subnormals and negative zero
    size = num_planes * rows * hidden * NUMPY_DTYPES[dtype].itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=NUMPY_DTYPES[dtype]).copy()
    raw[~np.isfinite(raw.astype(np.float32))] = 0
    states = raw.reshape(num_planes, rows, hidden)
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1), max_size=4))) if rows > 1 else []
    edges = [0, *cuts, rows]
    chunks = [
        TensorChunk(before + low, before + high, list(states[:, low:high])) for low, high in itertools.pairwise(edges)
    ]
    logits = draw(st.none() | logits_of(rows, rows if after else rows - 1))
    handle = draw(st.none() | st.just("h"))
    token_ids = draw(st.lists(st.integers(0, 63), min_size=total, max_size=total))
    positions = (before, before + rows)
    body = hidden_body(
        request_id=draw(st.text(max_size=8)),
        model=make.MODEL.model_copy(update={"hidden_size": hidden}),
        numerics=make.NUMERICS,
        requested={"convention": "output", "layers": layers},
        planes=planes,
        dtype=dtype,
        token_ids=token_ids,
        positions=positions,
        shape=states.shape,
        handle=handle,
        chunks=chunks,
        digest=draw(st.sampled_from([None, digest_of(states), lambda: digest_of(states)])),
        logits=logits,
        timing_ms=draw(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=2)),
    )
    expect = HiddenExpectation(
        planes=tuple(planes),
        positions=positions,
        dtype=dtype,
        token_ids=token_ids,
        data=True,
        handle=handle is not None,
        logits=False
        if logits is None
        else LogitsRequest(top_k=logits.top_ids.shape[1], next_token=logits.next_logprobs is not None),
    )
    return body, expect, states, logits


@st.composite
def logits_of(draw: st.DrawFn, rows: int, num_next: int) -> LogitsSummary:
    top_k = draw(st.integers(0, 3))
    logprobs = np.array(draw(st.lists(st.floats(-50, 0, width=32), min_size=rows * top_k, max_size=rows * top_k)))
    return LogitsSummary(
        argmax_ids=np.arange(rows, dtype=np.int32),
        top_ids=np.arange(rows * top_k, dtype=np.int32).reshape(rows, top_k),
        top_logprobs=-np.sort(-logprobs.reshape(rows, top_k).astype(np.float32), axis=1),
        next_logprobs=draw(st.none() | st.just(np.full(num_next, -1.5, dtype=np.float32))),
    )


@settings(max_examples=150, deadline=None)
@given(hidden_cases(), st.lists(st.integers(1, 100), max_size=40))
def test_hidden_states_come_back_as_they_were(
    case: tuple[Body, HiddenExpectation, np.ndarray, LogitsSummary | None], plan: list[int]
) -> None:
    body, expect, states, logits = case
    data = body.tobytes()
    answer = read_hidden(Trickle(data, plan), expect=expect)
    assert answer.states is not None
    assert answer.states.dtype == states.dtype
    assert answer.states.tobytes() == states.tobytes()
    assert (answer.logits is None) == (logits is None)
    if answer.logits is not None and logits is not None:
        np.testing.assert_array_equal(answer.logits.top_ids, logits.top_ids)
        np.testing.assert_array_equal(answer.logits.top_logprobs, logits.top_logprobs)
        np.testing.assert_array_equal(answer.logits.argmax_ids, logits.argmax_ids)
        assert (answer.logits.next_logprobs is None) == (logits.next_logprobs is None)


@settings(max_examples=100, deadline=None)
@given(hidden_cases(), st.integers(1, 200))
def test_the_length_is_known_beforehand_and_every_cut_joins_to_the_same_bytes(
    case: tuple[Body, HiddenExpectation, np.ndarray, LogitsSummary | None], max_bytes: int
) -> None:
    body = case[0]
    data = body.tobytes()
    assert len(data) == body.nbytes
    slices = [bytes(part) for part in body.slices(max_bytes)]
    assert max(map(len, slices)) <= max_bytes
    assert b"".join(slices) == data
    assert b"".join(bytes(part) for segment in body.segments(max_bytes) for part in segment) == data
    assert msgpack.unpackb(data)["end"] is True


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 4), st.data())
def test_drafts_come_back_as_they_were(count: int, width: int, top_k: int, data: st.DataObject) -> None:
    anchors = np.array(sorted(data.draw(st.sets(st.integers(1, 99), min_size=count, max_size=count))), dtype=np.int32)
    top_ids = np.arange(count * width * top_k, dtype=np.int32).reshape(count, width, top_k)
    top_logprobs = -np.tile(np.arange(top_k, dtype=np.float32), (count, width, 1))
    body = draft_body(
        drafter=DrafterSummary(
            name="d", family="f", block_size=width + 1, layout="fill-in", drafts=width, taps=[1], sha256=""
        ),
        numerics=make.NUMERICS,
        anchors=anchors,
        token_ids=top_ids[:, :, 0],
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        timing_ms={},
    )
    answer = read_draft(BytesSource(body.tobytes()))
    np.testing.assert_array_equal(answer.anchors, anchors)
    assert answer.token_ids.shape == (count, width)
    assert answer.token_ids.tobytes() == top_ids[:, :, 0].tobytes()
    assert answer.top_ids.tobytes() == top_ids.tobytes()
    assert answer.top_logprobs.tobytes() == top_logprobs.tobytes()
    assert body.nbytes == len(body.tobytes())


def test_states_go_into_the_array_of_the_caller() -> None:
    out = np.full((2, 5, 4), 9, dtype=ml_dtypes.bfloat16)
    answer = read_hidden(BytesSource(make.hidden_bf16()), out=out)
    assert answer.states is out
    np.testing.assert_array_equal(out.astype(np.float32), make.states(2, 5, np.float32))


@pytest.mark.parametrize(
    ("out", "where"),
    [(np.zeros((2, 4, 4), dtype=ml_dtypes.bfloat16), "shape"), (np.zeros((2, 5, 4), dtype=np.float32), "dtype")],
)
def test_an_array_that_does_not_fit_the_answer_is_refused(out: np.ndarray, where: str) -> None:
    with pytest.raises(Exception, match=rf"{where} \(of `out`\)"):
        read_hidden(BytesSource(make.hidden_bf16()), out=out)
    assert not out.any()


def test_an_array_that_cannot_be_filled_in_place_is_an_error_of_the_caller() -> None:
    strided = np.zeros((5, 2, 4), dtype=ml_dtypes.bfloat16).transpose(1, 0, 2)
    frozen = np.zeros((2, 5, 4), dtype=ml_dtypes.bfloat16)
    frozen.flags.writeable = False
    for out in (strided, frozen):
        with pytest.raises(ValueError, match="not C-contiguous and writable"):
            read_hidden(BytesSource(make.hidden_bf16()), out=out)


def test_a_body_in_pieces_of_any_size_is_read_from_an_iterator() -> None:
    data = make.hidden_bf16()
    for size in (1, 7, 1000):
        pieces = [data[low : low + size] for low in range(0, len(data), size)]
        answer = read_hidden(IterSource(iter([b"", *pieces, b""]), length=len(data)), expect=make.EXPECT_HIDDEN)
        assert answer.states is not None
        np.testing.assert_array_equal(answer.states.astype(np.float32), make.states(2, 5, np.float32))


def test_fields_of_a_newer_service_are_skipped() -> None:
    fields = msgpack.unpackb(make.hidden_bf16())
    newer = {}
    for name, value in fields.items():
        newer[f"x_{name}"] = {"a": [1, None, b"..", 2.5, {"b": "c"}]}
        newer[name] = value
    newer["chunks"][0] = {"first": 1, **newer["chunks"][0], "last": "more"}
    newer["model"]["more"] = [1]
    answer = read_hidden(BytesSource(msgpack.packb(newer)), expect=make.EXPECT_HIDDEN)
    assert answer.states is not None
    np.testing.assert_array_equal(answer.states.astype(np.float32), make.states(2, 5, np.float32))


def test_wider_encodings_of_the_same_values_are_accepted() -> None:
    good = make.hidden_bf16()
    wide = good.replace(b"\xde\x00\x10", b"\xdf\x00\x00\x00\x10", 1)  # the map's own header as map32
    wide = wide.replace(
        b"\xa9positions\x92\x01\x06", b"\xd9\x09positions\xdc\x00\x02\xd3" + bytes(7) + b"\x01\xcd\x00\x06"
    )
    wide = wide.replace(b"\xc4\x18", b"\xc6\x00\x00\x00\x18")  # a chunk of 3 rows x 4 x 2 bytes as bin32
    assert len(wide) > len(good) + 20
    assert msgpack.unpackb(wide) == msgpack.unpackb(good)
    assert read_hidden(BytesSource(wide), expect=make.EXPECT_HIDDEN).positions == (1, 6)
