"""What is shipped of a file, checked against the real libraries that read the result."""

import contextlib
import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from tauscope_client.ship import safetensors_content, torch_content, torch_pickle
from tauscope_client.ship.content import Content, Made, Segment, Stored
from tauscope_wire.errors import CheckpointError


def assemble(content: Content, source: bytes, start: int = 0) -> bytes:
    """The destination file, as a relay would write it."""
    parts = []
    for _, segment in content.placed(start):
        stored = isinstance(segment, Stored)
        parts.append(source[segment.offset : segment.offset + segment.nbytes] if stored else segment.data)
    return b"".join(parts)


segments = st.lists(
    st.one_of(st.builds(Stored, st.integers(0, 80), st.integers(0, 20)), st.builds(Made, st.binary(max_size=20)))
)


@given(parts=segments, cut=st.integers(0, 300))
def test_content_from_any_place_on_is_the_rest_of_the_whole(parts: list[Segment], cut: int) -> None:
    source = bytes(range(100))
    plain = b"".join(source[p.offset : p.offset + p.nbytes] if isinstance(p, Stored) else p.data for p in parts)
    content = Content(parts)
    assert content.nbytes == len(plain)
    assert assemble(content, source) == plain
    assert assemble(content, source, cut) == plain[cut:]
    places = [place for place, _ in content.placed()]
    assert places == sorted(set(places))


def ranges_of(data: bytes):
    def read_ranges(ranges: Sequence[Stored]) -> bytes:
        return b"".join(data[r.offset : r.offset + r.nbytes] for r in ranges)

    return read_ranges


def saved(value: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def loaded(data: bytes) -> object:
    return torch.load(io.BytesIO(data), weights_only=True)


def training_checkpoint() -> dict[str, object]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))
    state = OrderedDict(model.state_dict())
    state["tied"] = state["0.weight"]
    state["view"] = state["0.weight"][2:5, ::2]
    state["half"] = torch.randn(3, dtype=torch.bfloat16)
    state["ids"] = torch.arange(5)
    state["scalar"] = torch.tensor(7)
    state["empty"] = torch.zeros(0, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    return {
        "model_state_dict": state,
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler": {"last": 3, "buffer": torch.zeros(1000)},
        "inner": {"param_groups": [], "state": {0: torch.zeros(1000)}},
        "rng_state": torch.get_rng_state(),
        "step": 20000,
        "big": 1 << 40,
        "minus": -(1 << 33),
        "loss": 0.125,
        "is_final": False,
        "nothing": None,
        "config": {"taps": [1, 16, 31], "name": "drafter \u00e9", "range": (0, 1.5, True)},
    }


def test_a_training_checkpoint_keeps_model_and_plain_values_and_loses_the_optimizer() -> None:
    whole = training_checkpoint()
    data = saved(whole)
    selection = torch_content.model_part("x.pt", len(data), ranges_of(data))
    small = assemble(selection.content, data)
    kept = loaded(small)
    assert isinstance(kept, dict)
    assert set(kept) == set(whole) - {"optimizer_state_dict", "scheduler", "inner"}
    assert set(selection.dropped) == {"optimizer_state_dict", "scheduler", "inner"}
    for name in ("step", "big", "minus", "loss", "is_final", "nothing", "config"):
        assert kept[name] == whole[name]
    assert isinstance(kept["model_state_dict"], OrderedDict)
    assert list(kept["model_state_dict"]) == list(whole["model_state_dict"])
    for name, tensor in whole["model_state_dict"].items():
        found = kept["model_state_dict"][name]
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)
    tied = kept["model_state_dict"]
    assert tied["tied"].untyped_storage().data_ptr() == tied["0.weight"].untyped_storage().data_ptr()
    assert len(small) < len(data)


def test_the_result_can_be_mapped_and_its_data_are_aligned(tmp_path: Path) -> None:
    data = saved(training_checkpoint())
    path = tmp_path / "small.pt"
    path.write_bytes(assemble(torch_content.model_part("x.pt", len(data), ranges_of(data)).content, data))
    kept = torch.load(path, weights_only=True, mmap=True)
    assert all(t.data_ptr() % t.element_size() == 0 for t in kept["model_state_dict"].values())


