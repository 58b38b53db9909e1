"""How much memory is free now, and how much this process has taken, as the driver tells."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tauscope_serving.gpu_memory import process_bytes
from tauscope_target.arithmetic import available_memory
from tauscope_target.memory import BARE_CONTEXT_BYTES, CONTEXT_BYTES


@dataclass(frozen=True)
class MemoryFacts:
    """What is free now.

    Attributes:
        gpu_free: bytes free on the device, or None without one.
        gpu_total: bytes of the device.
        context: bytes that this process takes on the device beside its tensors, once it has run.
        host_available: bytes that this machine can still give.
        context_to_come: the part of `context` that is not taken yet, and so still counted as free.
    """

    gpu_free: int | None
    gpu_total: int
    context: int
    host_available: int | None
    context_to_come: int = 0


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device current in this thread: pinned memory belongs to that one, and no context is made on another."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def measure(device: torch.device) -> MemoryFacts:
    """Look at the memory of the device and the machine; starts the CUDA context."""
    if device.type != "cuda":
        return MemoryFacts(None, 0, 0, available_memory())
    torch.empty(1, device=device)
    free, total = torch.cuda.mem_get_info(device)
    taken = context_memory(device)
    taken = BARE_CONTEXT_BYTES if taken is None else taken
    context = max(CONTEXT_BYTES, taken)
    return MemoryFacts(free, total, context, available_memory(), context - taken)


def context_memory(device: torch.device) -> int | None:
    """Device memory that this process has beside its tensors, or None where the driver does not tell."""
    used = process_memory(device)
    return None if used is None else max(used - torch.cuda.memory_reserved(device), 0)


def process_memory(device: torch.device) -> int | None:
    """Device memory of this process as the driver reports it; None where it does not (other process ids inside)."""
    return process_bytes(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
