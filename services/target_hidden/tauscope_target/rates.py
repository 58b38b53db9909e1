"""Measures what `plan` estimates with: bus and matrix rates, and free memory, in about a second."""

import time
from collections.abc import Callable

import torch

from tauscope_target.arithmetic import available_memory
from tauscope_target.plan import Limits, Rates

COPY_BYTES = 256 << 20
GPU_SIZE = 4096
CPU_SIZE = 1024
REPEATS = 5


def measure_machine(limits: Limits) -> tuple[Limits, Rates]:
    """Rates of this machine; limits that were not given become what is free now."""
    host = limits.host_bytes if limits.host_bytes is not None else available_memory()
    cpu = _flop_s(torch.device("cpu"), CPU_SIZE, torch.float32)
    if not torch.cuda.is_available():
        return Limits(None, host), Rates(1.0, 1.0, cpu)
    device = torch.device("cuda")
    free, _ = torch.cuda.mem_get_info(device)
    gpu = limits.gpu_bytes if limits.gpu_bytes is not None else free
    source = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    copy_s = _best_s(lambda: target.copy_(source, non_blocking=True), device)
    return Limits(gpu, host), Rates(COPY_BYTES / copy_s, _flop_s(device, GPU_SIZE, torch.bfloat16), cpu)


def _flop_s(device: torch.device, size: int, dtype: torch.dtype) -> float:
    left = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / _best_s(lambda: left @ left, device)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return min(times)
