"""How far a transfer is: what the working code calls. What it looks like is the command's business."""

from typing import Protocol

__all__ = ["Meter", "SilentMeter"]


class Meter(Protocol):
    """Told how far a transfer is."""

    def begin(self, name: str, total: int, done: int) -> None:
        """A file of `total` bytes, of which `done` are there already."""
        ...

    def moved(self, nbytes: int) -> None:
        """Bytes were handed to the destination."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


class SilentMeter:
    """Shows nothing."""

    def begin(self, name: str, total: int, done: int) -> None:
        """Ignore."""

    def moved(self, nbytes: int) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""
