"""One flat piece of host memory that holds every streamed weight, laid out layer by layer.

One arena and not a pinned tensor per layer: PyTorch's pinned allocator rounds each request up to a power of two
(0.77 GB becomes 1 GiB). The arena is ordinary memory that is registered with the driver once it is filled.
"""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tauscope_wire.errors import ErrorCode, UnavailableError

TENSOR_ALIGNMENT = 256
"""Start of each tensor: what device allocations have, so that kernels see the same alignment as in resident mode."""
REGION_ALIGNMENT = 4096
"""Start of each region: a page."""


@dataclass(frozen=True)
class Slice:
    """Where one tensor lies: `offset` bytes from the start of its region."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * self.dtype.itemsize

    def view(self, region: torch.Tensor) -> torch.Tensor:
        """The tensor inside a region (uint8, on any device), without a copy."""
        return region[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Region:
    """A part of the arena that travels as a whole: a layer or a piece of it, or the head."""

    start: int
    nbytes: int
    slices: Mapping[str, Slice]


@dataclass
class ArenaLayout:
    """Regions in order; built before any memory is taken."""

    regions: list[Region] = field(default_factory=list)
    nbytes: int = 0

    def add(self, tensors: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> Region:
        """Append a region of the named tensors."""
        slices: dict[str, Slice] = {}
        offset = 0
        for name, shape, dtype in tensors:
            slices[name] = Slice(offset, shape, dtype)
            offset = _aligned(offset + slices[name].nbytes, TENSOR_ALIGNMENT)
        region = Region(self.nbytes, offset, slices)
        self.regions.append(region)
        self.nbytes = _aligned(self.nbytes + offset, REGION_ALIGNMENT)
        return region

    @property
    def largest(self) -> int:
        """Bytes of the largest region."""
        return max((region.nbytes for region in self.regions), default=0)


class HostArena:
    """The memory of a layout.

    Args:
        layout: what it must hold.
    """

    def __init__(self, layout: ArenaLayout) -> None:
        self.layout = layout
        self._memory = torch.empty(layout.nbytes, dtype=torch.uint8)
        self._unpin: Any = None

    def region(self, region: Region) -> torch.Tensor:
        """Bytes of a region, a view."""
        return self._memory[region.start : region.start + region.nbytes]

    def register(self) -> None:
        """Pin the arena for asynchronous copies; call it when it is filled.

        Raises:
            UnavailableError: the system refuses to pin that much.
        """
        if self._unpin is not None or not self.layout.nbytes:
            return
        driver: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        result = int(driver.cudaHostRegister(self._memory.data_ptr(), self.layout.nbytes, 0))
        if result != 0:
            raise UnavailableError(
                f"the system refused to pin {self.layout.nbytes / 1e9:.1f} GB of host memory (CUDA error {result}); "
                "raise the locked-memory limit (ulimit -l) or the container's memory limit",
                ErrorCode.OUT_OF_MEMORY,
            )
        # also when nobody calls `close`: pages that are freed while pinned cannot be pinned by their next owner
        self._unpin = weakref.finalize(self, _unregister, self._memory.data_ptr())
        self._unpin.atexit = False  # the process takes its pins with it, and CUDA may be gone by then

    def close(self) -> None:
        """Undo `register`; the memory itself goes with the object."""
        if self._unpin is not None:
            self._unpin()
            self._unpin = None


def _unregister(address: int) -> None:
    driver: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    driver.cudaHostUnregister(address)


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
