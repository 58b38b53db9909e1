"""What the writer promises a service: no copies, a known length, late values, and no wrong body."""

import ml_dtypes
import msgpack
import numpy as np
import pytest

from tauscope_wire.checksums import digest_of
from tauscope_wire.errors import WireError
from tauscope_wire.framing import bin_header, byte_view, pack_parts
from tauscope_wire.messages import DraftRequest, HiddenInline
from tauscope_wire.reader import read_hidden
from tauscope_wire.source import BytesSource
from tauscope_wire.tensors import LogitsSummary
from tauscope_wire.writer import Body, TensorChunk, chunks_of, draft_body, hidden_body
from vectors.wire import make

STATES = make.states(2, 6, ml_dtypes.bfloat16)


def body(**changes: object) -> Body:
    arguments: dict[str, object] = {
        "request_id": "r",
        "model": make.MODEL,
        "numerics": make.NUMERICS,
        "requested": {"convention": "output", "layers": [1, 3]},
        "planes": [1, 3],
        "dtype": "bfloat16",
        "token_ids": [5, 9, 2, 63, 0, 7],
        "positions": (0, 6),
        "shape": (2, 6, 4),
        "handle": None,
        "chunks": chunks_of(STATES, 0, max_rows=4),
        "digest": None,
        "logits": None,
        "timing_ms": {},
    }
    return hidden_body(**{**arguments, **changes})


def test_payload_parts_are_the_memory_of_the_caller() -> None:
    large = np.zeros((2, 64, 4096), dtype=ml_dtypes.bfloat16)
    model = make.MODEL.model_copy(update={"hidden_size": 4096})
    made = body(
        model=model,
        token_ids=[0] * 64,
        positions=(0, 64),
        shape=large.shape,
        chunks=chunks_of(large, 0, max_rows=32),
    )
    for parts in (made.parts(), made.slices(1 << 16)):
        num_aliased = 0
        for part in parts:
            if isinstance(part, memoryview):
                assert np.shares_memory(np.frombuffer(part, dtype=np.uint8), large.view(np.uint8))
                num_aliased += len(part)
        assert num_aliased == large.nbytes


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_contiguous_buffer_is_a_payload(kind: type) -> None:
    chunks = [TensorChunk(0, 6, [kind(plane.tobytes()) for plane in STATES])]
    answer = read_hidden(BytesSource(body(chunks=chunks).tobytes()))
    assert answer.states is not None
    assert answer.states.tobytes() == STATES.tobytes()


def test_bits_in_integer_arrays_are_a_payload() -> None:
    """What torch gives without a bfloat16 of numpy: `tensor.view(torch.int16).numpy()` and its like."""
    bits = STATES.view(np.uint16)
    answer = read_hidden(BytesSource(body(chunks=chunks_of(bits, 0, max_rows=6)).tobytes()))
    assert answer.states is not None
    assert answer.states.tobytes() == STATES.tobytes()


def test_chunks_are_taken_one_by_one_while_the_body_is_sent() -> None:
    taken = []

    def produce() -> object:
        for chunk in chunks_of(STATES, 0, max_rows=2):
            taken.append(chunk.start)
            yield chunk

    made = body(chunks=produce(), geometry=[(0, 2), (2, 4), (4, 6)], digest=lambda: f"{len(taken):032d}")
    assert taken == []
    assert made.nbytes == body(chunks=chunks_of(STATES, 0, max_rows=2), digest="0" * 32).nbytes
    seen = []
    data = b""
    for segment in made.segments():
        seen.append(len(taken))
        data += b"".join(bytes(part) for part in segment)
    assert seen == [0, 1, 2, 3, 3]  # head, three chunks, tail
    assert len(data) == made.nbytes
    assert msgpack.unpackb(data)["digest"] == f"{3:032d}"  # asked for after the last chunk


def test_logits_and_timings_are_read_last() -> None:
    logits = LogitsSummary(
        argmax_ids=np.zeros(6, dtype=np.int32),
        top_ids=np.zeros((6, 2), dtype=np.int32),
        top_logprobs=np.zeros((6, 2), dtype=np.float32),
        next_logprobs=np.zeros(5, dtype=np.float32),
    )
    timing_ms = {"compute": 0.0}
    made = body(logits=logits, timing_ms=timing_ms)
    parts = made.parts()
    data = next(parts)
    logits.argmax_ids[:] = 7
    logits.top_logprobs[:] = [-0.5, -1.0]
    timing_ms["compute"] = 12.5
    data += b"".join(parts)
    answer = read_hidden(BytesSource(data))
    assert answer.logits is not None
    assert answer.logits.argmax_ids.tolist() == [7] * 6
    assert answer.logits.top_logprobs[5].tolist() == [-0.5, -1.0]
    assert answer.timing_ms == {"compute": 12.5}
    assert len(data) == made.nbytes


