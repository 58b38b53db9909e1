"""Metrics of the drafter service move by what requests do."""

import re
from pathlib import Path

import httpx
import torch

from kit import drafters
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import DrafterService, create_app
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.states import StatesSource
from tauscope_serving.gpu_memory import GpuMemory
from tauscope_wire.connection import Connection

STATES, IDS = drafters.random_sequence(30)
START = 12


def test_requests_anchors_and_time_are_counted_by_drafter_and_contexts_by_use(tmp_path: Path) -> None:
    engine = Engine(open_place(torch.device("cpu"), torch.float32, drafters.write_target(tmp_path / "target")))
    for seed, name in enumerate(("one", "two")):
        folder = tmp_path / name
        drafters.write_folder(folder, drafters.dflash_config(), drafters.dflash_tensors(seed=seed))
        engine.load(name, folder, LoadOptions(), roots=None)
    target = drafters.StatesServer(dict(zip(drafters.TAPS, STATES, strict=True)), IDS.tolist())
    with running(target.app()) as target_url, Connection(target_url) as upstream:
        service = DrafterService(
            engine=engine,
            states=StatesSource(upstream),
            limits=SMALL_LIMITS,
            version="0",
            gpu_memory=lambda: GpuMemory(7, 11),
        )
        with running(create_app(service)) as url:
            body = {"hidden": {"handle": "h"}, "token_ids": IDS.tolist(), "response_start": START, "top_k": 2}
            for name in ("one", "one", "two"):
                assert httpx.post(f"{url}/draft_block", json=body | {"drafter": name}).status_code == 200
            text = httpx.get(f"{url}/metrics").text
    found = {name: float(value) for name, value in re.findall(r"^tauscope_drafter_(\S+) (\S+)$", text, re.MULTILINE)}
    anchors = len(IDS) - 1 - START
    assert (found['drafts_total{drafter="one"}'], found['drafts_total{drafter="two"}']) == (2, 1)
    assert found['anchors_total{drafter="one"}'] == 2 * anchors
    spent = found['draft_seconds_total{drafter="one"}'] + found['draft_seconds_total{drafter="two"}']
    stages = [found[f'stage_seconds_sum{{stage="{stage}"}}'] for stage in ("fuse", "draft")]
    assert abs(spent - sum(stages)) < 1e-9 * max(1.0, spent)  # the same numbers added in another order
    assert (found["context_hits_total"], found["context_misses_total"]) == (1, 2)
    assert found["context_bytes"] > 0
    assert found["passes"] == 3
    assert (found["gpu_memory_used_bytes"], found["gpu_memory_cap_bytes"]) == (7, 11)
