"""Metrics of the target service move by what requests do."""

import re
from pathlib import Path

import httpx

from kit.engine import Start, random_ids
from kit.serve import SMALL_LIMITS, running
from tauscope_serving.gpu_memory import GpuMemory
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.disk_room import has_room
from tauscope_target.settings import TargetSettings

IDS = random_ids(40).tolist()
ROOM_FOR_ONE = 6_000  # 40 x 64 x 2 bytes and ids


def values(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(tauscope_\S+) (\S+)$", text, re.MULTILINE)}


def ask(url: str, *, length: int = 40) -> None:
    body = {"token_ids": IDS[:length], "layers": [1], "return": "handle"}
    assert httpx.post(f"{url}/hidden_states", json=body).status_code == 200


def test_passes_are_counted_with_their_tokens_and_the_store_with_its_hits(start: Start) -> None:
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS), store_bytes=1 << 20)
    with running(create_app(start("hybrid"), None, settings)) as url:
        ask(url)
        ask(url)  # found in the store: no pass
        ask(url, length=20)
        found = values(url)
    assert found["tauscope_target_pass_tokens_count"] == found["tauscope_target_passes"] == 2
    assert found["tauscope_target_pass_tokens_sum"] == 60
    assert (found["tauscope_target_store_hits_total"], found["tauscope_target_store_misses_total"]) == (1, 2)
    for stage in ("queue", "pass", "store"):
        assert found[f'tauscope_target_stage_seconds_count{{stage="{stage}"}}'] == 2
    assert found["tauscope_target_gpu_memory_used_bytes"] == found["tauscope_target_gpu_memory_cap_bytes"] == 0


def test_an_evicted_handle_is_counted(start: Start) -> None:
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS), store_bytes=ROOM_FOR_ONE)
    with running(create_app(start("hybrid"), None, settings)) as url:
        ask(url)
        ask(url, length=39)
        assert values(url)["tauscope_target_store_evicted_total"] == 1


def test_memory_is_what_the_meter_says(start: Start) -> None:
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS))
    app = create_app(start("hybrid"), None, settings, gpu_memory=lambda: GpuMemory(7, 11))
    with running(app) as url:
        found = values(url)
    assert found["tauscope_target_gpu_memory_used_bytes"] == 7
    assert found["tauscope_target_gpu_memory_cap_bytes"] == 11


def test_a_folder_without_room_is_told_apart_from_one_with_room(tmp_path: Path) -> None:
    assert has_room(tmp_path, 1000)
    assert not has_room(tmp_path, 1 << 62)
    assert not has_room(tmp_path / "gone", 1)
    assert not list(tmp_path.iterdir())
