"""Quotas that hold over all replicas: one small actor counts, every replica asks it. Needs no Ray itself.

A key without bounds costs no question. When the counting actor does not answer, a replica counts for itself until it
does: limits are then each replica's own, and no request is lost.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tauscope_serving.keyfile import KeyQuota
from tauscope_serving.keys import Principal
from tauscope_serving.quotas import LocalQuotas, QuotaMeter
from tauscope_wire.errors import QuotaError

log = logging.getLogger(__name__)

LOST_S = 30.0
"""A replica that has not been heard of for so long is gone, and so are the requests that it held."""
RENEW_S = 8.0
ANSWER_S = 2.0
"""Longest wait for the counting actor; a question takes about a millisecond."""


@dataclass(frozen=True)
class Refusal:
    """A `QuotaError` on its way between processes."""

    message: str
    retry_after_s: float
    details: dict[str, Any]

    def error(self) -> QuotaError:
        """As routes raise it."""
        return QuotaError(self.message, retry_after_s=self.retry_after_s, details=self.details)


class QuotaKeeper:
    """Counts for all replicas of an application.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meter = QuotaMeter(clock=clock)
        self._held: dict[str, Counter[str]] = {}
        self._seen: dict[str, float] = {}

    def begin(self, replica: str, name: str, quota: dict[str, int | None]) -> Refusal | None:
        """Count one more request of a key, held by a replica."""
        self.renew(replica)
        self._drop_lost()
        refusal = self._refusal_of(self._meter.begin, _principal(name, quota))
        if refusal is None:
            self._held.setdefault(replica, Counter())[name] += 1
        return refusal

    def end(self, replica: str, name: str) -> None:
        """A request is over; one of a replica that was taken for lost is over already."""
        held = self._held.get(replica, Counter())
        if held[name] > 0:
            held[name] -= 1
            self._meter.end(_principal(name, {}))

    def charge_tokens(self, replica: str, name: str, quota: dict[str, int | None], amount: int) -> Refusal | None:
        """See `QuotaMeter.charge_tokens`."""
        self.renew(replica)
        return self._refusal_of(self._meter.charge_tokens, _principal(name, quota), amount)

    def charge_bytes(self, replica: str, name: str, quota: dict[str, int | None], amount: int) -> Refusal | None:
        """See `QuotaMeter.charge_bytes`."""
        self.renew(replica)
        return self._refusal_of(self._meter.charge_bytes, _principal(name, quota), amount)

    def renew(self, replica: str) -> None:
        """The replica is there."""
        self._seen[replica] = self._clock()

    def _drop_lost(self) -> None:
        oldest = self._clock() - LOST_S
        for replica in [replica for replica, seen in self._seen.items() if seen < oldest]:
            del self._seen[replica]
            for name, count in self._held.pop(replica, Counter()).items():
                for _ in range(count):
                    self._meter.end(_principal(name, {}))

    @staticmethod
    def _refusal_of(charge: Callable[..., None], *args: Any) -> Refusal | None:
        try:
            charge(*args)
        except QuotaError as error:
            return Refusal(error.message, error.retry_after_s, dict(error.details))
        return None


def _principal(name: str, quota: dict[str, int | None]) -> Principal:
    return Principal(name=name, roles=(), handle_secret="", quota=KeyQuota(**quota))


Ask = Callable[..., Awaitable[Any]]


class SharedQuotas:
    """What routes ask in a replica.

    Args:
        ask: calls a method of the keeper, by its name, and gives its answer.
        replica: names this process to the keeper.
        answer_s: longest wait for an answer.
    """

    def __init__(self, ask: Ask, *, replica: str, answer_s: float = ANSWER_S) -> None:
        self._ask = ask
        self._replica = replica
        self._answer_s = answer_s
        self._alone = LocalQuotas()
        self._num_held = 0
        self._renewing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def admitted(self, principal: Principal) -> AsyncIterator[None]:
        """See `QuotaMeter.admitted`."""
        quota = principal.quota
        if quota.requests_per_min is None and quota.concurrent_requests is None:
            yield
        elif await self._is_granted("begin", principal):
            self._hold(1)
            try:
                yield
            finally:
                self._hold(-1)
                await asyncio.shield(self._tell("end", principal.name))
        else:
            async with self._alone.admitted(principal):
                yield

    async def charge_tokens(self, principal: Principal, num_tokens: int) -> None:
        """See `QuotaMeter.charge_tokens`."""
        if principal.quota.tokens_per_min is not None and not await self._is_granted(
            "charge_tokens", principal, num_tokens
        ):
            await self._alone.charge_tokens(principal, num_tokens)

    async def charge_bytes(self, principal: Principal, num_bytes: int) -> None:
        """See `QuotaMeter.charge_bytes`."""
        if principal.quota.bytes_per_min is not None and not await self._is_granted(
            "charge_bytes", principal, num_bytes
        ):
            await self._alone.charge_bytes(principal, num_bytes)

    async def _is_granted(self, method: str, principal: Principal, *amount: int) -> bool:
        """Whether the keeper counted it; False when it cannot be asked.

        Raises:
            QuotaError: it refused.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                refusal: Refusal | None = await self._ask(
                    method, self._replica, principal.name, principal.quota.model_dump(), *amount
                )
        except Exception as error:
            log.warning("quotas are counted by this replica alone: %s", type(error).__name__)
            return False
        if refusal is not None:
            raise refusal.error()
        return True

    async def _tell(self, method: str, *args: str) -> None:
        with suppress(Exception):  # what it does not hear it forgets by itself, see LOST_S
            async with asyncio.timeout(self._answer_s):
                await self._ask(method, self._replica, *args)

    def _hold(self, change: int) -> None:
        self._num_held += change
        if self._num_held and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        elif not self._num_held and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def _renew(self) -> None:
        """While requests are held, the keeper hears of this replica."""
        while True:
            await asyncio.sleep(RENEW_S)
            await self._tell("renew")
