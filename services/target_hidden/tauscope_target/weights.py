"""Where tensors come from: one interface over safetensors files and pickled ones, reading straight into place."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from tauscope_target.checkpoint import CheckpointFolder, TensorEntry
from tauscope_wire.errors import CheckpointError, ErrorCode
from tauscope_wire.framing import byte_view

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class WeightSource(Protocol):
    """Tensors by name."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor."""
        ...

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Fill `target` (any dtype, any device, same shape) with tensor `name`."""
        ...


class SafetensorsSource:
    """Reads tensors from safetensors files: one copy from the page cache where dtype and device allow it."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._entries = folder.entries
        self.num_reads: dict[str, int] = {}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Fill `target` with tensor `name`.

        Raises:
            CheckpointError: the file ended early, or its dtype is not supported.
        """
        entry = self._entries[name]
        self.num_reads[entry.file.name] = self.num_reads.get(entry.file.name, 0) + 1
        dtype = TORCH_DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{name} in {entry.file.name} is {entry.dtype}, which only a quantised checkpoint uses; "
                "its config.json lacks quantization_config",
                ErrorCode.CHECKPOINT_UNSUPPORTED,
            )
        if target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous():
            _read(entry, target)
            return
        staging = torch.empty(entry.shape, dtype=dtype)
        _read(entry, staging)
        target.copy_(staging)


class PickleSource:
    """Reads tensors of local `pytorch_model*.bin` files with `weights_only=True`: no code in them is run."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        for file in folder.bin_files:
            self._tensors.update(_unpickle(file))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Fill `target` with tensor `name`."""
        target.copy_(self._tensors[name])


def open_source(folder: CheckpointFolder) -> SafetensorsSource | PickleSource:
    """The source for a checkpoint folder."""
    return SafetensorsSource(folder) if folder.weights == "safetensors" else PickleSource(folder)


def _read(entry: TensorEntry, target: torch.Tensor) -> None:
    if entry.nbytes == 0:
        return
    view = byte_view(target.reshape(-1).view(torch.uint8).numpy())
    done = 0
    with entry.file.open("rb", buffering=0) as stream:
        stream.seek(entry.start)
        while done < entry.nbytes:
            count = stream.readinto(view[done:])
            if not count:
                raise CheckpointError(f"{entry.file.name} ended while reading {entry.name}: the file is cut short")
            done += count


def _unpickle(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises a different type for every kind of damage
        raise CheckpointError(
            f"{file.name} cannot be read as plain tensors ({type(error).__name__}); convert it to safetensors",
            ErrorCode.CHECKPOINT_UNSAFE if "weights_only" in str(error).lower() else ErrorCode.CHECKPOINT_CORRUPT,
        ) from None
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise CheckpointError(f"{file.name} is not a map from names to tensors", ErrorCode.CHECKPOINT_UNSUPPORTED)
    return iter(content.items())
