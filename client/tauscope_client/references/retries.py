"""Tries a request again when trying again can help: a full queue, a restart, a connection that broke."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tauscope_wire.errors import ErrorCode, RetryableError, TauscopeError, UnreachableError

__all__ = ["Retries"]

T = TypeVar("T")

# Half a second is over before a person notices; eight attempts outlast a server that restarts within a minute.
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_ATTEMPTS = 8


@dataclass(frozen=True)
class Retries:
    """Exponential backoff with jitter; honours `retry_after_s` of the error.

    Attributes:
        attempts: calls in all, the first included.
        sleep: how to wait, in seconds (a seam).
        jitter: a number in 0..1 for each wait (a seam).
    """

    attempts: int = _ATTEMPTS
    first_wait_s: float = _FIRST_WAIT_S
    longest_wait_s: float = _LONGEST_WAIT_S
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def run(self, call: Callable[[], T], *, on_wait: Callable[[TauscopeError, float], None] | None = None) -> T:
        """Call until it succeeds, fails for good, or the attempts are used up; then the last error is raised."""
        wait = self.first_wait_s
        for attempt in range(1, self.attempts + 1):
            try:
                return call()
            except TauscopeError as error:
                if attempt == self.attempts or not may_succeed_later(error):
                    raise
                asked = error.retry_after_s if isinstance(error, RetryableError) else 0.0
                pause = min(self.longest_wait_s, max(asked, wait * (0.5 + 0.5 * self.jitter())))
                if on_wait is not None:
                    on_wait(error, pause)
                self.sleep(pause)
                wait = min(self.longest_wait_s, wait * 2)
        raise AssertionError("attempts is at least 1")


def may_succeed_later(error: TauscopeError) -> bool:
    """Whether the same request can succeed without anybody changing it."""
    return isinstance(error, (RetryableError, UnreachableError)) or error.code in {
        ErrorCode.TIMED_OUT,
        ErrorCode.BODY_TRUNCATED,
        ErrorCode.CHECKSUM_MISMATCH,
    }
