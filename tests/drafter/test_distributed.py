"""Folders of torch.distributed.checkpoint, as TorchSpec writes them: read without trusting their index."""

import json
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from kit import drafters
from tauscope_drafter.checkpoint.conversion import convert
from tauscope_drafter.checkpoint.files import open_tensors
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.loading import load, open_place
from tauscope_wire.errors import CheckpointError, ErrorCode

RENAMED = {"fc.": "context_proj.", "hidden_norm.": "context_norm.", "norm.": "final_norm."}


def torchspec_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    flat = {}
    for name, tensor in tensors.items():
        start = next((s for s in RENAMED if name.startswith(s)), "")
        flat[RENAMED.get(start, "") + name.removeprefix(start)] = tensor
    return flat


def save(folder: Path, state: Mapping[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is one process only
        dcp.save(dict(state), checkpoint_id=folder, no_dist=True)
    return folder


def iteration(root: Path) -> Path:
    """`iter_..` of TorchSpec: the model in a folder of its own, other state beside it."""
    folder = root / "iter_0000100"
    drafter = torchspec_names(drafters.dflash_tensors()) | {"t2d": torch.zeros(96, dtype=torch.bool)}
    model = {f"draft_model.{name}": t for name, t in drafter.items()}
    save(folder / "model", {"model_state": {"model": model | {"target.embed.weight": torch.zeros(2, 2)}}})
    torch.save({"torch": 0}, folder / "rng.pt")
    own = drafters.dflash_config(block_size=None, dflash_config=None, model_type="dflash", num_target_layers=3)
    own |= {"target_num_hidden_layers": drafters.TARGET_LAYERS, "target_hidden_size": drafters.HIDDEN}
    own |= {"target_layer_ids": list(drafters.TAPS), "mask_token_id": drafters.MASK}
    (folder / "config.json").write_text(json.dumps(own))
    return folder


def drafted(path: Path, options: LoadOptions, target: Path) -> Tensor:
    states, ids = drafters.random_sequence(24)
    drafter = load(path, options, open_place(torch.device("cpu"), torch.float32, target))
    with torch.inference_mode():
        return drafter.network.draft(drafter.network.fuse(states, ids), [5, 20], ids, top_k=4).top_logprobs


def test_an_iteration_of_torchspec_drafts_as_the_plain_file_before_and_after_conversion(tmp_path: Path) -> None:
    folder, target = iteration(tmp_path), drafters.write_target(tmp_path / "target")
    options = LoadOptions(layout="fill-in", block_size=drafters.BLOCK)
    plain = drafters.write_folder(tmp_path / "plain", drafters.dflash_config(), drafters.dflash_tensors())
    wanted = drafted(plain, LoadOptions(), target)
    drafter = load(folder, options, open_place(torch.device("cpu"), torch.float32, target))
    assert (drafter.spec.family, drafter.spec.format, drafter.spec.taps) == ("dflash", "torchspec", drafters.TAPS)
    assert torch.equal(drafted(folder, options, target), wanted)
    convert(folder, tmp_path / "out", options)
    assert torch.equal(drafted(tmp_path / "out", LoadOptions(), target), wanted)


def test_chunks_of_several_ranks_are_put_together(tmp_path: Path) -> None:
    whole = torch.arange(24.0).view(4, 6)
    index = chunked(tmp_path, {(0, 0): whole[:3], (3, 0): whole[3:, :2], (3, 2): whole[3:, 2:]}, (4, 6))
    write(tmp_path, index)
    assert torch.equal(open_tensors(tmp_path).read("w"), whole)
    assert open_tensors(tmp_path / ".metadata").infos()["w"].shape == (4, 6)


def chunked(folder: Path, parts: Mapping[tuple[int, ...], Tensor], shape: tuple[int, ...]) -> Metadata:
    """An index over one data file a chunk, in the classes of torch."""
    chunks, places = [], {}
    for number, (offsets, part) in enumerate(parts.items()):
        file = folder / f"__{number}_0.distcp"
        torch.save(part.clone(), file)
        chunks.append(ChunkStorageMetadata(torch.Size(offsets), part.shape))
        places[MetadataIndex("w", offsets)] = _StorageInfo(file.name, 0, file.stat().st_size)
    tensor = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(shape), chunks)
    return Metadata({"w": tensor}, storage_data=places)


def write(folder: Path, index: Any) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(index))


class Hostile:
    """Unpickled by a trusting reader, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("where", ["root", "inside"])
def test_nothing_that_the_index_names_is_run(tmp_path: Path, where: str) -> None:
    mark = tmp_path / "mark"
    index = chunked(tmp_path, {(0,): torch.ones(2)}, (2,))
    index.planner_data = Hostile(mark)
    write(tmp_path, index if where == "inside" else Hostile(mark))
    if where == "inside":
        assert torch.equal(open_tensors(tmp_path).read("w"), torch.ones(2))
    else:
        with pytest.raises(CheckpointError, match="holds another object"):
            open_tensors(tmp_path)
    assert not mark.exists()
    pickle.loads((tmp_path / ".metadata").read_bytes())
    assert mark.exists()  # the test can fail: another reader would have made it


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path: Path) -> None:
    def refusal(folder: str, change: Any) -> CheckpointError:
        place = tmp_path / folder
        place.mkdir()
        index = chunked(place, {(0,): torch.ones(200)}, (200,))
        change(index, place)
        write(place, index)
        with pytest.raises(CheckpointError) as caught:
            open_tensors(place).read("w")
        return caught.value

    def stored(index: Metadata) -> _StorageInfo:
        found: _StorageInfo = next(iter(index.storage_data.values()))
        return found

    cut = refusal("cut", lambda _, place: (place / "__0_0.distcp").write_bytes(b"PK"))
    assert "it was cut short" in cut.message
    assert cut.code is ErrorCode.CHECKPOINT_CORRUPT
    gone = refusal("gone", lambda _, place: (place / "__0_0.distcp").unlink())
    assert gone.code is ErrorCode.CHECKPOINT_MISSING
    outside = refusal("outside", lambda index, _: setattr(stored(index), "relative_path", "../cut/__0_0.distcp"))
    assert "'../cut/__0_0.distcp' is not beside it" in outside.message
    larger = refusal("larger", lambda index, _: setattr(index.state_dict_metadata["w"], "size", torch.Size((10**12,))))
    assert "do not make up its shape [1000000000000]" in larger.message
    noise = refusal("noise", lambda _, place: (place / "__0_0.distcp").write_bytes(bytes(4096)))
    assert "is not stored as torch.save stores one" in noise.message
    other = refusal("other", lambda _, place: torch.save([torch.ones(200)], place / "__0_0.distcp"))
    assert other.code is ErrorCode.CHECKPOINT_CORRUPT
