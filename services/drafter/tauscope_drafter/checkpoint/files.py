"""Opening checkpoint files without running code from them and without reading more than is asked for.

Safetensors (one file, or shards with an index) are read tensor by tensor. Pickled files (`.pt`, `.pth`, `.bin`,
`.ckpt`) are opened with `weights_only=True` and memory-mapped, so that optimizer state beside the weights costs no
memory; one that wants to run code is refused, always.
"""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

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
# Keys under which trainers keep the weights, in the order in which they are tried (drafters.md 7.7).
STATE_KEYS = (
    "draft_state_dict",
    "model_state_dict",
    "state_dict",
    "model",
    "module",
    "draft_model",
    "net",
    "ema",
)
_MAX_NESTING = 3
# A legacy (non-zip) pickle cannot be mapped; larger ones would double in memory without a word.
_MAX_UNMAPPED_BYTES = 4 << 30


class TensorInfo(NamedTuple):
    """What a file says about a tensor before its data are read."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class TensorFile(Protocol):
    """Tensors of one checkpoint by the names the file uses."""

    paths: tuple[Path, ...]

    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors, data unread."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor on the host; may alias a memory map, so never write to it."""
        ...


def find_files(path: Path) -> tuple[Path, ...]:
    """The weight files that `path` (a file or a folder) means.

    Raises:
        CheckpointError: nothing there, or several files without an index to say which.
    """
    if path.is_file():
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
    if (path / ".metadata").is_file() or (path / "model" / ".metadata").is_file():
        raise CheckpointError(
            f"{path}: a torch.distributed checkpoint, whose index is a pickle that would have to be trusted; "
            "export it to one file with the trainer's own extraction script and give that",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
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
    kinds = {p.suffix == ".safetensors" for p in files}
    if kinds == {True}:
        return SafetensorsFiles(files)
    if kinds == {False}:
        return PickleFiles(files)
    raise CheckpointError(f"{path}: safetensors and pickled shards mixed", ErrorCode.CHECKPOINT_UNSUPPORTED)


class SafetensorsFiles:
    """One safetensors file or the shards of one checkpoint."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._where: dict[str, Path] = {}
        self._infos: dict[str, TensorInfo] = {}
        for path in paths:
            with self._open(path) as file:
                for name in file.keys():  # noqa: SIM118  (a safetensors handle is no mapping)
                    view = file.get_slice(name)
                    dtype, shape = view.get_dtype(), tuple(view.get_shape())
                    size = torch.Size(shape).numel() * max(1, _bits(dtype) // 8)
                    self._infos[name], self._where[name] = TensorInfo(shape, dtype, size), path

    @staticmethod
    def _open(path: Path) -> Any:
        try:
            return safe_open(str(path), framework="pt")
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path}: not a valid safetensors file ({error})") from error

    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors of all shards."""
        return self._infos

    def read(self, name: str) -> Tensor:
        """One tensor."""
        with self._open(self._where[name]) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of one tensor; only these are read."""
        with self._open(self._where[name]) as file:
            tensor: Tensor = file.get_slice(name)[start:stop]
        return tensor


class PickleFiles:
    """Pickled checkpoints, mapped into memory; only tensors and plain containers are ever built."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._tensors: dict[str, Tensor] = {}
        self.state_key = ""
        for path in paths:
            found, key = _tensor_dict(_load_pickle(path), path)
            self._tensors |= found
            self.state_key = key

    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors of the weights' dictionary."""
        return {
            name: TensorInfo(tuple(t.shape), str(t.dtype).removeprefix("torch."), t.nbytes)
            for name, t in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        """One tensor, still backed by the file."""
        return self._tensors[name]


def _load_pickle(path: Path) -> Any:
    if not zipfile.is_zipfile(path):
        return _load_unmapped(path)  # the format of before PyTorch 1.6, or damaged
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: the pickle holds more than tensors and plain containers and is refused, as loading it would run "
            f"code ({_first_line(error)}); save the state dict alone, or as safetensors",
            ErrorCode.CHECKPOINT_UNSAFE,
        ) from error
    except Exception as error:  # the reader raises almost anything on a damaged file
        raise CheckpointError(f"{path}: not a readable PyTorch file ({_first_line(error)})") from error


def _load_unmapped(path: Path) -> Any:
    size = path.stat().st_size
    if size > _MAX_UNMAPPED_BYTES:
        raise CheckpointError(
            f"{path}: {size} bytes in the old PyTorch format, which cannot be memory-mapped (limit "
            f"{_MAX_UNMAPPED_BYTES}); save it again with a current torch.save",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused, as loading it would run code ({_first_line(error)})", ErrorCode.CHECKPOINT_UNSAFE
        ) from error
    except Exception as error:  # the legacy reader raises almost anything on a damaged file
        raise CheckpointError(f"{path}: not a readable PyTorch file ({_first_line(error)})") from error


def _tensor_dict(value: Any, path: Path) -> tuple[dict[str, Tensor], str]:
    """The dictionary of weights inside what a trainer saved, and the key it was under (7.7 step 2)."""
    key_path: list[str] = []
    for _ in range(_MAX_NESTING):
        if not isinstance(value, Mapping):
            break
        if value and all(isinstance(v, Tensor) for v in value.values()):
            return {str(k): v for k, v in value.items()}, ".".join(key_path)
        key = next((k for k in STATE_KEYS if isinstance(value.get(k), Mapping)), None)
        if key is None:
            break
        key_path.append(key)
        value = value[key]
    if isinstance(value, Mapping):
        tensors = {str(k): v for k, v in value.items() if isinstance(v, Tensor)}
        if key_path and tensors:  # a state dict with a stray entry (`_metadata`, a counter) is still one
            return tensors, ".".join(key_path)
        keys = ", ".join(map(repr, list(value)[:12]))
        raise CheckpointError(
            f"{path}: no dictionary of weights found; looked for {', '.join(STATE_KEYS)}, the file has "
            f"{keys or 'nothing'}",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    raise CheckpointError(
        f"{path}: holds a {type(value).__name__}, not a dictionary of weights", ErrorCode.CHECKPOINT_UNSUPPORTED
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _bits(dtype: str) -> int:
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) if digits else 8
