"""Files that survive a kill: whole files appear at once, lines are complete or absent."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO
from urllib.parse import quote

__all__ = ["JsonLines", "safe_name", "write_atomically", "write_json", "write_text"]

# Most file systems allow 255 bytes a name; the rest is room for endings and a hash.
_MAX_NAME = 150


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, flush it to the disk, then move it there: readers see the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically, indented, keys in the order given."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def safe_name(name: str) -> str:
    """A file name for any id: letters, digits, `-`, `_` and `.` stay, others are percent-encoded."""
    quoted = quote(name, safe="@")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) <= _MAX_NAME:
        return quoted
    return f"{quoted[:80]}%{hashlib.sha256(name.encode()).hexdigest()[:32]}"


class JsonLines:
    """A file of JSON lines that is only ever appended to. One process writes it, which the folder's lock ensures."""

    def __init__(self, path: Path) -> None:
        """Open for appending; a last line that a kill tore is cut off."""
        self.path = path
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        self._cut_torn_end()

    def append(self, line: str) -> None:
        """Append one line and flush it to the disk; safe from several threads."""
        data = line.encode() + b"\n"
        with self._lock:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every complete line."""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.endswith(b"\n") and raw.strip():
                    yield number, raw.decode().rstrip("\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cut_torn_end(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        at = end
        while at > 0:
            step = min(at, 1 << 16)
            self._file.seek(at - step)
            block = self._file.read(step)
            found = block.rfind(b"\n")
            if found >= 0:
                at = at - step + found + 1
                break
            at -= step
        if at < end:
            self._file.truncate(at)
        self._file.seek(0, os.SEEK_END)