def test_a_checksum_that_is_known_is_sent_and_still_checked_at_the_reader() -> None:
    right = digest_of(STATES)
    chunk = TensorChunk(0, 6, list(STATES), xxh3_128=right)
    sent = body(chunks=[chunk], digest=right).tobytes()
    assert sent == body(chunks=chunks_of(STATES, 0, max_rows=6), digest=right).tobytes()
    wrong = TensorChunk(0, 6, list(STATES), xxh3_128="0" * 32)
    with pytest.raises(WireError, match="it was damaged"):
        read_hidden(BytesSource(body(chunks=[wrong]).tobytes()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (2, 5, 4)}, "does not fit 2 planes and positions 0..6"),
        ({"planes": [1]}, "does not fit 1 planes"),
        ({"positions": (3, 3)}, "does not fit"),
        ({"chunks": []}, "neither chunks nor a handle"),
        ({"chunks": chunks_of(STATES, 1, max_rows=6)}, "expected one that starts at 0"),
        ({"chunks": chunks_of(STATES[:, :5], 0, max_rows=6)}, "chunks end at 5, positions at 6"),
        ({"chunks": iter([]), "geometry": [(0, 4), (3, 6)]}, "chunk 3..6: expected one that starts at 4"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_at_once(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        body(**changes)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([TensorChunk(0, 4, list(STATES[:, :4]))], r"chunk None: announced was \(4, 6, 2\)"),
        ([TensorChunk(0, 3, list(STATES[:, :3]))], r"chunk \(0, 3, 2\): announced was \(0, 4, 2\)"),
        ([TensorChunk(0, 4, list(STATES[:1, :4]))], r"chunk \(0, 4, 1\): announced was \(0, 4, 2\)"),
        ([TensorChunk(0, 4, list(STATES[:, :3]))], "has 24 bytes, announced: 32"),
        ([TensorChunk(0, 4, list(STATES[:, :4].astype(np.float16)))], "is float16, announced: bfloat16"),
        ([TensorChunk(0, 4, list(STATES.transpose(0, 2, 1)[:, :, :4]))], "not C-contiguous"),
    ],
)
def test_late_data_that_is_not_what_was_announced_breaks_the_body_off(chunks: list[TensorChunk], message: str) -> None:
    made = body(chunks=iter(chunks), geometry=[(0, 4), (4, 6)])
    sent = b""
    with pytest.raises(ValueError, match=message):
        for part in made.parts():
            sent += part
    assert len(sent) < made.nbytes


def test_a_digest_of_another_length_breaks_the_body_off() -> None:
    with pytest.raises(ValueError, match="announced were 32 hex digits"):
        body(digest=lambda: "short").tobytes()


def test_drafts_of_other_shapes_are_refused() -> None:
    three = np.zeros((2, 3), dtype=np.int32)
    with pytest.raises(ValueError, match=r"expected \[A=2, K=3\]"):
        draft_body(
            drafter=make.DRAFTER,
            numerics=make.NUMERICS,
            anchors=np.array([1, 2]),
            token_ids=three,
            top_ids=np.zeros((2, 2, 4), dtype=np.int32),
            top_logprobs=np.zeros((2, 2, 4), dtype=np.float32),
            timing_ms={},
        )


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 65535, 65536, 1 << 20])
def test_a_bin_header_is_the_one_msgpack_writes(nbytes: int) -> None:
    packed = msgpack.packb(bytes(nbytes))
    assert bin_header(nbytes) == packed[: len(packed) - nbytes]


def test_a_bin_that_msgpack_cannot_frame_is_refused() -> None:
    assert bin_header(2**32 - 1) == b"\xc6\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="at most 4294967295; use smaller chunks"):
        bin_header(2**32)


def test_many_planes_and_chunks_use_wide_headers() -> None:
    states = np.zeros((20, 70_000, 1), dtype=np.float32)
    made = body(
        model=make.MODEL.model_copy(update={"hidden_size": 1, "num_layers": 30}),
        requested={"convention": "output", "layers": list(range(20))},
        planes=list(range(20)),
        dtype="float32",
        token_ids=[0] * 70_000,
        positions=(0, 70_000),
        shape=states.shape,
        chunks=chunks_of(states, 0, max_rows=4_000),
    )
    data = made.tobytes()
    assert len(data) == made.nbytes
    assert len(msgpack.unpackb(data)["chunks"]) == 18
    assert read_hidden(BytesSource(data)).shape == (20, 70_000, 1)


def test_a_request_is_packed_around_its_large_payload() -> None:
    inline = np.arange(100_000, dtype=np.float32).tobytes()
    request = DraftRequest(
        drafter="d", hidden=HiddenInline(inline=inline, dtype="float32"), token_ids=[1, 2, 3], response_start=1
    )
    fields = request.model_dump(mode="python", by_alias=True)
    parts = pack_parts(fields)
    assert b"".join(parts) == msgpack.packb(fields)
    (payload,) = (part for part in parts if len(part) > 10_000)
    assert np.shares_memory(np.frombuffer(payload, dtype=np.uint8), np.frombuffer(inline, dtype=np.uint8))


def test_a_view_of_a_scalar_or_of_nothing_is_flat_bytes() -> None:
    assert len(byte_view(np.zeros((3, 0, 4), dtype=ml_dtypes.bfloat16))) == 0
    assert len(byte_view(memoryview(b""))) == 0
    assert byte_view(np.array(1.0, dtype="<f4")).tobytes() == b"\x00\x00\x80\x3f"
