"""Where the handle store puts entries besides the memory of the process, as it sees these places."""

from typing import Protocol

from tauscope_target.stored import StoredStates


class Backing(Protocol):
    """A slower place that keeps entries beyond memory and beyond the process."""

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        ...

    def __len__(self) -> int: ...

    def write(self, handle: str, entry: StoredStates, *, owner_bytes: int | None = None) -> None:
        """Keep an entry durably; the owner's oldest give way when it would keep more than `owner_bytes`."""
        ...

    def read(self, handle: str) -> StoredStates | None:
        """The entry, or None."""
        ...

    def holds(self, handle: str) -> bool:
        """Whether the entry is kept still; another process may have removed it."""
        ...

    def remove(self, handle: str) -> None:
        """Forget the entry."""
        ...


class Folder(Protocol):
    """Where the states in memory lie as files."""

    def move(self, entry: StoredStates) -> bool:
        """Move the states of an entry into a file; False leaves the entry as it was."""
        ...

    def remove(self, entry: StoredStates) -> None:
        """Remove the file of an entry; whoever mapped it keeps the states."""
        ...

    def close(self) -> None:
        """Remove all files."""
        ...
