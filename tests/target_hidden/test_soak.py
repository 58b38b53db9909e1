"""Load and fault tests of the target service: bounded, over real HTTP. Run with `make soak`."""

import gc
import http.client
import json
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from kit.engine import Start, job, random_ids, results
from kit.serve import SMALL_LIMITS, running
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import TargetSettings
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, TauscopeError
from tauscope_wire.messages import HiddenReceipt, HiddenRequest, TargetInfo
from tauscope_wire.reader import read_hidden

ABORTED = 1000
GROWTH_BYTES = 48 << 20
"""What caches of allocators and of connections may still add after the first hundred aborted requests."""

pytestmark = pytest.mark.soak


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def abort(url: str, body: bytes, *, read: int) -> None:
    """Send a request and leave: at once, or after `read` bytes of the answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request("POST", "/hidden_states", body, {"Content-Type": "application/json"})
        if read:
            connection.getresponse().read(read)
    finally:
        connection.close()


def test_a_thousand_aborted_requests_leave_memory_flat_and_the_service_well(start: Start) -> None:
    limits = SMALL_LIMITS.model_copy(update={"max_queued": 2000})
    settings = TargetSettings(serving=ServingSettings(limits=limits), store_bytes=8 << 20)
    with running(create_app(start("llama"), None, settings)) as url, Connection(url) as service:
        bodies = [
            json.dumps({"token_ids": random_ids(n, seed=n).tolist(), "layers": [0, 2, 5], "return": kind}).encode()
            for n in (10, 200, 700)
            for kind in ("inline", "both", "handle")
        ]

        def run(first: int, count: int) -> None:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda i: abort(url, bodies[i % 9], read=(i % 3) * 1000), range(first, first + count)))

        run(0, 100)
        before = resident_bytes()
        run(100, ABORTED - 100)
        answer = service.post_tensors(
            "/hidden_states", HiddenRequest(token_ids=random_ids(20).tolist(), layers=[5], dtype="float32"), read_hidden
        )
        assert resident_bytes() - before < GROWTH_BYTES
        (expected,) = results(start("llama"), [job(random_ids(20), (5,))])
        np.testing.assert_allclose(answer.states, expected.states, rtol=1e-4, atol=1e-4)
        store = service.get_json("/info", TargetInfo).store
        assert store["bytes"] <= store["max_bytes"]


def test_overload_is_refused_with_503_and_recovers(start: Start) -> None:
    limits = SMALL_LIMITS.model_copy(update={"max_queued": 2})
    settings = TargetSettings(serving=ServingSettings(limits=limits), pass_tokens=300)
    with running(create_app(start("hybrid"), None, settings)) as url, Connection(url) as service:

        def ask(n: int) -> str:
            request = HiddenRequest(token_ids=random_ids(300, seed=n).tolist(), layers=[7], return_="handle")
            try:
                return service.post_json("/hidden_states", request, HiddenReceipt).handle
            except TauscopeError as error:
                return error.code

        with ThreadPoolExecutor(24) as pool:
            outcomes = list(pool.map(ask, range(48)))
        refused = [outcome for outcome in outcomes if outcome == ErrorCode.QUEUE_FULL]
        assert refused
        assert len({outcome for outcome in outcomes if len(outcome) == 48}) == len(outcomes) - len(refused)
        assert len(ask(1000)) == 48
