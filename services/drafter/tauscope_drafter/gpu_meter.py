"""Tells the device memory of the drafter service against its cap, for the metrics."""

import torch

from tauscope_drafter.placement import CONTEXT_BYTES
from tauscope_serving.gpu_memory import GpuMemory, GpuMeter, no_gpu, process_bytes


def gpu_meter(device: torch.device, *, cap_bytes: int | None) -> GpuMeter:
    """A meter of one device; where the driver does not tell, it adds an assumed context to torch's own count.

    Args:
        device: where drafters compute.
        cap_bytes: bound of this process (`--gpu-memory`), or None for all memory of the device.
    """
    if device.type != "cuda":
        return no_gpu
    properties = torch.cuda.get_device_properties(device)
    cap = properties.total_memory if cap_bytes is None else cap_bytes

    def meter() -> GpuMemory:
        used = process_bytes(f"GPU-{properties.uuid}")
        return GpuMemory(CONTEXT_BYTES + torch.cuda.memory_reserved(device) if used is None else used, cap)

    return meter
