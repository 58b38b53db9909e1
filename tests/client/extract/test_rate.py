"""Throughput and the time left, on a clock that the test turns."""

import io

import pytest
from rich.console import Console

from tauscope_client.extract.display import PLAIN_PAUSE_S, TerminalMeter
from tauscope_client.extract.rate import Rate, duration, size


@pytest.fixture
def now_s():
    return [100.0]


@pytest.fixture
def rate(now_s):
    return Rate(num_samples=10, earlier_samples=6, num_tokens=4000, num_bytes=8_000_000, clock=lambda: now_s[0])


def test_the_rest_takes_as_long_a_token_as_this_run_took(rate, now_s):
    assert rate.remaining_s is None and "? left" in rate.line()
    now_s[0] += 10
    rate.add(1000, 2_000_000)
    assert rate.remaining_s == 30
    assert rate.line() == "7/10 samples, 2.0 MB of 8.0 MB, 200.0 kB/s, 100 tokens/s, 30 s left"


def test_numbers_for_people():
    assert [size(n) for n in (0, 999, 1000, 1.5e9, 13e12)] == ["0 B", "999 B", "1.0 kB", "1.5 GB", "13.00 TB"]
    assert [duration(s) for s in (0.2, 59.6, 200, 7500)] == ["0 s", "1 min 00 s", "3 min 20 s", "2 h 05 min"]


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(rate, now_s):
    out = io.StringIO()
    with TerminalMeter(lambda: now_s[0], Console(file=out, width=200)) as meter:
        meter.begin(rate)
        for _ in range(4):
            now_s[0] += PLAIN_PAUSE_S / 2
            rate.add(1000, 2_000_000)
            meter.moved(rate)
    lines = out.getvalue().splitlines()
    assert lines[0] == "extract: 6 of 10 samples were finished before"
    assert [line.split()[1] for line in lines[1:]] == ["7/10", "9/10", "10/10"]


def test_a_terminal_gets_one_bar(rate, now_s):
    out = io.StringIO()
    with TerminalMeter(lambda: now_s[0], Console(file=out, width=200, force_terminal=True)) as meter:
        meter.begin(rate)
        now_s[0] += 1
        rate.add(4000, 8_000_000)
        meter.moved(rate)
    assert "7/10 samples" in out.getvalue() and "0 s left" in out.getvalue()
