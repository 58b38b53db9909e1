"""Bounded store of hidden states: a byte budget in memory, oldest out first, a time to live, pinned while read.

Any handle may be gone at any time; callers recompute. With a backing (a spill directory) an entry is written there
before it is acknowledged, what is evicted from memory is mapped from its file, and a restart finds it again.
Thread-safe: HTTP handlers and answer writers use it.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from tauscope_target.stored import StoredStates
from tauscope_wire.errors import ErrorCode, GoneError, QuotaError, TooLargeError, UnavailableError


class Backing(Protocol):
    """A slower place that keeps entries beyond memory and beyond the process."""

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        ...

    def __len__(self) -> int: ...

    def write(self, handle: str, entry: StoredStates) -> None:
        """Keep an entry durably."""
        ...

    def read(self, handle: str) -> StoredStates | None:
        """The entry, or None."""
        ...

    def remove(self, handle: str) -> None:
        """Forget the entry."""
        ...


class HandleStore:
    """Keeps states by handle.

    Args:
        max_bytes: budget of all entries in memory.
        ttl_s: an entry older than this is gone.
        backing: where entries are kept as well, or None.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        ttl_s: float,
        backing: Backing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backing = backing
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, StoredStates] = OrderedDict()
        self._bytes = 0
        self._counts = {"hits": 0, "misses": 0, "evicted": 0, "expired": 0}

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
            self._backing.write(handle, entry)
            with suppress(TooLargeError, UnavailableError):  # it is safe in its file, memory only makes it faster
                self._keep(handle, entry, owner_bytes)
        else:
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
        with self._lock:
            self._expire()
            return {
                "entries": len(self._entries),
                "bytes": self._bytes,
                "max_bytes": self._max_bytes,
                "ttl_s": self._ttl_s,
                **self._counts,
                **(
                    {}
                    if self._backing is None
                    else {"spilled": len(self._backing), "spill_bytes": self._backing.nbytes}
                ),
            }

    def _expire(self) -> None:
        oldest_allowed = self._clock() - self._ttl_s
        expired = [h for h, e in self._entries.items() if e.created < oldest_allowed and not e.pins]
        for handle in expired:
            self._drop(handle)
        self._counts["expired"] += len(expired)

    def _make_room(self, needed: int, *, of: str | None) -> None:
        """Evict oldest entries (of one owner, or of anybody) until `needed` bytes are freed."""
        if needed <= 0:
            return
        candidates = [h for h, e in self._entries.items() if not e.pins and of in (None, e.owner)]
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
