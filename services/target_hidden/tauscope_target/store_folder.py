"""States of the handle store as files in memory (`/dev/shm`), so that a reader on this machine maps them uncopied.

One safetensors file an entry, named by a random token that says nothing about handle or prompt; a name is used once, so
a reader that was told an older one never finds other bits under it. The folder and its files are their owner's alone.
It is one process's: a lock in it tells the files of a living process from what a killed one left behind. Nothing here
outlives the process on purpose; `spill` does that.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import BinaryIO, Literal

from tauscope_target.checkpoint import read_header
from tauscope_target.stored import StatesFile, StoredStates
from tauscope_target.tensor_file import TEMPORARY_SUFFIX, map_tensor, write_tensors
from tauscope_wire.errors import RequestError
from tauscope_wire.mapping import FILE_NAME, FILE_SCHEMA

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the folder made in it is new, private and locked
"""Where Linux keeps files in memory."""
PREFIX = "tauscope-states-"
LOCK = "lock"
NEW_FOLDER_ATTEMPTS = 8
"""Another process that has just started may take a folder without a lock yet for a stale one, but not this often."""
TOKEN_BYTES = 16
"""128 bits: a name is never met twice, and nobody finds one by trying."""

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\..*" + re.escape(TEMPORARY_SUFFIX))


class StoreFolder:
    """Files of one process's stored states. Thread-safe; close it.

    Args:
        path: the folder; made if missing, else it must be private and no living process's. `auto` makes a new one under
            `shared_memory` and removes those that killed processes of this user left there.
        shared_memory: see `path`.

    Raises:
        RequestError: the folder cannot be used, or another process uses it.
    """

    def __init__(self, path: Path | Literal["auto"], *, shared_memory: Path = SHARED_MEMORY) -> None:
        self._is_ours = True
        try:
            if path == "auto":
                self._path, lock = _new_folder(shared_memory)
            else:
                self._path = path.absolute()
                self._is_ours = not self._path.exists()
                self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_private(self._path)
                lock = _locked(self._path)
        except OSError as error:
            raise RequestError(
                f"--store-dir {path}: {error.strerror}; give a folder that can be written, best under {shared_memory}"
            ) from None
        if lock is None:
            raise RequestError(f"--store-dir {path}: another process keeps its states there; give each its own folder")
        self._lock = lock
        _clean(self._path)

    def move(self, entry: StoredStates) -> bool:
        """Move the states of an entry, which nobody else holds yet, into a file, and map them from there.

        Returns:
            Whether it was done; False leaves the entry as it was (the folder is full or gone).
        """
        file = self._path / f"{secrets.token_hex(TOKEN_BYTES)}.safetensors"
        facts = {"digest": entry.digest, "planes": list(entry.planes), "start": entry.start}
        try:
            write_tensors(
                file,
                {"states": entry.states, "token_ids": entry.token_ids},
                {"schema": FILE_SCHEMA, "token": file.stem, "facts": json.dumps(facts)},
                mode=0o600,
            )
            tensors = {tensor.name: tensor for tensor in read_header(file)}
            states = tensors["states"]
            entry.states = map_tensor(states)
            entry.file = StatesFile(path=file, nbytes=file.stat().st_size, offset=states.start)
        except OSError:
            with contextlib.suppress(OSError):
                file.unlink()
            return False
        return True

    def remove(self, entry: StoredStates) -> None:
        """Remove the file of an entry, if it has one; whoever has mapped it keeps the states."""
        if entry.file is not None:
            with contextlib.suppress(OSError):
                entry.file.path.unlink()
            entry.file = None

    def close(self) -> None:
        """Remove all files, and the folder if it was made here."""
        _clean(self._path)
        if self._is_ours:
            shutil.rmtree(self._path, ignore_errors=True)
        self._lock.close()


def _prefix() -> str:
    return f"{PREFIX}{os.geteuid()}-"


def _check_private(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RequestError(
            f"--store-dir {path}: it must be a folder of this user that nobody else may enter (chmod 700), no link"
        )


def _locked(path: Path) -> BinaryIO | None:
    """The lock of a folder, held until it is closed or the process ends; None if another process holds it."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    stream = os.fdopen(descriptor, "r+b")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream


def _clean(path: Path) -> None:
    """Remove files of states, whole and half; leave everything else."""
    with contextlib.suppress(OSError):
        for file in path.iterdir():
            if FILE_NAME.fullmatch(file.name) or _TEMPORARY.fullmatch(file.name):
                with contextlib.suppress(OSError):
                    file.unlink()


def _new_folder(shared_memory: Path) -> tuple[Path, BinaryIO | None]:
    """A new locked folder; None in place of the lock if others keep removing it."""
    _sweep(shared_memory)
    for _ in range(NEW_FOLDER_ATTEMPTS):
        path = shared_memory / f"{_prefix()}{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(path)
            if lock is not None and os.path.samestat(os.fstat(lock.fileno()), (path / LOCK).stat()):
                return path, lock
    return path, None


def _sweep(shared_memory: Path) -> None:
    """Remove the folders that processes of this user left when they were killed."""
    for folder in shared_memory.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError, RequestError):
            _check_private(folder)
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()
