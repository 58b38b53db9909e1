"""Opening files: formats, shards, nesting, and files that must not be opened."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tauscope_drafter.checkpoint.files import open_tensors
from tauscope_wire.errors import CheckpointError, ErrorCode

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def contents(path: Path) -> dict[str, torch.Tensor]:
    file = open_tensors(path)
    for name, info in file.infos().items():
        tensor = file.read(name)
        assert tuple(tensor.shape) == info.shape
        assert tensor.nbytes == info.nbytes
    return {name: file.read(name) for name in file.infos()}


def assert_holds(path: Path) -> None:
    found = contents(path)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], t) for name, t in TENSORS.items())


def test_one_safetensors_file_is_found_in_its_folder_and_by_its_path(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_holds(tmp_path)
    assert_holds(tmp_path / "model.safetensors")


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_are_joined_through_their_index(tmp_path: Path, suffix: str) -> None:
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = {name: f"{stem}-{i}.{suffix}" for i, name in enumerate(TENSORS)}
    for name, file in names.items():
        one = {name: TENSORS[name]}
        if suffix == "safetensors":
            save_file(one, tmp_path / file)
        else:
            torch.save(one, tmp_path / file)
    (tmp_path / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": names}))
    assert_holds(tmp_path)


@pytest.mark.parametrize(
    "wrapped",
    [
        TENSORS,
        {"model_state_dict": TENSORS, "optimizer_state_dict": {"state": {0: {"exp_avg": torch.ones(2)}}}, "step": 3},
        {"draft_state_dict": TENSORS, "global_step": 7, "strategy": "dflash"},
        {"state_dict": TENSORS, "epoch": 1, "args": {"lr": 0.1}},
        {"model": {"module": TENSORS}, "scheduler": {}},
        {"ema": TENSORS, "rng": torch.zeros(3, dtype=torch.uint8)},
    ],
    ids=["bare", "model_state_dict", "draft_state_dict", "state_dict", "nested", "ema"],
)
def test_the_weights_are_found_wherever_a_trainer_put_them(tmp_path: Path, wrapped: Any) -> None:
    torch.save(wrapped, tmp_path / "checkpoint.pt")
    assert_holds(tmp_path / "checkpoint.pt")


def test_optimizer_files_beside_the_weights_are_no_ambiguity(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "weights.pt")
    torch.save({"state": {}}, tmp_path / "optimizer_state_dict.pt")
    torch.save({"rng": 1}, tmp_path / "rng.pt")
    assert_holds(tmp_path)


def test_the_old_file_format_is_read_without_a_memory_map(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_holds(tmp_path / "old.pt")


class RunsCode:
    """Unpickling it would create a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_wants_to_run_code_is_refused_and_does_not_run(tmp_path: Path, zipped: bool) -> None:
    marker = tmp_path / "ran"
    state = {"model_state_dict": TENSORS, "extra": RunsCode(marker)}
    torch.save(state, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="refused") as caught:
        open_tensors(tmp_path / "evil.pt")
    assert caught.value.code is ErrorCode.CHECKPOINT_UNSAFE
    assert not marker.exists()


def test_a_bare_pickle_is_refused_as_well(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(RunsCode(marker)))
    with pytest.raises(CheckpointError):
        open_tensors(tmp_path / "evil.pt")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 64),
        ("model.safetensors", (10**12).to_bytes(8, "little") + b"{}"),
        ("model.pt", b""),
        ("model.pt", b"PK\x03\x04 not really a zip file"),
        ("model.pt", b"\x80\x02garbage"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        open_tensors(tmp_path / name)


@pytest.mark.parametrize("size", [0, 4, 100, 2000])
def test_a_truncated_file_is_one_clear_error_that_ends_with_what_to_do(tmp_path: Path, size: int) -> None:
    torch.save({"w": torch.zeros(1000)}, tmp_path / "cut.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "cut.pt").read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"cut\.pt") as caught:
        open_tensors(tmp_path / "cut.pt")
    assert caught.value.code is ErrorCode.CHECKPOINT_CORRUPT
    assert caught.value.message.endswith("); it is damaged or was cut short, copy it again")
    assert "likelihood" not in caught.value.message  # torch's own advice, which used to be cut in its middle


def test_an_index_may_not_point_outside_of_its_folder(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "outside.safetensors")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"b": "../outside.safetensors"}}))
    with pytest.raises(CheckpointError) as caught:
        open_tensors(inner)
    assert caught.value.code is ErrorCode.CHECKPOINT_UNSAFE


@pytest.mark.parametrize(
    ("files", "code", "message"),
    [
        ([], ErrorCode.CHECKPOINT_MISSING, "no .safetensors"),
        (["a.safetensors", "b.safetensors"], ErrorCode.CHECKPOINT_AMBIGUOUS, "2 weight files"),
        ([".metadata"], ErrorCode.CHECKPOINT_CORRUPT, "not the index of a torch.distributed"),
    ],
)
def test_a_folder_that_does_not_say_which_file_lists_the_choices(
    tmp_path: Path, files: list[str], code: ErrorCode, message: str
) -> None:
    for name in files:
        save_file(TENSORS, tmp_path / name)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_tensors(tmp_path)
    assert caught.value.code is code


def test_a_file_without_weights_says_what_it_has(tmp_path: Path) -> None:
    torch.save({"lr": 0.1, "history": [1, 2]}, tmp_path / "log.pt")
    with pytest.raises(CheckpointError, match="'lr', 'history'"):
        open_tensors(tmp_path / "log.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="holds a list"):
        open_tensors(tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="no such file"):
        open_tensors(tmp_path / "nothing.pt")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(1 << 20, 1 << 20),
        torch.zeros(64, 64).to_sparse(),
        torch.zeros(8, 8, device="meta"),
    ],
    ids=["expanded", "sparse", "meta"],
)
def test_a_tensor_larger_than_the_bytes_behind_it_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save({"model_state_dict": {"fc.weight": tensor}}, tmp_path / "bomb.pt")
    with pytest.raises(CheckpointError, match=r"fc\.weight claims|not a readable"):
        open_tensors(tmp_path / "bomb.pt")
