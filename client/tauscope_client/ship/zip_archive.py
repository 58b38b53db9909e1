"""Uncompressed zip archives, the frame of `.pt` files: reading the directory, and describing a new one of some entries.

Only what torch writes: stored entries, zip64 where needed. Sizes and checksums of kept entries come from the old
directory, so that a new archive is described without reading any data.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tauscope_client.ship.content import Content, Made, Segment, Stored
from tauscope_wire.errors import CheckpointError

__all__ = ["Entry", "archive_of", "read_directory", "read_entry"]

ReadRange = Callable[[int, int], bytes]

END, END64, LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
LONGEST_END = 22 + 0xFFFF
MAX_DIRECTORY_BYTES = 64 << 20
WIDE = 0xFFFFFFFF
ALIGNMENT = 64
"""torch aligns data, so that a mapped file gives aligned tensors; the gap is an extra field named FB."""
UTF8_NAMES = 0x0800
DOS_DATE = 0x21  # 1 January 1980


class Entry(NamedTuple):
    """One file of an archive.

    Attributes:
        name: with its folders.
        nbytes: of its data.
        crc: CRC-32 of its data.
        header_offset: of its local header.
    """

    name: str
    nbytes: int
    crc: int
    header_offset: int


def read_directory(name: str, nbytes: int, read: ReadRange) -> dict[str, Entry]:
    """The entries of an archive.

    Raises:
        CheckpointError: no zip archive, a damaged one, or one with compressed entries.
    """
    tail_start = max(0, nbytes - LONGEST_END - 20 - 56)
    tail = read(tail_start, nbytes - tail_start)
    place = tail.rfind(END)
    if place < 0 or len(tail) - place < 22:
        raise CheckpointError(
            f"{name}: not a zip archive. A checkpoint of torch before 1.6, or a file that was cut: ship it without "
            "--weights-only"
        )
    count, size, offset = struct.unpack_from("<HII", tail, place + 10)
    if WIDE in (size, offset) or count == 0xFFFF:
        if tail[max(0, place - 20) : place][:4] != LOCATOR:
            raise CheckpointError(f"{name}: damaged archive (no zip64 locator)")
        (end64_offset,) = struct.unpack_from("<Q", tail, place - 20 + 8)
        end64 = read(end64_offset, 56)
        if end64[:4] != END64 or len(end64) < 56:
            raise CheckpointError(f"{name}: damaged archive (no zip64 end)")
        count, size, offset = struct.unpack_from("<QQQ", end64, 32)
    if size > MAX_DIRECTORY_BYTES or offset + size > nbytes:
        raise CheckpointError(f"{name}: damaged archive (directory of {size} bytes at {offset} in {nbytes})")
    return _entries(name, read(offset, size), count)


def _entries(name: str, directory: bytes, count: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    place = 0
    try:
        for _ in range(count):
            if directory[place : place + 4] != CENTRAL:
                raise CheckpointError(f"{name}: damaged archive (directory)")
            method, crc, packed, plain, name_len, extra_len, note_len = struct.unpack_from(
                "<H4xIIIHHH", directory, place + 10
            )
            (header,) = struct.unpack_from("<I", directory, place + 42)
            begin = place + 46
            file = directory[begin : begin + name_len].decode("utf-8")
            extra = directory[begin + name_len : begin + name_len + extra_len]
            plain, packed, header = _widened(extra, plain, packed, header)
            if method or packed != plain:
                raise CheckpointError(f"{name}: {file} is compressed; ship the file without --weights-only")
            entries[file] = Entry(file, plain, crc, header)
            place = begin + name_len + extra_len + note_len
    except (struct.error, UnicodeDecodeError, StopIteration):
        raise CheckpointError(f"{name}: damaged archive (directory)") from None
    return entries


def _widened(extra: bytes, plain: int, packed: int, header: int) -> tuple[int, int, int]:
    """Put the 64-bit values of extra field 1 in place of those that do not fit into 32 bits."""
    place = 0
    while place + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, place)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{size // 8}Q", extra, place + 4))
            plain = next(wide) if plain == WIDE else plain
            packed = next(wide) if packed == WIDE else packed
            header = next(wide) if header == WIDE else header
        place += 4 + size
    return plain, packed, header


def read_entry(entry: Entry, read: ReadRange) -> bytes:
    """The data of one (small) entry."""
    return read(data_offset(entry, read(entry.header_offset, 30)), entry.nbytes)


def data_offset(entry: Entry, local_header: bytes) -> int:
    """Where the data of an entry begin, from the 30 bytes of its local header.

    Raises:
        CheckpointError: no header there.
    """
    if local_header[:4] != LOCAL or len(local_header) < 30:
        raise CheckpointError(f"{entry.name}: damaged archive (no header at {entry.header_offset})")
    name_len, extra_len = struct.unpack_from("<HH", local_header, 26)
    return entry.header_offset + 30 + int(name_len) + int(extra_len)


def archive_of(made: Mapping[str, bytes], kept: Sequence[tuple[Entry, int]]) -> Content:
    """Describe a new archive.

    Args:
        made: new small entries, which come first.
        kept: entries of the old archive with the places of their data there.
    """
    segments: list[Segment] = []
    directory: list[bytes] = []
    place = 0

    def add(name: str, nbytes: int, crc: int, data: Segment) -> None:
        nonlocal place
        header = _local_header(name, nbytes, crc, place)
        directory.append(_central_header(name, nbytes, crc, place))
        segments.extend((Made(header), data))
        place += len(header) + nbytes

    for name, data in made.items():
        add(name, len(data), zlib.crc32(data), Made(data))
    for entry, offset in kept:
        add(entry.name, entry.nbytes, entry.crc, Stored(offset, entry.nbytes))
    table = b"".join(directory)
    segments.append(Made(table + _ends(len(directory), len(table), place)))
    return Content(segments)


def _narrow(value: int) -> int:
    return min(value, WIDE)


def _local_header(name: str, nbytes: int, crc: int, place: int) -> bytes:
    encoded = name.encode()
    wide = struct.pack("<HHQQ", 1, 16, nbytes, nbytes) if nbytes >= WIDE else b""
    used = place + 30 + len(encoded) + len(wide) + 4
    gap = -used % ALIGNMENT
    extra = wide + struct.pack("<2sH", b"FB", gap) + b"Z" * gap
    small = _narrow(nbytes)
    version = 45 if wide else 20
    head = struct.pack("<HHHHHIIIHH", version, UTF8_NAMES, 0, 0, DOS_DATE, crc, small, small, len(encoded), len(extra))
    return LOCAL + head + encoded + extra


def _central_header(name: str, nbytes: int, crc: int, place: int) -> bytes:
    encoded = name.encode()
    values = [nbytes, nbytes] if nbytes >= WIDE else []
    values += [place] if place >= WIDE else []
    extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
    version = 45 if values else 20
    small = _narrow(nbytes)
    head = struct.pack(
        "<HHHHHHIIIHHHHHII",
        *(version, version, UTF8_NAMES, 0, 0, DOS_DATE, crc, small, small, len(encoded), len(extra)),
        *(0, 0, 0, 0, _narrow(place)),
    )
    return CENTRAL + head + encoded + extra


def _ends(count: int, size: int, offset: int) -> bytes:
    end64 = END64 + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = LOCATOR + struct.pack("<IQI", 0, offset + size, 1)
    end = END + struct.pack("<HHHHIIH", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), _narrow(size), _narrow(offset), 0)
    return end64 + locator + end
