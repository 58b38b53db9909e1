"""Makes the golden vectors of the wire: `python tests/vectors/wire/make.py` writes them beside this file.

Good bodies come from the writer; refused ones are made from them with plain msgpack, so that they do not depend on what
the writer can be talked into. Values are small fractions that bfloat16 holds exactly: no random generator, no rounding.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import xxhash

from tauscope_wire.checksums import digest_of
from tauscope_wire.errors import ErrorCode
from tauscope_wire.expectations import DraftExpectation, HiddenExpectation
from tauscope_wire.messages import LogitsRequest, ModelInfo, Numerics
from tauscope_wire.tensors import DrafterSummary, LogitsSummary
from tauscope_wire.writer import acceptance_body, chunks_of, draft_body, hidden_body

FOLDER = Path(__file__).parent

MODEL = ModelInfo(
    id="tiny", revision="sha256:00", config_sha256="11", num_layers=8, hidden_size=4, vocab_size=64, stop_token_ids=[2]
)
NUMERICS = Numerics(
    revision="sha256:00",
    compute_dtype="float32",
    weights_dtype="float32",
    device="cpu",
    device_name="any",
    torch="2.13.0",
    transformers="5.24.0",
    attention="sdpa",
    weights_mode="resident",
)
TOKEN_IDS = [5, 9, 2, 63, 0, 7, 7]
DRAFTER = DrafterSummary(
    name="step20k",
    family="dflash",
    block_size=4,
    layout="fill-in",
    drafts=3,
    taps=[1, 3],
    sha256="22",
    warnings=["trained on other kernels"],
)

EXPECT_HIDDEN = HiddenExpectation(
    planes=(1, 3), positions=(1, 6), dtype="bfloat16", token_ids=TOKEN_IDS, data=True, handle=False, logits=False
)
EXPECT_LOGITS = HiddenExpectation(
    planes=(-1, 7, "final_norm"),
    positions="all",
    dtype="float32",
    token_ids=TOKEN_IDS,
    data=True,
    handle=True,
    logits=LogitsRequest(top_k=2),
)
EXPECT_HANDLE = HiddenExpectation(planes=(1, 3), positions="last", dtype="bfloat16", data=False, handle=True)
EXPECT_DRAFT = DraftExpectation(drafter="step20k", anchors=[3, 4, 6], top_k=2)
"""What a reader of each vector asked for."""


def states(planes: int, rows: int, dtype: Any) -> np.ndarray:
    """[planes, rows, 4] multiples of 1/8 between -6 and 6."""
    count = planes * rows * 4
    return ((np.arange(count) * 37 % 97 - 48) / 8).astype(dtype).reshape(planes, rows, 4)


def hidden_bf16() -> bytes:
    """Two planes, rows 1..6 of 7, chunks of 3 and 2 rows."""
    data = states(2, 5, ml_dtypes.bfloat16)
    return hidden_body(
        request_id="r-1",
        model=MODEL,
        numerics=NUMERICS,
        requested={"convention": "output", "layers": [1, 3]},
        planes=[1, 3],
        dtype="bfloat16",
        token_ids=TOKEN_IDS,
        positions=(1, 6),
        shape=(2, 5, 4),
        handle=None,
        chunks=chunks_of(data, 1, max_rows=3),
        digest=digest_of(data),
        logits=None,
        timing_ms={"queue": 0.5, "compute": 12.0},
    ).tobytes()


def hidden_f32_logits() -> bytes:
    """Embedding, last layer and `final_norm` in float32, one chunk, `tuple` convention, handle and logits."""
    data = states(3, 7, np.float32)
    logits = LogitsSummary(
        argmax_ids=np.arange(7, dtype=np.int32),
        top_ids=np.stack([np.arange(7), np.arange(7) + 10], axis=1).astype(np.int32),
        top_logprobs=np.tile(np.array([-0.5, -1.25], dtype=np.float32), (7, 1)),
        next_logprobs=np.full(6, -2.0, dtype=np.float32),
    )
    return hidden_body(
        request_id="r-2",
        model=MODEL,
        numerics=NUMERICS,
        requested={"convention": "tuple", "layers": [0, 8]},
        planes=[-1, 7, "final_norm"],
        dtype="float32",
        token_ids=TOKEN_IDS,
        positions=(0, 7),
        shape=(3, 7, 4),
        handle="h-1",
        chunks=chunks_of(data, 0, max_rows=7),
        digest=digest_of(data),
        logits=logits,
        timing_ms={},
    ).tobytes()


def hidden_handle() -> bytes:
    """A handle and a log-prob summary, no states."""
    logits = LogitsSummary(
        argmax_ids=np.array([7], dtype=np.int32),
        top_ids=np.zeros((1, 0), dtype=np.int32),
        top_logprobs=np.zeros((1, 0), dtype=np.float32),
        next_logprobs=None,
    )
    return hidden_body(
        request_id="r-3",
        model=MODEL,
        numerics=NUMERICS,
        requested={"convention": "output", "layers": [1, 3]},
        planes=[1, 3],
        dtype="bfloat16",
        token_ids=TOKEN_IDS,
        positions=(6, 7),
        shape=(2, 1, 4),
        handle="h-2",
        chunks=[],
        digest=digest_of(states(2, 1, ml_dtypes.bfloat16)),
        logits=logits,
        timing_ms={"compute": 1.0},
    ).tobytes()


def draft() -> bytes:
    """Three anchors, three drafts, two candidates."""
    top_ids = (np.arange(18) * 7 % 64).reshape(3, 3, 2)
    return draft_body(
        drafter=DRAFTER,
        numerics=NUMERICS,
        anchors=np.array([3, 4, 6]),
        token_ids=top_ids[:, :, 0],
        top_ids=top_ids,
        top_logprobs=np.tile(np.array([-0.25, -2.5], dtype=np.float32), (3, 3, 1)),
        timing_ms={"compute": 3.0},
    ).tobytes()


def acceptance() -> bytes:
    """Three anchors, three drafts; the text ends after two places of the last anchor."""
    sampled = np.array([[0.5, 0.25, 1.0], [0.0, 0.75, 0.125], [1.0, 0.5, np.nan]], dtype=np.float32)
    return acceptance_body(
        drafter=DRAFTER,
        numerics=NUMERICS,
        anchors=np.array([3, 4, 6]),
        sampled=sampled,
        greedy=sampled * 0.5,
        timing_ms={"compute": 3.0},
    ).tobytes()


SUCCESS: dict[str, Callable[[], bytes]] = {
    "hidden_bf16": hidden_bf16,
    "hidden_f32_logits": hidden_f32_logits,
    "hidden_handle": hidden_handle,
    "draft": draft,
    "acceptance": acceptance,
}


class Refused:
    """Collects bodies that must be refused, with the code and the place that the reader must name."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.expected: dict[str, dict[str, str]] = {}

    def add(self, name: str, body: bytes, code: ErrorCode, where: str, reads: str = "hidden_bf16") -> None:
        """A body; `reads` names the good one whose expectation applies."""
        self.bodies[name] = body
        self.expected[name] = {"code": str(code), "where": where, "reads": reads}

    def edit(
        self, name: str, code: ErrorCode, where: str, edit: Callable[[Any], None], reads: str = "hidden_bf16"
    ) -> None:
        """A good body with its unpacked map edited and packed again."""
        fields = msgpack.unpackb(SUCCESS[reads]())
        edit(fields)
        self.add(name, msgpack.packb(fields), code, where, reads)


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    """An edit that sets one item."""

    def edit(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        fields[path[-1]] = value

    return edit


def rechecked(edit: Callable[[Any], None]) -> Callable[[Any], None]:
    """The edit, and checksums that fit the edited data: only the labels are wrong."""

    def both(fields: Any) -> None:
        edit(fields)
        for chunk in fields.get("chunks", ()):
            chunk["xxh3_128"] = xxhash.xxh3_128_hexdigest(b"".join(chunk["data"]))
        if fields.get("chunks"):
            planes = zip(*(chunk["data"] for chunk in fields["chunks"]), strict=True)
            fields["digest"] = xxhash.xxh3_128_hexdigest(b"".join(map(b"".join, planes)))
        if fields["schema"].startswith("tauscope.draft"):
            bins = [fields[name] for name in ("anchors", "token_ids", "top_ids", "top_logprobs")]
            fields["xxh3_128"] = xxhash.xxh3_128_hexdigest(b"".join(bins))
        if fields["schema"].startswith("tauscope.acceptance"):
            bins = [fields[name] for name in ("anchors", "sampled", "greedy")]
            fields["xxh3_128"] = xxhash.xxh3_128_hexdigest(b"".join(bins))
        if fields.get("logits"):
            names = ("argmax_ids", "top_ids", "top_logprobs", "next_logprobs")
            bins = [fields["logits"][name] or b"" for name in names]
            fields["logits"]["xxh3_128"] = xxhash.xxh3_128_hexdigest(b"".join(bins))

    return both


def ints(*values: int) -> bytes:
    """Little-endian int32."""
    return np.array(values, dtype="<i4").tobytes()


def with_word(bins: bytes, index: int, word: bytes) -> bytes:
    """A bin with one element replaced."""
    low = index * len(word)
    return bins[:low] + word + bins[low + len(word) :]


def refused() -> Refused:
    """One body per reason to refuse."""
    made = Refused()
    framing(made)
    labels(made)
    chunks(made)
    payloads(made)
    logits_and_drafts(made)
    return made


def framing(made: Refused) -> None:
    """Not one complete msgpack map."""
    good = hidden_bf16()
    head = good.index(b"chunks")
    # the reader knows the length, as of an HTTP answer: it sees a missing payload before it makes the array
    made.add("empty", b"", ErrorCode.BODY_TRUNCATED, "body")
    made.add("truncated_in_head", good[: head - 20], ErrorCode.BODY_TRUNCATED, "positions[1]")
    made.add("truncated_in_payload", good[: head + 40], ErrorCode.BODY_TRUNCATED, "shape")
    made.add("truncated_before_end", good[:-5], ErrorCode.BODY_TRUNCATED, "body (a key)")
    made.add("trailing_byte", good + b"\xc0", ErrorCode.BODY_TRAILING, "body")
    made.add("json_instead", b'{"error": {"code": "internal"}}', ErrorCode.BODY_CORRUPT, "body")
    made.add("html_instead", b"<html><body>502 Bad Gateway</body></html>", ErrorCode.BODY_CORRUPT, "body")
    made.edit("schema_other", ErrorCode.SCHEMA_UNKNOWN, "schema", put("schema", value="tauscope.hidden/2"))
    made.edit("schema_of_a_draft", ErrorCode.SCHEMA_UNKNOWN, "schema", put("schema", value="tauscope.draft/1"))
    made.edit("field_missing", ErrorCode.BODY_CORRUPT, "dtype", lambda fields: fields.pop("dtype"))
    made.edit("end_missing", ErrorCode.BODY_CORRUPT, "end", lambda fields: fields.pop("end"))
    made.edit("end_false", ErrorCode.BODY_CORRUPT, "end", put("end", value=False))
    made.edit("end_not_last", ErrorCode.BODY_CORRUPT, "later", put("later", value=1))

    def reorder(fields: Any) -> None:
        fields["shape"] = fields.pop("shape")

    made.edit("shape_after_chunks", ErrorCode.BODY_CORRUPT, "shape", reorder)
    twice = msgpack.packb("dtype") + msgpack.packb("bfloat16")
    doubled = good.replace(twice, twice * 2).replace(b"\xde\x00\x10", b"\xde\x00\x11", 1)
    made.add("key_twice", doubled, ErrorCode.BODY_CORRUPT, "dtype")
    inner = msgpack.packb("id") + msgpack.packb("tiny")
    made.add(
        "key_twice_in_model", good.replace(b"\x87" + inner, b"\x88" + inner * 2), ErrorCode.BODY_CORRUPT, "model.id"
    )
    made.edit("model_incomplete", ErrorCode.BODY_CORRUPT, "model.hidden_size", lambda f: f["model"].pop("hidden_size"))
    made.edit("request_id_not_text", ErrorCode.BODY_CORRUPT, "request_id", put("request_id", value=7))
    made.edit("extension_type", ErrorCode.BODY_CORRUPT, "model.id", put("model", "id", value=msgpack.ExtType(1, b"x")))
    made.add("not_utf8", good.replace(b"r-1", b"r-\xff"), ErrorCode.BODY_CORRUPT, "request_id")
    made.edit("timing_nan", ErrorCode.BODY_CORRUPT, "timing_ms.queue", put("timing_ms", "queue", value=float("nan")))
    made.edit("timing_text", ErrorCode.BODY_CORRUPT, "timing_ms.queue", put("timing_ms", "queue", value="soon"))
    deep: Any = 0
    for _ in range(100):
        deep = [deep]
    nine = "model.x" + "[0]" * 7  # the value itself, then one more level for each index
    made.edit("nested_too_deep", ErrorCode.LIMIT_EXCEEDED, nine, put("model", "x", value=deep))
    head_of = good[: good.index(b"model") - 1]
    huge = msgpack.packb("model")
    made.add("map_of_4_billion", head_of + huge + b"\xdf\xff\xff\xff\xff", ErrorCode.LIMIT_EXCEEDED, "model")
    made.add("text_of_4_gb", head_of + huge + b"\xdb\xff\xff\xff\xff", ErrorCode.LIMIT_EXCEEDED, "model")


def labels(made: Refused) -> None:
    """Fields that contradict each other or the request."""
    mismatch = ErrorCode.LABEL_MISMATCH

    def edit(name: str, where: str, *path: Any, value: Any, reads: str = "hidden_bf16") -> None:
        made.edit(name, mismatch, where, put(*path, value=value), reads)

    def planes(name: str, where: str, value: list[Any], layers: list[int]) -> None:
        def both(fields: Any) -> None:
            fields["planes"], fields["requested"]["layers"] = value, layers

        made.edit(name, mismatch, where, both)

    planes("planes_other", "planes", [1, 4], [1, 4])
    planes("planes_swapped", "planes", [3, 1], [3, 1])
    planes("planes_twice", "planes", [1, 1], [1, 1])
    planes("planes_empty", "planes", [], [])
    planes("planes_outside_of_the_model", "planes[1]", [1, 8], [1, 8])
    planes("planes_norm_first", "planes", ["final_norm", 1], [1])
    edit("planes_off_by_one", "planes", "requested", "convention", value="tuple")
    edit("dtype_other", "dtype", "dtype", value="float32")
    edit("dtype_unknown", "dtype", "dtype", value="float16")
    edit("token_ids_other", "token_ids[1]", "token_ids", value=ints(5, 8, 2, 63, 0, 7, 7))
    edit("token_ids_fewer", "token_ids (their number)", "token_ids", value=ints(5, 9, 2, 63, 0, 7))
    edit("token_ids_none", "token_ids", "token_ids", value=b"")
    edit("token_ids_outside_of_the_vocabulary", "token_ids[3]", "token_ids", value=ints(5, 9, 2, 64, 0, 7, 7))
    made.edit("token_ids_ragged", ErrorCode.BODY_CORRUPT, "token_ids", put("token_ids", value=b"12345"))
    edit("positions_other", "positions", "positions", value=[0, 5])
    edit("positions_reversed", "positions", "positions", value=[6, 1])
    edit("positions_past_the_end", "positions", "positions", value=[3, 8])
    edit("shape_fewer_planes", "shape", "shape", value=[1, 5, 4])
    edit("shape_fewer_rows", "shape", "shape", value=[2, 4, 4])
    edit("shape_other_hidden", "shape", "shape", value=[2, 5, 8])
    edit("handle_not_asked_for", "handle", "handle", value="h-9")
    edit("handle_missing", "handle", "handle", value=None, reads="hidden_f32_logits")
    edit("data_missing", "chunks", "chunks", value=[])
    edit("data_not_asked_for", "chunks", "chunks", value=[{}], reads="hidden_handle")

    def huge(fields: Any) -> None:
        fields["model"]["hidden_size"] = 1 << 40
        fields["shape"][2] = 1 << 40

    made.edit("shape_of_terabytes", ErrorCode.ANSWER_TOO_LARGE, "shape", huge)

    def longer(fields: Any) -> None:
        fields["model"]["hidden_size"] = 1 << 20
        fields["shape"][2] = 1 << 20

    made.edit("shape_longer_than_the_body", ErrorCode.BODY_TRUNCATED, "shape", longer)


def chunks(made: Refused) -> None:
    """Rows that are not exactly those of `positions`."""
    mismatch = ErrorCode.LABEL_MISMATCH

    def edit(name: str, where: str, change: Callable[[Any], None]) -> None:
        made.edit(name, mismatch, where, rechecked(lambda fields: change(fields["chunks"])))

    def swap(items: Any) -> None:
        items.reverse()

    def repeat(items: Any) -> None:
        items.append(items[1])

    edit("chunks_gap", "chunks[1]", put(1, "start", value=5))
    edit("chunks_overlap", "chunks[1]", put(1, "start", value=3))
    edit("chunks_out_of_order", "chunks[0]", swap)
    edit("chunks_repeated", "chunks[2]", repeat)
    edit("chunks_end_early", "chunks", lambda items: items.pop())
    edit("chunk_past_the_end", "chunks[1]", put(1, "stop", value=7))
    edit("chunk_empty", "chunks[1]", put(1, "stop", value=4))
    edit("chunk_with_fewer_rows", "chunks[1].data[0]", put(1, "data", 0, value=bytes(8)))
    edit("chunk_with_more_rows", "chunks[0].data[1]", put(0, "data", 1, value=bytes(32)))
    made.edit("chunk_without_a_plane", mismatch, "chunks[0].data", lambda f: f["chunks"][0]["data"].pop())
    made.edit(
        "chunk_without_checksum", ErrorCode.BODY_CORRUPT, "chunks[0].xxh3_128", lambda f: f["chunks"][0].pop("xxh3_128")
    )
    made.edit(
        "chunk_as_floats", ErrorCode.BODY_CORRUPT, "chunks[0].data[0]", put("chunks", 0, "data", 0, value=[0.5] * 12)
    )


def payloads(made: Refused) -> None:
    """Damaged or impossible values."""

    def bit(fields: Any) -> None:
        data = bytearray(fields["chunks"][1]["data"][1])
        data[3] ^= 1
        fields["chunks"][1]["data"][1] = bytes(data)

    made.edit("one_bit_flipped", ErrorCode.CHECKSUM_MISMATCH, "chunks[1].xxh3_128", bit)
    made.edit(
        "checksum_of_zeros",
        ErrorCode.CHECKSUM_MISMATCH,
        "chunks[0].xxh3_128",
        put("chunks", 0, "xxh3_128", value="0" * 32),
    )
    made.edit("digest_of_zeros", ErrorCode.CHECKSUM_MISMATCH, "digest", put("digest", value="0" * 32))
    made.edit("digest_not_hex", ErrorCode.BODY_CORRUPT, "digest", put("digest", value="x" * 32))
    words = {"nan": b"\xc0\x7f", "infinity": b"\x80\x7f", "minus_infinity": b"\x80\xff", "smallest_nan": b"\x81\xff"}
    for name, word in words.items():

        def plant(fields: Any, word: bytes = word) -> None:
            fields["chunks"][1]["data"][0] = with_word(fields["chunks"][1]["data"][0], 5, word)

        made.edit(f"bf16_{name}", ErrorCode.NON_FINITE_PAYLOAD, "chunks[1].data[0]", rechecked(plant))

    def plant_f32(fields: Any) -> None:
        fields["chunks"][0]["data"][2] = with_word(fields["chunks"][0]["data"][2], 27, b"\x01\x00\x80\xff")

    made.edit("f32_nan", ErrorCode.NON_FINITE_PAYLOAD, "chunks[0].data[2]", rechecked(plant_f32), "hidden_f32_logits")


def logits_and_drafts(made: Refused) -> None:
    """Summaries and drafts."""
    mismatch = ErrorCode.LABEL_MISMATCH
    nan = np.full(14, np.nan, dtype="<f4").tobytes()
    ascending = np.tile(np.array([-2, -1], dtype="<f4"), 9).tobytes()

    def logits(name: str, code: ErrorCode, where: str, field: str, value: Any) -> None:
        made.edit(name, code, where, rechecked(put("logits", field, value=value)), "hidden_f32_logits")

    def drafts(name: str, code: ErrorCode, where: str, *path: Any, value: Any) -> None:
        made.edit(name, code, where, rechecked(put(*path, value=value)), "draft")

    made.edit("logits_missing", mismatch, "logits", put("logits", value=None), "hidden_f32_logits")
    made.edit("logits_not_asked_for", mismatch, "logits", put("logits", value={}))
    zeros = put("logits", "xxh3_128", value="0" * 32)
    made.edit("logits_checksum", ErrorCode.CHECKSUM_MISMATCH, "logits.xxh3_128", zeros, "hidden_f32_logits")
    logits("logits_other_k", mismatch, "logits.top_k", "top_k", 3)
    logits("logits_fewer_rows", mismatch, "logits.argmax_ids", "argmax_ids", ints(1, 2, 3))
    logits("logits_id_outside", mismatch, "logits.argmax_ids", "argmax_ids", ints(0, 1, 2, 3, 4, 5, 64))
    logits("logits_ascending", mismatch, "logits.top_logprobs", "top_logprobs", ascending[: 14 * 4])
    logits("logits_nan", ErrorCode.NON_FINITE_PAYLOAD, "logits.top_logprobs", "top_logprobs", nan)
    logits("logits_next_of_nothing", mismatch, "logits.next_logprobs", "next_logprobs", bytes(4 * 7))
    logits("logits_next_missing", mismatch, "logits.next_logprobs", "next_logprobs", None)

    drafts("draft_of_another_drafter", mismatch, "drafter.name", "drafter", "name", value="step30k")
    drafts("draft_of_no_columns", mismatch, "drafter.drafts", "drafter", "drafts", value=0)
    drafts("draft_other_width", mismatch, "token_ids", "drafter", "drafts", value=4)
    drafts("draft_other_anchors", mismatch, "anchors", "anchors", value=ints(3, 4, 5))
    drafts("draft_anchors_descending", mismatch, "anchors", "anchors", value=ints(4, 3, 6))
    drafts("draft_anchor_zero", mismatch, "anchors", "anchors", value=ints(0, 4, 6))
    drafts("draft_other_k", mismatch, "top_ids", "top_ids", value=ints(*range(27)))
    drafts("draft_ragged_k", mismatch, "top_ids", "top_ids", value=ints(*range(17)))
    drafts("draft_negative_id", mismatch, "token_ids", "token_ids", value=ints(1, 2, 3, 4, -5, 6, 7, 8, 9))
    drafts("draft_fewer_logprobs", mismatch, "top_logprobs", "top_logprobs", value=ascending[: 17 * 4])
    drafts("draft_ascending", mismatch, "top_logprobs", "top_logprobs", value=ascending)
    drafts("draft_nan", ErrorCode.NON_FINITE_PAYLOAD, "top_logprobs", "top_logprobs", value=nan + nan[:16])
    zeros = put("xxh3_128", value="0" * 32)
    made.edit("draft_checksum", ErrorCode.CHECKSUM_MISMATCH, "xxh3_128", zeros, "draft")

    def acceptances(name: str, code: ErrorCode, where: str, *path: Any, value: Any) -> None:
        made.edit(name, code, where, rechecked(put(*path, value=value)), "acceptance")

    rates = np.full(9, 0.5, dtype="<f4")
    for name, wrong in (("above_one", 1.01), ("below_zero", -0.5)):
        rates[4] = wrong
        acceptances(f"acceptance_{name}", mismatch, "sampled", "sampled", value=rates.tobytes())
    acceptances("acceptance_nan", ErrorCode.NON_FINITE_PAYLOAD, "greedy", "greedy", value=nan + rates.tobytes()[4:])
    acceptances("acceptance_too_few", mismatch, "greedy", "greedy", value=rates.tobytes()[:-4])
    acceptances("acceptance_of_another_drafter", mismatch, "drafter.name", "drafter", "name", value="step30k")
    acceptances("acceptance_other_anchors", mismatch, "anchors", "anchors", value=ints(3, 4, 5))
    made.edit("acceptance_checksum", ErrorCode.CHECKSUM_MISMATCH, "xxh3_128", zeros, "acceptance")
    made.edit(
        "acceptance_schema_of_a_draft",
        ErrorCode.SCHEMA_UNKNOWN,
        "schema",
        put("schema", value="tauscope.draft/1"),
        "acceptance",
    )


def files() -> dict[str, bytes]:
    """Every file of the corpus by its name relative to this folder."""
    made = refused()
    contents = {f"{name}.msgpack": make() for name, make in SUCCESS.items()}
    contents |= {f"refused/{name}.msgpack": body for name, body in made.bodies.items()}
    contents["refused.json"] = (json.dumps(made.expected, indent=1) + "\n").encode()
    return contents


def main() -> None:
    """Write the corpus."""
    (FOLDER / "refused").mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
