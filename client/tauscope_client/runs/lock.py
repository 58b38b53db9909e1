"""One run in a folder at a time; a killed run leaves no lock behind."""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tauscope_wire.errors import ErrorCode, MismatchError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FolderLock"]


class FolderLock:
    """A lock on `<folder>/.lock` that the operating system drops with the process."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is taken yet."""
        self._path = folder / ".lock"
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            MismatchError: another process holds it; says which.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab+")
        try:
            if sys.platform == "win32":
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read(64).decode(errors="replace").strip() or "unknown"
            file.close()
            raise MismatchError(
                f"{self._path.parent}: another run is writing there (process {holder}); "
                "wait for it, or use another folder with --out",
                ErrorCode.INVALID_REQUEST,
            ) from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()).encode())
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None
