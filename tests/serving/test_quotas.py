"""Quotas per key: each limit by itself with a clock of its own, and over HTTP with Retry-After."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kit.echo import Echo, body_of
from kit.serve import running
from tauscope_serving.keyfile import KeyQuota, add_key
from tauscope_serving.keys import Keyring, Principal
from tauscope_serving.quotas import QuotaMeter
from tauscope_serving.service import Access
from tauscope_wire.errors import QuotaError

LARGE = 32 << 10
"""Bytes that a body sends at once; smaller pieces are joined."""


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def caller(name: str = "a", **bounds: int) -> Principal:
    return Principal(name=name, roles=("read",), handle_secret="00", quota=KeyQuota(**bounds))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> QuotaMeter:
    return QuotaMeter(clock=clock)


def refusal(error: QuotaError) -> tuple[str, int, float]:
    return error.details["limit"], error.details["bound"], error.retry_after_s


def test_requests_refill_over_a_minute(meter: QuotaMeter, clock: Clock) -> None:
    a = caller(requests_per_min=6)
    for _ in range(6):
        with meter.admitted(a):
            pass
    with pytest.raises(QuotaError) as caught, meter.admitted(a):
        pass
    assert refusal(caught.value) == ("requests_per_min", 6, 10)
    clock.now += 10
    with meter.admitted(a):
        pass
    with pytest.raises(QuotaError), meter.admitted(a):
        pass
    clock.now += 1e6  # a long pause fills the bucket, not more
    for _ in range(6):
        with meter.admitted(a):
            pass
    with pytest.raises(QuotaError), meter.admitted(a):
        pass


@pytest.mark.parametrize("limit", ["tokens_per_min", "bytes_per_min"])
def test_tokens_and_bytes_are_charged_and_refill(meter: QuotaMeter, clock: Clock, limit: str) -> None:
    charge = meter.charge_tokens if limit == "tokens_per_min" else meter.charge_bytes
    a = caller(**{limit: 600})
    charge(a, 500)
    with pytest.raises(QuotaError) as caught:
        charge(a, 200)
    assert refusal(caught.value) == (limit, 600, 10)
    assert f"quota {limit}=600 of key 'a' is used up; try again in 10 s" in str(caught.value)
    charge(a, 100)  # a refusal takes nothing
    clock.now += 10
    charge(a, 100)


def test_one_charge_larger_than_the_quota_passes_on_a_full_bucket_and_is_paid_back(
    meter: QuotaMeter, clock: Clock
) -> None:
    a = caller(tokens_per_min=60)
    meter.charge_tokens(a, 180)
    with pytest.raises(QuotaError) as caught:
        meter.charge_tokens(a, 1)
    assert caught.value.retry_after_s == 121  # 120 tokens of debt and one
    clock.now += 121
    meter.charge_tokens(a, 1)


def test_requests_at_a_time_are_counted_also_when_they_fail(meter: QuotaMeter) -> None:
    a = caller(concurrent_requests=2)
    with meter.admitted(a):
        with pytest.raises(KeyError), meter.admitted(a):
            with pytest.raises(QuotaError) as caught, meter.admitted(a):
                pass
            raise KeyError
        with meter.admitted(a):
            pass
    assert refusal(caught.value)[:2] == ("concurrent_requests", 2)


def test_a_request_refused_for_its_company_costs_nothing(meter: QuotaMeter) -> None:
    a = caller(concurrent_requests=1, requests_per_min=2)
    with meter.admitted(a):
        for _ in range(5):
            with pytest.raises(QuotaError), meter.admitted(a):
                pass
    with meter.admitted(a):
        pass


def test_keys_do_not_share_quotas_and_without_bounds_nothing_is_counted(meter: QuotaMeter) -> None:
    meter.charge_tokens(caller("a", tokens_per_min=5), 5)
    meter.charge_tokens(caller("b", tokens_per_min=5), 5)
    meter.charge_tokens(caller("c"), 10**12)


def test_a_quota_changed_in_the_keys_file_counts_from_then_on(meter: QuotaMeter) -> None:
    meter.charge_tokens(caller(tokens_per_min=1000), 10)
    with pytest.raises(QuotaError):
        meter.charge_tokens(caller(tokens_per_min=5), 5) or meter.charge_tokens(caller(tokens_per_min=5), 1)


def test_a_clock_that_steps_back_takes_nothing_away(meter: QuotaMeter, clock: Clock) -> None:
    a = caller(tokens_per_min=60)
    meter.charge_tokens(a, 30)
    clock.now -= 3600
    meter.charge_tokens(a, 30)


def test_over_http_a_quota_answers_429_with_the_limit_and_when_to_come_back(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = {
        name: add_key(path, name, roles=("read",), quota=KeyQuota(**{name: bound}))
        for name, bound in (("requests_per_min", 2), ("tokens_per_min", 4), ("bytes_per_min", 10))
    }
    echo = Echo(access=Access(keyring=Keyring(path)), body=body_of(lambda: iter([b"x" * 10]), 10))
    with running(echo.app) as url, httpx.Client(base_url=url) as client:

        def call(name: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {keys[name]}"}
            if name == "bytes_per_min":
                return client.get("/tensor", headers=headers)
            return client.post("/sum", json={"token_ids": [1, 2]}, headers=headers)

        for name, allowed, wait_s in (("requests_per_min", 2, 30), ("tokens_per_min", 2, 30), ("bytes_per_min", 1, 60)):
            for _ in range(allowed):
                assert call(name).status_code == 200
            answer = call(name)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["details"]["limit"]) == (429, "quota_exceeded", name)
            assert wait_s - 5 <= int(answer.headers["retry-after"]) <= wait_s


def test_over_http_a_place_is_held_until_the_last_byte_of_the_answer_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "a", roles=("read",), quota=KeyQuota(concurrent_requests=1))
    echo = Echo(access=Access(keyring=Keyring(path)))

    def gated() -> Iterator[bytes]:
        yield b"a" * LARGE
        echo.gate.wait(60)
        yield b"b" * LARGE

    echo.body = body_of(gated, 2 * LARGE)
    echo.gate.clear()
    headers = {"Authorization": f"Bearer {key}"}
    with (
        running(echo.app) as url,
        httpx.Client(base_url=url, headers=headers) as client,
        client.stream("GET", "/tensor") as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces)
        refused = client.get("/tensor")
        assert (refused.status_code, refused.json()["error"]["details"]["limit"]) == (429, "concurrent_requests")
        echo.gate.set()
        assert b"".join(pieces).endswith(b"b" * LARGE)
    assert echo.closed == 1
