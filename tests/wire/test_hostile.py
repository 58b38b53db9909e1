"""Bodies made to harm: cut, flipped, boundless."""

import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_wire.errors import ErrorCode, WireError
from tauscope_wire.limits import ReadLimits
from tauscope_wire.parser import PullParser
from tauscope_wire.payload import first_non_finite
from tauscope_wire.reader import read_acceptance, read_draft, read_hidden
from tauscope_wire.source import BytesSource
from vectors.wire import make

GOOD = {name: build() for name, build in make.SUCCESS.items()}
EXPECT = {
    "hidden_bf16": make.EXPECT_HIDDEN,
    "hidden_f32_logits": make.EXPECT_LOGITS,
    "hidden_handle": make.EXPECT_HANDLE,
}


class Unsized:
    """A source that does not know its length."""

    def __init__(self, body: bytes) -> None:
        self._inner = BytesSource(body)

    def readinto(self, buffer: memoryview, /) -> int:
        return self._inner.readinto(buffer)


def read(name: str, source: object) -> object:
    if name in ("draft", "acceptance"):
        reader = read_draft if name == "draft" else read_acceptance
        return reader(source, expect=make.EXPECT_DRAFT)
    return read_hidden(source, expect=EXPECT[name])


@pytest.mark.parametrize("name", GOOD)
def test_a_body_cut_at_any_byte_is_truncated(name: str) -> None:
    body = GOOD[name]
    for source in (BytesSource, Unsized):
        for length in range(len(body)):
            with pytest.raises(WireError) as caught:
                read(name, source(body[:length]))
            assert caught.value.code == ErrorCode.BODY_TRUNCATED, length


@pytest.mark.parametrize("name", ["hidden_bf16", "hidden_f32_logits"])
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_is_detected_or_leaves_the_tensors_alone(name: str, mask: int) -> None:
    body = GOOD[name]
    good = read_hidden(BytesSource(body), expect=EXPECT[name])
    assert good.states is not None
    num_detected = 0
    for index in range(len(body)):
        flipped = bytearray(body)
        flipped[index] ^= mask
        try:
            answer = read_hidden(BytesSource(flipped), expect=EXPECT[name])
        except WireError:
            num_detected += 1
            continue
        assert answer.states is not None, index
        assert answer.states.tobytes() == good.states.tobytes(), index
        assert (answer.planes, answer.positions, answer.dtype) == (good.planes, good.positions, good.dtype), index
        assert answer.token_ids.tolist() == good.token_ids.tolist(), index
        if good.logits is not None and answer.logits is not None:
            assert answer.logits.top_logprobs.tobytes() == good.logits.top_logprobs.tobytes(), index
    # what may pass are texts and numbers of the head: request id, versions, names of kernels, timings
    assert num_detected > len(body) // 2


