"""Loaded drafters by name, within a byte budget.

Knows nothing of networks; entries are kept alive by whoever uses them.
"""

import threading
from typing import Generic, Protocol, TypeVar

from tauscope_wire.errors import ErrorCode, NotFoundError, RequestError, TooLargeError


class Sized(Protocol):
    """Something that occupies memory."""

    @property
    def memory_bytes(self) -> int:
        """Bytes it holds."""
        ...


E = TypeVar("E", bound=Sized)


class Registry(Generic[E]):
    """Names to entries; safe to use from several threads.

    Args:
        budget_bytes: bound on what all entries hold together, None for no bound.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        self._entries: dict[str, E] = {}
        self._reserved: dict[str, int] = {}
        self._lock = threading.Lock()

    def reserve(self, name: str, memory_bytes: int) -> None:
        """Claim a name and room before the slow part of loading begins; end with `put` or `release`.

        Raises:
            RequestError: the name is taken.
            TooLargeError: it does not fit; says by how much and what is loaded.
        """
        with self._lock:
            if name in self._entries or name in self._reserved:
                raise RequestError(
                    f"drafter {name!r} is loaded already; unload it first or choose another name",
                    ErrorCode.DRAFTER_EXISTS,
                )
            self._check_room(name, memory_bytes)
            self._reserved[name] = memory_bytes

    def put(self, name: str, entry: E) -> None:
        """Turn a reservation into an entry; the estimate it was made with may have been too low.

        Raises:
            TooLargeError: the entry does not fit; the reservation stays, give it back.
        """
        with self._lock:
            reserved = self._reserved.pop(name, 0)
            try:
                self._check_room(name, entry.memory_bytes)
            except TooLargeError:
                self._reserved[name] = reserved
                raise
            self._entries[name] = entry

    def release(self, name: str) -> None:
        """Give a reservation back after loading failed."""
        with self._lock:
            self._reserved.pop(name, None)

    def get(self, name: str) -> E:
        """The entry; hold on to it for as long as it is used.

        Raises:
            NotFoundError: no such name; lists those there are.
        """
        with self._lock:
            entry = self._entries.get(name)
            names = ", ".join(self._entries) or "none"
        if entry is None:
            raise NotFoundError(f"drafter {name!r} is not loaded; loaded are: {names}", ErrorCode.DRAFTER_UNKNOWN)
        return entry

    def remove(self, name: str) -> E:
        """Forget a name; its memory is freed when the last request that uses it is done.

        Raises:
            NotFoundError: no such name.
        """
        entry = self.get(name)
        with self._lock:
            self._entries.pop(name, None)
        return entry

    def entries(self) -> list[E]:
        """All entries, in the order of loading."""
        with self._lock:
            return list(self._entries.values())

    def _check_room(self, name: str, memory_bytes: int) -> None:
        used = sum(e.memory_bytes for e in self._entries.values()) + sum(self._reserved.values())
        if self.budget_bytes is not None and used + memory_bytes > self.budget_bytes:
            held = ", ".join(f"{n} {e.memory_bytes}" for n, e in self._entries.items()) or "nothing"
            raise TooLargeError(
                f"drafter {name!r} needs {memory_bytes} bytes; {used} of the budget of {self.budget_bytes} are "
                f"used ({held}); unload one or raise --drafter-memory",
                details={"needed": memory_bytes, "used": used, "bound": self.budget_bytes},
            )
