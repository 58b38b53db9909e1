"""Pull parser for msgpack: the caller says what must come next, so that nothing is built that was not asked for.

Every count, string and depth is checked against `ReadLimits` before memory is taken. Payload bins are not values here:
the caller gets their length and reads them itself.
"""

import math
import struct
from typing import Any, Final, TypeVar

from tauscope_wire.errors import ErrorCode, WireError
from tauscope_wire.limits import ReadLimits
from tauscope_wire.source import BufferedSource, Source, wire_error

__all__ = ["PullParser"]

_INTS: Final = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_FLOATS: Final = {0xCA: ">f", 0xCB: ">d"}
_LENGTHS: Final = {1: ">B", 2: ">H", 4: ">I"}
_CONSTANTS: Final[dict[int, bool | None]] = {0xC0: None, 0xC2: False, 0xC3: True}

_SCALARS_ONLY: Final = -1
"""In place of a depth: no container may come."""

_NIL: Final = 0xC0

_T = TypeVar("_T")


class PullParser:
    """Reads one msgpack document from a source.

    Attributes:
        stream: the buffered source; payloads are read from it directly.
        limits: the bounds in force.
    """

    def __init__(self, source: Source, limits: ReadLimits) -> None:
        self.stream = BufferedSource(source)
        self.limits = limits
        self._head_bytes = 0

    def fail(self, where: str, problem: str, code: ErrorCode = ErrorCode.BODY_CORRUPT, **details: object) -> WireError:
        """The error for a problem at the current byte; the caller raises it."""
        return wire_error(code, where, problem, offset=self.stream.offset, **details)

    def map_length(self, where: str) -> int:
        """Header of a map."""
        return self._container(where, "a map", 0x80, 0xDE)

    def array_length(self, where: str) -> int:
        """Header of an array."""
        return self._container(where, "an array", 0x90, 0xDC)

    def bin_length(self, where: str) -> int:
        """Header of a bin; its bytes are next in `stream` and do not count as head."""
        code = self._byte(where)
        if code not in (0xC4, 0xC5, 0xC6):
            raise self._unexpected(where, "a bin", code)
        return self._length(1 << (code - 0xC4), where)

    def skip_nil(self, where: str) -> bool:
        """Whether nil comes next; it is consumed then, anything else is left."""
        return self.stream.peek(where) == _NIL and self.value(where) is None

    def string(self, where: str) -> str:
        """A string."""
        return self._typed(where, str, "a string")

    def integer(self, where: str) -> int:
        """An integer (not a bool)."""
        value = self._typed(where, int, "an integer")
        if isinstance(value, bool):
            raise self.fail(where, f"{value}: expected an integer")
        return value

    def value(self, where: str, *, depth: int = 1) -> Any:
        """Any value of the head: maps with distinct str keys, lists, finite numbers, str, bytes, bool, None.

        Raises:
            WireError: not msgpack, an extension type, a duplicate key, or over a limit.
        """
        code = self._byte(where)
        if code <= 0x7F or code >= 0xE0:
            return code if code <= 0x7F else code - 0x100
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _INTS:
            return self._number(_INTS[code], where)
        if code in _FLOATS:
            number = self._number(_FLOATS[code], where)
            if not math.isfinite(number):
                raise self.fail(where, f"{number} is not a finite number")
            return number
        if 0xA0 <= code <= 0xBF or code in (0xD9, 0xDA, 0xDB):
            length = code & 0x1F if code <= 0xBF else self._length(1 << (code - 0xD9), where)
            raw = self._text(length, where)
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.fail(where, f"a string that is not UTF-8 ({error.reason})") from None
        if code in (0xC4, 0xC5, 0xC6):
            return self._text(self._length(1 << (code - 0xC4), where), where)
        if depth == _SCALARS_ONLY:
            raise self._unexpected(where, "a plain value", code)
        if depth > self.limits.max_depth:
            raise self.fail(where, f"more than {self.limits.max_depth} containers deep", ErrorCode.LIMIT_EXCEEDED)
        if 0x90 <= code <= 0x9F or code in (0xDC, 0xDD):
            count = self._count(code, 0xDC, where)
            return [self.value(f"{where}[{index}]", depth=depth + 1) for index in range(count)]
        if 0x80 <= code <= 0x8F or code in (0xDE, 0xDF):
            return self._mapping(self._count(code, 0xDE, where), where, depth)
        raise self._unexpected(where, "a value", code)

    def _mapping(self, count: int, where: str, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for _ in range(count):
            key = self.string(f"{where} (a key)")
            if key in entries:
                raise self.fail(f"{where}.{key}", "the key comes twice")
            entries[key] = self.value(f"{where}.{key}", depth=depth + 1)
        return entries

    def _typed(self, where: str, kind: type[_T], name: str) -> _T:
        value = self.value(where, depth=_SCALARS_ONLY)
        if not isinstance(value, kind):
            raise self.fail(where, f"expected {name}, found {type(value).__name__}")
        return value

    def _container(self, where: str, name: str, fix: int, wide: int) -> int:
        code = self._byte(where)
        if not (fix <= code <= fix + 15 or code in (wide, wide + 1)):
            raise self._unexpected(where, name, code)
        return self._count(code, wide, where)

    def _count(self, code: int, wide: int, where: str) -> int:
        count = self._length(2 << (code - wide), where) if code >= wide else code & 0x0F
        if count > self.limits.max_items:
            raise self.fail(
                where, f"{count} items, at most {self.limits.max_items} are accepted", ErrorCode.LIMIT_EXCEEDED
            )
        return count

    def _text(self, length: int, where: str) -> bytes:
        if length > self.limits.max_string_bytes:
            raise self.fail(
                where,
                f"a string of {length} bytes, at most {self.limits.max_string_bytes} are accepted",
                ErrorCode.LIMIT_EXCEEDED,
            )
        return self._take(length, where)

    def _number(self, form: str, where: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form), where))[0]

    def _length(self, width: int, where: str) -> int:
        return int(struct.unpack(_LENGTHS[width], self._take(width, where))[0])

    def _byte(self, where: str) -> int:
        return self._take(1, where)[0]

    def _take(self, num_bytes: int, where: str) -> bytes:
        self._head_bytes += num_bytes
        if self._head_bytes > self.limits.max_head_bytes:
            raise self.fail(
                where,
                f"more than {self.limits.max_head_bytes} bytes outside of the payloads",
                ErrorCode.LIMIT_EXCEEDED,
            )
        return self.stream.take(num_bytes, where)

    def _unexpected(self, where: str, expected: str, code: int) -> WireError:
        return self.fail(where, f"expected {expected}, found the msgpack type byte 0x{code:02x}")
