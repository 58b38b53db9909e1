"""The residual stream of a pass, cut into chunks of columns: on the device, or in host memory for long prompts.

On the device it is one tensor and chunks are written over in place: later chunks read only their own columns and the
state that the layer carries. In host memory every chunk is a pinned block of its own; it comes to the device for each
half of a layer and returns, and while one chunk is computed the next one arrives and the last one leaves. Then the
device holds a few chunks, however long the prompt is.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from tauscope_target.arena import ArenaLayout, HostArena, Region
from tauscope_target.copies import TwoWayCopies

NUM_BUFFERS = 3
"""Chunks on the device: one arrives, one is computed, one leaves."""
KEPT_BYTES = 2 << 30
"""Host memory that is kept from one long pass to the next; pinning it anew takes a second."""


def chunk_bounds(length: int, width: int) -> list[tuple[int, int]]:
    """Cut `length` columns into chunks of `width`.

    A single column is never left over where that can be helped: layers take another path for one token.
    """
    starts = list(range(0, length, width))
    if len(starts) > 1 and width > 2 and length - starts[-1] == 1:
        starts[-1] -= 1
    return list(zip(starts, [*starts[1:], length], strict=True))


class Residual(Protocol):
    """A residual stream that layers read and replace chunk by chunk."""

    bounds: list[tuple[int, int]]

    @property
    def hidden(self) -> torch.Tensor:
        """What the decoder's own loop hands on: [batch, seq, hidden], its content only where it lies on the device."""
        ...

    def load(self, number: int) -> torch.Tensor:
        """A chunk [batch, columns, hidden] on the device."""
        ...

    def store(self, number: int, output: torch.Tensor) -> None:
        """Replace a chunk by what came out of the layer."""
        ...


class DeviceResidual:
    """On the device.

    Args:
        hidden: [batch, seq, hidden]; written over when there are several chunks.
        width: columns of a chunk.
    """

    def __init__(self, hidden: torch.Tensor, width: int) -> None:
        self.hidden = hidden
        self.bounds = chunk_bounds(hidden.shape[1], width)

    def load(self, number: int) -> torch.Tensor:
        """A view."""
        start, stop = self.bounds[number]
        return self.hidden[:, start:stop] if len(self.bounds) > 1 else self.hidden

    def store(self, number: int, output: torch.Tensor) -> None:
        """Write over the chunk; one chunk alone is exchanged."""
        if len(self.bounds) == 1:
            self.hidden = output
        else:
            start, stop = self.bounds[number]
            self.hidden[:, start:stop] = output


class PinnedMemory:
    """Host memory for residual streams, pinned where there is a GPU, and kept between passes.

    Args:
        device: what it exchanges data with.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arena: HostArena | None = None

    def take(self, nbytes: int) -> torch.Tensor:
        """At least that many bytes (uint8), the same ones at every call.

        Raises:
            UnavailableError: the system refuses to pin that much.
        """
        if self._arena is None or self._arena.layout.nbytes < nbytes:
            self.close()
            arena = HostArena(ArenaLayout(nbytes=nbytes))
            if self._device.type == "cuda":
                arena.register()
            self._arena = arena
        return self._arena.region(Region(0, nbytes, {}))

    def trim(self) -> None:
        """Give back what is more than is kept."""
        if self._arena is not None and self._arena.layout.nbytes > KEPT_BYTES:
            self.close()

    def close(self) -> None:
        """Give everything back; no copy may be under way."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None


class HostResidual:
    """In host memory. `close` must be called at the end of the pass, whatever ended it.

    Args:
        hidden: the placeholder [batch, seq, hidden] that the decoder's loop sees; gives shape, dtype and device.
        width: columns of a chunk.
        memory: where the chunks lie.
        source: gives columns start..stop of the embedding output [batch, stop - start, hidden] on the device.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        width: int,
        *,
        memory: PinnedMemory,
        source: Callable[[int, int], torch.Tensor],
    ) -> None:
        self.hidden = hidden
        self.bounds = chunk_bounds(hidden.shape[1], width)
        self._memory = memory
        self._source = source
        batch, length, extent = hidden.shape
        row_bytes = batch * extent * hidden.itemsize
        room = memory.take(length * row_bytes)
        self._chunks = [
            room[start * row_bytes : stop * row_bytes].view(hidden.dtype).view(batch, stop - start, extent)
            for start, stop in self.bounds
        ]
        largest = max(stop - start for start, stop in self.bounds)
        shape = (NUM_BUFFERS, batch * largest * extent)
        self._buffers = torch.empty(shape, dtype=hidden.dtype, device=hidden.device)
        self._is_stored = [False] * len(self.bounds)
        self._turn = 0
        self._arrived: tuple[int, int] | None = None
        self._current: tuple[int, int] | None = None
        self._copies = TwoWayCopies(hidden.device, num_buffers=NUM_BUFFERS, num_chunks=len(self.bounds))

    def load(self, number: int) -> torch.Tensor:
        """A chunk on the device: an embedding output in the first round, later what the last half left."""
        if not self._is_stored[number]:
            return self._source(*self.bounds[number])
        if self._arrived is None or self._arrived[0] != number:
            self._fetch(number)
        assert self._arrived is not None
        self._current, self._arrived = self._arrived, None
        buffer = self._current[1]
        self._copies.wait_for_arrival(buffer)
        following = (number + 1) % len(self.bounds)
        if following != number and self._is_stored[following]:
            self._fetch(following)
        return self._view(buffer, number)

    def store(self, number: int, output: torch.Tensor) -> None:
        """Send a chunk to host memory."""
        if self._current is not None and self._current[0] == number:
            buffer = self._current[1]
        else:
            buffer = self._next_buffer()
            self._copies.wait_until_empty(buffer)
        place = self._view(buffer, number)
        place.copy_(output)
        self._copies.leave(buffer, number, self._chunks[number], place)
        self._is_stored[number] = True
        self._current = None

    def close(self) -> None:
        """Wait for copies under way; then buffers and host memory may be used for something else."""
        self._copies.synchronize()
        self._memory.trim()

    def _fetch(self, number: int) -> None:
        buffer = self._next_buffer()
        self._copies.arrive(buffer, number, self._view(buffer, number), self._chunks[number])
        self._arrived = (number, buffer)

    def _next_buffer(self) -> int:
        self._turn = (self._turn + 1) % NUM_BUFFERS
        return self._turn

    def _view(self, buffer: int, number: int) -> torch.Tensor:
        chunk = self._chunks[number]
        return self._buffers[buffer, : chunk.numel()].view(chunk.shape)
