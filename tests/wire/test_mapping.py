"""Files of states that a reader maps: only the very file that the service named, whole and undamaged."""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tauscope_wire.checksums import digest_of
from tauscope_wire.errors import ErrorCode, TauscopeError
from tauscope_wire.mapping import FILE_SCHEMA, map_states
from tauscope_wire.messages import HiddenFile, ModelInfo, Numerics

TOKEN = "5c" * 16
STATES = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
IDS = np.asarray([7, 8, 9, 10], np.int32)
MODEL = ModelInfo(
    id="m", revision="r", config_sha256="c", num_layers=6, hidden_size=4, vocab_size=50, stop_token_ids=[1]
)
NUMERICS = Numerics(
    revision="r",
    compute_dtype="float32",
    weights_dtype="float32",
    device="cpu",
    torch="2",
    transformers="5",
    attention="sdpa",
    weights_mode="cpu",
)


def content(
    array: np.ndarray = STATES, *, tag: str = "F32", digest: str | None = None, **changes: Any
) -> tuple[bytes, int]:
    """A file by hand from SPEC.md, and where its data begins; `changes` replace parts of the header."""
    nbytes = array.nbytes
    facts = {"digest": digest or digest_of(array), "planes": [1, 3], "start": 0}
    header = {
        "__metadata__": {"schema": FILE_SCHEMA, "token": TOKEN, "facts": json.dumps(facts)},
        "states": {"dtype": tag, "shape": list(array.shape), "data_offsets": [0, nbytes]},
        "token_ids": {"dtype": "I32", "shape": [4], "data_offsets": [nbytes, nbytes + 16]},
    } | changes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + array.tobytes() + IDS.tobytes(), 8 + len(text)


def named(path: Path, *, body: tuple[bytes, int] | None = None, **changes: Any) -> HiddenFile:
    """The service's answer about the file, `changes` apart."""
    data, offset = body or content()
    fields: dict[str, Any] = {
        "handle": "h",
        "model": MODEL,
        "numerics": NUMERICS,
        "planes": [1, 3],
        "dtype": "float32",
        "positions": (0, 3),
        "shape": (2, 3, 4),
        "num_tokens": 4,
        "digest": digest_of(STATES),
        "path": str(path),
        "nbytes": len(data),
        "offset": offset,
        "lease_s": 10.0,
    }
    return HiddenFile(**(fields | changes))


def written(folder: Path, data: bytes, *, mode: int = 0o600) -> Path:
    file = folder / f"{TOKEN}.safetensors"
    file.write_bytes(data)
    file.chmod(mode)
    return file


def refusal(answer: HiddenFile) -> ErrorCode:
    with pytest.raises(TauscopeError) as caught:
        map_states(answer)
    assert "over HTTP" in caught.value.message or caught.value.code is ErrorCode.CHECKSUM_MISMATCH
    return caught.value.code


def test_the_states_are_those_of_the_file_and_stay_when_it_is_removed(tmp_path: Path) -> None:
    file = written(tmp_path, content()[0])
    mapped = map_states(named(file))
    file.unlink()
    np.testing.assert_array_equal(mapped.states, STATES)
    np.testing.assert_array_equal(mapped.token_ids, IDS)


def test_bfloat16_states_are_mapped_as_they_are(tmp_path: Path) -> None:
    states = STATES.astype(ml_dtypes.bfloat16)
    body = content(states, tag="BF16")
    mapped = map_states(named(written(tmp_path, body[0]), body=body, dtype="bfloat16", digest=digest_of(states)))
    np.testing.assert_array_equal(mapped.states.view(np.uint16), states.view(np.uint16))


def test_a_write_to_the_mapped_states_never_reaches_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, content()[0])
    mapped = map_states(named(file))
    mapped.states[:] = -1.0
    assert file.read_bytes() == content()[0]


def test_a_file_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    assert refusal(named(tmp_path / f"{TOKEN}.safetensors")) is ErrorCode.UNREACHABLE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_could_touch_is_not_read(tmp_path: Path, mode: int) -> None:
    assert refusal(named(written(tmp_path, content()[0], mode=mode))) is ErrorCode.UNREACHABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    file = written(tmp_path, content()[0])
    os.chown(file, 12345, -1)
    assert refusal(named(file)) is ErrorCode.UNREACHABLE


