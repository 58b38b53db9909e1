"""Asynchronous copies into device buffers, ordered against the compute stream by events."""

from typing import Any

import torch

SEGMENT_BYTES = 64 << 20
"""Longer copies are cut, so that others on the same bus get their turn, such as chunks of a residual stream."""


class CopyQueue:
    """Copies into numbered buffers on a stream of their own. Without a GPU the same calls copy at once.

    Args:
        device: where the buffers are.
        num_buffers: how many there are.
    """

    def __init__(self, device: torch.device, num_buffers: int) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._copied = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]
            self._used = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]

    def copy(self, buffer: int, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy into a buffer once its last use is done."""
        if self._stream is None:
            target.copy_(source)
            return
        self._stream.wait_event(self._used[buffer])
        step = max(1, SEGMENT_BYTES // target[0].nbytes)
        with torch.cuda.stream(self._stream):
            for start in range(0, len(target), step):
                target[start : start + step].copy_(source[start : start + step], non_blocking=True)
            self._copied[buffer].record(self._stream)

    def wait_until_copied(self, buffer: int) -> None:
        """Make the compute stream wait for the buffer's copy."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied[buffer])

    def mark_used(self, buffer: int) -> None:
        """What was put on the compute stream so far is the buffer's last use."""
        if self._stream is not None:
            self._used[buffer].record(torch.cuda.current_stream(self._device))


class TwoWayCopies:
    """Chunks travel both ways through numbered buffers, on a stream for each direction; without a GPU at once.

    Args:
        device: where the buffers are.
        num_buffers: how many there are.
        num_chunks: how many chunks lie on the host.
    """

    def __init__(self, device: torch.device, *, num_buffers: int, num_chunks: int) -> None:
        self._device = device
        self._inward: Any = None
        if device.type == "cuda":
            self._inward = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._outward = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._here = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]
            self._written = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]
            self._empty = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]
            self._on_host = [torch.cuda.Event() for _ in range(num_chunks)]  # type: ignore[no-untyped-call]
            fresh = torch.cuda.current_stream(device)
            self._inward.wait_stream(fresh)  # the buffers' memory may still be in use by work that was put there before
            self._outward.wait_stream(fresh)

    def arrive(self, buffer: int, number: int, place: torch.Tensor, chunk: torch.Tensor) -> None:
        """Host to device, once the chunk is on the host and the buffer's last content has left."""
        if self._inward is None:
            place.copy_(chunk)
            return
        self._inward.wait_event(self._on_host[number])
        self._inward.wait_event(self._empty[buffer])
        with torch.cuda.stream(self._inward):
            place.copy_(chunk, non_blocking=True)
            self._here[buffer].record(self._inward)

    def wait_for_arrival(self, buffer: int) -> None:
        """Make the compute stream wait for what was sent to a buffer."""
        if self._inward is not None:
            torch.cuda.current_stream(self._device).wait_event(self._here[buffer])

    def wait_until_empty(self, buffer: int) -> None:
        """Make the compute stream wait until a buffer's last content has left."""
        if self._inward is not None:
            torch.cuda.current_stream(self._device).wait_event(self._empty[buffer])

    def leave(self, buffer: int, number: int, chunk: torch.Tensor, place: torch.Tensor) -> None:
        """Device to host, once the compute stream has written the buffer."""
        if self._inward is None:
            chunk.copy_(place)
            return
        self._written[buffer].record(torch.cuda.current_stream(self._device))
        self._outward.wait_event(self._written[buffer])
        with torch.cuda.stream(self._outward):
            chunk.copy_(place, non_blocking=True)
            self._empty[buffer].record(self._outward)
            self._on_host[number].record(self._outward)

    def synchronize(self) -> None:
        """Wait on the host for everything."""
        if self._inward is not None:
            self._inward.synchronize()
            self._outward.synchronize()
