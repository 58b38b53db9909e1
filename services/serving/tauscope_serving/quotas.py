"""Quotas per API key: token buckets per minute and requests at a time.

`QuotaMeter` counts; `Quotas` is what routes ask, so that several processes may share one count (`deploy/ray`).
"""

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tauscope_serving.keys import Principal
from tauscope_wire.errors import QuotaError

WINDOW_S = 60.0


@dataclass
class _Bucket:
    """Refills linearly to `capacity` within a minute; may go into debt for work whose size is known only afterwards."""

    capacity: float
    level: float
    updated: float

    def refill(self, now: float) -> None:
        elapsed = max(0.0, now - self.updated)
        self.level = min(self.capacity, self.level + elapsed * self.capacity / WINDOW_S)
        self.updated = now


class QuotaMeter:
    """Counts what each key uses and refuses what exceeds its quota.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._active: dict[str, int] = {}

    @contextmanager
    def admitted(self, principal: Principal) -> Iterator[None]:
        """Hold one request of the key.

        Raises:
            QuotaError: the limit that was hit, with the seconds to wait.
        """
        self.begin(principal)
        try:
            yield
        finally:
            self.end(principal)

    def begin(self, principal: Principal) -> None:
        """Count one more request of the key; `end` must follow.

        Raises:
            QuotaError: the limit that was hit, with the seconds to wait.
        """
        quota = principal.quota
        name = principal.name
        with self._lock:
            active = self._active.get(name, 0)
            if quota.concurrent_requests is not None and active >= quota.concurrent_requests:
                raise self._refusal(principal, "concurrent_requests", quota.concurrent_requests, 1.0)
            self._take(principal, "requests_per_min", quota.requests_per_min, 1)
            self._active[name] = active + 1

    def end(self, principal: Principal) -> None:
        """A request of the key is over."""
        name = principal.name
        with self._lock:
            self._active[name] -= 1
            if not self._active[name]:
                del self._active[name]

    def charge_tokens(self, principal: Principal, num_tokens: int) -> None:
        """Charge tokens before they are computed.

        Raises:
            QuotaError: the key's tokens of this minute are used up.
        """
        with self._lock:
            self._take(principal, "tokens_per_min", principal.quota.tokens_per_min, num_tokens)

    def charge_bytes(self, principal: Principal, num_bytes: int) -> None:
        """Charge the bytes of an answer before they are sent.

        Raises:
            QuotaError: the key's bytes of this minute are used up.
        """
        with self._lock:
            self._take(principal, "bytes_per_min", principal.quota.bytes_per_min, num_bytes)

    def _take(self, principal: Principal, limit: str, per_min: int | None, amount: int) -> None:
        if per_min is None:
            return
        now = self._clock()
        bucket = self._buckets.setdefault((principal.name, limit), _Bucket(per_min, per_min, now))
        bucket.capacity = per_min
        bucket.refill(now)
        needed = min(amount, per_min)  # a single request larger than the quota passes once the bucket is full
        if bucket.level < needed:
            raise self._refusal(principal, limit, per_min, (needed - bucket.level) * WINDOW_S / per_min)
        bucket.level -= amount

    @staticmethod
    def _refusal(principal: Principal, limit: str, bound: int, wait_s: float) -> QuotaError:
        wait_s = max(1, math.ceil(wait_s))
        return QuotaError(
            f"quota {limit}={bound} of key {principal.name!r} is used up; try again in {wait_s} s",
            retry_after_s=wait_s,
            details={"limit": limit, "bound": bound},
        )


class Quotas(Protocol):
    """What routes ask before they work."""

    def admitted(self, principal: Principal) -> AbstractAsyncContextManager[None]:
        """Hold one request of the key; raises `QuotaError`."""
        ...

    async def charge_tokens(self, principal: Principal, num_tokens: int) -> None:
        """Charge tokens before they are computed; raises `QuotaError`."""
        ...

    async def charge_bytes(self, principal: Principal, num_bytes: int) -> None:
        """Charge the bytes of an answer before they are sent; raises `QuotaError`."""
        ...


class LocalQuotas:
    """The quotas of one process.

    Args:
        meter: counts.
    """

    def __init__(self, meter: QuotaMeter | None = None) -> None:
        self._meter = meter or QuotaMeter()

    @asynccontextmanager
    async def admitted(self, principal: Principal) -> AsyncIterator[None]:
        """See `QuotaMeter.admitted`."""
        with self._meter.admitted(principal):
            yield

    async def charge_tokens(self, principal: Principal, num_tokens: int) -> None:
        """See `QuotaMeter.charge_tokens`."""
        self._meter.charge_tokens(principal, num_tokens)

    async def charge_bytes(self, principal: Principal, num_bytes: int) -> None:
        """See `QuotaMeter.charge_bytes`."""
        self._meter.charge_bytes(principal, num_bytes)
