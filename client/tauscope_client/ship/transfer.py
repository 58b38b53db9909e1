"""One file from end to end: go on where it stopped, stream, compare checksums of both ends, give it its name."""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tauscope_client.ship import scripts
from tauscope_client.ship.content import Content, Made, Stored
from tauscope_client.ship.hosts import BrokenStreamError, Host, Sink
from tauscope_client.ship.location import Location
from tauscope_client.ship.meter import Meter
from tauscope_wire.errors import CheckpointError, ErrorCode, MismatchError, RequestError, UnreachableError

__all__ = ["FileFacts", "Transfer", "file_facts"]

PART_SUFFIX = ".tauscope-part"
PIECE_BYTES = 1 << 20
MAX_STALLS = 5
"""Attempts in a row without a new byte before giving up; an attempt that brought something starts the count again."""
LONGEST_WAIT_S = 30.0


class FileFacts(NamedTuple):
    """Size in bytes and modification time (seconds) of a file."""

    nbytes: int
    changed_s: int


def file_facts(host: Host, path: str) -> FileFacts | None:
    """Facts of a file, None when there is none.

    Raises:
        BrokenStreamError: the host did not answer.
    """
    return _facts(host.run(scripts.stat_size(path)).decode())


def _facts(line: str) -> FileFacts | None:
    words = line.split()
    if words == ["missing"]:
        return None
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise BrokenStreamError(f"stat said {line[:100]!r}")
    return FileFacts(int(words[0]), int(words[1]))


