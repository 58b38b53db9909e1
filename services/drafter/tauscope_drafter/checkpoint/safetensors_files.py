"""Safetensors: one file, or the shards of one checkpoint. Data are read tensor by tensor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tauscope_drafter.checkpoint.tensor_file import TensorInfo
from tauscope_wire.errors import CheckpointError


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


def _bits(dtype: str) -> int:
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) if digits else 8
