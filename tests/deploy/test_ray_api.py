"""Two Ray replicas with the bundled model pass the tests of one service: the very functions of `test_http`.

What the fixtures of that module start in this process are two replicas behind one address here. Quotas and scaling come
after them.
"""

import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from target_hidden import test_http
from target_hidden.conftest import reference, start
from target_hidden.test_http import LIMITS, SETTINGS, tokens
from tauscope_serving.keyfile import KeyQuota, add_key
from tauscope_wire.connection import Connection

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ray's own
    ray_cluster = pytest.importorskip("kit.ray_cluster", reason="needs ray[serve], in an environment of its own")

__all__ = ["reference", "start", "tokens"]

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]  # ray's own warnings are not ours to judge

PORT = 18_474
OF_ONE_PROCESS = {
    "test_the_same_request_again_costs_no_pass": "counts passes by /metrics, which is one replica's",
}
"""Tests of `test_http` that cannot be asked of several replicas, and why."""


def asks_a_service(test: Callable[..., None]) -> bool:
    return bool({"url", "service", "keyed"} & set(inspect.signature(test).parameters))


SAME = {name: test for name, test in vars(test_http).items() if name.startswith("test_") and asks_a_service(test)}
globals().update({name: test for name, test in SAME.items() if name not in OF_ONE_PROCESS})


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Path]:
    """In place of tiny models: the bundled one, whatever is asked for."""
    return lambda kind: ray_cluster.MODELS / "target"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    roles: dict[str, Any] = {"ann": ("read", "extract"), "ben": ("read", "extract"), "cleo": ("read",)}
    made = {name: add_key(file, name, roles=given) for name, given in roles.items()}
    quota = KeyQuota(requests_per_min=6, concurrent_requests=2)
    made["limited"] = add_key(file, "limited", roles=("read", "extract"), quota=quota)
    return file, made


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, dict[str, str]]) -> Iterator[str]:
    small = {"limits": LIMITS.model_dump(), "store_memory_bytes": SETTINGS.store_bytes}
    small["store_space_bytes"] = SETTINGS.store_bytes
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1, "upscale_delay_s": 1}
    with ray_cluster.serving(
        PORT,
        ray_cluster.target(tmp_path_factory.mktemp("states"), **small),
        ray_cluster.target(tmp_path_factory.mktemp("keyed"), **small | {"name": "keyed", "keys": str(keys[0])}),
        ray_cluster.target(tmp_path_factory.mktemp("scaled"), name="scaled", scaling=scaling),
    ) as found:
        yield found


@pytest.fixture(scope="module")
def url(address: str) -> str:
    return f"{address}/target"


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Connection]:
    with Connection(url) as connection:
        yield connection


@pytest.fixture
def keyed(address: str, keys: tuple[Path, dict[str, str]]) -> tuple[str, Callable[..., str]]:
    return f"{address}/keyed", keys[1].__getitem__


def test_the_list_of_what_is_left_out_is_of_tests_that_exist() -> None:
    assert set(OF_ONE_PROCESS) <= set(SAME)
    assert len(SAME) - len(OF_ONE_PROCESS) > 20


def test_the_quota_of_a_key_holds_over_both_replicas(keyed: tuple[str, Callable[..., str]]) -> None:
    url, key_of = keyed
    headers = {"Authorization": f"Bearer {key_of('limited')}"}
    began = time.monotonic()
    answers = [httpx.get(f"{url}/info", headers=headers, timeout=60) for _ in range(24)]
    refilled = (time.monotonic() - began) * 6 / 60
    passed = sum(answer.status_code == 200 for answer in answers)
    assert 6 <= passed <= 6 + refilled + 1 < 12, "each replica for itself would let 12 pass"
    refused = answers[-1]
    assert refused.status_code == 429
    assert refused.json()["error"]["details"] == {"limit": "requests_per_min", "bound": 6}
    assert int(refused.headers["retry-after"]) >= 1
    print(f"24 requests of a key with 6 a minute, over two replicas: {passed} passed")


def test_more_load_brings_another_replica(address: str) -> None:
    assert len(ray_cluster.replicas_of("scaled")) == 1
    bodies = [{"token_ids": [5 + n] * 250, "layers": [1, 3, 5], "dtype": "float32"} for n in range(8)]

    def ask(number: int) -> int:
        answer = httpx.post(f"{address}/scaled/hidden_states", json=bodies[number % 8], timeout=300)
        return answer.status_code

    def load() -> bool:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask, range(32))) == {200}
        return len(ray_cluster.replicas_of("scaled")) == 2

    ray_cluster.until(load)
