"""How far a run is: what the working code calls. What it looks like is the terminal's business."""

from typing import Protocol

__all__ = ["Progress", "SilentProgress"]


class Progress(Protocol):
    """Told about stages of work; calls come from several threads."""

    def start(self, stage: str, total: int, *, done: int = 0) -> None:
        """A stage begins: `total` pieces, of which `done` were finished by an earlier run."""
        ...

    def advance(self, stage: str, num: int = 1) -> None:
        """Pieces of a stage are done."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line: a retry, a warning."""
        ...


class SilentProgress:
    """Shows nothing."""

    def start(self, stage: str, total: int, *, done: int = 0) -> None:
        """Ignore."""

    def advance(self, stage: str, num: int = 1) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""
