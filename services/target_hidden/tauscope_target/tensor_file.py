"""Writes safetensors files from numpy arrays without copying them (BF16 included), complete or not at all."""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_target.checkpoint import TensorEntry
from tauscope_wire.dtypes import NUMPY_DTYPES
from tauscope_wire.framing import byte_view

TAGS: Mapping[str, str] = {"bfloat16": "BF16", "float32": "F32", "int32": "I32"}
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BF16": NUMPY_DTYPES["bfloat16"],
    "F32": NUMPY_DTYPES["float32"],
    "I32": np.dtype("<i4"),
}
TEMPORARY_SUFFIX = ".tmp"


def file_bytes(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> int:
    """Size of the file that `write_tensors` would make."""
    return len(_header(arrays, metadata)) + sum(array.nbytes for array in arrays.values())


def write_tensors(
    file: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], *, mode: int = 0o666
) -> None:
    """Write arrays (bfloat16, float32 or int32) under a temporary name, flush, rename.

    When this returns the file survives the process and a power failure; when it raises there is no new file.

    Args:
        file: where to.
        arrays: by name, in the order of their data.
        metadata: free text fields.
        mode: permissions of the file, less those that the process's umask takes.

    Raises:
        OSError: the disk is full or fails.
    """
    temporary = file.with_name(f".{file.stem}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_header(arrays, metadata))
            for array in arrays.values():
                stream.write(byte_view(np.ascontiguousarray(array)))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        _sync_folder(file.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def map_tensor(entry: TensorEntry) -> npt.NDArray[Any]:
    """A tensor of a file, mapped and read-only.

    Raises:
        KeyError: a dtype that `write_tensors` does not write.
    """
    if entry.nbytes == 0:
        return np.empty(entry.shape, DTYPES[entry.dtype])
    return np.memmap(entry.file, DTYPES[entry.dtype], mode="r", offset=entry.start, shape=entry.shape)


def _header(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        stop = offset + array.nbytes
        header[name] = {"dtype": TAGS[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format asks for an aligned start of the data
    return len(text).to_bytes(8, "little") + text


def _sync_folder(path: Path) -> None:
    """A rename is durable once its folder is flushed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
