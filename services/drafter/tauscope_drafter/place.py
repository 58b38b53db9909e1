"""Where drafters compute, and what of the target they share: embedding, head and final norm, read once."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tauscope_drafter.head import CHUNK_BYTES, DEFAULT_CHUNK_BYTES, Embedding, Head
from tauscope_drafter.target_weights import TargetFolder


@dataclass(frozen=True, slots=True)
class Place:
    """Where a drafter computes, and the target's weights that it may share.

    Attributes:
        device, dtype: of all products.
        target: the target's checkpoint, None when only drafters with tables of their own are loaded.
        embedding, head: of the target, None without one.
        final_norm: of the target as it multiplies, None without one.
        norm_eps: of the target's final norm.
        chunk_bytes: bound on the logits alive at once.
        stream_networks: keep the networks' weights on the host and copy them when they are read.
    """

    device: torch.device
    dtype: torch.dtype
    target: TargetFolder | None = None
    embedding: Embedding | None = None
    head: Head | None = None
    final_norm: Tensor | None = None
    norm_eps: float = 1e-6
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    stream_networks: bool = False


def open_place(
    device: torch.device,
    dtype: torch.dtype,
    target: Path | None,
    *,
    chunk_bytes: int | None = None,
    head_on_host: bool = False,
    stream_networks: bool = False,
) -> Place:
    """Read the target's embedding, head and final norm once.

    Args:
        device: of all computation.
        dtype: of all computation.
        target: folder of the target's checkpoint, or None.
        chunk_bytes: bound on the logits alive at once; None chooses by device.
        head_on_host: keep the head on the host and stream it (a GPU without room for it).
        stream_networks: the same for the weights of the drafters.

    Raises:
        CheckpointError: the folder is no checkpoint of a decoder-only model.
    """
    chunk_bytes = chunk_bytes or CHUNK_BYTES.get(device.type, DEFAULT_CHUNK_BYTES)
    if target is None:
        return Place(device, dtype, chunk_bytes=chunk_bytes, stream_networks=stream_networks)
    folder = TargetFolder(target)
    head = folder.head()
    head = _pinned(head.to(dtype), device) if head_on_host else head.to(device, dtype)
    return Place(
        device,
        dtype,
        folder,
        Embedding(folder.embedding(), device, dtype),
        Head(head, device, dtype, chunk_bytes=chunk_bytes),
        folder.final_norm().to(device),
        folder.norm_eps,
        chunk_bytes,
        stream_networks,
    )


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """The head in memory that the device reads directly; it lives as long as the process.

    Registering memory of our own keeps its size; the pinned allocator would round 2.4 GiB up to 4.
    """
    if device.type != "cuda":
        return tensor
    tensor = tensor.contiguous().clone()  # ours, not a file's map
    code = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)  # type: ignore[no-untyped-call]
    return tensor if int(code) == 0 else tensor.pin_memory()
