"""torch.distributed checkpoints: a folder with an index (`.metadata`, a pickle) and files of saved tensors (`.distcp`).

The index is read without importing anything that it names: every class and function in it becomes an inert record, so a
hostile index can do no more than be refused. The tensors behind it are read one at a time, `weights_only`.
"""

import io
import math
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.pickles import check_storage
from tauscope_drafter.checkpoint.tensor_file import TensorInfo
from tauscope_wire.errors import CheckpointError, ErrorCode

INDEX_NAME = ".metadata"
# An index has some hundred bytes a tensor and rank.
_MAX_INDEX_BYTES = 64 << 20
_WRAPPER = "draft_model."  # trainers keep other networks beside the drafter; its names are those after this word
_MAPS = ("t2d", "d2t")  # TorchSpec's are of no use to a whole vocabulary, and its own extraction leaves them out


class _Record:
    """What a class or function named by the index turns into: it keeps what it is given and does nothing."""

    kind = ""

    def __new__(cls, *_: Any, **__: Any) -> "_Record":
        record = super().__new__(cls)
        record.state = {}
        return record

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Index(pickle.Unpickler):
    """Builds plain containers and records."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return type("_Record", (_Record,), {"kind": name})


class _Chunk(NamedTuple):
    """A rectangle of a tensor, and the bytes of a file that hold it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    start: int
    length: int


class DistributedFiles:
    """Tensors of a torch.distributed checkpoint.

    Args:
        paths: the index, then the data files beside it.

    Raises:
        CheckpointError: the index cannot be read, or names bytes that are not there.
    """

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._index = paths[0]
        self._files = {path.name: path for path in paths[1:]}
        self._dtypes: dict[str, torch.dtype] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._chunks: dict[str, list[_Chunk]] = {}
        try:
            self._read_index()
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise self._corrupt("is not laid out as torch.distributed.checkpoint writes it") from error

    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors of the drafter, by the names after the trainer's wrapper."""
        return self._infos

    def read(self, name: str) -> Tensor:
        """One tensor, put together from its chunks."""
        chunks, shape = self._chunks[name], self._infos[name].shape
        if [c.sizes for c in chunks] == [shape]:
            return self._load(name, chunks[0])
        whole = torch.zeros(shape, dtype=self._dtypes[name])
        for chunk in chunks:
            place = whole
            for axis, (start, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                place = place.narrow(axis, start, size)
            place.copy_(self._load(name, chunk))
        return whole

    def _read_index(self) -> None:
        root = _unpickled(self._index)
        tensors, places = root.state["state_dict_metadata"], root.state["storage_data"]
        by_place = {(k.state["fqn"], tuple(k.state.get("offset") or ())): v.state for k, v in places.items()}
        drafter = [name for name in tensors if _WRAPPER in name]
        is_renamed = any("context_proj." in name for name in drafter)
        for full in drafter or list(tensors):
            meta = tensors[full]
            name = full.rpartition(_WRAPPER)[2]
            if meta.kind != "TensorStorageMetadata" or (is_renamed and name in _MAPS):
                continue
            dtype, shape = meta.state["properties"].state[0], tuple(meta.state["size"])
            if not isinstance(dtype, torch.dtype):
                raise TypeError("no dtype")
            if name in self._infos:
                raise self._corrupt(f"has two tensors that are called {name} after {_WRAPPER}")
            size = math.prod(shape) * dtype.itemsize
            self._infos[name], self._dtypes[name] = TensorInfo(shape, str(dtype).removeprefix("torch."), size), dtype
            self._chunks[name] = [self._chunk(full, c.state, by_place, dtype) for c in meta.state["chunks"]]
            if sum(math.prod(c.sizes) for c in self._chunks[name]) != math.prod(shape):
                raise self._corrupt(f"gives chunks of tensor {full} that do not make up its shape {list(shape)}")
        claimed = sum(c.length for chunks in self._chunks.values() for c in chunks)
        held = sum(path.stat().st_size for path in self.paths[1:])
        if claimed > held:  # chunks that share bytes could make a small file into any amount of memory
            raise self._corrupt(f"claims {claimed} bytes of tensors in {held} bytes of data files")

    def _chunk(self, full: str, chunk: Any, places: Mapping[Any, Any], dtype: torch.dtype) -> _Chunk:
        offsets, sizes = tuple(map(int, chunk["offsets"])), tuple(map(int, chunk["sizes"]))
        place = places[full, offsets]
        if place.get("transform_descriptors"):
            raise CheckpointError(
                f"{self._index}: tensor {full} is stored transformed ({place['transform_descriptors']}); save it plain",
                ErrorCode.CHECKPOINT_UNSUPPORTED,
            )
        file, start, length = place["relative_path"], int(place["offset"]), int(place["length"])
        if file not in self._files:
            raise CheckpointError(f"{self._index}: data file {file!r} is not beside it", ErrorCode.CHECKPOINT_MISSING)
        held, needed = self._files[file].stat().st_size, math.prod(sizes) * dtype.itemsize
        if min((start, length, *sizes, *offsets), default=0) < 0 or start + length > held or length < needed:
            raise self._corrupt(
                f"says that tensor {full} ({needed} bytes) has bytes {start}..{start + length} of {file}, which has "
                f"{held}; it was cut short, copy it again"
            )
        return _Chunk(offsets, sizes, self._files[file], start, length)

    def _load(self, name: str, chunk: _Chunk) -> Tensor:
        with chunk.path.open("rb") as file:
            file.seek(chunk.start)
            raw = io.BytesIO(file.read(chunk.length))
        # a zip may not inflate, and the format of before it allocates what it claims
        if not zipfile.is_zipfile(raw) or sum(i.file_size for i in zipfile.ZipFile(raw).infolist()) > chunk.length:
            raise CheckpointError(f"{chunk.path}: tensor {name} is not stored as torch.save stores one")
        raw.seek(0)
        try:
            part = torch.load(raw, map_location="cpu", weights_only=True)
        except Exception as error:  # the reader raises almost anything on damaged bytes
            raise CheckpointError(f"{chunk.path}: tensor {name} cannot be read; the file is damaged") from error
        if not isinstance(part, Tensor) or tuple(part.shape) != chunk.sizes or part.dtype != self._dtypes[name]:
            raise self._corrupt(f"and {chunk.path.name} disagree about tensor {name}")
        check_storage(name, part, chunk.path)
        return part

    def _corrupt(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._index}: the index {what}", ErrorCode.CHECKPOINT_CORRUPT)


def _unpickled(path: Path) -> Any:
    size = path.stat().st_size
    if size > _MAX_INDEX_BYTES:
        raise CheckpointError(
            f"{path}: an index of {size} bytes (limit {_MAX_INDEX_BYTES})", ErrorCode.CHECKPOINT_UNSUPPORTED
        )
    try:
        root = _Index(io.BytesIO(path.read_bytes())).load()
    except Exception as error:  # a damaged or hostile pickle fails in any way
        raise CheckpointError(
            f"{path}: not the index of a torch.distributed checkpoint ({type(error).__name__})",
            ErrorCode.CHECKPOINT_CORRUPT,
        ) from error
    if not isinstance(root, _Record) or root.kind != "Metadata":
        raise CheckpointError(
            f"{path}: not the index of a torch.distributed checkpoint, it holds another object",
            ErrorCode.CHECKPOINT_CORRUPT,
        )
    return root