class Transfer:
    """Ships files between two connected hosts.

    Args:
        source: reads.
        destination: writes.
        meter: told how far it is.
        overwrite: replace files at the destination that differ.
        wait: called with seconds between attempts.
    """

    def __init__(
        self,
        source: Host,
        destination: Host,
        *,
        meter: Meter,
        overwrite: bool = False,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._destination = destination
        self._meter = meter
        self._overwrite = overwrite
        self._wait = wait
        self._moved = 0

    def ship(self, source: Location, destination: Location, content: Content, facts: FileFacts) -> bool:
        """Ship one file.

        Args:
            source: where its stored ranges are read.
            destination: its name when all of it is there and equal; before, it ends in `.tauscope-part`.
            content: what to write.
            facts: of the source file when `content` was made; another state then is an error.

        Returns:
            False when it was there already.

        Raises:
            MismatchError: another file has the name of the destination.
            RequestError: not enough room.
            CheckpointError: the source changed meanwhile, or the checksums differ.
            UnreachableError: no progress in several attempts; the same command goes on from there.
        """
        stalls = 0
        while True:
            self._moved = 0
            try:
                return self._attempt(source, destination, content, facts)
            except BrokenStreamError as error:
                stalls = 0 if self._moved else stalls + 1
                if stalls >= MAX_STALLS:
                    raise UnreachableError(f"{error}; the same command goes on from where it is") from None
                self._meter.note(f"interrupted ({error}); going on")
                self._wait(min(LONGEST_WAIT_S, 2.0**stalls - 1))
                self._reconnect()

    def _reconnect(self) -> None:
        for host in (self._source, self._destination):
            try:
                host.connect()
            except UnreachableError as error:  # counted as a stalled attempt when it is used
                self._meter.note(error.message)

    def _attempt(self, source: Location, destination: Location, content: Content, facts: FileFacts) -> bool:
        part = f"{destination.path}{PART_SUFFIX}"
        there, begun, free = self._look(destination.path, part)
        if there is not None:
            if there.nbytes == content.nbytes and self._is_equal(source, destination.path, content, content.nbytes):
                self._meter.begin(destination.name, content.nbytes, content.nbytes)
                return False
            if not self._overwrite:
                raise MismatchError(
                    f"{destination}: another file is there ({there.nbytes} bytes, {content.nbytes} would be shipped); "
                    "remove it, choose another name, or say --overwrite"
                )
        done = self._resumable(source, part, content, begun)
        if free < content.nbytes - done:
            folder = scripts.folder_of(part)
            raise RequestError(
                f"{self._destination}:{folder} has {free} bytes free, {content.nbytes - done} are needed"
            )
        self._meter.begin(destination.name, content.nbytes, done)
        if done < content.nbytes or not content.nbytes:
            self._stream(source, part, content, done)
        self._verify(source, part, content, facts)
        self._destination.run(scripts.finish(part, destination.path))
        return True

    def _look(self, path: str, part: str) -> tuple[FileFacts | None, FileFacts | None, int]:
        lines = self._destination.run(scripts.look(path, part)).decode().splitlines()
        if len(lines) != 3 or not lines[2].strip().isdigit():
            raise BrokenStreamError(f"{self._destination}: no such folder {scripts.folder_of(path)}, or no df there")
        return _facts(lines[0]), _facts(lines[1]), 1024 * int(lines[2])

    def _resumable(self, source: Location, part: str, content: Content, there: FileFacts | None) -> int:
        """Bytes of the part file that are known to be right; what is beyond is written again."""
        if there is None:
            return 0
        if there.nbytes > content.nbytes:
            self._destination.run(scripts.start_over(part))
            return 0
        is_whole = there.nbytes == content.nbytes
        done = there.nbytes if is_whole else there.nbytes // scripts.BLOCK_BYTES * scripts.BLOCK_BYTES
        if done and not self._is_equal(source, part, content, done):
            self._meter.note("what was shipped before does not belong to this file; starting over")
            self._destination.run(scripts.start_over(part))
            return 0
        return done

    def _stream(self, source: Location, part: str, content: Content, done: int) -> None:
        placed = [segment for _, segment in content.placed(done)]
        stored = [segment for segment in placed if isinstance(segment, Stored)]
        with (
            self._destination.writing(scripts.write_from(part, done // scripts.BLOCK_BYTES)) as sink,
            self._source.reading(scripts.read_ranges(source.path, stored)) as output,
        ):
            for segment in placed:
                if isinstance(segment, Made):
                    self._hand_over(sink, segment.data)
                    continue
                left = segment.nbytes
                while left:
                    piece = output.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise BrokenStreamError(f"{self._source}: the stream ended {left} bytes early")
                    self._hand_over(sink, piece)
                    left -= len(piece)

    def _hand_over(self, sink: Sink, piece: bytes) -> None:
        sink.write(piece)
        self._moved += len(piece)
        self._meter.moved(len(piece))

    def _verify(self, source: Location, part: str, content: Content, facts: FileFacts) -> None:
        """Compare both ends; the source must still be what it was when the transfer was planned."""
        if self._is_equal(source, part, content, content.nbytes, facts):
            return
        self._destination.run(scripts.start_over(part))
        raise CheckpointError(
            f"{source}: the checksums of both ends differ; the copy was discarded. Run the same command again; if it "
            "happens again, look for a disk that fails",
            ErrorCode.CHECKSUM_MISMATCH,
        )

    def _is_equal(
        self, source: Location, path: str, content: Content, stop: int, facts: FileFacts | None = None
    ) -> bool:
        """Whether the first `stop` bytes at the destination are those of `content`, by SHA-256 on both ends at once.

        Raises:
            CheckpointError: the source does not have the `facts` any more.
        """
        placed = list(content.placed(0, stop))
        ours = [Stored(place, segment.nbytes) for place, segment in placed]
        theirs = [segment for _, segment in placed if isinstance(segment, Stored)]
        with ThreadPoolExecutor(2) as pool:
            found = pool.submit(_hashes, self._destination, path, ours)
            stored = pool.submit(_hashes, self._source, source.path, theirs)
            hashes, now = stored.result()
            if facts is not None and now != facts:
                raise CheckpointError(
                    f"{source}: the file changed while it was shipped; let its writer finish, then run the same command"
                )
            from_source = iter(hashes)
            expected = [
                hashlib.sha256(segment.data).hexdigest() if isinstance(segment, Made) else next(from_source)
                for _, segment in placed
            ]
            return found.result()[0] == expected


def _hashes(host: Host, path: str, ranges: list[Stored]) -> tuple[list[str], FileFacts | None]:
    lines = host.run(scripts.hash_ranges(path, ranges)).decode().splitlines()
    if len(lines) != len(ranges) + 1:
        raise BrokenStreamError(f"{host}: {len(lines) - 1} checksums of {len(ranges)}")
    return [line.split()[0] for line in lines[:-1]], _facts(lines[-1])
