"""Opening checkpoint files without running code from them and without reading more than is asked for.

Safetensors (one file, or shards with an index) are read tensor by tensor. Pickled files (`.pt`, `.pth`, `.bin`,
`.ckpt`) are opened with `weights_only=True` and memory-mapped, so that optimizer state beside the weights costs no
memory; one that wants to run code is refused, always. Folders of torch.distributed are in `distributed`.
"""

import json
from pathlib import Path
from typing import Any

from tauscope_drafter.checkpoint.distributed import INDEX_NAME, DistributedFiles
from tauscope_drafter.checkpoint.pickles import PickleFiles
from tauscope_drafter.checkpoint.safetensors_files import SafetensorsFiles
from tauscope_drafter.checkpoint.tensor_file import TensorFile
from tauscope_wire.errors import CheckpointError, ErrorCode

PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
# Files that trainers put beside the weights; never the weights themselves.
_NOT_WEIGHTS = (
    "optimizer",
    "scheduler",
    "rng",
    "scaler",
    "training_args",
    "training_state_rank",
    "training_state.rank",
)


def find_files(path: Path) -> tuple[Path, ...]:
    """The weight files that `path` (a file or a folder) means.

    Raises:
        CheckpointError: nothing there, or several files without an index to say which.
    """
    if path.is_file():
        if path.name == INDEX_NAME:
            return find_files(path.parent)
        return _shards(path) if path.name.endswith(".index.json") else (path,)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder", ErrorCode.CHECKPOINT_MISSING)
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (path / name).is_file():
            return _shards(path / name)
    for name in ("model.safetensors", "training_state.pt", "pytorch_model.bin"):
        if (path / name).is_file():
            return (path / name,)
    found = sorted(
        p
        for p in path.iterdir()
        if p.suffix in (".safetensors", *PICKLE_SUFFIXES) and not p.name.startswith(_NOT_WEIGHTS)
    )
    if len(found) == 1:
        return (found[0],)
    if found:
        names = ", ".join(p.name for p in found[:8])
        raise CheckpointError(
            f"{path}: {len(found)} weight files and no index ({names}); give the path of one file",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    for folder in (path, path / "model"):
        if (folder / INDEX_NAME).is_file():
            return (folder / INDEX_NAME, *sorted(folder.glob("*.distcp")))
    raise CheckpointError(
        f"{path}: no .safetensors, .pt, .pth, .bin or .ckpt file in the folder", ErrorCode.CHECKPOINT_MISSING
    )


def _shards(index: Path) -> tuple[Path, ...]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map in the index", ErrorCode.CHECKPOINT_CORRUPT)
    shards = []
    for name in sorted(set(weight_map.values())):
        # An index is data from outside: a shard must lie beside it.
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index}: shard {name!r} is not a file name", ErrorCode.CHECKPOINT_UNSAFE)
        if not (index.parent / name).is_file():
            raise CheckpointError(
                f"{index.parent / name}: listed in {index.name}, missing", ErrorCode.CHECKPOINT_MISSING
            )
        shards.append(index.parent / name)
    return tuple(shards)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, with the file named in every error."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing", ErrorCode.CHECKPOINT_MISSING) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})", ErrorCode.CHECKPOINT_CORRUPT) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a JSON object is expected", ErrorCode.CHECKPOINT_CORRUPT)
    return value


def open_tensors(path: Path) -> TensorFile:
    """Open what `find_files` found; data stay on disk."""
    files = find_files(path)
    if files[0].name == INDEX_NAME:
        return DistributedFiles(files)
    kinds = {p.suffix == ".safetensors" for p in files}
    if kinds == {True}:
        return SafetensorsFiles(files)
    if kinds == {False}:
        return PickleFiles(files)
    raise CheckpointError(f"{path}: safetensors and pickled shards mixed", ErrorCode.CHECKPOINT_UNSUPPORTED)
