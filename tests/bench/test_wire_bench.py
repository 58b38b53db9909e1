"""How fast a tensor answer arrives, as a share of what `http.client` does with the same bytes and no checks.

Wall time on a shared machine says little; processor time of both sides is printed beside it.
"""

import functools
import http.client
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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


class Server(NamedTuple):
    """A running server."""

    port: int
    pid: int

    def processor_s(self) -> float:
        """Processor time of the server so far; in steps of 10 ms, so add up over rounds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    script = Path(__file__).with_name("wire_server.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()


@dataclass
class Timing:
    """Seconds of every round, and processor seconds of both sides."""

    wall: list[float] = field(default_factory=list)
    client: float = 0.0
    server: float = 0.0

    def add(self, action: Callable[[], object], server: Server) -> None:
        """Run and time one round."""
        wall, client, other = time.perf_counter(), time.process_time(), server.processor_s()
        action()
        self.wall.append(time.perf_counter() - wall)
        self.client += time.process_time() - client
        self.server += server.processor_s() - other


class Plain:
    """The same bytes over `http.client`, kept connection, 1 MiB at a time into one array (or a new one)."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._buffer = np.zeros(0, dtype=np.uint8)

    def __call__(self, *, fresh: bool = False) -> None:
        self._connection.request("GET", "/static")
        answer = self._connection.getresponse()
        length = int(answer.headers["Content-Length"])
        if fresh or len(self._buffer) != length:
            self._buffer = np.empty(length, dtype=np.uint8)
        view, done = memoryview(self._buffer), 0
        while got := answer.readinto(view[done : done + MIB]):
            done += got
        assert done == length

    def close(self) -> None:
        self._connection.close()


PLAIN = "http.client, static route, no checks"
PLAIN_FRESH = "http.client, into fresh pages"


@pytest.mark.bench
def test_tensor_answer_against_plain_bytes(server: Server) -> None:
    out = np.zeros((PLANES, POSITIONS, HIDDEN), dtype=ml_dtypes.bfloat16)
    plain = Plain(server.port)
    with Connection(f"http://127.0.0.1:{server.port}") as connection:

        def inline(out: np.ndarray | None = None) -> HiddenAnswer:
            read = functools.partial(read_hidden, expect=EXPECT, out=out)
            return connection.post_tensors("/hidden_states", REQUEST, read)

        def stored() -> HiddenAnswer:
            return connection.get_tensors("/hidden_states/h", None, functools.partial(read_hidden, out=out))

        # what is timed, and what it is compared with
        actions: dict[str, tuple[Callable[[], object], str]] = {
            PLAIN: (plain, PLAIN),
            "Connection + read_hidden, checksums verified": (lambda: inline(out), PLAIN),
            "the same with a digest over all to verify": (stored, PLAIN),
            PLAIN_FRESH: (lambda: plain(fresh=True), PLAIN_FRESH),
            "Connection + read_hidden, into fresh pages": (inline, PLAIN_FRESH),
        }
        for action, _ in actions.values():
            action()
        # in turns, so that all meet the same neighbours on a shared machine
        timings = {name: Timing() for name in actions}
        for _ in range(ROUNDS):
            for name, (action, _) in actions.items():
                timings[name].add(action, server)
        base, _ = resident_bytes()["now"], connection.get_json("/memory", Memory)
        answer = inline()
        client_peak, memory = resident_bytes()["peak"] - base, connection.get_json("/memory", Memory)
    plain.close()
    gb = PAYLOAD_BYTES / 1e9
    print(f"\n{gb * 1e3:.0f} MB on loopback, {ROUNDS} rounds; load average {os.getloadavg()[0]:.1f}")
    for name, (_, reference) in actions.items():
        found, other = timings[name], timings[reference]
        ratio = statistics.median(a / b for a, b in zip(other.wall, found.wall, strict=True))
        work = (other.client + other.server) / (found.client + found.server)
        print(
            f"{name:45s} median {gb / statistics.median(found.wall):5.2f} GB/s, best {gb / min(found.wall):5.2f}; "
            f"ratio {ratio:4.2f}; processor ms client {found.client / ROUNDS * 1e3:3.0f}, "
            f"server {found.server / ROUNDS * 1e3:3.0f}, ratio {work:4.2f}"
        )
    print(
        f"peak memory: client payload + {(client_peak - PAYLOAD_BYTES) / MIB:.1f} MiB, "
        f"server (which holds the payload) + {(memory.peak - memory.now) / MIB:.1f} MiB"
    )
    # correctness, not speed: what was timed is what was sent
    assert answer.states is not None
    assert np.array_equal(answer.states.view(np.uint16), out.view(np.uint16))
