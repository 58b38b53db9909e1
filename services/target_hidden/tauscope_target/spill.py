"""Stored states as files: one safetensors file a handle, complete or absent, found again after a restart.

A file is written under a temporary name, flushed to the disk, then renamed: a process that dies in between leaves a
temporary file, which the next start removes, and never half a handle. Reading maps the file; its digest is checked once
per process before anything of it is served. Several processes may share a folder: each finds what the others wrote, and
their handles agree, because the secret lies in it too. Budgets are those of the folder: before it writes, a process
looks what the others have written meanwhile.
"""

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from tauscope_target.checkpoint import read_header, read_metadata
from tauscope_target.disk_room import has_room
from tauscope_target.stored import StoredStates
from tauscope_target.tensor_file import TEMPORARY_SUFFIX, file_bytes, map_tensor, write_tensors
from tauscope_wire.checksums import digest_of
from tauscope_wire.errors import CheckpointError, ErrorCode, QuotaError, RequestError, UnavailableError
from tauscope_wire.layers import FINAL_NORM
from tauscope_wire.tensors import LogitsSummary

SCHEMA = "tauscope.spill/1"
HANDLE = re.compile(r"[0-9a-f]{48}")
"""Only such names become file names."""
SECRET_BYTES = 32
REFRESH_S = 1.0
"""A process sees what others wrote into the folder after so long at the latest; two at a time may overshoot by that."""


@dataclass
class _File:
    created: float
    nbytes: int
    owner: str


class _Refused(NamedTuple):
    """The last file that the disk did not take."""

    nbytes: int
    reason: str


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
        self._refused: _Refused | None = None
        self._refreshed = float("-inf")
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.secret = self._secret()
            self._scan()
        except OSError as error:
            raise RequestError(f"--spill-dir {path}: {error.strerror}; give a folder that can be written") from None

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._files)

    def problem(self) -> str | None:
        """Why new handles cannot be kept, or None; looks at the disk only after it has refused a file."""
        refused = self._refused
        if refused is None:
            return None
        if has_room(self._path, refused.nbytes):
            self._refused = None
            return None
        return f"the spill directory could not take {refused.nbytes} bytes: {refused.reason}"

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
        arrays, metadata = _arrays(entry), _metadata(entry, created)
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
            self._refused = _Refused(nbytes, error.strerror or type(error).__name__)
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
            entry = _decode(self._file(handle))
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
        with self._lock:
            self._forget(handle)
        if HANDLE.fullmatch(handle):
            with contextlib.suppress(OSError):
                self._file(handle).unlink()

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
        there = {file.stem for file in self._path.iterdir() if file.suffix == ".safetensors"}
        for handle in [handle for handle in self._files if handle not in there]:
            self._forget(handle)
        for handle in there.difference(self._files):
            self._adopt(handle)
        self._sort()

    def _adopt(self, handle: str) -> None:
        """Take note of a file that another process, or an earlier one, has written."""
        if not HANDLE.fullmatch(handle):
            return
        try:
            status = self._file(handle).stat()
        except OSError:
            return
        self._files[handle] = _File(status.st_mtime, status.st_size, _owner_of(self._file(handle)))
        self._bytes += status.st_size

    def _make_room(self, needed: int) -> None:
        self._expire()
        for handle in list(self._files):
            if self._bytes + needed <= self._max_bytes:
                break
            self._unlink(handle)
        if needed > self._max_bytes:
            raise UnavailableError(
                f"{needed} bytes are more than the spill directory holds ({self._max_bytes})", ErrorCode.STORE_FULL
            )

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

    def _secret(self) -> bytes:
        """Secret of the handles, kept beside the files so that equal requests find them after a restart."""
        file = self._path / "secret"
        while not file.exists():
            temporary = self._path / f".secret.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(secrets.token_bytes(SECRET_BYTES))
            # Unlike a rename, a link lets the first of several processes win. The temporary file may be gone: another
            # process that has just started tidies up.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(temporary, file)
            temporary.unlink(missing_ok=True)
        return file.read_bytes()


def _owner_of(file: Path) -> str:
    """The key that made a file; a damaged file is nobody's."""
    try:
        return str(json.loads(read_metadata(file)["facts"])["owner"])
    except (CheckpointError, OSError, ValueError, KeyError, TypeError):
        return ""


def _arrays(entry: StoredStates) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {"states": entry.states, "token_ids": entry.token_ids}
    if entry.logits is not None:
        arrays |= {
            "argmax_ids": entry.logits.argmax_ids,
            "top_ids": entry.logits.top_ids,
            "top_logprobs": entry.logits.top_logprobs,
        }
        if entry.logits.next_logprobs is not None:
            arrays["next_logprobs"] = entry.logits.next_logprobs
    return arrays


def _metadata(entry: StoredStates, created: float) -> dict[str, str]:
    facts = {
        "planes": list(entry.planes),
        "dtype": entry.dtype,
        "start": entry.start,
        "owner": entry.owner,
        "shared": entry.shared,
        "digest": entry.digest,
        "created": created,
    }
    return {"schema": SCHEMA, "facts": json.dumps(facts)}


def _decode(file: Path) -> StoredStates:
    """An entry over a mapped file."""
    metadata = read_metadata(file)
    if metadata.get("schema") != SCHEMA:
        raise CheckpointError(f"{file.name} is not a file of stored states")
    facts = json.loads(metadata["facts"])
    arrays = {entry.name: map_tensor(entry) for entry in read_header(file)}
    summary = None
    if "argmax_ids" in arrays:
        summary = LogitsSummary(
            argmax_ids=arrays["argmax_ids"],
            top_ids=arrays["top_ids"],
            top_logprobs=arrays["top_logprobs"],
            next_logprobs=arrays.get("next_logprobs"),
        )
    return StoredStates(
        planes=tuple(plane if plane == FINAL_NORM else int(plane) for plane in facts["planes"]),
        dtype=facts["dtype"],
        token_ids=arrays["token_ids"],
        start=int(facts["start"]),
        states=arrays["states"],
        logits=summary,
        owner=facts["owner"],
        shared=bool(facts["shared"]),
        digest=facts["digest"],
    )
