"""Quotas over several replicas, without Ray: the keeper in this process, asked as a replica asks it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from shared_quotas import LOST_S, QuotaKeeper, SharedQuotas

from tauscope_serving.keyfile import KeyQuota
from tauscope_serving.keys import Principal
from tauscope_wire.errors import QuotaError

Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
def now_s() -> list[float]:
    return [100.0]


@pytest.fixture
def keeper(now_s: list[float]) -> QuotaKeeper:
    return QuotaKeeper(clock=lambda: now_s[0])


def asking(keeper: QuotaKeeper) -> Ask:
    async def ask(method: str, *args: Any) -> Any:
        return getattr(keeper, method)(*args)

    return ask


def caller(**bounds: int) -> Principal:
    return Principal(name="a", roles=("read",), handle_secret="00", quota=KeyQuota(**bounds))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_keys_limits_hold_over_all_replicas(keeper: QuotaKeeper) -> None:
    replicas = [SharedQuotas(asking(keeper), replica=str(number)) for number in range(3)]

    async def work() -> None:
        limited = caller(tokens_per_min=300, bytes_per_min=600)
        for quotas in replicas:
            await quotas.charge_tokens(limited, 100)
            await quotas.charge_bytes(limited, 200)
        for quotas in replicas:
            with pytest.raises(QuotaError) as caught:
                await quotas.charge_tokens(limited, 100)
            assert caught.value.details == {"limit": "tokens_per_min", "bound": 300}
            assert caught.value.retry_after_s == 20
            with pytest.raises(QuotaError, match="bytes_per_min=600"):
                await quotas.charge_bytes(limited, 200)

    run(work())


def test_requests_at_a_time_are_counted_over_all_replicas_and_given_back(keeper: QuotaKeeper) -> None:
    replicas = [SharedQuotas(asking(keeper), replica=str(number)) for number in range(2)]

    async def work() -> None:
        limited = caller(concurrent_requests=2, requests_per_min=10)
        async with AsyncExitStack() as stack:
            for quotas in replicas:
                await stack.enter_async_context(quotas.admitted(limited))
            for quotas in replicas:
                with pytest.raises(QuotaError, match="concurrent_requests=2"):
                    await stack.enter_async_context(quotas.admitted(limited))
        for _ in range(8):  # ten in a minute, two are used
            async with replicas[0].admitted(limited):
                pass
        with pytest.raises(QuotaError, match="requests_per_min=10"):
            async with replicas[1].admitted(limited):
                pass

    run(work())


def test_requests_of_a_lost_replica_are_given_back_and_those_of_a_quiet_one_are_not(
    keeper: QuotaKeeper, now_s: list[float]
) -> None:
    quota = caller(concurrent_requests=2).quota.model_dump()
    assert keeper.begin("lost", "a", quota) is None
    assert keeper.begin("quiet", "a", quota) is None
    assert keeper.begin("third", "a", quota) is not None
    now_s[0] += LOST_S - 1
    keeper.renew("quiet")
    now_s[0] += 2
    assert keeper.begin("third", "a", quota) is None
    assert keeper.begin("third", "a", quota) is not None
    keeper.end("lost", "a")  # it was not lost after all: its request was given back already
    assert keeper.begin("third", "a", quota) is not None


def test_a_request_that_is_cancelled_is_given_back(keeper: QuotaKeeper) -> None:
    quotas = SharedQuotas(asking(keeper), replica="r")

    async def work() -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with quotas.admitted(caller(concurrent_requests=1)):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with quotas.admitted(caller(concurrent_requests=1)):
            pass

    run(work())


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_without_the_keeper_a_replica_counts_for_itself_and_loses_no_request(how: str) -> None:
    async def ask(method: str, *args: Any) -> Any:
        if how == "hangs":
            await asyncio.Event().wait()
        raise ConnectionError("no actor")

    quotas = SharedQuotas(ask, replica="r", answer_s=0.01)

    async def work() -> None:
        limited = caller(tokens_per_min=100, concurrent_requests=1)
        await quotas.charge_tokens(limited, 100)
        with pytest.raises(QuotaError, match="tokens_per_min=100"):
            await quotas.charge_tokens(limited, 1)
        async with quotas.admitted(limited):
            with pytest.raises(QuotaError, match="concurrent_requests=1"):
                async with quotas.admitted(limited):
                    pass

    run(work())


def test_a_key_without_bounds_asks_nothing() -> None:
    async def ask(method: str, *args: Any) -> Any:
        raise AssertionError(method)

    quotas = SharedQuotas(ask, replica="r")

    async def work() -> None:
        async with quotas.admitted(caller()):
            await quotas.charge_tokens(caller(), 10**9)
            await quotas.charge_bytes(caller(), 10**9)

    run(work())
