"""Several target services over one folder of stored states: any of them serves any handle, also after one is gone."""

from pathlib import Path
from threading import Barrier, Thread

import httpx
import msgpack
from fastapi import FastAPI

from kit.serve import SMALL_LIMITS, running
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.engine import TorchEngine
from tauscope_target.settings import TargetSettings
from tauscope_target.spill import SpillDirectory

BODY = {"token_ids": [5, 6, 7, 8], "layers": [1, 2], "dtype": "float32", "return": "handle"}


def replica(engine: TorchEngine, folder: Path) -> FastAPI:
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS), store_bytes=1 << 20, spill_dir=folder)
    return create_app(engine, None, settings)


def test_a_handle_of_one_replica_is_served_found_and_forgotten_by_the_other(
    target_engine: TorchEngine, tmp_path: Path
) -> None:
    with running(replica(target_engine, tmp_path)) as first, running(replica(target_engine, tmp_path)) as second:
        made = httpx.post(f"{first}/hidden_states", json=BODY).json()
        again = httpx.post(f"{second}/hidden_states", json=BODY).json()
        assert again["handle"] == made["handle"]
        assert again["cached"] is True
        path = f"/hidden_states/{made['handle']}"
        bodies = [msgpack.unpackb(httpx.get(url + path).content) for url in (first, second)]
        assert bodies[0]["chunks"] == bodies[1]["chunks"]
        assert httpx.delete(second + path).status_code == 204
        assert [httpx.get(url + path).status_code for url in (first, second)] == [410, 410]


def test_handles_outlive_the_replica_that_made_them(target_engine: TorchEngine, tmp_path: Path) -> None:
    with running(replica(target_engine, tmp_path)) as survivor:
        with running(replica(target_engine, tmp_path)) as lost:
            handle = httpx.post(f"{lost}/hidden_states", json=BODY).json()["handle"]
        assert httpx.get(f"{survivor}/hidden_states/{handle}").status_code == 200


def test_replicas_that_start_at_the_same_moment_agree_on_the_secret(tmp_path: Path) -> None:
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        together, secrets = Barrier(2), []

        def start(folder: Path = folder, together: Barrier = together, secrets: list[bytes] = secrets) -> None:
            together.wait()
            secrets.append(SpillDirectory(folder, max_bytes=1, ttl_s=1).secret)

        threads = [Thread(target=start) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(secrets) == 2
        assert len(set(secrets)) == 1


def test_a_replica_that_starts_while_another_writes_costs_no_handle(target_engine: TorchEngine, tmp_path: Path) -> None:
    with running(replica(target_engine, tmp_path)) as url:
        for number in range(10):
            starting = Thread(target=SpillDirectory, args=(tmp_path,), kwargs={"max_bytes": 1 << 30, "ttl_s": 1e6})
            starting.start()
            answer = httpx.post(f"{url}/hidden_states", json=BODY | {"token_ids": [5, 6, 7, 8 + number]})
            starting.join()
            assert answer.status_code == 200, answer.text
