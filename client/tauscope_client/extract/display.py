"""The rate of an extraction on a terminal; without one, a line now and then."""

from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from tauscope_client.extract.rate import Rate
from tauscope_client.plain import shown

__all__ = ["TerminalMeter"]

PLAIN_PAUSE_S = 30.0
"""Without a terminal, at most a line in so many seconds: a log of a night stays readable."""


class TerminalMeter:
    """A bar on stderr with samples, bytes, throughput and the time left. Use as a context manager."""

    def __init__(self, clock: Callable[[], float], console: Console | None = None) -> None:
        """Write to stderr unless told otherwise."""
        self._console = console if console is not None else Console(stderr=True, highlight=False)
        self._clock = clock
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._next_s = clock()
        self._lock = Lock()

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def begin(self, rate: Rate) -> None:
        """See `Meter`."""
        with self._lock:
            if rate.earlier_samples:
                self._line(f"extract: {rate.earlier_samples} of {rate.num_samples} samples were finished before")
            if self._console.is_terminal:
                self._task = self._bar.add_task(rate.line(), total=rate.num_tokens)

    def moved(self, rate: Rate) -> None:
        """See `Meter`."""
        with self._lock:
            if self._task is not None:
                self._bar.update(self._task, completed=rate.done_tokens, description=rate.line())
            elif self._clock() >= self._next_s or rate.done_tokens == rate.num_tokens:
                self._next_s = self._clock() + PLAIN_PAUSE_S
                self._line(f"extract: {rate.line()}")

    def note(self, text: str) -> None:
        """See `Meter`."""
        with self._lock:
            self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(shown(text), soft_wrap=True)
