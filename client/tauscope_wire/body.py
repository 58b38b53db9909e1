"""A body whose length is known before its first payload byte exists."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from tauscope_wire.framing import Part

__all__ = ["SLICE_BYTES", "Body"]

SLICE_BYTES: Final = 1 << 20
"""Largest piece handed to a server's transport at once: with whole payloads asyncio copies what it could not send yet
(123 ms against 18 ms for 50 MiB)."""

_JOIN_BYTES: Final = 16 << 10
"""Smaller pieces are joined: fewer, larger writes cost less than the copy."""


class Body:
    """Parts of one msgpack map, produced while they are sent.

    Attributes:
        nbytes: the exact length of all parts, for Content-Length.

    Iterating again is possible unless the chunks came from a one-shot iterator. Payload parts alias the memory that
    the writer was given; it must not change until the body has been sent.
    """

    def __init__(self, nbytes: int, produce: Callable[[int | None], Iterator[Iterator[Part]]]) -> None:
        self.nbytes = nbytes
        self._produce = produce

    def __repr__(self) -> str:
        return f"Body(nbytes={self.nbytes})"

    def parts(self) -> Iterator[Part]:
        """The parts as they are framed: small pieces, and each payload whole.

        Raises:
            ValueError: lazily produced data does not have the announced geometry; the connection must be cut.
        """
        return chain.from_iterable(self._produce(None))

    def slices(self, max_bytes: int = SLICE_BYTES) -> Iterator[Part]:
        """The parts for a socket: none longer than `max_bytes`, short neighbours joined, payloads not copied.

        Raises:
            ValueError: as `parts`.
        """
        return _sliced(chain.from_iterable(self._produce(max_bytes)), max_bytes)

    def segments(self, max_bytes: int = SLICE_BYTES) -> Iterator[Iterator[Part]]:
        """The slices, grouped so that only the step to the next group may wait for a chunk that is being computed.

        An event loop takes that step in a worker thread and the slices of a group by itself: a change of threads for
        every slice costs as much as sending it. Use up each group before the next step.

        Raises:
            ValueError: as `parts`.
        """
        return (_sliced(segment, max_bytes) for segment in self._produce(max_bytes))

    def tobytes(self) -> bytes:
        """The whole body in one copy; for small bodies and tests."""
        return b"".join(self.parts())


def _sliced(parts: Iterator[Part], max_bytes: int) -> Iterator[Part]:
    pending = bytearray()
    for part in parts:
        if len(part) < _JOIN_BYTES and len(pending) + len(part) <= max_bytes:
            pending += part
            continue
        if pending:
            yield bytes(pending)
            pending.clear()
        if len(part) <= max_bytes:
            yield part
        else:
            view = memoryview(part)
            for start in range(0, len(view), max_bytes):
                yield view[start : start + max_bytes]
    if pending:
        yield bytes(pending)