def test_a_flipped_byte_in_a_draft_is_detected_or_leaves_the_drafts_alone() -> None:
    body = GOOD["draft"]
    good = read_draft(BytesSource(body))
    for index in range(len(body)):
        flipped = bytearray(body)
        flipped[index] ^= 0x10
        try:
            answer = read_draft(BytesSource(flipped))
        except WireError:
            continue
        for name in ("anchors", "token_ids", "top_ids", "top_logprobs"):
            assert getattr(answer, name).tobytes() == getattr(good, name).tobytes(), (index, name)
            assert getattr(answer, name).shape == getattr(good, name).shape, (index, name)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", GOOD["hidden_bf16"][:300], GOOD["draft"][:300]]))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes, start: bytes) -> None:
    for source in (BytesSource, Unsized):
        with pytest.raises(WireError):
            read_hidden(source(start + noise))
        with pytest.raises(WireError):
            read_draft(source(start + noise))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_body_with_a_field_of_another_kind_is_refused_or_read(data: st.DataObject) -> None:
    """Any value in the place of any field: a WireError or an answer, never another exception."""
    name = data.draw(st.sampled_from(sorted(GOOD)))
    fields = msgpack.unpackb(GOOD[name])
    place = data.draw(st.sampled_from(sorted(fields)))
    simple = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=3)
    odd = st.recursive(
        simple | st.binary(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=4,
    )
    value = data.draw(odd)
    if isinstance(fields[place], dict) and fields[place] and data.draw(st.booleans()):
        fields[place][data.draw(st.sampled_from(sorted(fields[place])))] = value
    else:
        fields[place] = value
    try:
        if name == "draft":
            read_draft(BytesSource(msgpack.packb(fields)))
        else:
            read_hidden(BytesSource(msgpack.packb(fields)))
    except WireError as error:
        assert error.details["where"]


HEAD = GOOD["hidden_bf16"][: GOOD["hidden_bf16"].index(b"model") - 1]
TO_CHUNKS = GOOD["hidden_bf16"][: GOOD["hidden_bf16"].index(b"chunks") + 6]


@pytest.mark.parametrize(
    "body",
    [
        HEAD + msgpack.packb("model") + b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        HEAD + msgpack.packb("model") + b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        HEAD + msgpack.packb("model") + b"\xdb\xff\xff\xff\xff",  # a string of 4 GB
        HEAD + msgpack.packb("model") + b"\xc6\xff\xff\xff\xff",  # a bin of 4 GB where none belongs
        HEAD + msgpack.packb("model") + b"\x91" * 100_000,  # arrays within arrays
        HEAD + msgpack.packb("model") + b"\xdc\xff\xff" + b"\xc0" * 0xFFFF,  # as many items as are accepted
        TO_CHUNKS + b"\xdd\xff\xff\xff\xff",  # 4 billion chunks
        TO_CHUNKS + b"\x91\x84\xa5start\x01\xa4stop\x06\xa4data\x92\xc6\xff\xff\xff\xff",  # a chunk of 4 GB
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_a_declared_length_takes_no_memory(body: bytes) -> None:
    tracemalloc.start()
    try:
        for source in (BytesSource, Unsized):
            with pytest.raises(WireError):
                read_hidden(source(body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # the 64 KiB buffer and its copy, one list of 65,535 pointers, errors
    assert peak < 2 << 20


def test_a_tensor_that_no_limit_forbids_is_not_allocated_when_the_body_cannot_hold_it() -> None:
    fields = msgpack.unpackb(GOOD["hidden_bf16"])
    fields["model"]["hidden_size"] = 1 << 25  # 2 planes x 5 rows x 2 bytes: 671 MB
    fields["shape"][2] = 1 << 25
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"671088640 bytes, \d+ are left of the body"):
            read_hidden(BytesSource(msgpack.packb(fields)))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_token_ids_over_the_limit_are_refused_before_they_are_read() -> None:
    limits = ReadLimits(max_tokens=6)
    with pytest.raises(WireError, match="token_ids: 28 bytes, at most 24 are accepted") as caught:
        read_hidden(BytesSource(GOOD["hidden_bf16"]), limits=limits)
    assert caught.value.code == ErrorCode.LIMIT_EXCEEDED


def test_tensors_over_the_limit_are_refused_before_they_are_allocated() -> None:
    with pytest.raises(WireError, match=r"\[2, 5, 4\] bfloat16 are 80 bytes, at most 79 are accepted") as caught:
        read_hidden(BytesSource(GOOD["hidden_bf16"]), limits=ReadLimits(max_tensor_bytes=79))
    assert caught.value.code == ErrorCode.ANSWER_TOO_LARGE
    assert read_hidden(BytesSource(GOOD["hidden_bf16"]), limits=ReadLimits(max_tensor_bytes=80)).states is not None
    with pytest.raises(WireError, match="top_logprobs"):  # 12 + 36 + 72 + 72 bytes of drafts
        read_draft(BytesSource(GOOD["draft"]), limits=ReadLimits(max_tensor_bytes=191))
    read_draft(BytesSource(GOOD["draft"]), limits=ReadLimits(max_tensor_bytes=192))


def test_the_head_is_bounded_over_the_whole_body() -> None:
    body = GOOD["hidden_bf16"]
    num_payload = 7 * 4 + 2 * 5 * 4 * 2
    with pytest.raises(WireError, match="bytes outside of the payloads"):
        read_hidden(BytesSource(body), limits=ReadLimits(max_head_bytes=len(body) - num_payload - 1))
    read_hidden(BytesSource(body), limits=ReadLimits(max_head_bytes=len(body) - num_payload))


def test_anchors_whose_differences_overflow_are_not_ascending() -> None:
    fields = msgpack.unpackb(GOOD["draft"])
    fields["anchors"] = make.ints(3, 2**31 - 1, -(2**31))  # the last difference is +1 in int32
    with pytest.raises(WireError, match="anchors: positions are not ascending"):
        read_draft(BytesSource(msgpack.packb(fields)))


@pytest.mark.parametrize("value", [0, 127, 128, 255, 256, 2**32, 2**64 - 1, -1, -32, -33, -128, -129, -(2**63)])
def test_every_integer_of_msgpack_is_read(value: int) -> None:
    assert PullParser(BytesSource(msgpack.packb(value)), ReadLimits()).integer("x") == value


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
        max_leaves=20,
    )
)
def test_head_values_are_read_as_msgpack_reads_them(value: object) -> None:
    packed = msgpack.packb(value)
    assert PullParser(BytesSource(packed), ReadLimits(max_depth=64)).value("x") == msgpack.unpackb(packed)


def test_a_refused_value_is_found_wherever_it_stands_in_a_slice() -> None:
    """The check takes slices; the reference looks at every element."""
    rng = np.random.default_rng(3)
    for dtype, word in (("bfloat16", np.uint16), ("float32", np.uint32)):
        for bits in np.array([0x7F80, 0x7F81, 0x7FFF, 0xFF80, 0xFF81, 0xFFFF], dtype=np.uint16):
            data = rng.integers(0, 0x7F80, 1000).astype(np.uint16) | (rng.integers(0, 2, 1000) << 15).astype(np.uint16)
            wide = data.astype(np.uint32) << 16 if dtype == "float32" else data.astype(word)
            assert first_non_finite(memoryview(wide.tobytes()), dtype) is None
            index = int(rng.integers(1000))
            wide[index] = int(bits) << 16 if dtype == "float32" else bits
            assert first_non_finite(memoryview(wide.tobytes()), dtype) == index
