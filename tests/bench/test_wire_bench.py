"""How fast a tensor answer arrives, as a share of what `http.client` does with the same bytes and no checks."""

import functools
import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from pydantic import BaseModel

from bench.wire_server import HIDDEN, PLANES, POSITIONS, resident_bytes
from tauscope_wire.connection import Connection
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.messages import HiddenRequest
from tauscope_wire.reader import read_hidden
from tauscope_wire.tensors import HiddenAnswer

ROUNDS = 15
PAYLOAD_BYTES = PLANES * POSITIONS * HIDDEN * 2
MIB = 1 << 20
REQUEST = HiddenRequest(token_ids=list(range(POSITIONS)), layers=[1, 16, 31, 46, 61])
EXPECT = HiddenExpectation.of_request(REQUEST)


class Memory(BaseModel):
    """Resident bytes of the server: now, and at their peak since the last question."""

    now: int
    peak: int


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    script = Path(__file__).with_name("wire_server.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.terminate()


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Plain:
    """The same bytes over `http.client`, kept connection, into one buffer, 1 MiB at a time."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.buffer = bytearray()

    def __call__(self) -> None:
        self._connection.request("GET", "/static")
        answer = self._connection.getresponse()
        length = int(answer.headers["Content-Length"])
        if len(self.buffer) != length:
            self.buffer = bytearray(length)
        view, done = memoryview(self.buffer), 0
        while got := answer.readinto(view[done : done + MIB]):
            done += got
        assert done == length

    def close(self) -> None:
        self._connection.close()


@pytest.mark.bench
def test_tensor_answer_against_plain_bytes(port: int) -> None:
    out = np.zeros((PLANES, POSITIONS, HIDDEN), dtype=ml_dtypes.bfloat16)
    plain = Plain(port)
    with Connection(f"http://127.0.0.1:{port}") as connection:

        def inline(out: np.ndarray | None = None) -> HiddenAnswer:
            return connection.post_tensors(
                "/hidden_states", REQUEST, functools.partial(read_hidden, expect=EXPECT, out=out)
            )

        actions: dict[str, Callable[[], object]] = {
            "http.client, static route, no checks": plain,
            "Connection + read_hidden, into a given array": lambda: inline(out),
            "the same with a digest to verify": lambda: connection.get_tensors(
                "/hidden_states/h", None, functools.partial(read_hidden, out=out)
            ),
            "into an array of its own (fresh pages)": inline,
        }
        for action in actions.values():
            action()
        # in turns, so that all meet the same neighbours on a shared machine
        times: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(ROUNDS):
            for name, action in actions.items():
                times[name].append(seconds(action))
        base, _ = resident_bytes()["now"], connection.get_json("/memory", Memory)
        answer = inline()
        client_peak, server = resident_bytes()["peak"] - base, connection.get_json("/memory", Memory)
    plain.close()
    reference = times["http.client, static route, no checks"]
    gb = PAYLOAD_BYTES / 1e9
    print(f"\n{gb * 1e3:.0f} MB on loopback, {ROUNDS} rounds; every checksum verified but in the first row")
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(reference, found, strict=True))
        best = min(reference) / min(found)
        print(
            f"{name:46s} median {gb / statistics.median(found):5.2f} GB/s, best {gb / min(found):5.2f}; "
            f"ratio {ratio:4.2f} (best by best {best:4.2f})"
        )
    print(
        f"peak memory: client payload + {(client_peak - PAYLOAD_BYTES) / MIB:.1f} MiB, "
        f"server (which holds the payload) + {(server.peak - server.now) / MIB:.1f} MiB"
    )
    # correctness, not speed: what was timed is what was sent
    assert answer.states is not None
    assert np.array_equal(answer.states.view(np.uint16), out.view(np.uint16))
