"""Writes safetensors one tensor at a time, so that memory is bounded by the largest tensor and not by the file."""

import ctypes
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

_CODES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8  # the header is padded with blanks to this, as the reference writer does
_PIECE_BYTES = 16 << 20
_MADV_DONTNEED = 4

Progress = Callable[[int], None]
"""Told the number of bytes just done."""


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    progress: Progress = lambda count: None,
) -> str:
    """Write a file whose header is known up front; atomic: it appears under its name when it is complete.

    Args:
        path: where to.
        shapes: name -> shape and dtype, in the order of `tensors`.
        tensors: the data, taken one after another; memory-mapped ones are dropped from memory after use.
        progress: called while writing.

    Returns:
        SHA-256 of the file.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, dtype) in shapes.items():
        size = torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest = hashlib.sha256()
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:

            def put(data: bytes | memoryview) -> None:
                file.write(data)
                digest.update(data)

            put(len(text).to_bytes(8, "little"))
            put(text)
            for (name, tensor), (expected, (shape, dtype)) in zip(tensors, shapes.items(), strict=True):
                if name != expected or tuple(tensor.shape) != shape:
                    raise ValueError(f"tensor {name} {tuple(tensor.shape)}, announced: {expected} {shape}")
                for piece in _pieces(tensor, dtype):
                    put(piece)
                    progress(len(piece))
                release(tensor)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return digest.hexdigest()


def _pieces(tensor: Tensor, dtype: torch.dtype) -> Iterable[memoryview]:
    """Bytes of a tensor in `dtype`, a few rows at a time, so that a cast never copies all of it."""
    if tensor.ndim < 2 or not tensor.numel():
        yield _bytes(tensor.to(dtype))
        return
    row_bytes = tensor[0].numel() * dtype.itemsize
    step = max(1, _PIECE_BYTES // max(1, row_bytes))
    for start in range(0, tensor.shape[0], step):
        yield _bytes(tensor[start : start + step].to(dtype))


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def release(tensor: Tensor) -> None:
    """Tell the system that the pages behind a memory-mapped tensor are not needed any more.

    They would count as memory of this process until they are reclaimed. Only whole pages of storages much larger
    than a page are touched; for tensors in ordinary memory this would lose data, so they are left alone.
    """
    storage = tensor.untyped_storage()
    if not _is_mapped(storage.data_ptr(), storage.nbytes()):
        return
    page = os.sysconf("SC_PAGE_SIZE")
    start = -(-storage.data_ptr() // page) * page
    length = (storage.data_ptr() + storage.nbytes() - start) // page * page
    if length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED)


def _is_mapped(address: int, size: int) -> bool:
    """Whether an address range lies in a mapping of a file (Linux tells; elsewhere nothing is released)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        low, high = (int(part, 16) for part in fields[0].split("-"))
        if low <= address and address + size <= high:
            # "rw-p" of a regular file with an inode: a private map whose clean pages can be read again
            return len(fields) == 6 and fields[4] != "0" and fields[5].startswith("/")
    return False
