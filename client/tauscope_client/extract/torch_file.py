"""Writes a flat dict of arrays as the file that `torch.load` reads, without torch.

The frame is a zip archive of stored entries: `data.pkl` describes the tensors, `data/0`, `data/1`, .. hold their bytes.
Only plain contiguous tensors: what `torch.load(weights_only=True)` accepts.
"""

import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tauscope_client.ship import torch_pickle
from tauscope_client.ship.torch_pickle import Inert, Storage

__all__ = ["write_torch_file"]

ALIGNMENT = 64
"""torch aligns the data of its own files, so that a mapped file gives aligned tensors; the gap is an extra field FB."""
LOCAL_HEADER_BYTES = 30
DATE = (1980, 1, 1, 0, 0, 0)
"""Equal tensors give equal files."""
FOLDER = "archive"


class _Rebuild(Inert):
    module, qualname = "torch._utils", "_rebuild_tensor_v2"


class _BFloat16Storage(Inert):
    module, qualname = "torch", "BFloat16Storage"


class _FloatStorage(Inert):
    module, qualname = "torch", "FloatStorage"


class _LongStorage(Inert):
    module, qualname = "torch", "LongStorage"


_STORAGES: dict[Any, type[Inert]] = {
    np.dtype(ml_dtypes.bfloat16): _BFloat16Storage,
    np.dtype(np.float32): _FloatStorage,
    np.dtype(np.int64): _LongStorage,
}


def write_torch_file(file: BinaryIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays of bfloat16, float32 or int64 under their names.

    Args:
        file: seekable, at its start.
        arrays: any shapes; each is written row-major, little-endian.

    Raises:
        KeyError: an element type that is not among the three.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    tensors = {name: _tensor(str(key), array) for key, (name, array) in enumerate(whole.items())}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", torch_pickle.dump(tensors))
        _add(archive, "byteorder", b"little")
        for key, array in enumerate(whole.values()):
            _add(archive, f"data/{key}", array.reshape(-1).view(np.uint8).data)
        _add(archive, "version", b"3\n")


def _tensor(key: str, array: npt.NDArray[Any]) -> Inert:
    strides = tuple(step // array.itemsize for step in array.strides)
    # A mapping that is empty stands for backward hooks, as torch itself writes it.
    storage = Storage(("storage", _STORAGES[array.dtype], key, "cpu", array.size))
    return _Rebuild(storage, 0, tuple(array.shape), strides, False, OrderedDict())


def _add(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    info = zipfile.ZipInfo(f"{FOLDER}/{name}", DATE)
    place = archive.fp.tell() if archive.fp is not None else 0
    used = place + LOCAL_HEADER_BYTES + len(info.filename) + 4
    gap = -used % ALIGNMENT
    info.extra = struct.pack("<2sH", b"FB", gap) + b"Z" * gap
    info.file_size = len(data)  # decides whether zip64 is needed, before the header is written
    with archive.open(info, "w") as entry:
        entry.write(data)
