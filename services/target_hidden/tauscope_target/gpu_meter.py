"""Tells the device memory of the target service against its cap, for the metrics."""

from collections.abc import Sequence

import torch

from tauscope_serving.gpu_memory import GpuMemory, GpuMeter, no_gpu
from tauscope_target.device_memory import process_memory
from tauscope_target.memory import CONTEXT_BYTES


def gpu_meter(devices: Sequence[torch.device], *, cap_bytes: int | None) -> GpuMeter:
    """A meter over devices; where the driver does not tell, it adds an assumed context to torch's own count.

    Args:
        devices: that hold weights.
        cap_bytes: bound on each of them (`--gpu-memory`), or None for all of their memory.
    """
    gpus = [device for device in devices if device.type == "cuda"]
    if not gpus:
        return no_gpu
    cap = sum(torch.cuda.get_device_properties(g).total_memory if cap_bytes is None else cap_bytes for g in gpus)

    def meter() -> GpuMemory:
        used = [process_memory(gpu) for gpu in gpus]
        assumed = [CONTEXT_BYTES + torch.cuda.memory_reserved(gpu) for gpu in gpus]
        return GpuMemory(sum(u if u is not None else a for u, a in zip(used, assumed, strict=True)), cap)

    return meter
