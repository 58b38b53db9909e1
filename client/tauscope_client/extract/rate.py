"""How fast an extraction goes and how long it will take."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

__all__ = ["Meter", "Rate", "SilentMeter", "duration", "size"]


class Meter(Protocol):
    """Told how far an extraction is; calls come from several threads."""

    def begin(self, rate: "Rate") -> None:
        """The states are asked for from now on."""
        ...

    def moved(self, rate: "Rate") -> None:
        """A sample is finished."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


class SilentMeter:
    """Shows nothing."""

    def begin(self, rate: "Rate") -> None:
        """Ignore."""

    def moved(self, rate: "Rate") -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""


@dataclass
class Rate:
    """Work done since the start of this run, against what there is to do.

    Attributes:
        num_samples: of the data set; `earlier_samples` of them were finished before.
        num_tokens, num_bytes: that this run has to do; `num_bytes` is an estimate, slightly too large.
    """

    num_samples: int
    earlier_samples: int
    num_tokens: int
    num_bytes: int
    clock: Callable[[], float]
    done_samples: int = 0
    done_tokens: int = 0
    done_bytes: int = 0

    def __post_init__(self) -> None:
        """The time runs."""
        self._start_s = self.clock()
        self._lock = Lock()

    def add(self, num_tokens: int, num_bytes: int) -> None:
        """A sample is finished."""
        with self._lock:
            self.done_samples += 1
            self.done_tokens += num_tokens
            self.done_bytes += num_bytes

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of this run."""
        return self.clock() - self._start_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go at the pace so far, by tokens; None as long as nothing is done."""
        if not self.done_tokens:
            return None
        return self.elapsed_s * (self.num_tokens - self.done_tokens) / self.done_tokens

    def line(self) -> str:
        """The whole state in one line."""
        elapsed_s = max(self.elapsed_s, 1e-9)
        done = self.earlier_samples + self.done_samples
        left_s = self.remaining_s
        return (
            f"{done}/{self.num_samples} samples, {size(self.done_bytes)} of {size(self.num_bytes)}, "
            f"{size(self.done_bytes / elapsed_s)}/s, {self.done_tokens / elapsed_s:.0f} tokens/s, "
            f"{'?' if left_s is None else duration(left_s)} left"
        )


def size(num_bytes: float) -> str:
    """Bytes for people, decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} TB"


def duration(seconds: float) -> str:
    """Seconds for people: `2 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
