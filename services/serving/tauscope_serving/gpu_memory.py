"""Memory of a GPU that this process takes, against the most that it may take."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from tauscope_serving.metrics import ServiceMetrics


class GpuMemory(NamedTuple):
    """A look at the device memory of this process.

    Attributes:
        used_bytes: taken now, context and libraries included.
        cap_bytes: the bound that the operator gave, or all memory of the device.
    """

    used_bytes: int
    cap_bytes: int


GpuMeter = Callable[[], GpuMemory]


def no_gpu() -> GpuMemory:
    """The meter of a process that computes on a CPU."""
    return GpuMemory(0, 0)


def process_bytes(uuid: str) -> int | None:
    """Memory that the driver counts for this process on a device, or None where it does not tell.

    It does not without NVML, and not in a container whose process ids are not those of the machine.

    Args:
        uuid: of the device, with its `GPU-` in front.
    """
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        found = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
    except (pynvml.NVMLError, AttributeError):
        return None
    return int(found[0].usedGpuMemory) if found and found[0].usedGpuMemory else None


def publish_gpu_memory(metrics: ServiceMetrics, meter: GpuMeter) -> None:
    """Add the gauges `gpu_memory_used_bytes` and `gpu_memory_cap_bytes`; both are 0 without a GPU."""
    used = metrics.gauge("gpu_memory_used_bytes", "GPU memory of this process; 0 without a GPU")
    used.set_function(lambda: meter().used_bytes)
    cap = metrics.gauge("gpu_memory_cap_bytes", "Most GPU memory that this process may take; 0 without a GPU")
    cap.set_function(lambda: meter().cap_bytes)
