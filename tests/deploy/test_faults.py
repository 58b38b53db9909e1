"""Both services as processes under faults and mixed load: what was acknowledged is kept, what failed is repeated."""

import contextlib
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from fastapi import FastAPI

from kit.engine import random_ids
from kit.programs import Program
from kit.serve import SMALL_LIMITS, running
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.engine import TorchEngine
from tauscope_target.settings import TargetSettings

pytestmark = pytest.mark.soak

MODELS = Path(__file__).parents[2] / "deploy" / "demo" / "models"
LOAD_S = 60.0
FLAT_BYTES = 48 << 20
"""Resident growth that allocators explain; a kept answer or body for each request would be hundreds of megabytes."""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Program]:
    arguments = ["--model", f"{MODELS}/target", "--allow-reference-kernels", "--spill-dir", f"{tmp_path}/states"]
    program = Program("tauscope-target", [*arguments, "--store-memory", "4MiB"])
    program.start()
    yield program
    program.stop()


@pytest.fixture
def drafter(target: Program) -> Iterator[Program]:
    arguments = ["--target-url", target.url, "--target-model", f"{MODELS}/target", "--drafter", f"a={MODELS}/drafter-a"]
    program = Program("tauscope-drafter", arguments)
    program.start()
    yield program
    program.stop()


def hidden_body(number: int, **fields: Any) -> dict[str, Any]:
    ids = random_ids(40 + number % 30, seed=number).tolist()
    return {"token_ids": ids, "layers": [1, 3, 5], "dtype": "float32"} | fields


def states(answer: httpx.Response) -> "np.ndarray[Any, np.dtype[np.float32]]":
    chunks = msgpack.unpackb(answer.content)["chunks"]
    return np.frombuffer(b"".join(plane for chunk in chunks for plane in chunk["data"]), "<f4")


