"""What a destination file consists of: bytes made here, and ranges of the source file. Its length is known up front."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Content", "Made", "Segment", "Stored"]


class Stored(NamedTuple):
    """A range of the source file."""

    offset: int
    nbytes: int


class Made(NamedTuple):
    """Bytes that are not in the source file: a header that names fewer tensors, say."""

    data: bytes

    @property
    def nbytes(self) -> int:
        """Length."""
        return len(self.data)


Segment = Stored | Made


class Content:
    """Segments in order; neighbours that continue each other are one.

    Args:
        segments: of the destination file.
    """

    def __init__(self, segments: Iterable[Segment]) -> None:
        merged: list[Segment] = []
        for segment in segments:
            if not segment.nbytes:
                continue
            last = merged[-1] if merged else None
            if isinstance(segment, Stored) and isinstance(last, Stored) and last.offset + last.nbytes == segment.offset:
                merged[-1] = Stored(last.offset, last.nbytes + segment.nbytes)
            elif isinstance(segment, Made) and isinstance(last, Made):
                merged[-1] = Made(last.data + segment.data)
            else:
                merged.append(segment)
        self.segments = tuple(merged)
        self.nbytes = sum(segment.nbytes for segment in merged)

    @classmethod
    def whole(cls, nbytes: int) -> "Content":
        """The source file as it is."""
        return cls([Stored(0, nbytes)])

    def placed(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Segment]]:
        """Segments of the range [start, stop) of the destination, each with its place there; cut where needed."""
        stop = self.nbytes if stop is None else stop
        place = 0
        for segment in self.segments:
            first, last = max(start, place), min(stop, place + segment.nbytes)
            if first < last:
                yield first, _cut(segment, first - place, last - place)
            place += segment.nbytes


def _cut(segment: Segment, start: int, stop: int) -> Segment:
    if isinstance(segment, Made):
        return Made(segment.data[start:stop])
    return Stored(segment.offset + start, stop - start)
