"""Where and in which dtype the model computes: decided once, at start-up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from tauscope_serving.gpu_memory import free_bytes
from tauscope_wire.errors import ErrorCode, RequestError, UnavailableError

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["auto", "float32", "bfloat16"]


def choose_device(choice: DeviceChoice) -> torch.device:
    """The device to compute on; of several GPUs the one with most free memory.

    Raises:
        UnavailableError: `cuda` was asked for and torch finds none.
    """
    if choice == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", _freest_device())
    if choice == "cuda":
        raise UnavailableError(
            "--device cuda: torch finds no CUDA device; check the driver, or give --device cpu", ErrorCode.NOT_READY
        )
    return torch.device("cpu")


def _freest_device() -> int:
    """Number of the GPU with most free memory; asked of the driver, so that no context is made on the others."""
    count = torch.cuda.device_count()
    if count == 1:
        return 0
    free = [free_bytes(f"GPU-{torch.cuda.get_device_properties(number).uuid}") for number in range(count)]
    known = {number: found for number, found in enumerate(free) if found is not None}
    return max(known, key=known.__getitem__, default=0)


def numbered_devices(numbers: Sequence[int]) -> list[torch.device]:
    """CUDA devices by number.

    Raises:
        RequestError: a number that does not exist, or twice.
    """
    count = torch.cuda.device_count()
    for index, number in enumerate(numbers):
        if not 0 <= number < count:
            there = f"{count} CUDA devices (0..{count - 1})" if count else "no CUDA device"
            raise RequestError(f"--devices [{index}]={number}: torch finds {there}")
        if number in numbers[:index]:
            raise RequestError(f"--devices [{index}]={number}: given twice")
    return [torch.device("cuda", number) for number in numbers]


def choose_dtype(
    choice: DtypeChoice,
    stored: torch.dtype,
    *,
    device: torch.device,
    num_parameters: int,
    available_bytes: int | None,
) -> torch.dtype:
    """Dtype of weights and activations.

    On a GPU the checkpoint's own. On a CPU float32, so that numbers do not depend on which CPU it is (BF16 products
    are five times slower without AMX anyway), unless float32 weights do not fit into memory.

    Args:
        choice: what the operator asked for.
        stored: dtype of the checkpoint.
        device: where the model runs.
        num_parameters: of the part that is loaded.
        available_bytes: free memory of the machine, or None when it cannot be told.

    Raises:
        RequestError: float32 on a GPU, whose kernels and comparisons are all in the checkpoint's dtype.
    """
    if device.type != "cpu":
        if choice not in ("auto", str(stored).removeprefix("torch.")):
            raise RequestError(f"--compute-dtype {choice}: on a GPU the checkpoint's {stored} is used; leave it out")
        return stored
    if choice == "bfloat16":
        return torch.bfloat16
    too_large = available_bytes is not None and num_parameters * torch.float32.itemsize > available_bytes
    if choice == "auto" and too_large and stored is torch.bfloat16:
        return torch.bfloat16
    return torch.float32


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that new programs can have without swapping, or None where the kernel does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(found) * 1024 if found is not None else None


def device_name(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The hardware's own name."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
