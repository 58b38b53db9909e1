"""Where the reader takes bytes from, and how it finds the end of them."""

from collections.abc import Iterator
from typing import Final, Protocol

from tauscope_wire.errors import ErrorCode, WireError

__all__ = ["SLICE_BYTES", "BufferedSource", "BytesSource", "IterSource", "Source", "wire_error"]

SLICE_BYTES: Final = 1 << 20
"""Payload bytes taken at once: checked while they are still in the second-level cache; a multiple of every itemsize."""

_BUFFER_BYTES: Final = 64 << 10


class Source(Protocol):
    """A byte stream. May also have `remaining_bytes() -> int | None`, the length that was promised and not read yet."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill up to len(buffer) bytes; returns how many, 0 at the end only."""


class BytesSource:
    """A body that is in memory already."""

    def __init__(self, body: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(body).cast("B")

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy the next bytes."""
        num_bytes = min(len(buffer), len(self._view))
        buffer[:num_bytes] = self._view[:num_bytes]
        self._view = self._view[num_bytes:]
        return num_bytes

    def remaining_bytes(self) -> int:
        """Bytes not read yet."""
        return len(self._view)


class IterSource:
    """A body that arrives as an iterator of byte strings (an `httpx` transport other than ours); one copy more."""

    def __init__(self, chunks: Iterator[bytes], *, length: int | None = None) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._remaining = length

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy from the current chunk; takes the next one when it is used up."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        num_bytes = min(len(buffer), len(self._rest))
        buffer[:num_bytes] = self._rest[:num_bytes]
        self._rest = self._rest[num_bytes:]
        if self._remaining is not None:
            self._remaining -= num_bytes
        return num_bytes

    def remaining_bytes(self) -> int | None:
        """Bytes promised by the length and not read yet."""
        return self._remaining


def wire_error(code: ErrorCode, where: str, problem: str, *, offset: int, **details: object) -> WireError:
    """An error that says where in the body, what is wrong, and at which byte the reader stood."""
    return WireError(f"{where}: {problem}", code, details={"where": where, "offset": offset, **details})


class BufferedSource:
    """A small buffer for the head; payloads bypass it.

    Attributes:
        offset: bytes of the body consumed so far.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._low = 0
        self._high = 0
        self.offset = 0

    def take(self, num_bytes: int, where: str) -> bytes:
        """The next few bytes (at most 64 KiB).

        Raises:
            WireError: the body ends before (`body_truncated`).
        """
        if self._high - self._low < num_bytes:
            self._fill(num_bytes, where)
        taken = bytes(self._buffer[self._low : self._low + num_bytes])
        self._low += num_bytes
        self.offset += num_bytes
        return taken

    def peek(self, where: str) -> int:
        """The next byte, not consumed.

        Raises:
            WireError: the body ends here (`body_truncated`).
        """
        if self._low == self._high:
            self._fill(1, where)
        return self._buffer[self._low]

    def read_into(self, target: memoryview, where: str) -> None:
        """Fill `target` completely, straight from the source but for what the buffer held already.

        Raises:
            WireError: the body ends before (`body_truncated`).
        """
        done = min(self._high - self._low, len(target))
        target[:done] = self._buffer[self._low : self._low + done]
        self._low += done
        while done < len(target):
            got = self._source.readinto(target[done:])
            if not got:
                self.offset += done
                raise self._truncated(where, len(target) - done)
            done += got
        self.offset += done

    def at_end(self) -> bool:
        """Whether no byte follows; waits for one or for the end."""
        if self._low == self._high:
            self._low, self._high = 0, self._source.readinto(self._buffer)
        return self._low == self._high

    def promised_bytes(self) -> int | None:
        """Bytes that can still come by the length of the transport, or None when there is no such promise."""
        remaining = getattr(self._source, "remaining_bytes", lambda: None)()
        return None if remaining is None else remaining + self._high - self._low

    def _fill(self, num_bytes: int, where: str) -> None:
        held = self._high - self._low
        self._buffer[:held] = bytes(self._buffer[self._low : self._high])
        self._low, self._high = 0, held
        while self._high < num_bytes:
            got = self._source.readinto(self._buffer[self._high :])
            if not got:
                raise self._truncated(where, num_bytes - self._high)
            self._high += got

    def _truncated(self, where: str, missing: int) -> WireError:
        return wire_error(
            ErrorCode.BODY_TRUNCATED,
            where,
            f"the body ends here, {missing} bytes are missing; the service failed while sending or the connection was "
            "cut: ask again",
            offset=self.offset,
            missing_bytes=missing,
        )
