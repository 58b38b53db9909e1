"""Asynchronous copies into device buffers, ordered against the compute stream by events."""

from typing import Any

import torch


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
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._copied[buffer].record(self._stream)

    def wait_until_copied(self, buffer: int) -> None:
        """Make the compute stream wait for the buffer's copy."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied[buffer])

    def mark_used(self, buffer: int) -> None:
        """What was put on the compute stream so far is the buffer's last use."""
        if self._stream is not None:
            self._used[buffer].record(torch.cuda.current_stream(self._device))
