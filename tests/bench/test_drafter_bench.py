"""All anchors at once against one at a time, on this CPU with the bundled pair. Prints a ratio, asserts no time."""

import json
import statistics
import time
from pathlib import Path

import pytest
import torch

from bench.drafter_loop import OneAnchorLoop, run_loop
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import BATCH_BYTES, MAX_BATCH_ANCHORS
from tauscope_drafter.loading import load, open_place

MODELS = Path(__file__).resolve().parents[2] / "deploy" / "demo" / "models"
ROUNDS, LENGTH, PROMPT, TOP_K = 5, 200, 60, 8


@pytest.mark.bench
def test_all_anchors_at_once_against_a_loop_with_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    place = open_place(torch.device("cpu"), torch.float32, MODELS / "target")
    drafter = load(MODELS / "drafter-a", LoadOptions(), place)
    network, spec = drafter.network, drafter.spec
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(len(spec.taps), LENGTH, spec.target_hidden_size, generator=generator)
    ids = torch.randint(4, spec.vocab_size, (LENGTH,), generator=generator)
    anchors = list(range(PROMPT, LENGTH - 1))
    assert place.embedding is not None
    assert place.head is not None
    weights = network._w  # type: ignore[attr-defined]
    loop = OneAnchorLoop(spec, weights, place.embedding.table, place.head.weight, capacity=LENGTH)
    step = min(BATCH_BYTES["cpu"] // network.anchor_bytes(LENGTH), MAX_BATCH_ANCHORS["cpu"])

    def together() -> torch.Tensor:
        context = network.fuse(states, ids)
        parts = [
            network.draft(context, anchors[i : i + step], ids, top_k=TOP_K).top_ids
            for i in range(0, len(anchors), step)
        ]
        return torch.cat(parts)

    def one_by_one() -> torch.Tensor:
        return run_loop(loop, states, ids.tolist(), anchors, TOP_K)

    seconds: dict[str, list[float]] = {"together": [], "one_by_one": []}
    with torch.inference_mode():
        assert float((together() == one_by_one()).float().mean()) > 0.999  # also warms both up
        for _ in range(ROUNDS):  # in turns, so that other load of the machine hits both
            for name, run in (("together", together), ("one_by_one", one_by_one)):
                started = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    report = {
        "anchors": len(anchors),
        "threads": torch.get_num_threads(),
        "together_s": round(medians["together"], 4),
        "one_by_one_s": round(medians["one_by_one"], 4),
        "ratio": round(medians["one_by_one"] / medians["together"], 2),
    }
    with capsys.disabled():
        print("\ndrafting all anchors:", json.dumps(report))
