"""Reading the tensors of a described checkpoint, checked, one at a time."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.names import Split
from tauscope_drafter.checkpoint.reading import Description
from tauscope_drafter.checkpoint.tensor_file import TensorFile
from tauscope_wire.errors import CheckpointError, ErrorCode

_CHECKED = 1 << 22  # elements looked at together


def read_tensors(description: Description, *, check: bool = True) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the network by canonical name, in sorted order, on the host, in the dtype of the file.

    Args:
        description: of a checkpoint whose names and shapes were checked.
        check: also look at every value.

    Raises:
        CheckpointError: a tensor holds NaN or infinity.
    """
    if description.file is None:
        return
    for name in sorted(description.expected):
        tensor = _read(description.file, description, name)
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{description.path}: tensor {name} is {str(tensor.dtype).removeprefix('torch.')}; quantised drafters "
                "are not supported, give the weights in a floating dtype",
                ErrorCode.CHECKPOINT_UNSUPPORTED,
            )
        if check and not _is_finite(tensor):
            raise CheckpointError(f"{description.path}: tensor {name} holds NaN or infinity")
        yield name, tensor


def _is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite, a few rows at a time: a flag per element would be half the memory again."""
    flat = tensor.reshape(-1)
    return all(bool(torch.isfinite(flat[i : i + _CHECKED]).all()) for i in range(0, flat.numel(), _CHECKED))


def read_aside(description: Description, name: str) -> Tensor | None:
    """A tensor that was set aside (`embed_tokens.weight`, `d2t`, ..), None when the file has none."""
    source = description.names.aside.get(name)
    return None if source is None or description.file is None else description.file.read(source)


def _read(file: TensorFile, description: Description, name: str) -> Tensor:
    source = description.names.network[name]
    if not isinstance(source, Split):
        return file.read(source).reshape(description.expected[name])
    fused = file.read(source.source)
    rows = description.found[name][0]
    if source.part in ("gate_proj", "up_proj"):
        start = 0 if source.part == "gate_proj" else rows
    else:  # rows of a fused qkv_proj: q, then k, then v
        query = fused.shape[0] - 2 * rows if source.part != "q_proj" else rows
        start = {"q_proj": 0, "k_proj": query, "v_proj": query + rows}[source.part]
    return fused[start : start + rows]


class WeightsHash:
    """SHA-256 over names, shapes, dtypes and bytes: equal for the same weights in every format."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, tensor: Tensor) -> None:
        """Add one tensor; the order of calls matters, so sort by name."""
        self._hash.update(f"{name}:{list(tensor.shape)}:{tensor.dtype};".encode())
        if tensor.numel():
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            self._hash.update(memoryview(flat.numpy().data))

    def hexdigest(self) -> str:
        """64 hex digits."""
        return self._hash.hexdigest()
