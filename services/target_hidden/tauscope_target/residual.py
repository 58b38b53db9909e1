"""The residual stream of a pass, cut into chunks of columns: on the device, or in host memory for long prompts.

On the device it is one tensor and chunks are written over in place: later chunks read only their own columns and the
state that the layer carries. In host memory every chunk is a pinned block of its own; it comes to the device for each
half of a layer and returns, and while one chunk is computed the next one arrives and the last one leaves. Then the
device holds a few chunks, however long the prompt is.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from tauscope_target.arena import ArenaLayout, HostArena, Region
from tauscope_target.copies import TwoWayCopies

NUM_BUFFERS = 3
"""Chunks on the device: one arrives, one is computed, one leaves."""
KEPT_BYTES = 2 << 30
"""Host memory that is kept from one long pass to the next; pinning it anew takes a second."""


class Chunk(NamedTuple):
    """Part of a right-padded batch: rows, and columns start..stop of them."""

    rows: slice
    start: int
    stop: int


def chunk_bounds(length: int, width: int) -> list[tuple[int, int]]:
    """Cut `length` columns into chunks of `width`.

    A single column is never left over where that can be helped: layers take another path for one token.
    """
    starts = list(range(0, length, width))
    if len(starts) > 1 and width > 2 and length - starts[-1] == 1:
        starts[-1] -= 1
    return list(zip(starts, [*starts[1:], length], strict=True))


def cut(batch: int, length: int, tokens: int) -> list[Chunk]:
    """Cut a batch into chunks of at most `tokens` tokens: whole rows where they fit, else columns of single rows.

    Whole rows carry nothing from chunk to chunk, and a chunk of one row is as fast as one of many.
    """
    rows = tokens // length
    if rows >= batch:
        return [Chunk(slice(0, batch), 0, length)]
    if rows:
        return [Chunk(slice(first, min(first + rows, batch)), 0, length) for first in range(0, batch, rows)]
    columns = chunk_bounds(length, max(1, tokens))
    return [Chunk(slice(row, row + 1), start, stop) for row in range(batch) for start, stop in columns]


class Residual(Protocol):
    """A residual stream that layers read and replace chunk by chunk."""

    chunks: list[Chunk]

    @property
    def hidden(self) -> torch.Tensor:
        """What the decoder's own loop hands on: [batch, seq, hidden], its content only where it lies on the device."""
        ...

    def load(self, number: int) -> torch.Tensor:
        """A chunk [rows, columns, hidden] on the device."""
        ...

    def store(self, number: int, output: torch.Tensor) -> None:
        """Replace a chunk by what came out of the layer."""
        ...


class DeviceResidual:
    """On the device.

    Args:
        hidden: [batch, seq, hidden]; written over when there are several chunks.
        tokens: most tokens of a chunk; None does not cut.
    """

    def __init__(self, hidden: torch.Tensor, tokens: int | None) -> None:
        self.hidden = hidden
        batch, length, _ = hidden.shape
        self.chunks = cut(batch, length, batch * length if tokens is None else tokens)

    def load(self, number: int) -> torch.Tensor:
        """A view."""
        rows, start, stop = self.chunks[number]
        return self.hidden[rows, start:stop] if len(self.chunks) > 1 else self.hidden

    def store(self, number: int, output: torch.Tensor) -> None:
        """Write over the chunk; one chunk alone is exchanged."""
        if len(self.chunks) == 1:
            self.hidden = output
        else:
            rows, start, stop = self.chunks[number]
            self.hidden[rows, start:stop] = output


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
        tokens: most tokens of a chunk.
        memory: where the chunks lie.
        source: gives a chunk of the embedding output [rows, columns, hidden] on the device.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        tokens: int,
        *,
        memory: PinnedMemory,
        source: Callable[[Chunk], torch.Tensor],
    ) -> None:
        self.hidden = hidden
        batch, length, extent = hidden.shape
        self.chunks = cut(batch, length, tokens)
        self._memory = memory
        self._source: Callable[[Chunk], torch.Tensor] | None = source
        room = memory.take(hidden.numel() * hidden.itemsize).view(hidden.dtype)
        self._places: list[torch.Tensor] = []
        taken = 0
        for rows, start, stop in self.chunks:
            shape = (rows.stop - rows.start, stop - start, extent)
            self._places.append(room[taken : taken + math.prod(shape)].view(shape))
            taken += math.prod(shape)
        largest = max(place.numel() for place in self._places)
        self._buffers = torch.empty((NUM_BUFFERS, largest), dtype=hidden.dtype, device=hidden.device)
        self._is_stored = [False] * len(self.chunks)
        self._turn = 0
        self._arrived: tuple[int, int] | None = None
        self._current: tuple[int, int] | None = None
        self._copies = TwoWayCopies(hidden.device, num_buffers=NUM_BUFFERS, num_chunks=len(self.chunks))

    def load(self, number: int) -> torch.Tensor:
        """A chunk on the device: an embedding output in the first round, later what the last half left."""
        if not self._is_stored[number]:
            assert self._source is not None, "the pass has ended"
            return self._source(self.chunks[number])
        if self._arrived is None or self._arrived[0] != number:
            self._fetch(number)
        assert self._arrived is not None
        self._current, self._arrived = self._arrived, None
        buffer = self._current[1]
        self._copies.wait_for_arrival(buffer)
        following = (number + 1) % len(self.chunks)
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
        self._copies.leave(buffer, number, self._places[number], place)
        self._is_stored[number] = True
        self._current = None

    def close(self) -> None:
        """Wait for copies under way; then buffers and host memory may be used for something else."""
        self._copies.synchronize()
        self._source = None  # it refers to the pass, which refers to this: the cycle would hold the device's memory
        self._memory.trim()

    def _fetch(self, number: int) -> None:
        buffer = self._next_buffer()
        self._copies.arrive(buffer, number, self._view(buffer, number), self._places[number])
        self._arrived = (number, buffer)

    def _next_buffer(self) -> int:
        self._turn = (self._turn + 1) % NUM_BUFFERS
        return self._turn

    def _view(self, buffer: int, number: int) -> torch.Tensor:
        chunk = self._places[number]
        return self._buffers[buffer, : chunk.numel()].view(chunk.shape)
