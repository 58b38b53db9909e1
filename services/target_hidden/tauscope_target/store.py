"""Bounded store of hidden states: a byte budget in memory, oldest out first, a time to live, pinned while read.

Any handle may be gone at any time; callers recompute. With a folder in memory the states lie in files that readers on
this machine map; a lease keeps such a file for the short time in which its reader opens it. With a backing (a spill
directory) an entry is written there before it is acknowledged, what is evicted from memory is mapped from its file, and
a restart finds it again. Thread-safe: HTTP handlers and answer writers use it.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tauscope_target.store_places import Backing, Folder
from tauscope_target.stored import StatesFile, StoredStates
from tauscope_wire.errors import ErrorCode, GoneError, MismatchError, QuotaError, TooLargeError, UnavailableError

LEASE_S = 10.0
"""Between the answer that names a file and the reader's opening of it lie milliseconds; a busy machine gets more."""
MAX_LEASED_RATIO = 0.5
"""Leases hold at most this part of the store, so that no caller can keep it from taking new states."""


class HandleStore:
    """Keeps states by handle.

    Args:
        max_bytes: budget of all entries in memory.
        ttl_s: an entry older than this is gone.
        backing: where entries are kept as well, or None.
        folder: where the entries in memory lie as files, or None for the memory of the process.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        ttl_s: float,
        backing: Backing | None = None,
        folder: Folder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backing = backing
        self._folder = folder
        self._max_bytes, self._ttl_s, self._clock = max_bytes, ttl_s, clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, StoredStates] = OrderedDict()
        self._bytes = 0
        self._counts = {"hits": 0, "misses": 0, "evicted": 0, "expired": 0, "leases": 0}

    def put(self, handle: str, entry: StoredStates, *, owner_bytes: int | None = None) -> None:
        """Keep an entry, in place of an older one of the same name.

        Args:
            handle: its name.
            entry: what to keep; `created` is set here.
            owner_bytes: most bytes that the owner may keep, or None.

        Raises:
            TooLargeError: larger than the store or than the owner's share.
            UnavailableError: everything else is pinned by readers (`store_full`).
        """
        if owner_bytes is not None and entry.nbytes > owner_bytes:
            raise QuotaError(
                f"the states take {entry.nbytes} bytes and this key may keep {owner_bytes}",
                details={"limit": "store_bytes", "bound": owner_bytes},
            )
        if self._backing is not None:
            self._backing.write(handle, entry, owner_bytes=owner_bytes)
        with suppress(*(() if self._backing is None else (TooLargeError, UnavailableError))):  # safe in its file
            self._keep(handle, entry, owner_bytes)

    def _keep(self, handle: str, entry: StoredStates, owner_bytes: int | None) -> None:
        """Keep an entry in memory."""
        if entry.nbytes > self._max_bytes:
            raise TooLargeError(
                f"the states take {entry.nbytes} bytes and the store holds {self._max_bytes}; ask for fewer layers or "
                "positions, or for an inline answer",
                ErrorCode.ANSWER_TOO_LARGE,
                details={"limit": "store_bytes", "value": entry.nbytes, "bound": self._max_bytes},
            )
        if self._folder is not None:  # before the lock: writing takes time; a full folder leaves the entry in memory
            self._folder.move(entry)
        try:
            with self._lock:
                self._expire()
                entry.created = self._clock()
                self._drop(handle)
                if owner_bytes is not None:
                    mine = sum(e.nbytes for e in self._entries.values() if e.owner == entry.owner)
                    self._make_room(mine + entry.nbytes - owner_bytes, of=entry.owner)
                self._make_room(self._bytes + entry.nbytes - self._max_bytes, of=None)
                self._entries[handle] = entry
                self._bytes += entry.nbytes
        except UnavailableError:
            self._remove_file(entry)
            raise

    def lease(self, handle: str, caller: str) -> tuple[StoredStates, StatesFile, float]:
        """The file of an entry, kept for a bounded time so that a reader on this machine can open it.

        Returns:
            The entry, its file, and the seconds for which neither eviction nor age removes the file. These are 0 when
            leases hold their part of the store already: the file may go at any time then, as it may by `delete`.

        Raises:
            GoneError: see `pin`.
            MismatchError: the entry has no file (`mode_cannot`).
        """
        entry = self.pin(handle, caller)
        with self._lock:
            entry.pins -= 1
            if entry.file is None:
                raise MismatchError(
                    f"handle {handle[:12]}... is in no file: read it over HTTP",
                    ErrorCode.MODE_CANNOT,
                    details={"handle": handle[:64]},
                )
            now = self._clock()
            others = sum(e.nbytes for e in self._entries.values() if e is not entry and e.leased_until > now)
            if others + entry.nbytes <= MAX_LEASED_RATIO * self._max_bytes:
                # never past the time to live: a lease that is renewed for ever would be one without an end
                entry.leased_until = min(now + LEASE_S, entry.created + self._ttl_s)
            self._counts["leases"] += 1
            return entry, entry.file, max(0.0, entry.leased_until - now)

    def close(self) -> None:
        """Forget what is in memory, and remove its files."""
        with self._lock:
            for handle in list(self._entries):
                self._drop(handle)
        if self._folder is not None:
            self._folder.close()

    @contextmanager
    def reading(self, handle: str, caller: str) -> Iterator[StoredStates]:
        """Hold an entry while it is read: it is not evicted before the block ends."""
        entry = self.pin(handle, caller)
        try:
            yield entry
        finally:
            self.unpin(entry)

    def pin(self, handle: str, caller: str) -> StoredStates:
        """Take hold of an entry; `unpin` must follow.

        Raises:
            GoneError: evicted, expired, deleted, never there, or another key's: nobody learns which.
        """
        with self._lock:
            self._expire()
            entry = self._entries.get(handle)
            if entry is not None and self._backing is not None and not self._backing.holds(handle):
                self._drop(handle)  # deleted, or evicted, by a process that shares the folder: gone is gone
                entry = None
            if entry is not None:
                entry.pins += 1  # before the lock is given up, so that it is not evicted meanwhile
        if entry is None and self._backing is not None:
            entry = self._backing.read(handle)
            if entry is not None:
                entry.pins += 1
        with self._lock:
            if entry is None or not entry.is_readable_by(caller):
                if entry is not None:
                    entry.pins -= 1
                self._counts["misses"] += 1
                raise GoneError(
                    f"handle {handle[:12]}... is not stored here (any more): send the request again",
                    details={"handle": handle[:64]},
                )
            self._counts["hits"] += 1
            return entry

    def unpin(self, entry: StoredStates) -> None:
        """Let go of an entry."""
        with self._lock:
            entry.pins -= 1

    def share(self, handle: str, entry: StoredStates) -> None:
        """Let other keys read an entry that its owner has pinned, from now on and after a restart."""
        entry.shared = True
        if self._backing is not None:
            self._backing.write(handle, entry)

    def delete(self, handle: str, caller: str) -> None:
        """Forget an entry of `caller`; readers that hold it finish undisturbed.

        Raises:
            GoneError: not there, or not the caller's own.
        """
        entry = self.pin(handle, caller)
        self.unpin(entry)
        if entry.owner != caller:
            raise GoneError(f"handle {handle[:12]}... is not stored here (any more)")
        with self._lock:
            self._drop(handle)
        if self._backing is not None:
            self._backing.remove(handle)

    def facts(self) -> dict[str, Any]:
        """Numbers for `/info` and metrics."""
        spilled = {} if self._backing is None else {"spilled": len(self._backing), "spill_bytes": self._backing.nbytes}
        with self._lock:
            self._expire()
            return {
                "entries": len(self._entries),
                "bytes": self._bytes,
                "max_bytes": self._max_bytes,
                "ttl_s": self._ttl_s,
                **self._counts,
                **spilled,
            }

    def _expire(self) -> None:
        now = self._clock()
        oldest_allowed = now - self._ttl_s
        expired = [h for h, e in self._entries.items() if e.created < oldest_allowed and not e.is_held(now)]
        for handle in expired:
            self._drop(handle)
        self._counts["expired"] += len(expired)

    def _make_room(self, needed: int, *, of: str | None) -> None:
        """Evict oldest entries (of one owner, or of anybody) until `needed` bytes are freed."""
        now = self._clock()
        candidates = [h for h, e in self._entries.items() if not e.is_held(now) and of in (None, e.owner)]
        if sum(self._entries[h].nbytes for h in candidates) < needed:
            raise UnavailableError(
                f"the store cannot free {needed} bytes: all else is being read; try again later, or ask for an inline "
                "answer",
                ErrorCode.STORE_FULL,
            )
        for handle in candidates:
            if needed <= 0:
                break
            needed -= self._entries[handle].nbytes
            self._drop(handle)
            self._counts["evicted"] += 1

    def _drop(self, handle: str) -> None:
        entry = self._entries.pop(handle, None)
        if entry is not None:
            self._bytes -= entry.nbytes
            self._remove_file(entry)

    def _remove_file(self, entry: StoredStates) -> None:
        if self._folder is not None:
            self._folder.remove(entry)
