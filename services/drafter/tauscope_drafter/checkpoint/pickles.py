"""Pickled checkpoints: mapped into memory, and refused when they hold more than tensors and plain containers."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.tensor_file import TensorInfo
from tauscope_wire.errors import CheckpointError, ErrorCode

# Keys under which trainers keep the weights, in the order in which they are tried.
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
_MAX_REASON = 200  # characters of another library's message
_MAX_NESTING = 3
# A legacy (non-zip) pickle cannot be mapped; larger ones would double in memory without a word.
_MAX_UNMAPPED_BYTES = 4 << 30


class PickleFiles:
    """Pickled checkpoints, mapped into memory; only tensors and plain containers are ever built."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._tensors: dict[str, Tensor] = {}
        self.state_key = ""
        for path in paths:
            found, key = _tensor_dict(_load_pickle(path), path)
            for name, tensor in found.items():
                check_storage(name, tensor, path)
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


def check_storage(name: str, tensor: Tensor, path: Path) -> None:
    """Refuse tensors that are larger than the bytes behind them, or have none: copying them would fill the memory."""
    held = tensor.untyped_storage().nbytes() if tensor.layout == torch.strided and not tensor.is_meta else 0
    claimed = tensor.numel() * tensor.element_size()
    if held < claimed:
        raise CheckpointError(
            f"{path}: tensor {name} claims {claimed} bytes and has {held}; save it as an ordinary dense tensor",
            ErrorCode.CHECKPOINT_UNSAFE,
        )


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
        raise _damaged(path, error) from error


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
        raise _damaged(path, error) from error


def _tensor_dict(value: Any, path: Path) -> tuple[dict[str, Tensor], str]:
    """The dictionary of weights inside what a trainer saved, and the key it was under."""
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


def _damaged(path: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"{path}: not a readable PyTorch file ({_first_line(error)}); it is damaged or was cut short, copy it again"
    )


def _first_line(error: BaseException) -> str:
    """The first sentence of an error of torch, whole: what follows is advice about internals."""
    lines = str(error).strip().splitlines()
    if not lines:
        return "it ends too early" if isinstance(error, EOFError) else type(error).__name__
    first = lines[0].partition(". ")[0].rstrip(".")
    return first if len(first) <= _MAX_REASON else f"{first[:_MAX_REASON].rpartition(' ')[0]} ..."
