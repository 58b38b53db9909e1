"""Callers that leave: their work is not done, their answers are closed, and nothing of them stays in memory."""

import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kit.echo import Echo, body_of
from kit.serve import running

SUM = b'POST /sum HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n{"token_ids": [%d]}'
LARGE = 1 << 20


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def until(claim: str, echo: Echo, url: str) -> None:
    """Ask the service for something harmless until its state fits `claim`, as a caller from outside would."""
    for _ in range(10_000):
        httpx.get(f"{url}/healthz")
        if eval(claim, {"echo": echo, "state": echo.loop.state()}):
            return
    raise AssertionError(f"never true: {claim}")


def test_work_of_a_caller_that_left_does_not_reach_the_device() -> None:
    echo = Echo()
    echo.gate.clear()
    with running(echo.app) as url:
        with connect(url) as first, connect(url) as second:
            first.sendall(SUM % 1)
            assert echo.entered.wait(60)
            second.sendall(SUM % 2)
            until("state.queued == 1", echo, url)
        # both have closed their connections now; the second was still queued
        until("state.queued == 0", echo, url)
        echo.gate.set()
        assert httpx.post(f"{url}/sum", json={"token_ids": [3]}).json()["total"] == 3
    assert echo.executed == [[1], [3]]


def test_an_answer_to_a_caller_that_left_is_closed_and_its_place_is_free() -> None:
    echo = Echo()
    produced = 0

    def endless() -> Iterator[bytes]:
        nonlocal produced
        for _ in range(4096):
            produced += 1
            yield b"x" * LARGE

    echo.body = body_of(endless, 4096 * LARGE)
    with running(echo.app) as url:
        with connect(url) as raw:
            raw.sendall(b"GET /tensor HTTP/1.1\r\nHost: x\r\n\r\n")
            assert raw.recv(1000).startswith(b"HTTP/1.1 200")
        until("echo.closed == 1", echo, url)
    assert produced < 200  # MiB; what fits into buffers, not the 4 GiB of the whole answer


def test_an_answer_whose_data_fails_halfway_is_cut_so_that_nobody_takes_it_for_whole() -> None:
    echo = Echo()

    def failing() -> Iterator[bytes]:
        yield b"x" * LARGE
        raise ValueError("the pass failed")

    echo.body = body_of(failing, 2 * LARGE)
    with running(echo.app) as url:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{url}/tensor")
        assert httpx.get(f"{url}/healthz").status_code == 200
    assert echo.closed == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_thousand_aborted_requests_leave_memory_flat() -> None:
    echo = Echo(max_body_bytes=1 << 20)
    echo.body = body_of(lambda: iter([b"x" * LARGE] * 8), 8 * LARGE)
    body = b'{"token_ids": [1], "text": "' + b"x" * 50 + b'"' + b" " * 200_000
    half = b"POST /sum HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + body
    with running(echo.app) as url:

        def abort(count: int) -> None:
            for index in range(count):
                with connect(url) as raw:
                    raw.sendall((half, SUM % 5, b"GET /tensor HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /")[index % 4])
                    if index % 4 == 2:
                        raw.recv(100)
            until("state.queued == 0 and state.running == 0", echo, url)

        abort(300)  # allocators and caches reach their level
        before = resident_bytes()
        abort(1000)
        grown = resident_bytes() - before
        until("echo.metrics.in_flight._value.get() <= 1", echo, url)
    assert grown < 32 << 20  # a leak of only the half bodies would be 50 MB, of the answers 2 GB
