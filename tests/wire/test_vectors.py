"""The golden vectors: what must be written, read and refused, byte by byte."""

import io
import json

import msgpack
import numpy as np
import pytest

from tauscope_wire.errors import WireError
from tauscope_wire.reader import read_acceptance, read_draft, read_hidden
from tauscope_wire.source import BytesSource
from vectors.wire import make

EXPECT = {
    "hidden_bf16": make.EXPECT_HIDDEN,
    "hidden_f32_logits": make.EXPECT_LOGITS,
    "hidden_handle": make.EXPECT_HANDLE,
    "draft": make.EXPECT_DRAFT,
    "acceptance": make.EXPECT_DRAFT,
}
REFUSED = json.loads((make.FOLDER / "refused.json").read_text())


def body(name: str) -> bytes:
    return (make.FOLDER / f"{name}.msgpack").read_bytes()


def read(kind: str, source: object) -> object:
    if kind == "draft":
        return read_draft(source, expect=make.EXPECT_DRAFT)
    if kind == "acceptance":
        return read_acceptance(source, expect=make.EXPECT_DRAFT)
    return read_hidden(source, expect=EXPECT[kind])


def test_the_files_on_disk_are_what_the_script_makes() -> None:
    on_disk = {str(path.relative_to(make.FOLDER)): path for path in make.FOLDER.rglob("*.*") if path.suffix != ".py"}
    on_disk = {name: path for name, path in on_disk.items() if "__pycache__" not in name}
    made = make.files()
    assert set(on_disk) == set(made)
    assert [name for name, path in on_disk.items() if path.read_bytes() != made[name]] == []


@pytest.mark.parametrize("name", EXPECT)
def test_plain_msgpack_reads_a_body(name: str) -> None:
    fields = msgpack.unpackb(body(name))
    assert next(iter(fields)) == "schema"
    assert list(fields)[-1] == "end"
    assert fields["end"] is True


def test_a_bf16_body_holds_its_labels_and_its_data() -> None:
    answer = read_hidden(io.BytesIO(body("hidden_bf16")), expect=make.EXPECT_HIDDEN)
    assert answer.planes == (1, 3)
    assert answer.positions == (1, 6)
    assert answer.token_ids.tolist() == make.TOKEN_IDS
    assert answer.model == make.MODEL
    assert answer.numerics == make.NUMERICS
    assert answer.timing_ms == {"queue": 0.5, "compute": 12.0}
    assert answer.handle is None
    # the reference: unpack with plain msgpack and widen each bf16 to float32 by hand
    fields = msgpack.unpackb(body("hidden_bf16"))
    by_plane = [b"".join(chunk["data"][plane] for chunk in fields["chunks"]) for plane in range(2)]
    words = np.frombuffer(b"".join(by_plane), dtype="<u2").astype(np.uint32) << 16
    expected = words.view(np.float32).reshape(2, 5, 4)
    assert answer.states is not None
    np.testing.assert_array_equal(answer.states.astype(np.float32), expected)
    np.testing.assert_array_equal(answer.plane(3).astype(np.float32), expected[1])
    assert expected[0, 0].tolist() == [-6.0, -1.375, 3.25, -4.25]  # (i * 37 % 97 - 48) / 8


def test_a_float32_body_holds_logits_final_norm_and_handle() -> None:
    answer = read_hidden(io.BytesIO(body("hidden_f32_logits")), expect=make.EXPECT_LOGITS)
    assert answer.planes == (-1, 7, "final_norm")
    assert answer.handle == "h-1"
    assert answer.states is not None
    assert answer.states.dtype == np.float32
    np.testing.assert_array_equal(answer.states, make.states(3, 7, np.float32))
    assert answer.logits is not None
    assert answer.logits.top_ids.tolist() == [[i, i + 10] for i in range(7)]
    assert answer.logits.top_logprobs.tolist() == [[-0.5, -1.25]] * 7
    assert answer.logits.next_logprobs is not None
    assert answer.logits.next_logprobs.tolist() == [-2.0] * 6


def test_a_body_with_a_handle_only_has_no_states() -> None:
    answer = read_hidden(io.BytesIO(body("hidden_handle")), expect=make.EXPECT_HANDLE)
    assert answer.states is None
    assert answer.shape == (2, 1, 4)
    assert answer.handle == "h-2"
    with pytest.raises(KeyError, match="only a handle"):
        answer.plane(1)


def test_a_draft_body_holds_one_row_of_drafts_per_anchor() -> None:
    answer = read_draft(io.BytesIO(body("draft")), expect=make.EXPECT_DRAFT)
    assert answer.drafter == make.DRAFTER
    assert answer.anchors.tolist() == [3, 4, 6]
    assert answer.token_ids.tolist() == [[0, 14, 28], [42, 56, 6], [20, 34, 48]]
    assert answer.top_ids[0].tolist() == [[0, 7], [14, 21], [28, 35]]
    assert answer.top_logprobs[2, 2].tolist() == [-0.25, -2.5]


def test_an_acceptance_body_holds_one_row_of_chances_per_anchor_and_nothing_past_the_text() -> None:
    answer = read_acceptance(io.BytesIO(body("acceptance")), expect=make.EXPECT_DRAFT)
    assert answer.drafter == make.DRAFTER
    assert answer.anchors.tolist() == [3, 4, 6]
    assert answer.sampled[:2].tolist() == [[0.5, 0.25, 1.0], [0.0, 0.75, 0.125]]
    assert answer.greedy[2, :2].tolist() == [0.5, 0.25]
    assert np.isnan(answer.sampled[2, 2]) and np.isnan(answer.greedy[2, 2])
    fields = msgpack.unpackb(body("acceptance"))
    assert np.frombuffer(fields["sampled"], "<f4").reshape(3, 3)[2].tolist() == [1.0, 0.5, -1.0]


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_body_is_refused_with_its_code_and_place(name: str) -> None:
    expected = REFUSED[name]
    # a source that knows its length, as an HTTP answer does
    with pytest.raises(WireError) as caught:
        read(expected["reads"], BytesSource(body(f"refused/{name}")))
    assert (caught.value.code, caught.value.details["where"]) == (expected["code"], expected["where"])
    assert caught.value.message.startswith(f"{expected['where']}: ")
