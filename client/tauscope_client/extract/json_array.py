"""Takes the elements of a JSON array out of a file one by one; the file may be larger than the memory."""

import json
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = ["ArrayError", "array_elements"]

FIRST_READ_CHARS = 1 << 16
_BLANK = " \t\r\n"


class ArrayError(ValueError):
    """Not one JSON array.

    Attributes:
        line: where that was found.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def array_elements(file: TextIO, *, max_chars: int) -> Iterator[tuple[int, Any]]:
    """Number of the line where it begins, and value, of every element.

    Args:
        file: at its beginning.
        max_chars: bound on one element.

    Raises:
        ArrayError: no array, one without end, text after it, or an element that is no JSON or over the bound.
    """
    text = _Window(file, max_chars)
    if text.next_mark() != "[":
        raise ArrayError(text.line, "not a JSON array")
    text.drop(1)
    if text.next_mark() != "]":
        while True:
            text.next_mark()
            yield text.line, text.take_value()
            mark = text.next_mark()
            if mark == "]":
                break
            if mark != ",":
                raise ArrayError(text.line, "expected ',' or ']' after an element")
            text.drop(1)
    text.drop(1)
    if text.next_mark():
        raise ArrayError(text.line, "text after the end of the array")


class _Window:
    """The part of a file that is being read."""

    def __init__(self, file: TextIO, max_chars: int) -> None:
        self._file = file
        self._max_chars = max_chars
        self._text = ""
        self._decoder = json.JSONDecoder()
        self.line = 1

    def next_mark(self) -> str:
        """The next character that is not blank, which comes first now; empty at the end of the file."""
        while True:
            rest = self._text.lstrip(_BLANK)
            self.drop(len(self._text) - len(rest))
            if rest or not self._read_more():
                return rest[:1]

    def take_value(self) -> Any:
        """The value that begins here.

        A value counts once something follows it: `12` may be the beginning of `123`. What is read doubles each time, so
        that a long element is not parsed more than a few times.
        """
        while True:
            try:
                value, stop = self._decoder.raw_decode(self._text)
                if self._text[stop:].strip(_BLANK):
                    self.drop(stop)
                    return value
                reason = "the array has no end"
            except json.JSONDecodeError as error:
                reason = f"not JSON: {error.msg}"
            except RecursionError:
                raise ArrayError(self.line, "nested too deeply") from None
            if len(self._text) > self._max_chars:
                raise ArrayError(self.line, f"an element of more than {self._max_chars} characters, or {reason}")
            if not self._read_more():
                raise ArrayError(self.line, reason)

    def drop(self, num_chars: int) -> None:
        """Go on behind so many characters."""
        self.line += self._text.count("\n", 0, num_chars)
        self._text = self._text[num_chars:]

    def _read_more(self) -> bool:
        more = self._file.read(max(FIRST_READ_CHARS, len(self._text)))
        self._text += more
        return bool(more)