@pytest.mark.parametrize(
    "value",
    [
        {"a": torch.ones(3)},
        OrderedDict(a=torch.nn.Parameter(torch.ones(2, 2))),
        torch.arange(4.0),
        {"model": {"inner": {"w": torch.ones(2, dtype=torch.float16)}}},
        {"model": {"w": torch.ones(2).to(torch.float8_e4m3fn)}},
        {"model": {"w": torch.ones(2, dtype=torch.uint16)}},
    ],
)
def test_other_forms_of_checkpoints_come_through_equal(value: object) -> None:
    data = saved(value)
    kept = loaded(assemble(torch_content.model_part("x.pt", len(data), ranges_of(data)).content, data))

    def same(left: object, right: object) -> bool:
        if isinstance(left, dict):
            return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
        return left.dtype == right.dtype and torch.equal(left.float(), right.float())

    assert type(kept) is type(value)
    assert same(value, kept)


class Evil:
    """Would write a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.path, "w")


def test_nothing_that_a_pickle_names_is_run_and_objects_are_left_out(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    data = saved({"model": {"w": torch.ones(2)}, "args": Evil(str(trap)), "step": 3})
    trap.unlink(missing_ok=True)
    selection = torch_content.model_part("x.pt", len(data), ranges_of(data))
    assert not trap.exists()
    assert selection.dropped == ("args",)
    kept = loaded(assemble(selection.content, data))
    assert kept["step"] == 3


def test_a_name_that_would_become_opcodes_is_refused() -> None:
    smuggled = b"\x80\x04\x8c\x0ctorch._utils\x8c\x14_rebuild_x\ncos\nsystem\x93)R."
    with pytest.raises(CheckpointError, match="cannot be read"):
        torch_pickle.load("x.pt", smuggled)


@pytest.mark.parametrize("opcode", [b"r\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f"])
def test_a_pickle_that_asks_for_gigabytes_is_refused(opcode: bytes) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        torch_pickle.load("x.pt", b"\x80\x02}" + opcode + b".")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a zip archive"),
        (b"PK\x05\x06" + b"\xff" * 18, "damaged archive"),
        (saved({"a": torch.ones(3)}, _use_new_zipfile_serialization=False), "not a zip archive"),
        (saved({"a": torch.ones(3)})[:-100], "not a zip archive"),
        (saved({"step": 3}), "no model tensors"),
    ],
)
def test_what_is_no_checkpoint_is_said_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        torch_content.model_part("x.pt", len(data), ranges_of(data))
    assert "\n" not in str(caught.value)


@given(data=st.data())
def test_damaged_archives_end_in_one_error_and_never_in_a_defect(data: st.DataObject) -> None:
    good = bytearray(DAMAGED_BASE)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        torch_content.model_part("x.pt", len(good), ranges_of(bytes(good)))


DAMAGED_BASE = saved({"model": {"w": torch.ones(2)}, "step": 3})


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=20,
    )
)
def test_plain_values_survive_writing_and_reading(value: object) -> None:
    data = torch_pickle.dump(value)
    assert pickle.loads(data) == value
    assert torch_pickle.load("x", data) == value


def test_a_safetensors_file_of_weights_alone_is_shipped_as_it_is() -> None:
    data = safetensors.torch.save({"w": torch.ones(2, 3)}, {"format": "pt"})
    selection = safetensors_content.model_part("x", len(data), lambda o, n: data[o : o + n])
    assert selection.content.segments == (Stored(0, len(data)),)


def test_a_safetensors_file_loses_what_belongs_to_the_trainer() -> None:
    tensors = {
        "layers.0.w": torch.randn(4, 5),
        "optimizer.state.0.exp_avg": torch.randn(4, 5),
        "layers.1.w": torch.randn(3).to(torch.bfloat16),
        "layers.1.w.exp_avg_sq": torch.randn(3),
        "optimus.w": torch.randn(2),
    }
    data = safetensors.torch.save(tensors, {"format": "pt", "step": "3"})
    selection = safetensors_content.model_part("x", len(data), lambda o, n: data[o : o + n])
    small = assemble(selection.content, data)
    kept = safetensors.torch.load(small)
    assert set(kept) == {"layers.0.w", "layers.1.w", "optimus.w"}
    assert all(torch.equal(kept[name], tensors[name]) for name in kept)
    header = json.loads(small[8 : 8 + int.from_bytes(small[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", "step": "3"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 20,
        b"\x02\x00\x00\x00\x00\x00\x00\x00[]",
        b"\x09\x00\x00\x00\x00\x00\x00\x00" + b'{"a": {}}',
    ],
)
def test_what_is_no_safetensors_file_is_said(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        safetensors_content.model_part("x", len(data), lambda o, n: data[o : o + n])


def test_a_safetensors_file_that_was_cut_is_said() -> None:
    data = safetensors.torch.save({"w": torch.ones(20)})[:-8]
    with pytest.raises(CheckpointError, match="cut short"):
        safetensors_content.model_part("x", len(data), lambda o, n: data[o : o + n])