def test_a_link_is_not_followed_and_a_pipe_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / f"{TOKEN}.safetensors"
    link.symlink_to(written(tmp_path, content()[0]))
    assert refusal(named(link)) is ErrorCode.UNREACHABLE
    (tmp_path / "pipe").mkdir()
    pipe = tmp_path / "pipe" / f"{TOKEN}.safetensors"
    os.mkfifo(pipe, 0o600)
    assert refusal(named(pipe)) is ErrorCode.LABEL_MISMATCH


@pytest.mark.parametrize("path", ["/etc/passwd", f"{TOKEN}.safetensors", f"/dev/shm/../{TOKEN}.bin", "/"])
def test_a_path_that_names_no_file_of_states_is_not_opened(path: str) -> None:
    assert refusal(named(Path(path))) is ErrorCode.LABEL_MISMATCH


@pytest.mark.parametrize("keep", [0, 7, 60, -1])
def test_a_file_of_another_size_is_refused(tmp_path: Path, keep: int) -> None:
    data = content()[0][:keep]
    file = written(tmp_path, data)
    assert refusal(named(file)) is ErrorCode.LABEL_MISMATCH
    assert refusal(named(file, nbytes=len(data))) is ErrorCode.LABEL_MISMATCH  # also when the service agrees


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    data = bytearray(content()[0])
    data[-20] ^= 1
    assert refusal(named(written(tmp_path, bytes(data)))) is ErrorCode.CHECKSUM_MISMATCH


@pytest.mark.parametrize(
    "changes",
    [
        {"__metadata__": {"schema": "tauscope.spill/1", "token": TOKEN, "facts": "{}"}},
        {
            "__metadata__": {
                "schema": FILE_SCHEMA,
                "token": "00" * 16,
                "facts": '{"digest": "", "planes": [], "start": 0}',
            }
        },
        {"__metadata__": {"schema": FILE_SCHEMA, "token": TOKEN, "facts": "[]"}},
        {"__metadata__": {"schema": FILE_SCHEMA, "token": TOKEN}},
        {"__metadata__": 5},
        {"states": {"dtype": "F32", "shape": [3, 2, 4], "data_offsets": [0, 96]}},
        {"states": {"dtype": "I32", "shape": [2, 3, 4], "data_offsets": [0, 96]}},
        {"token_ids": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}},
        {"another": {"dtype": "I32", "shape": [0], "data_offsets": [112, 112]}},
    ],
)
def test_a_file_whose_header_describes_something_else_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    body = content(**changes)
    assert refusal(named(written(tmp_path, body[0]), body=body)) is ErrorCode.LABEL_MISMATCH


@pytest.mark.parametrize("text", [b"{" * 64, b"[" * 200_000, b"\xff" * 64, b"5" + b" " * 63])
def test_a_header_that_is_no_map_is_refused(tmp_path: Path, text: bytes) -> None:
    data = len(text).to_bytes(8, "little") + text + STATES.tobytes() + IDS.tobytes()
    assert refusal(named(written(tmp_path, data), body=(data, 8 + len(text)))) is ErrorCode.LABEL_MISMATCH


def test_a_header_longer_than_any_of_ours_is_not_read(tmp_path: Path) -> None:
    data = (1 << 40).to_bytes(8, "little") + content()[0][8:]
    assert refusal(named(written(tmp_path, data))) is ErrorCode.LABEL_MISMATCH


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "0" * 32},
        {"planes": [3, 1]},
        {"planes": [1]},
        {"positions": (1, 4)},
        {"positions": (0, 2)},
        {"shape": (3, 2, 4)},
        {"shape": (2, 3, -4)},
        {"shape": (0, 0, 4), "planes": [], "positions": (0, 0)},
        {"num_tokens": 3},
        {"num_tokens": -1},
        {"dtype": "bfloat16"},
        {"offset": 0},
    ],
)
def test_an_answer_that_contradicts_the_file_or_itself_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert refusal(named(written(tmp_path, content()[0]), **changes)) is ErrorCode.LABEL_MISMATCH
