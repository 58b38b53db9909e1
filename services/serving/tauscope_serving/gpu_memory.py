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
    processes = _asked(uuid, lambda nvml, handle: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    own = [process.usedGpuMemory for process in processes or () if process.pid == os.getpid()]
    return int(own[0]) if own and own[0] else None


def free_bytes(uuid: str) -> int | None:
    """Free memory of a device, or None where the driver does not tell.

    Args:
        uuid: of the device, with its `GPU-` in front.
    """
    memory = _asked(uuid, lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else int(memory.free)


def _asked(uuid: str, question: Callable[[Any, Any], Any]) -> Any:
    """The driver's answer about a device, or None."""
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return question(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
    except (nvml.NVMLError, AttributeError):
        return None


def publish_gpu_memory(metrics: ServiceMetrics, meter: GpuMeter) -> None:
    """Add the gauges `gpu_memory_used_bytes` and `gpu_memory_cap_bytes`; both are 0 without a GPU."""
    used = metrics.gauge("gpu_memory_used_bytes", "GPU memory of this process; 0 without a GPU")
    used.set_function(lambda: meter().used_bytes)
    cap = metrics.gauge("gpu_memory_cap_bytes", "Most GPU memory that this process may take; 0 without a GPU")
    cap.set_function(lambda: meter().cap_bytes)
