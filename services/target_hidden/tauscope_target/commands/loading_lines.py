"""Progress of loading on standard error: one line per tenth, readable in a log as well as on a terminal."""

from collections.abc import Callable

STEPS = 10
SMALL_BYTES = 1 << 30
"""Below this, loading is over before a line about it could be read."""


class LoadingLines:
    """Tells how much of the weights has been read.

    Args:
        write: prints one line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._told = 0

    def __call__(self, done: int, total: int) -> None:
        """Take note of `done` of `total` bytes."""
        if total < SMALL_BYTES:
            return
        step = done * STEPS // total
        if step > self._told:
            self._told = step
            self._write(f"read {done / 1e9:.1f} of {total / 1e9:.1f} GB of weights")
