"""Streamed weights: the same bits as resident ones, from two slots. On the CPU the same code copies synchronously."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kit.engine import Checkpoint, Start, job, random_ids, results
from kit.models import tiny_hybrid
from tauscope_target.arena import REGION_ALIGNMENT, TENSOR_ALIGNMENT, ArenaLayout, HostArena
from tauscope_target.duty import Duty
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import HiddenJob, LogitsSpec
from tauscope_target.memory import BLOCK_VOCAB
from tauscope_target.modes import ModeRequest
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_target.streaming import StreamedHead


@pytest.fixture(scope="module")
def streamed(checkpoint: Checkpoint) -> Start:
    engines: dict[str, TorchEngine] = {}

    def start(kind: str) -> TorchEngine:
        if kind not in engines:
            settings = EngineSettings(
                checkpoint(kind), "cpu", allow_reference_kernels=True, mode=ModeRequest(weights="streamed")
            )
            engines[kind] = start_engine(settings)
        return engines[kind]

    return start


def mixed_jobs() -> list[HiddenJob]:
    return [
        job(random_ids(75, seed=1), (-1, 2, 5), final_norm=True, logits=LogitsSpec(3, next_token=True)),
        job(random_ids(20, seed=2), (0,), dtype="bfloat16"),
    ]


@pytest.mark.parametrize("kind", ["hybrid", "vision", "qwen3", "llama"])
@pytest.mark.parametrize("chunk", [33, 2048])
def test_streamed_equals_resident_bit_for_bit(start: Start, streamed: Start, kind: str, chunk: int) -> None:
    """qwen3 has a tied head, which is streamed as well."""
    found = []
    for engine in (start(kind), streamed(kind)):
        runner = engine.parts.runner
        before = runner.chunk_tokens
        runner.chunk_tokens = chunk
        try:
            found.append(results(engine, mixed_jobs()))
        finally:
            runner.chunk_tokens = before
    for resident, other in zip(*found, strict=True):
        np.testing.assert_array_equal(other.states, resident.states)
        if resident.logits is not None:
            assert other.logits is not None
            np.testing.assert_array_equal(other.logits.top_ids, resident.logits.top_ids)
            # the head is applied in other blocks of the vocabulary
            np.testing.assert_allclose(other.logits.top_logprobs, resident.logits.top_logprobs, atol=1e-5)


def test_passes_that_end_at_any_layer_leave_the_slots_right_for_the_next(start: Start, streamed: Start) -> None:
    ids = random_ids(11)
    for deepest in (0, 7, 1, 2, 2, -1, 5, 4, 7, 3):
        (expected,) = results(start("hybrid"), [job(ids, (deepest,))])
        (found,) = results(streamed("hybrid"), [job(ids, (deepest,))])
        np.testing.assert_array_equal(found.states, expected.states, err_msg=f"deepest layer {deepest}")


def test_weights_on_the_device_are_one_buffer(streamed: Start) -> None:
    layers = streamed("hybrid").parts.anatomy.layers
    storages = {p.untyped_storage().data_ptr() for step in layers for p in step.parameters()}
    assert len(storages) == 1


def test_weights_come_from_the_arena_and_not_from_what_the_slots_held(start: Start, streamed: Start) -> None:
    """A failed pass, or a slot that was overwritten, is repaired by the next: every layer is copied anew."""
    engine = streamed("llama")
    layer = engine.parts.anatomy.layers[3].layer

    def fail(module: torch.nn.Module, args: object) -> None:
        raise RuntimeError("planted")

    handle = layer.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="planted"):
        engine.execute([job(random_ids(9), (5,))])
    handle.remove()
    for step in (engine.parts.anatomy.layers[i] for i in (4, 5)):
        for parameter in step.parameters():
            parameter.data.fill_(float("nan"))
    ids = random_ids(9)
    (found,) = results(engine, [job(ids, (5,))])
    (expected,) = results(start("llama"), [job(ids, (5,))])
    np.testing.assert_array_equal(found.states, expected.states)


def test_the_mode_says_what_it_cannot_do(streamed: Start) -> None:
    facts = streamed("hybrid").facts
    assert facts.mode == "streamed"
    assert facts.numerics.weights_mode == "streamed"
    assert "no generation" in facts.mode_cannot
    tests = {test.name: test for test in facts.self_tests}
    assert tests["argmax_from_last_plane"].status == "not_run"
    assert tests["batch_against_single"].status == "passed"


def test_a_streamed_model_cut_off_at_its_deepest_layer_serves_the_rest(checkpoint: Checkpoint, start: Start) -> None:
    settings = EngineSettings(
        checkpoint("vision"),
        "cpu",
        allow_reference_kernels=True,
        deepest_layer=3,
        mode=ModeRequest(weights="streamed"),
    )
    ids = random_ids(9)
    (found,) = results(start_engine(settings), [job(ids, (0, 3))])
    (expected,) = results(start("vision"), [job(ids, (0, 3))])
    np.testing.assert_array_equal(found.states, expected.states)


def test_a_streamed_head_in_several_blocks_is_the_head() -> None:
    weight = torch.randn(20_000, 8)
    bias = torch.randn(20_000)
    head = StreamedHead(weight, bias, device=torch.device("cpu"))
    for _ in range(2):
        blocks = [(start, w.clone(), b) for start, w, b in head.blocks()]
        assert [start for start, _, _ in blocks] == list(range(0, 20_000, BLOCK_VOCAB["streamed"]))
        torch.testing.assert_close(torch.cat([w for _, w, _ in blocks]), weight, rtol=0, atol=0)
        torch.testing.assert_close(torch.cat([b for _, _, b in blocks if b is not None]), bias, rtol=0, atol=0)


def test_an_arena_is_one_piece_of_memory_with_aligned_tensors_that_do_not_overlap() -> None:
    layout = ArenaLayout()
    shapes = [("a", (3, 5), torch.bfloat16), ("b", (1,), torch.float32), ("c", (64, 64), torch.bfloat16)]
    for _ in range(3):
        layout.add(shapes)
    arena = HostArena(layout)
    assert layout.nbytes < 3 * (64 * 64 * 2 + 2 * TENSOR_ALIGNMENT + REGION_ALIGNMENT)
    views = [piece.view(arena.region(region)) for region in layout.regions for piece in region.slices.values()]
    assert all(region.start % REGION_ALIGNMENT == 0 for region in layout.regions)
    for number, view in enumerate(views):
        view.fill_(number)
    for number, view in enumerate(views):
        assert (view == number).all()


class Bed:
    """A clock that a layer and sleeping both advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_duty_of_a_fifth_pauses_four_times_as_long_as_it_works() -> None:
    bed = Bed()
    duty = Duty(0.2, sleep=bed.sleep, clock=lambda: bed.now)
    worked = 0.0
    for busy in (1.0, 3.0, 0.5):
        duty.begin()
        bed.now += busy
        worked += busy
        duty.end(torch.device("cpu"))
    assert worked / bed.now == pytest.approx(0.2)


def test_full_duty_never_sleeps() -> None:
    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    duty = Duty(1.0, sleep=refuse)
    duty.begin()
    duty.end(torch.device("cpu"))


def test_bfloat16_weights_stream_as_bfloat16(tmp_path: Path) -> None:
    folder = tiny_hybrid(tmp_path / "bf16", dtype=torch.bfloat16)
    engines = [
        start_engine(
            EngineSettings(
                folder,
                "cpu",
                compute_dtype="bfloat16",
                allow_reference_kernels=True,
                mode=ModeRequest(weights=weights),  # type: ignore[arg-type]
            )
        )
        for weights in ("cpu", "streamed")
    ]
    ids = random_ids(30)
    (resident,), (streamed,) = (results(e, [job(ids, (2, 7), dtype="bfloat16")]) for e in engines)
    np.testing.assert_array_equal(streamed.states.view(np.uint16), resident.states.view(np.uint16))
    assert engines[1].facts.numerics.weights_dtype == "bfloat16"