def test_handles_acknowledged_before_a_kill_are_served_with_the_same_bits_after_it(
    target: Program, tmp_path: Path
) -> None:
    kept: dict[int, tuple[str, str]] = {}
    failed: list[int] = []
    enough = threading.Event()

    def load(worker: int) -> None:
        for number in range(worker, 10_000, 3):
            try:
                answer = httpx.post(
                    f"{target.url}/hidden_states", json=hidden_body(number, **{"return": "handle"}), timeout=60
                )
            except httpx.TransportError:
                failed.append(number)
                return
            receipt = answer.json()
            kept[number] = receipt["handle"], receipt["digest"]
            if len(kept) >= 30:
                enough.set()

    workers = [threading.Thread(target=load, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    assert enough.wait(300)
    target.kill()
    for worker in workers:
        worker.join()
    assert len(failed) == 3  # each worker's request in flight failed by itself; none hung
    target.start()
    assert not list((tmp_path / "states").glob(".*.tmp"))
    for number, (handle, digest) in kept.items():
        again = httpx.post(f"{target.url}/hidden_states", json=hidden_body(number, **{"return": "handle"}), timeout=60)
        assert (again.json()["handle"], again.json()["digest"], again.json()["cached"]) == (handle, digest, True)
    for number in failed:
        assert httpx.post(f"{target.url}/hidden_states", json=hidden_body(number), timeout=60).status_code == 200
    print(f"kill -9 under load: {len(kept)} handles kept of {len(kept)}, {len(failed)} requests in flight repeated")


def test_drafts_after_a_kill_of_either_service_are_those_of_before(target: Program, drafter: Program) -> None:
    taps = httpx.get(f"{drafter.url}/drafters").json()["drafters"][0]["taps"]
    ids = random_ids(60, seed=1).tolist()
    body = {"token_ids": ids, "layers": taps, "return": "handle", "dtype": "float32"}

    def drafts() -> list[Any]:
        handle = httpx.post(f"{target.url}/hidden_states", json=body, timeout=60).json()["handle"]
        asked = {"drafter": "a", "hidden": {"handle": handle}, "token_ids": ids, "response_start": 20, "top_k": 4}
        answer = msgpack.unpackb(httpx.post(f"{drafter.url}/draft_block", json=asked, timeout=60).content)
        return [answer[name] for name in ("anchors", "token_ids", "top_ids", "top_logprobs")]

    before = drafts()
    target.kill()
    gone = httpx.post(
        f"{drafter.url}/draft_block",
        json={"drafter": "a", "hidden": {"handle": "0" * 48}, "token_ids": ids, "response_start": 20},
        timeout=60,
    )
    assert (gone.status_code, gone.json()["error"]["code"]) == (502, "unreachable")
    target.start()
    assert drafts() == before
    drafter.kill()
    drafter.start()
    assert drafts() == before


def slow_reader(url: str, handle: str) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(f"GET /hidden_states/{handle} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        for _ in range(5):
            raw.recv(200)


def vanish(url: str, number: int) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")
    body = b'{"token_ids": [5, 6, 7], "layers": [5]}'
    heads = (b"", b"POST /hid", b"POST /hidden_states HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(heads[number % 3] + (body if number % 6 == 2 else b""))


def test_mixed_load_with_callers_that_misbehave_leaves_memory_flat_and_answers_right(
    target: Program, drafter: Program
) -> None:
    taps = httpx.get(f"{drafter.url}/drafters").json()["drafters"][0]["taps"]
    expected = {n: states(httpx.post(f"{target.url}/hidden_states", json=hidden_body(n), timeout=60)) for n in range(8)}
    counts = {"right": 0, "drafts": 0, "refused": 0, "vanished": 0, "slow": 0}
    stop = threading.Event()
    problems: list[str] = []

    def repeat(act: Callable[[random.Random], str], seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            try:
                counts[act(rng)] += 1
            except Exception as error:  # anything is a finding
                problems.append(f"{act.__name__}: {error!r}")
                return

    def good(rng: random.Random) -> str:
        number = rng.randrange(8)
        choice = rng.choice(("inline", "both"))
        answer = httpx.post(f"{target.url}/hidden_states", json=hidden_body(number, **{"return": choice}), timeout=120)
        assert answer.status_code == 200, answer.text
        # another company in the pass, another order of sums: a few units in the last place of float32
        assert np.allclose(states(answer), expected[number], rtol=1e-4, atol=1e-4)
        return "right"

    def draft(rng: random.Random) -> str:
        ids = random_ids(50, seed=rng.randrange(20)).tolist()
        made = httpx.post(
            f"{target.url}/hidden_states", json={"token_ids": ids, "layers": taps, "return": "handle"}, timeout=120
        )
        asked = {"drafter": "a", "hidden": {"handle": made.json()["handle"]}, "token_ids": ids, "response_start": 30}
        answer = httpx.post(f"{drafter.url}/draft_block", json=asked, timeout=120)
        assert answer.status_code == 200, answer.text
        return "drafts"

    def bad(rng: random.Random) -> str:
        content = rng.choice(
            (b"{", b"[" * 5000, b'{"token_ids": [1e9]}', b'{"token_ids": [5], "layers": [99]}', rng.randbytes(200))
        )
        assert 400 <= httpx.post(f"{target.url}/hidden_states", content=content, timeout=120).status_code < 500
        return "refused"

    def leave(rng: random.Random) -> str:
        vanish(target.url, rng.randrange(6))
        return "vanished"

    def slow(rng: random.Random) -> str:
        made = httpx.post(
            f"{target.url}/hidden_states", json=hidden_body(rng.randrange(8), **{"return": "handle"}), timeout=120
        )
        slow_reader(target.url, made.json()["handle"])
        return "slow"

    workers = [
        threading.Thread(target=repeat, args=(act, seed))
        for seed, act in enumerate((good, good, draft, bad, leave, slow))
    ]
    for worker in workers:
        worker.start()
    stop.wait(LOAD_S / 3)  # caches and allocators reach their level
    before = [program.resident_bytes() for program in (target, drafter)]
    stop.wait(2 * LOAD_S / 3)
    stop.set()
    for worker in workers:
        worker.join()
    after = [program.resident_bytes() for program in (target, drafter)]
    assert not problems
    assert min(counts.values()) > 5
    for url in (target.url, drafter.url):
        assert httpx.get(f"{url}/readyz").status_code == 200
    text = httpx.get(f"{target.url}/metrics").text
    assert re.search(r'tauscope_target_rejected_total\{code="internal"\}', text) is None
    grown = [b - a for a, b in zip(before, after, strict=True)]
    print(
        f"mixed load for {LOAD_S:.0f} s: {counts}; resident memory grew by {[round(g / 2**20, 1) for g in grown]} MiB"
    )
    assert max(grown) < FLAT_BYTES


class FailingEngine:
    """A real engine whose device can be lost."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def execute(self, jobs: Sequence[Any]) -> Sequence[Any]:
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self._engine.execute(jobs)


def test_a_lost_device_fails_its_own_requests_makes_the_service_not_ready_and_can_come_back(
    target_engine: TorchEngine,
) -> None:
    engine = FailingEngine(target_engine)
    app: FastAPI = create_app(engine, None, TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS)))  # type: ignore[arg-type]
    body = {"token_ids": [5, 6, 7], "layers": [1]}
    with running(app) as url:
        engine.is_lost = True
        for _ in range(3):
            answer = httpx.post(f"{url}/hidden_states", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
            assert "CUDA" not in answer.text
        ready = httpx.get(f"{url}/readyz")
        assert ready.status_code == 503
        assert "passes failed" in ready.json()["reasons"][0]
        engine.is_lost = False
        assert httpx.post(f"{url}/hidden_states", json=body).status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=False)


def test_a_full_disk_refuses_handles_with_a_reason_and_goes_on_answering_inline(
    target_engine: TorchEngine, small_disk: Path
) -> None:
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS), spill_dir=small_disk / "states")
    with running(create_app(target_engine, None, settings)) as url:
        refused = None
        for number in range(40):
            body = {"token_ids": random_ids(100, seed=number).tolist(), "layers": [1, 2, 3], "return": "handle"}
            answer = httpx.post(f"{url}/hidden_states", json=body)
            if answer.status_code != 200:
                refused = answer
                break
        assert refused is not None
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_full")
        assert httpx.post(f"{url}/hidden_states", json=body | {"return": "inline"}).status_code == 200
        assert httpx.get(f"{url}/healthz").status_code == 200
        ready = httpx.get(f"{url}/readyz")
        assert ready.status_code == 503
        assert "No space left on device" in ready.json()["reasons"][0]
        assert not list((small_disk / "states").glob(".*.tmp"))
        for file in sorted((small_disk / "states").glob("*.safetensors")):
            with contextlib.suppress(OSError):
                file.unlink()
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert httpx.post(f"{url}/hidden_states", json=body).status_code == 200


def test_sigterm_in_the_middle_of_load_ends_the_process_soon_and_every_answer_was_whole(target: Program) -> None:
    whole: list[int] = []
    ended = threading.Event()

    def load(worker: int) -> None:
        for number in range(worker, 10_000, 2):
            try:
                answer = httpx.post(f"{target.url}/hidden_states", json=hidden_body(number), timeout=60)
            except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
                return  # refused: the listener is closed
            if answer.status_code == 503:
                return
            states(answer)
            whole.append(number)
            if len(whole) > 10:
                ended.set()

    workers = [threading.Thread(target=load, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    assert ended.wait(300)
    began = time.monotonic()
    target.stop()
    for worker in workers:
        worker.join()
    print(f"SIGTERM under load: {len(whole)} answers whole, ended after {time.monotonic() - began:.1f} s")


def read_to_the_end(raw: socket.socket) -> bytes:
    """The rest of an HTTP answer that ends with its connection."""
    pieces = []
    while piece := raw.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("how", ["evicted", "deleted"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_handle_that_goes_while_it_is_read_is_read_to_its_end(
    target_engine: TorchEngine, tmp_path: Path, how: str, place: str
) -> None:
    """The reader takes a little, the handle goes, the reader takes the rest: the same bytes as of a reader before."""
    body = {"token_ids": random_ids(2000, seed=1).tolist(), "layers": [0, 1, 2, 3], "dtype": "float32"}
    settings = TargetSettings(
        serving=ServingSettings(limits=SMALL_LIMITS),
        store_bytes=5 << 20 if place == "memory" else 1,
        spill_dir=tmp_path / "states" if place == "disk" else None,
        spill_bytes=5 << 20,
    )
    with running(create_app(target_engine, None, settings)) as url:
        handle = httpx.post(f"{url}/hidden_states", json=body | {"return": "handle"}, timeout=60).json()["handle"]
        path = f"/hidden_states/{handle}"
        whole = states(httpx.get(url + path, timeout=60))
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that most of the answer is still to be sent
            host, _, port = url.removeprefix("http://").rpartition(":")
            raw.connect((host, int(port)))
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            begun = raw.recv(1000)
            if how == "deleted":
                assert httpx.delete(url + path).status_code == 204
            for number in range(2, 6):
                more = body | {"token_ids": random_ids(2000, seed=number).tolist(), "return": "handle"}
                answer = httpx.post(f"{url}/hidden_states", json=more, timeout=60)
                # in memory what is read is held, and there may be no room for another beside it
                assert answer.status_code in (200, 503), answer.text
            head, _, rest = (begun + read_to_the_end(raw)).partition(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0]
        assert np.array_equal(states(httpx.Response(200, content=rest)), whole)
        for number in range(2, 6):
            more = body | {"token_ids": random_ids(2000, seed=number).tolist(), "return": "handle"}
            assert httpx.post(f"{url}/hidden_states", json=more, timeout=60).status_code == 200
        assert httpx.get(url + path).status_code == 410
