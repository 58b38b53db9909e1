"""Streams and events of the ring and of residual streams in host memory: only a CUDA device can show a race."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from kit.engine import job, random_ids, results
from kit.models import GPU_FIELDS, tiny_hybrid
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.duty import Duty
from tauscope_target.engine import TorchEngine
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.memory import ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS, Budget, RingShape
from tauscope_target.modes import ModeDecision, build
from tauscope_wire.errors import UnavailableError

pytestmark = pytest.mark.gpu

FIELDS = {**GPU_FIELDS, "hidden_size": 1024, "intermediate_size": 4096}
ROUNDS = 5
"""A race would not show every time."""
Make = Callable[[RingShape | None], TorchEngine]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A streamed engine by ring; None: resident."""
    folder: Path = tiny_hybrid(tmp_path_factory.mktemp("ring") / "hybrid", dtype=torch.bfloat16, **FIELDS)
    plan = LoadingPlan(torch.bfloat16, torch.device("cuda", 0))

    def built(ring: RingShape | None) -> TorchEngine:
        decision = ModeDecision(
            "resident" if ring is None else "streamed", Budget(8192, 2048, None, 0, ring=ring or WHOLE_LAYERS), ""
        )
        opened = open_checkpoint(folder)
        return TorchEngine(build(lambda p: load(opened, p), decision, plan=plan, duty=Duty(1.0)))

    return cache(built)


@pytest.mark.parametrize("ring", [ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS])
@pytest.mark.parametrize("chunk", [8192, 512])
@pytest.mark.parametrize("on_host", [False, True])
def test_every_ring_gives_the_bits_of_resident_layers(make: Make, ring: RingShape, chunk: int, on_host: bool) -> None:
    wanted = [job(random_ids(n, seed=n), (-1, 0, 3, 6, 7), dtype="bfloat16") for n in (1500, 2000)]
    resident, streamed = make(None), make(ring)
    resident.parts.runner.adopt(Budget(8192, chunk, None, 0))
    expected = results(resident, wanted)
    streamed.parts.runner.adopt(Budget(8192, chunk, None, 0, device_tokens=1 if on_host else None))
    for _ in range(ROUNDS):
        for ours, theirs in zip(results(streamed, wanted), expected, strict=True):
            np.testing.assert_array_equal(ours.states.view(np.uint16), theirs.states.view(np.uint16))
    assert streamed.parts.runner._runs._halves.has(0)
    assert streamed.parts.runner._runs._halves.has(3)


def test_a_resident_model_with_its_residual_stream_in_host_memory_gives_the_same_bits(make: Make) -> None:
    wanted = [job(random_ids(5000), (-1, 0, 3, 7), dtype="bfloat16")]
    runner = make(None).parts.runner
    runner.adopt(Budget(8192, 512, None, 0))
    (expected,) = results(make(None), wanted)
    runner.adopt(Budget(8192, 512, None, 0, device_tokens=1))
    for _ in range(ROUNDS):
        (found,) = results(make(None), wanted)
        np.testing.assert_array_equal(found.states.view(np.uint16), expected.states.view(np.uint16))


def test_a_longer_prompt_takes_little_more_of_the_device(make: Make) -> None:
    engine = make(ONE_LAYER)
    engine.parts.runner.adopt(Budget(8192, 512, None, 0, device_tokens=1))
    peaks = []
    for length in (4096, 16_384):
        torch.cuda.reset_peak_memory_stats()
        results(engine, [job(random_ids(length), (7,), start=length - 1, dtype="bfloat16")])
        peaks.append(torch.cuda.max_memory_allocated())
    keys_and_values, tables, residual = 2 * 2 * 64 * 2, 1000, 1024 * 2
    assert keys_and_values + tables < residual  # so that a residual stream on the device would show
    assert peaks[1] - peaks[0] <= (16_384 - 4096) * (keys_and_values + tables)


def test_cells_that_are_refused_their_memory_are_taken_when_there_is_some(make: Make) -> None:
    """After a long prompt the spare cell is asked for again; refused by the cap, the pass fails, not the engine."""
    engine, device = make(SPARE_MATRIX), torch.device("cuda", 0)
    wanted = [job(random_ids(3000), (0, 7), dtype="bfloat16")]
    resident = make(None)
    resident.parts.runner.adopt(Budget(8192, 512, None, 0))
    (expected,) = results(resident, wanted)
    engine.parts.runner.adopt(Budget(8192, 512, None, 0, device_tokens=1))
    results(engine, wanted)
    engine.parts.runner.adopt(Budget(8192, 512, None, 0))
    torch.cuda.empty_cache()
    taken = torch.cuda.memory_reserved(device)
    weights = engine.parts.runner._weights
    torch.cuda.set_per_process_memory_fraction(
        (taken - weights.buffer_bytes) / torch.cuda.mem_get_info(device)[1], device
    )
    try:
        (refused,) = engine.execute(wanted)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert isinstance(refused, UnavailableError)
    (found,) = results(engine, wanted)
    np.testing.assert_array_equal(found.states.view(np.uint16), expected.states.view(np.uint16))
