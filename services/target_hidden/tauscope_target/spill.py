"""Stored states as files: one safetensors file a handle, complete or absent, found again after a restart.

A file is written under a temporary name, flushed to the disk, then renamed: a process that dies in between leaves a
temporary file, which the next start removes, and never half a handle. Reading maps the file; its digest is checked once
per process before anything of it is served. Several processes may share a folder: each finds what the others wrote, and
their handles agree, because the secret lies in it too. Budgets are those of the folder: before it writes, a process
looks what the others have written meanwhile.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tauscope_target.disk_room import has_room
from tauscope_target.secret_file import kept_secret
from tauscope_target.spill_file import arrays_of, decode, metadata_of, owner_of
from tauscope_target.stored import StoredStates
from tauscope_target.tensor_file import TEMPORARY_SUFFIX, file_bytes, write_tensors
from tauscope_wire.checksums import digest_of
from tauscope_wire.errors import CheckpointError, ErrorCode, QuotaError, RequestError, UnavailableError

HANDLE = re.compile(r"[0-9a-f]{48}")
"""Only such names become file names."""
REFRESH_S = 1.0
"""A process sees what others wrote into the folder after so long at the latest; two at a time may overshoot by that."""


@dataclass
class _File:
    created: float
    nbytes: int
    owner: str


class SpillDirectory:
    """Files of stored states under one folder, within a byte budget, oldest out first. Thread-safe.

    Args:
        path: the folder; made if missing, readable by its owner only.
        max_bytes: budget of all files.
        ttl_s: a file older than this is removed.
        clock: seconds since the epoch.

    Raises:
        RequestError: the folder cannot be used.
    """

    def __init__(self, path: Path, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._bytes = 0
        self._verified: set[str] = set()
        self._refused: tuple[int, str] | None = None  # bytes of the last file that the disk did not take, and why
        self._refreshed = float("-inf")
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.secret = kept_secret(path)
            self._scan()
        except OSError as error:
            raise RequestError(f"--spill-dir {path}: {error.strerror}; give a folder that can be written") from None

    def __len__(self) -> int:
        return len(self._files)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._bytes

    def problem(self) -> str | None:
        """Why new handles cannot be kept, or None; looks at the disk only after it has refused a file."""
        refused = self._refused
        if refused is None:
            return None
        if has_room(self._path, refused[0]):
            self._refused = None
            return None
        return f"the spill directory could not take {refused[0]} bytes: {refused[1]}"

    def write(self, handle: str, entry: StoredStates, *, owner_bytes: int | None = None) -> None:
        """Keep an entry; when this returns it survives the process and a power failure.

        Args:
            handle: its name.
            entry: what to keep.
            owner_bytes: most bytes of files that the owner may keep, or None; its own oldest give way.

        Raises:
            UnavailableError: the disk is full or fails (`store_full`).
            QuotaError: the file is larger than what the owner may keep.
        """
        assert HANDLE.fullmatch(handle), "handles are made by `handles.handle_of`"
        created = self._clock()
        arrays, metadata = arrays_of(entry), metadata_of(entry, created)
        nbytes = file_bytes(arrays, metadata)
        with self._lock:
            self._refresh()
            self._forget(handle)  # it is written anew: its own bytes are no reason to remove others
            if owner_bytes is not None:
                self._make_room_of(entry.owner, nbytes, owner_bytes)
            self._make_room(nbytes)
        try:
            try:
                write_tensors(self._file(handle), arrays, metadata)
            except FileNotFoundError:  # another process that shares the folder has just started and tidied up
                write_tensors(self._file(handle), arrays, metadata)
        except OSError as error:
            self._refused = (nbytes, error.strerror or type(error).__name__)
            raise UnavailableError(
                f"the spill directory cannot take {nbytes} bytes: {error.strerror}", ErrorCode.STORE_FULL
            ) from None
        with self._lock:
            self._refused = None
            self._forget(handle)
            self._files[handle] = _File(created, nbytes, entry.owner)
            self._bytes += nbytes
            self._verified.add(handle)

    def read(self, handle: str) -> StoredStates | None:
        """An entry whose arrays are mapped from its file, or None; a damaged file is removed and is None."""
        with self._lock:
            if handle not in self._files:
                self._adopt(handle)
            self._expire()
            known = handle in self._files
            is_verified = handle in self._verified
        if not known:
            return None
        try:
            entry = decode(self._file(handle))
            if not is_verified and digest_of(entry.states) != entry.digest:
                raise CheckpointError(f"{handle}: its digest does not match")
        except (CheckpointError, OSError, ValueError, KeyError):
            self.remove(handle)
            return None
        with self._lock:
            self._verified.add(handle)
        return entry

    def holds(self, handle: str) -> bool:
        """Whether the file is there; another process that shares the folder may have removed it."""
        return self._file(handle).exists()

    def remove(self, handle: str) -> None:
        """Remove the file of a handle; a reader that mapped it finishes undisturbed."""
        if HANDLE.fullmatch(handle):
            with self._lock:
                self._unlink(handle)

    def _scan(self) -> None:
        """Find the files of an earlier process; remove what it left unfinished."""
        for file in sorted(self._path.iterdir()):
            if file.name.startswith(".") and file.name.endswith(TEMPORARY_SUFFIX):
                file.unlink(missing_ok=True)
            elif file.suffix == ".safetensors":
                self._adopt(file.stem)
        self._sort()
        self._make_room(0)

    def _sort(self) -> None:
        self._files = dict(sorted(self._files.items(), key=lambda item: item[1].created))

    def _refresh(self) -> None:
        """Take note of what other processes have written and removed; at most once in `REFRESH_S`."""
        now = self._clock()
        if abs(now - self._refreshed) < REFRESH_S:
            return
        self._refreshed = now
        try:
            there = {file.stem for file in self._path.iterdir() if file.suffix == ".safetensors"}
        except OSError:  # writing will fail as well, and say why
            return
        for handle in [handle for handle in self._files if handle not in there]:
            self._forget(handle)
        for handle in there.difference(self._files):
            self._adopt(handle)
        self._sort()

    def _adopt(self, handle: str) -> None:
        """Take note of a file that another process, or an earlier one, has written."""
        if not HANDLE.fullmatch(handle):
            return
        file = self._file(handle)
        with contextlib.suppress(OSError):
            status = file.stat()
            self._files[handle] = _File(status.st_mtime, status.st_size, owner_of(file))
            self._bytes += status.st_size

    def _make_room(self, needed: int) -> None:
        self._expire()
        if needed > self._max_bytes:  # before anything goes for it
            raise UnavailableError(
                f"{needed} bytes are more than the spill directory holds ({self._max_bytes})", ErrorCode.STORE_FULL
            )
        for handle in list(self._files):
            if self._bytes + needed <= self._max_bytes:
                break
            self._unlink(handle)

    def _make_room_of(self, owner: str, needed: int, max_bytes: int) -> None:
        """Remove an owner's oldest files until it may keep `needed` bytes more.

        Raises:
            QuotaError: more than it may keep at all.
        """
        if needed > max_bytes:
            raise QuotaError(
                f"the states take {needed} bytes in a file and this key may keep {max_bytes}",
                details={"limit": "store_bytes", "bound": max_bytes},
            )
        mine = [(handle, file.nbytes) for handle, file in self._files.items() if file.owner == owner]
        held = sum(nbytes for _, nbytes in mine)
        for handle, nbytes in mine:
            if held + needed <= max_bytes:
                break
            self._unlink(handle)
            held -= nbytes

    def _expire(self) -> None:
        oldest_allowed = self._clock() - self._ttl_s
        for handle in [h for h, f in self._files.items() if f.created < oldest_allowed]:
            self._unlink(handle)

    def _unlink(self, handle: str) -> None:
        self._forget(handle)
        with contextlib.suppress(OSError):
            self._file(handle).unlink()

    def _forget(self, handle: str) -> None:
        known = self._files.pop(handle, None)
        self._verified.discard(handle)
        if known is not None:
            self._bytes -= known.nbytes

    def _file(self, handle: str) -> Path:
        return self._path / f"{handle}.safetensors"
